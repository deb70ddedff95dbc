"""
What one `profile` command does: our server under the load, watched by py-spy.

The server has a core of its own, as in `bench`; py-spy shares the load's. It stops
the server for every look, a millisecond or so with `--native`. How much
that takes is measured in the same run, against some seconds before and after, and
said. What is sampled is still the server's own work: a stopped server does none.
"""

import json
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from benchmarks import children
from benchmarks.measure import cpu_ns
from benchmarks.profiling_flame import render_flame_graph
from benchmarks.profiling_stacks import (
    Samples,
    Share,
    parse_stacks,
    share_functions,
    share_layers,
)
from benchmarks.sides import (
    LOAD_CORE,
    RunningServer,
    Side,
    Work,
    check_cores,
    running_load,
    running_server,
)
from quiclab.artifacts import RunFolder, render_folder_name
from quiclab.command.cli import render_choice
from quiclab.command.readiness import Readiness
from quiclab.command.summary import Line
from quiclab.command.terminal import Terminal
from quiclab.command.words import ProfileWords
from quiclab.errors import ExitCode, MachineError, RunError, UsageError
from quiclab.machine.host import GitFacts, Host, collect_git, collect_host
from quiclab.machine.setup import ROOT
from quiclab.units import parse_count, parse_duration, parse_size, render_rate, render_size
from server.settings import LARGEST_DATAGRAM_BYTES, SMALLEST_DATAGRAM_BYTES

SCHEMA: Final = 1
DOCUMENT: Final = "profile.json"
FLAME_GRAPH: Final = "flame.svg"
STACKS: Final = "stacks.txt"
# 500 looks a second stopped the server for two fifths of the time, 100 for a tenth.
RATE_HZ: Final = 100
_TOP_COUNT: Final = 15
_LONGEST_S: Final = 300.0
_DEFAULT_DURATION_S: Final = 10.0
_WARM_UP_S: Final = 1.0  # until the window has grown
_UNWATCHED_S: Final = 2.0  # before and after, to compare with
_END_TIMEOUT_S: Final = 60.0  # py-spy reads symbols before it begins, and writes when it ends
_ENDLESS_BYTES: Final = 10**12
_COMMON_TO_ALL: Final = 0.985  # a function in this share of stacks tells nothing

Direction = Literal["download", "upload"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pace(_Model):
    """
    How the server did over a while.

    Args:
        mb_per_s: Datagrams' bytes, 10^6 a second.
        busy: Part of a core that it used.
        ns_per_datagram: Its CPU for each.
        datagrams_per_answer: Datagrams for each in the other direction.
        kernel_share: Part of its CPU that was spent in the kernel.
    """

    mb_per_s: float
    busy: float
    ns_per_datagram: float
    datagrams_per_answer: float
    kernel_share: float


class ShareFacts(_Model):
    """Samples of one thing, and their part of all."""

    name: str
    sample_count: int
    share: float

    @classmethod
    def of(cls, share: Share) -> "ShareFacts":
        """Keep a share."""
        return cls(name=share.name, sample_count=share.sample_count, share=share.share)


class ProfileDocument(_Model):
    """What `profile` leaves besides the stacks and their picture."""

    schema_number: int = Field(
        default=SCHEMA,
        serialization_alias="schema",
        validation_alias=AliasChoices("schema", "schema_number"),
    )
    started_at: datetime
    label: str
    asked: Mapping[str, Any]
    host: Host
    git: GitFacts
    versions: Mapping[str, str]
    rate_hz: int
    sample_count: int
    other_thread_sample_count: int
    """Of threads that only wait; left out of everything else."""
    before: Pace
    sampled: Pace
    after: Pace
    """Before and after nobody looked; while sampled, the server was stopped for each look."""
    layers: Sequence[ShareFacts]
    own: Sequence[ShareFacts]
    inclusive: Sequence[ShareFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What is to be profiled."""

    work: Work
    duration_s: float
    buffer_bytes: int

    @property
    def asked(self) -> dict[str, Any]:
        """As kept in the document."""
        return {
            "direction": self.work.direction,
            "datagram_bytes": self.work.datagram_bytes,
            "connections": self.work.connection_count,
            "streams": self.work.stream_count,
            "duration_s": self.duration_s,
            "buffer_bytes": self.buffer_bytes,
        }


def profile(words: ProfileWords) -> ExitCode:
    """
    Profile what was asked for.

    Raises:
        UsageError: A word makes no sense; nothing was started.
        MachineError: py-spy is missing or may not look; nothing is left.
        RunError: Server, load or py-spy failed.
    """
    plan = plan_profile(words)
    terminal = Terminal(is_json=words.json)
    py_spy = find_py_spy()
    check_cores()
    Readiness(terminal, may_install=words.install, is_agreed=words.yes).prepare_build()
    started_at = datetime.now(UTC)
    try:
        text, paces = _record(plan, py_spy, terminal)
    finally:
        terminal.end_step()
    samples = parse_stacks(text)
    if not samples.count:
        raise RunError("py-spy saw the server do nothing; profile for longer")
    document = _describe(plan, samples, paces=paces, started_at=started_at, label=words.label)
    folder = RunFolder.create(
        Path(words.output or "artifacts"),
        render_folder_name(
            started_at=started_at,
            scripts=["profile"],
            buffer=render_size(plan.buffer_bytes),
            short_id=secrets.token_hex(2),
        ),
    )
    value = document.model_dump(mode="json", by_alias=True)
    (folder.path / "logs").rmdir()  # no role of this leaves any
    folder.write(STACKS, text)
    folder.write(FLAME_GRAPH, render_flame_graph(samples, title=_render_title(plan)))
    folder.write_json(DOCUMENT, value)
    terminal.say([Line("", row, is_preformatted=True) for row in render_profile(document)])
    terminal.say([Line("note", render_bend(document))])
    terminal.say_folder(folder.path)
    if words.json:
        terminal.say_json(json.dumps(value))
    return ExitCode.OK


def plan_profile(words: ProfileWords) -> ProfilePlan:
    """
    Read what was written.

    Raises:
        UsageError: A word makes no sense.
    """
    direction = words.direction or "download"
    if direction not in get_args(Direction):
        raise UsageError(
            f"--direction {direction} is unknown; {render_choice(direction, get_args(Direction))}"
        )
    duration_s = _DEFAULT_DURATION_S
    if words.duration:
        duration_s = parse_duration(words.duration, option="--duration")
    if not 1 <= duration_s <= _LONGEST_S:
        raise UsageError(
            f"--duration {words.duration} is out of range; py-spy takes whole seconds, "
            f"1 to {_LONGEST_S:.0f}"
        )
    datagram_bytes = 1200
    if words.datagram:
        datagram_bytes = parse_count(
            words.datagram,
            option="--datagram",
            least=SMALLEST_DATAGRAM_BYTES,
            most=min(LARGEST_DATAGRAM_BYTES, 9_000 - 28),  # what the server's MTU carries
        )

    def count(text: str, option: str) -> int:
        return parse_count(text, option=option, most=1000) if text else 1

    return ProfilePlan(
        work=Work(
            direction="upload" if direction == "upload" else "download",
            total_bytes=_ENDLESS_BYTES,
            datagram_bytes=datagram_bytes,
            connection_count=count(words.connections, "--connections"),
            stream_count=count(words.streams, "--streams"),
        ),
        duration_s=float(round(duration_s)),
        buffer_bytes=parse_size(words.buffer or "128k", option="--buffer"),
    )


def find_py_spy() -> str:
    """
    Path of py-spy: beside the interpreter, else in PATH.

    Raises:
        MachineError: It is in neither.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise MachineError("py-spy is not installed; ./invoke installs it from requirements.lock")
    return found


def _record(
    plan: ProfilePlan, py_spy: str, terminal: Terminal
) -> tuple[str, tuple[Pace, Pace, Pace]]:
    """
    Load the server and watch it: collapsed stacks, and its pace before, meanwhile and after.
    """
    side = Side(
        label="ours", kind="ours", words=("--queue-send-buffer-size", str(plan.buffer_bytes))
    )
    with children.own_folder("profile") as directory:
        terminal.step("profile", "starting server and load", 0.0)
        with _loaded_server(side, plan.work, directory) as server:
            time.sleep(_WARM_UP_S)
            before = _watch_alone(server, plan.work)
            output = directory / STACKS
            watch = _Watch(server, plan.work)
            sample_process(
                py_spy,
                server.pids[0],
                output,
                duration_s=plan.duration_s,
                on_progress=lambda fraction: terminal.step("profile", "sampling", fraction),
            )
            sampled = watch.stop()
            after = _watch_alone(server, plan.work)
            return output.read_text(), (before, sampled, after)


def _watch_alone(server: RunningServer, work: Work) -> Pace:
    watch = _Watch(server, work)
    time.sleep(_UNWATCHED_S)
    return watch.stop()


@contextmanager
def _loaded_server(side: Side, work: Work, directory: Path) -> Iterator[RunningServer]:
    with (
        running_server(side, work, directory) as server,
        running_load(server, work, is_pinned=True) as load,
    ):
        load.hear("ready", timeout_s=_END_TIMEOUT_S)
        load.tell()
        try:
            yield server
            if load.process.poll() is not None:
                raise RunError(f"the load ended with {load.process.returncode} while sampled")
        finally:
            load.process.kill()  # it would go on for ever


class _Watch:
    """
    Measures the pace of a server.
    """

    def __init__(self, server: RunningServer, work: Work) -> None:
        self._server, self._work = server, work
        self._counts = self._read()

    def stop(self) -> Pace:
        """The pace since this began."""
        before, after = self._counts, self._read()
        seconds, cpu, datagrams, answers, user_s, system_s = (
            late - early for early, late in zip(before, after, strict=True)
        )
        if datagrams <= 0:
            raise RunError("nothing moved while the server was watched")
        return Pace(
            mb_per_s=datagrams * self._work.datagram_bytes / seconds / 1e6,
            busy=cpu / 1e9 / seconds,
            ns_per_datagram=cpu / datagrams,
            datagrams_per_answer=datagrams / max(1.0, answers),
            kernel_share=system_s / max(1e-9, user_s + system_s),
        )

    def _read(self) -> tuple[float, ...]:
        total = self._server.ask("report")
        worker = total["workers"][0]
        sent, read = worker["tx"]["datagram_sent_count"], worker["rx"]["datagram_read_count"]
        is_upload = self._work.direction == "upload"
        return (
            time.monotonic(),
            float(cpu_ns(self._server.pids)),
            *((float(read), float(sent)) if is_upload else (float(sent), float(read))),
            float(worker["cpu_user_s"]),
            float(worker["cpu_system_s"]),
        )


def sample_process(
    py_spy: str,
    pid: int,
    output: Path,
    *,
    duration_s: float,
    on_progress: Callable[[float], None] = lambda _fraction: None,
) -> None:
    """
    Look into a process again and again, from the load's core.

    Args:
        py_spy: Path of the program.
        pid: The process.
        output: Where the collapsed stacks go.
        duration_s: How long; whole seconds.
        on_progress: Hears what part of that has passed.

    Raises:
        MachineError: py-spy may not look into it.
        RunError: It failed otherwise.
    """
    argv = [
        *(py_spy, "record", "--pid", str(pid), "--native", "--function"),
        *("--format", "raw", "--output", str(output)),
        *("--rate", str(RATE_HZ), "--duration", f"{duration_s:.0f}"),
    ]
    began_s = time.monotonic()
    with children.start(argv, core=LOAD_CORE, stderr=subprocess.PIPE) as process:
        try:
            while process.poll() is None:
                passed_s = time.monotonic() - began_s
                if passed_s > duration_s + _END_TIMEOUT_S:
                    raise RunError(f"py-spy has not ended {_END_TIMEOUT_S:.0f} s after its time")
                on_progress(min(0.99, passed_s / duration_s))
                time.sleep(0.1)
            assert process.stderr is not None
            complaint = process.stderr.read()
        finally:
            if process.poll() is None:
                process.kill()
    if process.returncode != 0 or not output.exists():
        raise explain_refusal(complaint)


def explain_refusal(complaint: str) -> MachineError | RunError:
    """
    Why py-spy did not do it.
    """
    if "permission denied" in complaint.lower() or "not permitted" in complaint.lower():
        return MachineError(
            "py-spy may not look into the server; be root: sudo ./invoke profile (in a container: "
            "give it CAP_SYS_PTRACE)"
        )
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Error")), (lines or ["nothing"])[-1])
    return RunError(f"py-spy failed: {said}")


def _describe(
    plan: ProfilePlan,
    samples: Samples,
    *,
    paces: tuple[Pace, Pace, Pace],
    started_at: datetime,
    label: str,
) -> ProfileDocument:
    inclusive = [
        each for each in share_functions(samples, is_inclusive=True) if each.share < _COMMON_TO_ALL
    ]
    return ProfileDocument(
        started_at=started_at,
        label=label,
        asked=plan.asked,
        host=collect_host(),
        git=collect_git(ROOT),
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("aioquic", "qh3", "cryptography", "py-spy")},
        },
        rate_hz=RATE_HZ,
        sample_count=samples.count,
        other_thread_sample_count=samples.other_thread_count,
        before=paces[0],
        sampled=paces[1],
        after=paces[2],
        layers=[ShareFacts.of(each) for each in share_layers(samples)],
        own=[
            ShareFacts.of(each)
            for each in share_functions(samples, is_inclusive=False)[:_TOP_COUNT]
        ],
        inclusive=[ShareFacts.of(each) for each in inclusive[:_TOP_COUNT]],
    )


def _render_title(plan: ProfilePlan) -> str:
    work = plan.work
    return (
        f"quiclab server, {work.direction}, {work.datagram_bytes}-byte datagrams, "
        f"{work.connection_count} connection(s) of {work.stream_count} stream(s), "
        f"{plan.duration_s:.0f} s"
    )


def render_profile(document: ProfileDocument) -> list[str]:
    """
    Three tables: layers, functions by their own time, functions with what they called.
    """
    lines = [f"{document.sample_count:,} samples, {document.rate_hz} a second"]
    for title, shares in (
        ("layer", document.layers),
        ("function, its own time", document.own),
        ("function, with what it called", document.inclusive),
    ):
        lines += ["", f"{'share':>7}{'samples':>9}  {title}"]
        lines += [f"{each.share:>7.1%}{each.sample_count:>9,}  {each.name}" for each in shares]
    return lines


def render_bend(document: ProfileDocument) -> str:
    """
    What being watched did to the server.
    """
    sampled, alone = document.sampled, (document.before, document.after)
    mb_per_s, busy, ns, answered = (
        (getattr(alone[0], name) + getattr(alone[1], name)) / 2
        for name in ("mb_per_s", "busy", "ns_per_datagram", "datagrams_per_answer")
    )
    return (
        f"py-spy stops the server for each look: it ran for {sampled.busy:.0%} of the time while "
        f"sampled, {busy:.0%} before and after; {render_rate(sampled.mb_per_s * 1e6)} against "
        f"{render_rate(mb_per_s * 1e6)}, {sampled.ns_per_datagram / 1e3:.1f} µs of CPU a datagram "
        f"against {ns / 1e3:.1f}, an answer every {sampled.datagrams_per_answer:.0f} datagrams "
        f"against {answered:.0f}. Kernel's part of its CPU, by its own clock: "
        f"{sampled.kernel_share:.0%}"
    )
