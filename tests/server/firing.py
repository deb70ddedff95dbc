"""
A process that loads the probes and fires them on request, and a tracer to watch it.

`python -m tests.server.firing DIRECTORY` prints one JSON line about its provider,
then answers each request line on stdin by one line on stdout. Requests that follow
the directory, such as fire:2, take the place of stdin.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from server.probes import MAX_ARGUMENT_COUNT, PROBES, LoadedProvider, load_provider
from tests.conftest import need
from tests.userland import Userland

REPOSITORY = Path(__file__).resolve().parents[2]
ATTACH_LIMIT_S = 30.0
END_LIMIT_S = 15.0


def values_of(index: int) -> tuple[int, ...]:
    """
    What a probe is fired with: negative, above 2^53 (where doubles end), at both ends of 64 bits.
    """
    edges = (-1 - index, 2**53 + 1 + index, 2**63 - 1 - index, -(2**63) + index)
    return tuple(edges[(index + place) % 4] for place in range(len(PROBES[index].arguments)))


def render_script(file: str) -> str:
    """
    A script that counts hits by probe and PID, and prints each one's arguments too.
    """
    lines = ['BEGIN { printf("ready\\n"); }']
    for index, spec in enumerate(PROBES):
        arguments = [f"arg{place}" for place in range(len(spec.arguments))]
        form = " ".join(["hit", str(index), *["%lld"] * len(arguments)])
        action = f'printf("{form}\\n", {", ".join(arguments)}); @hits[{index}, pid] = count();'
        lines.append(f"usdt:{file}:{spec.name} {{ {action} }}")
    return "\n".join(lines)


def wait_until(is_so: Callable[[], bool]) -> None:
    """
    Wait for something that takes a moment.
    """
    deadline_s = time.monotonic() + ATTACH_LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class Firer:
    """
    One such process, from outside.
    """

    def __init__(self, directory: Path, *, limit_s: float = 20.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.firing", str(directory)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.limit_s = limit_s
        self.facts = self._answer()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def path(self) -> str:
        """Its provider file."""
        return str(self.facts["path"])

    def ask(self, operation: str, count: int = 1) -> Any:
        """
        `fire` and `call` all probes, `fork` children that do, or ask which are `traced`.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{operation} {count}\n")
        self._process.stdin.flush()
        return self._answer()

    def traced_count(self) -> int:
        """How many of the probes have a listener, as the process itself sees it."""
        return sum(self.ask("traced"))

    def close(self) -> None:
        """End it."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the firing process ended"
        return json.loads(line)


@contextlib.contextmanager
def firing(directory: Path, *, process_count: int = 1) -> Iterator[list[Firer]]:
    """
    Firing processes that end with the block.
    """
    with contextlib.ExitStack() as stack:
        firers = []
        for _ in range(process_count):
            firer = Firer(directory)
            stack.callback(firer.close)
            firers.append(firer)
        yield firers


class Tracer:
    """
    A bpftrace that runs a script until it is interrupted.
    """

    def __init__(
        self, userland: Userland, script: str, folder: Path, *, arguments: Sequence[str] = ()
    ) -> None:
        path = folder / "script.bt"
        path.write_text(script)
        self._output = folder / "trace.jsonl"
        self._output.touch()
        argv = ["bpftrace", "-f", "json", "-o", str(self._output), *arguments, str(path)]
        self._process = subprocess.Popen(
            userland.command(argv, folders=[folder]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """
        Wait for BEGIN's line: all else is attached then, and output is being read.

        The record "attached_probes" comes earlier, on 0.17 and 0.23 before any probe is.
        """
        wait_until(lambda: "ready" in self._output.read_text())

    def read_values(self, *, expected_count: int) -> Counter[tuple[int, ...]]:
        """
        Wait for so many printed hits; each as its probe's place in the table and its arguments.

        To be asked before the end: what was not yet printed then may be lost.
        """
        wait_until(lambda: len(self._printed_hits()) >= expected_count)
        return Counter(self._printed_hits())

    def finish(self, *, interrupts: bool = True) -> Counter[tuple[int, int]]:
        """
        End it (or wait for its own end); how often each probe was hit, by its place and PID.
        """
        if interrupts:
            self._process.send_signal(signal.SIGINT)
        words, _ = self._process.communicate(timeout=END_LIMIT_S)
        assert self._process.returncode == 0, words
        counts: Counter[tuple[int, int]] = Counter()
        for record in self._records():
            assert record["type"] != "lost_events"
            if record["type"] == "map":
                for key, count in record["data"]["@hits"].items():
                    index, pid = map(int, key.split(","))
                    counts[index, pid] += count
        return counts

    def _records(self) -> list[dict[str, Any]]:
        *lines, _partial = self._output.read_text().split("\n")
        return [json.loads(line) for line in lines if line]

    def _printed_hits(self) -> list[tuple[int, ...]]:
        printed = "".join(
            record["data"] for record in self._records() if record["type"] == "printf"
        )
        hits = (line.split()[1:] for line in printed.splitlines() if line.startswith("hit "))
        return [tuple(map(int, hit)) for hit in hits]

    def close(self) -> None:
        """Make sure that it is gone, also when a test failed."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def tracing(
    userland: Userland, script: str, folder: Path, *, arguments: Sequence[str] = ()
) -> Iterator[Tracer]:
    """
    A tracer that is gone after the block.
    """
    tracer = Tracer(userland, script, folder, arguments=arguments)
    try:
        yield tracer
    finally:
        tracer.close()


def require_library() -> Path:
    """
    Build libstapsdt, as set-up does; skip (in CI: fail) without a compiler.
    """
    from server.build import build, find_compiler, find_parts  # noqa: PLC0415

    part = next(part for part in find_parts() if part.target.name == "libstapsdt.so")
    need(find_compiler() is not None, "a C compiler")
    build(part)
    return part.target


def _fire_by_address(provider: LoadedProvider, index: int) -> None:
    site = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * MAX_ARGUMENT_COUNT)(
        provider.site_addresses[index]
    )
    values = values_of(index)
    site(*values, *[0] * (MAX_ARGUMENT_COUNT - len(values)))


def _answer_request(provider: LoadedProvider, operation: str, count: int) -> Any:
    if operation == "traced":
        return [provider.is_traced(index) for index in range(len(PROBES))]
    if operation == "fork":
        pids = []
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                _answer_request(provider, "fire", 1)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert status == 0, f"a forked child ended with {status}"
            pids.append(pid)
        return pids
    for _ in range(count):
        for index in range(len(PROBES)):
            if operation == "call":
                _fire_by_address(provider, index)
            else:
                provider.fire(index, *values_of(index))
    return count


def _main(directory: str, *requests: str) -> None:
    provider = load_provider(Path(directory))
    facts = {"pid": os.getpid(), "path": str(provider.path), "note": provider.note}
    print(json.dumps(facts), flush=True)
    for line in requests or sys.stdin:
        operation, count = line.replace(":", " ").split()
        print(json.dumps(_answer_request(provider, operation, int(count))), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
