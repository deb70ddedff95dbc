"""
Starts the workers, answers for them, ends them in order.

One worker is this process itself. Of several, each is a forked child with its own
SO_REUSEPORT socket; the parent only asks, adds up and waits. All share one probe
file, mapped before the fork, so that one attach covers them.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration

from server.control import ControlError, ControlServer, Link, make_pair
from server.counters import merge_reports
from server.exits import ExitStatus
from server.hub import Hub, describe
from server.settings import ServerSettings
from server.starting import StartError, describe_base, find_certificate, load_probes, open_sockets
from server.worker import Worker, make_configuration

# How often a parent looks whether enough connections have closed (--connections).
_LOOK_S: Final = 0.1
_FOREVER_S: Final = 3600.0
# What a worker that was told to end has left for it, after its last report.
_REAP_S: Final = 1.0
_REAP_LOOK_S: Final = 0.005
_STOPPING_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


def serve(settings: ServerSettings) -> ExitStatus:
    """
    Run a server until it is told to end.

    Raises:
        StartError: It cannot start.
    """
    _check_stats_path(settings.stats_path)
    certificate = find_certificate(settings)
    provider = load_probes(settings)
    sockets = open_sockets(settings)
    try:
        configuration = make_configuration(settings, certificate)
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}", ExitStatus.USAGE) from error
    base = describe_base(settings, certificate, provider, sockets[0].getsockname())
    if settings.worker_count == 1:
        report = _serve_alone(settings, sockets[0], configuration, base)
        status = ExitStatus.OK
    else:
        report, status = _serve_forked(settings, sockets, configuration, base)
    _write_report(settings, report)
    return status


def _listen(settings: ServerSettings, hub: Hub) -> ControlServer | None:
    if settings.control_path is None:
        return None
    try:
        control = ControlServer(settings.control_path, hub.answer)
    except ControlError as error:
        raise StartError(str(error)) from error
    control.start()
    return control


def _check_stats_path(path: Path | None) -> None:
    """
    Refuse a place for the counters before the run, not after it.
    """
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise StartError(
            f"--stats-file {path}: {path.parent} is not a folder that can be written to",
            ExitStatus.USAGE,
        )


def _announce(description: Mapping[str, Any]) -> None:
    print(json.dumps(description, separators=(",", ":")), flush=True)


def _write_report(settings: ServerSettings, report: Mapping[str, Any]) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if settings.has_stats:
        print(text, end="", flush=True)
    if settings.stats_path is None:
        return
    hidden = settings.stats_path.with_name(f".{settings.stats_path.name}.{os.getpid()}")
    try:
        hidden.write_text(text)
        hidden.replace(settings.stats_path)
    except OSError as error:
        raise StartError(f"--stats-file {settings.stats_path}: {error.strerror}") from error


# One worker ----------------------------------------------------------------------


def _serve_alone(
    settings: ServerSettings,
    sock: socket.socket,
    configuration: QuicConfiguration,
    base: Mapping[str, Any],
) -> dict[str, Any]:
    worker = Worker(settings, sock, index=0, configuration=configuration)
    worker.stop_on_signals()
    link, theirs = make_pair()
    worker.serve_mailbox(theirs, ends_with_it=False)
    control = _listen(settings, Hub(base, [link]))
    _announce(describe(base, [worker.describe()]))
    try:
        return merge_reports([worker.run()])
    finally:
        if control is not None:
            control.close()


# Several -------------------------------------------------------------------------


def _serve_forked(
    settings: ServerSettings,
    sockets: list[socket.socket],
    configuration: QuicConfiguration,
    base: Mapping[str, Any],
) -> tuple[dict[str, Any], ExitStatus]:
    awaited = _STOPPING_SIGNALS | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    links: list[Link] = []
    pids: list[int] = []
    for index, sock in enumerate(sockets):
        link, theirs = make_pair()
        pid = os.fork()
        if not pid:
            for other in (*links, link):
                other.close()
            for other_sock in sockets:
                if other_sock is not sock:
                    other_sock.close()
            _run_child(settings, sock, theirs, index=index, configuration=configuration)
        theirs.close()
        links.append(link)
        pids.append(pid)
    for sock in sockets:
        sock.close()
    hub = Hub(base, links)
    try:
        description = describe(base, hub.ask({"op": "describe"}))
    except ControlError as error:
        raise StartError(f"a worker did not start: {error}", ExitStatus.INTERNAL) from error
    control = _listen(settings, hub)
    _announce(description)
    try:
        return _supervise(settings, hub, pids)
    finally:
        if control is not None:
            control.close()


def _run_child(
    settings: ServerSettings,
    sock: socket.socket,
    mailbox: socket.socket,
    *,
    index: int,
    configuration: QuicConfiguration,
) -> None:
    """
    Be a worker; never returns.
    """
    status = ExitStatus.INTERNAL
    try:
        # A terminal's Ctrl-C reaches the whole group; the parent tells the workers.
        for number in _STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING_SIGNALS | {signal.SIGCHLD})
        worker = Worker(settings, sock, index=index, configuration=configuration)
        worker.serve_mailbox(mailbox, ends_with_it=True)
        report = worker.run()
        # Nobody is there to take it when the parent was killed.
        with contextlib.suppress(OSError):
            mailbox.sendall(json.dumps(report, separators=(",", ":")).encode() + b"\n")
        status = ExitStatus.OK
    except Exception as error:  # noqa: BLE001 - the parent's code must not run here
        print(f"server: worker {index}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _supervise(
    settings: ServerSettings, hub: Hub, pids: list[int]
) -> tuple[dict[str, Any], ExitStatus]:
    """
    Wait for a signal, for enough closed connections or for a worker's unexpected end.
    """
    awaited = _STOPPING_SIGNALS | {signal.SIGCHLD}
    limit = settings.connection_limit
    status = ExitStatus.OK
    while status is ExitStatus.OK:
        happened = signal.sigtimedwait(awaited, _LOOK_S if limit else _FOREVER_S)
        if happened is not None and happened.si_signo in _STOPPING_SIGNALS:
            break
        if happened is not None and happened.si_signo == signal.SIGCHLD:
            status = _find_dead(pids)
        elif limit and _count_closed(hub) >= limit:
            break
    reports = hub.stop()
    stuck = [pid for pid in pids if not _reap(pid)]
    if stuck:
        status = ExitStatus.INTERNAL
    return merge_reports([dict(report) for report in reports]), status


def _reap(pid: int) -> bool:
    """
    Wait for a worker that was told to end, and end it by force when it is stuck.
    """
    deadline_s = time.monotonic() + _REAP_S
    while time.monotonic() < deadline_s:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(_REAP_LOOK_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(
        f"server: worker process {pid} did not end when told to and was killed; "
        "its counters are missing",
        file=sys.stderr,
        flush=True,
    )
    return False


def _count_closed(hub: Hub) -> int:
    try:
        return sum(int(answer["closed_count"]) for answer in hub.ask({"op": "count_closed"}))
    except ControlError:
        return 0  # a worker has died; SIGCHLD tells


def _find_dead(pids: list[int]) -> ExitStatus:
    """
    Take note of a worker that ended by itself; all others are ended then.
    """
    for pid in list(pids):
        ended, wait_status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pids.remove(pid)
            code = os.waitstatus_to_exitcode(wait_status)
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
            print(
                f"server: worker process {pid} ended {how}; the others are ended too",
                file=sys.stderr,
                flush=True,
            )
            return ExitStatus.INTERNAL
    return ExitStatus.OK
