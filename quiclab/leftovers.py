"""
Which runs are alive, and what dead ones left behind.

Every run holds a lock (flock) on a small record of its own under the user's
state folder for as long as its process lives; the kernel drops the lock with
the process, however it ended. A record without a lock is a dead run, and names
the folders and processes that it may have left. Nothing else is ever touched.

A record is one JSON object per line, appended as things are made:
`{"runner": "local"}`, `{"directory": "/tmp/quiclab-…"}`, `{"folder": "/home/…"}` (of results),
`{"pid": 7, "started_s": …}`,
`{"engine": "unix:///…"}`, `{"asked": 1}` (-1 once the engine has answered).
"""

import fcntl
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from quiclab.errors import MachineError

RUN_MARK = "QUICLAB_RUN"
"""Environment variable that every local process of a run carries; forked workers inherit it."""
DIRECTORY_PREFIX = "quiclab-"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_POLL_S = 0.01
_GONE_WITHIN_S = 3.0  # a killed process leaves at once unless it sits in the kernel
# An engine finishes what a killed lab asked of it last; one request may take this long.
_ENGINE_BUSY_S = 60.0
_NEW_RECORD = ".new-"


@dataclass(slots=True)
class LiveRun:
    """
    The record of a run of this process; what is noted here is removed if the process dies.
    """

    run_id: str
    fd: int
    depth: int = 1
    has_remains: bool = False

    def note_directory(self, path: Path) -> None:
        """Remember a temporary folder; its name must be `quiclab-<run id>`."""
        self.append({"directory": str(path)})

    def note_folder(self, path: Path) -> None:
        """Remember the folder of results, which is kept, but says "running" until the end."""
        self.append({"folder": str(path)})

    def note_process(self, pid: int) -> None:
        """Remember a child together with its start time, so that a reused number is safe."""
        try:
            started_s = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            return
        self.append({"pid": pid, "started_s": started_s})

    def note_engine(self, url: str) -> None:
        """Remember where containers are made: what is not on another engine is not gone."""
        self.append({"engine": url})

    @contextmanager
    def creation(self) -> Iterator[None]:
        """What is asked of an engine in the block may come to be after this process's death."""
        self.append({"asked": 1})
        try:
            yield
        finally:
            self.append({"asked": -1})

    @contextmanager
    def removal(self) -> Iterator[None]:
        """What the block fails to remove stays on record, for the next run to remove."""
        try:
            yield
        except BaseException:
            self.has_remains = True
            raise

    def append(self, entry: dict[str, object]) -> None:
        """Add a line; one write, so that a killed process leaves whole lines but the last."""
        os.write(self.fd, json.dumps(entry).encode() + b"\n")


_live_runs: dict[str, LiveRun] = {}


def state_directory() -> Path:
    """
    Where the records lie: `$XDG_STATE_HOME/quiclab/runs`, made when needed.

    Under sudo `HOME` may be another user's; then the own home of the effective
    user is taken, so that no file of root appears in it.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():  # the XDG specification ignores relative ones
        directory = Path(base) / "quiclab" / "runs"
    else:
        directory = _own_home() / ".local" / "state" / "quiclab" / "runs"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        is_usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK)
    except OSError:
        is_usable = False
    if not is_usable:  # no home, a read-only one, or made by root in somebody's home
        directory = Path(tempfile.gettempdir()) / f"quiclab-state-{os.geteuid()}"
        directory.mkdir(exist_ok=True, mode=0o700)
        if directory.lstat().st_uid != os.geteuid() or directory.is_symlink():
            raise MachineError(f"{directory} is another user's; set XDG_STATE_HOME to a folder")
    return directory


def _own_home() -> Path:
    try:
        home = Path.home()
        if home.stat().st_uid == os.geteuid():
            return home
    except (OSError, RuntimeError):
        pass  # no HOME, or one that does not exist: the password database decides
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return Path("/nonexistent")


@contextmanager
def register(run_id: str, *, runner_name: str) -> Iterator[LiveRun]:
    """
    Keep a run on record, locked, while the block runs; forget it when the block ends.

    May be nested for the same run within one process; the outermost block counts.
    A run whose `removal` failed is not forgotten: it is dead then, with remains.

    Raises:
        ValueError: The run id could not be a file name.
        MachineError: The record cannot be written, or another run has that id.
    """
    run = _live_runs.get(run_id)
    if run is None:
        run = _live_runs[run_id] = _create_record(run_id, runner_name)
    else:
        run.depth += 1
    try:
        yield run
    finally:
        run.depth -= 1
        if run.depth == 0:
            del _live_runs[run_id]
            if not run.has_remains:
                _record_path(run_id).unlink(missing_ok=True)
            os.close(run.fd)


def _create_record(run_id: str, runner_name: str) -> LiveRun:
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"run id {run_id!r} is not made of letters, digits, '.', '_' and '-'")
    # Locked before it gets its name: whoever can see it finds it locked.
    directory = state_directory()
    if _record_path(run_id).exists():  # else both would remove what either made
        raise MachineError(f"another run is called {run_id} as well; start this one again")
    try:
        fd, name = tempfile.mkstemp(prefix=_NEW_RECORD, dir=directory)
        fcntl.flock(fd, fcntl.LOCK_EX)
        run = LiveRun(run_id, fd)
        run.append({"runner": runner_name, "pid": os.getpid()})
        Path(name).rename(_record_path(run_id))
    except OSError as error:
        raise MachineError(f"cannot write into {directory}: {error.strerror}") from error
    return run


def _record_path(run_id: str) -> Path:
    return state_directory() / f"{run_id}.jsonl"


def is_run_alive(run_id: str) -> bool | None:
    """
    True: its process lives. False: it is dead and left a record. None: not known here.

    A run of another user or another host, or one whose leftovers were already
    removed, is not known here.
    """
    if not _RUN_ID.fullmatch(run_id):
        return None
    lock = _try_lock(_record_path(run_id), fcntl.LOCK_SH)
    if lock is None or isinstance(lock, bool):
        return lock
    os.close(lock)
    return False


def _try_lock(path: Path, mode: int) -> int | bool | None:
    """The locked descriptor when its run is dead, True when it is alive, None without a record."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return True
    return fd


def remove_dead_runs(runner_name: str) -> list[str]:
    """
    Remove what dead runs of one kind of runner left on this machine, then their records.

    Returns:
        What was removed, one line each.
    """
    said: list[str] = []
    for path, entries in _dead_records(runner_name):
        run_id = path.name.removesuffix(".jsonl")
        said += _kill_processes(run_id, entries)
        try:
            said += _remove_directories(run_id, entries)
        except OSError as error:
            said.append(f"cannot remove all of dead run {run_id}: {error}")
            continue  # the record stays, for whoever can
        path.unlink(missing_ok=True)
    _remove_unfinished_records()
    return said


def find_dead_folders() -> list[tuple[str, Path]]:
    """
    Name the folders of results of dead runs, whatever runner they had; run id and path.
    """
    return [
        (path.name.removesuffix(".jsonl"), Path(str(entry["folder"])))
        for path, entries in _dead_records()
        for entry in entries
        if "folder" in entry
    ]


def find_settled_runs(runner_name: str, *, engine_url: str) -> list[str]:
    """
    Name the dead runs for which that engine can have nothing more to do.

    Ask before looking what they left there, and forget them afterwards: a run
    that dies in between keeps its record, and so does one on another engine, or
    one that was killed a moment ago while the engine made something for it.
    """
    settled = []
    for path, entries in _dead_records(runner_name):
        urls = {entry["engine"] for entry in entries if "engine" in entry}
        with suppress(FileNotFoundError):  # another lab has just forgotten it
            pending_count = sum(int(str(entry.get("asked", 0))) for entry in entries)
            is_recent = time.time() - path.stat().st_mtime < _ENGINE_BUSY_S
            if urls <= {engine_url} and not (pending_count and is_recent):
                settled.append(path.name.removesuffix(".jsonl"))
    return settled


def forget_runs(run_ids: Iterable[str]) -> None:
    """
    Remove the records of dead runs that left nothing any more.
    """
    for run_id in run_ids:
        _record_path(run_id).unlink(missing_ok=True)
    _remove_unfinished_records()


def _dead_records(
    runner_name: str | None = None,
) -> Iterator[tuple[Path, list[dict[str, object]]]]:
    """The records of a runner's dead runs (None: all), each locked while it is looked at."""
    for path in sorted(state_directory().glob("*.jsonl")):
        fd = _try_lock(path, fcntl.LOCK_EX)
        if fd is None or isinstance(fd, bool):
            continue
        try:
            entries = _read_entries(path)
            if entries and runner_name in {None, entries[0].get("runner")}:
                yield path, entries
        finally:
            os.close(fd)


def _remove_unfinished_records() -> None:
    """What was killed while it wrote its record had made nothing yet."""
    for path in state_directory().glob(f"{_NEW_RECORD}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ENGINE_BUSY_S:
                path.unlink()


def _read_entries(path: Path) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return entries  # another lab has just forgotten it
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote its last line
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _kill_processes(run_id: str, entries: list[dict[str, object]]) -> list[str]:
    started_s_by_pid = {e["pid"]: e["started_s"] for e in entries if "started_s" in e}
    victims = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            # psutil compares start times itself when it signals; a reused pid is safe.
            if process.create_time() == started_s_by_pid.get(process.pid) or (
                process.environ().get(RUN_MARK) == run_id
            ):
                name = process.name()
                process.kill()
                victims.append((process, name))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone, or another user's and therefore not ours
    deadline_s = time.monotonic() + _GONE_WITHIN_S
    while time.monotonic() < deadline_s and not all(_is_dead(process) for process, _ in victims):
        time.sleep(_POLL_S)
    return [f"killed process {p.pid} ({name}) of dead run {run_id}" for p, name in victims]


def _is_dead(process: psutil.Process) -> bool:
    """Gone, or only waiting for its parent to take note."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _remove_directories(run_id: str, entries: list[dict[str, object]]) -> list[str]:
    said = []
    for entry in entries:
        path = Path(str(entry.get("directory", "")))
        if path.name != f"{DIRECTORY_PREFIX}{run_id}" or not path.is_absolute():
            continue
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
            shutil.rmtree(path)
            said.append(f"removed {path} of dead run {run_id}")
    return said
