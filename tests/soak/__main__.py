"""
Short traces in a row, docker and local in turn, and what they leave on this machine.

    python -m tests.soak [--duration 1h] [--output artifacts] [--shared]

Before and after, everything is listed that a run could leave: containers, networks,
volumes, images, mounts, BPF programs, maps and links, sysctls, temporary files, processes,
this process's descriptors. The listings, their difference and the verdicts are written into
`<output>/soak-<time>/soak.json`. Status 0: nothing differs and no run was invalid; 1: else.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from quiclab.command.readiness import chosen_engine
from quiclab.containers.engine import Engine
from quiclab.errors import InterruptedRunError, LabError
from quiclab.runner.base import Runner
from quiclab.units import parse_duration, render_bytes, render_duration
from tests.soak.rounds import Tally, render_words, soak
from tests.soak.things import SOAK_MARK, Thing, Watch, compare

SETTLE_S: Final = 30.0
"""How long what others do at the same time may take to be gone again."""
_LOOK_EVERY_S: Final = 2.0


def main(argv: list[str] | None = None) -> int:
    """
    Soak, and say what came of it.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--duration", default="1h", help="such as 90s, 10min, 1h (default 1h)")
    parser.add_argument(
        "--output", type=Path, default=Path("artifacts"), help="(default artifacts)"
    )
    parser.add_argument("--runner", choices=("both", "docker", "local"), default="both")
    parser.add_argument(
        "--shared",
        action="store_true",
        help="others work on this machine: only what is surely of this soak counts",
    )
    words = parser.parse_args(argv)
    try:
        duration_s = parse_duration(words.duration, option="--duration")
        folder = words.output.resolve() / f"soak-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        folder.mkdir(parents=True)
        with chosen_engine("local" if words.runner == "local" else "auto", on_local=say) as engine:
            runners = _make_runners(engine, which=words.runner)
            return _run(
                runners, engine, duration_s=duration_s, folder=folder, is_shared=words.shared
            )
    except InterruptedRunError as error:
        say(str(error))
        return int(error.exit_code)
    except LabError as error:
        print(f"soak: {error}", file=sys.stderr)
        return int(error.exit_code)


def say(line: str) -> None:
    """One line, with the hour: an hour's log is read afterwards."""
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)


def _make_runners(engine: Engine | None, *, which: str) -> Mapping[str, Runner]:
    from quiclab.containers.compose import load_compose  # noqa: PLC0415
    from quiclab.containers.image import ensure_image  # noqa: PLC0415
    from quiclab.runner.docker import DockerRunner  # noqa: PLC0415
    from quiclab.runner.process import ProcessRunner  # noqa: PLC0415

    runners: dict[str, Runner] = {}
    if engine is not None:
        image = ensure_image(engine, on_progress=lambda step, fraction: None)
        runners["docker"] = DockerRunner(engine, image, load_compose(os.environ))
    if which != "docker":
        runners["local"] = ProcessRunner()
    for runner in runners.values():
        runner.preflight()
    return runners


@contextmanager
def _own_folders() -> Iterator[tuple[Path, Path]]:
    """
    Let records and temporary files lie where nobody else's do: what stays there is ours.
    """
    base = Path(tempfile.mkdtemp(prefix="soak-"))
    state, temporary = base / "state", base / "tmp"
    state.mkdir()
    temporary.mkdir()
    before = dict(os.environ)
    os.environ |= {"XDG_STATE_HOME": str(state), "TMPDIR": str(temporary)}
    tempfile.tempdir = None  # it is asked for once and kept
    try:
        yield state, temporary
    finally:
        os.environ.clear()
        os.environ |= before
        tempfile.tempdir = None
        shutil.rmtree(base)


def _run(
    runners: Mapping[str, Runner],
    engine: Engine | None,
    *,
    duration_s: float,
    folder: Path,
    is_shared: bool,
) -> int:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    tally, warm_up = Tally(), Tally()
    interruption: InterruptedRunError | None = None
    with _own_folders() as folders:
        os.environ[SOAK_MARK] = token
        watch = Watch(token, folders, engine, tally.run_ids)
        say(f"{render_duration(duration_s)} in {', '.join(runners)}; results in {folder}")
        # Imports, connections to the engine and folders of records come with the first runs.
        soak(runners, duration_s=0.0, output=folder, say=say, tally=warm_up)
        before = _look(watch)
        began_s = time.monotonic()
        try:
            soak(runners, duration_s=duration_s, output=folder, say=say, tally=tally)
        except InterruptedRunError as error:
            interruption = error
        took_s = time.monotonic() - began_s
        after = _settle(watch, before)
    difference = compare(before, after)
    charged = [line for line in difference if not is_shared or line.endswith("(of this soak)")]
    _write(folder, before, after, difference, tally, took_s=took_s)
    _tell(before, after, difference, tally, took_s=took_s)
    if interruption is not None:
        raise interruption
    has_failed = bool(charged) or tally.has_failed
    say("FAILED" if has_failed else "nothing was left")
    return int(has_failed)


def _look(watch: Watch) -> frozenset[Thing]:
    gc.collect()
    return watch.look()


def _settle(watch: Watch, before: frozenset[Thing]) -> frozenset[Thing]:
    """What others do may be under way: what is ours does not go away by waiting."""
    ends_s = time.monotonic() + SETTLE_S
    while True:
        after = _look(watch)
        differing = after ^ before
        if not differing or time.monotonic() >= ends_s:
            return after
        if any(thing.is_ours for thing in after - before):
            return after
        time.sleep(_LOOK_EVERY_S)


def _write(
    folder: Path,
    before: frozenset[Thing],
    after: frozenset[Thing],
    difference: list[str],
    tally: Tally,
    *,
    took_s: float,
) -> None:
    document = {
        "schema": 1,
        "took_s": round(took_s, 1),
        "run_count": tally.count,
        "verdicts": dict(sorted(tally.words.items())),
        "doubts": tally.doubts,
        "errors": tally.errors,
        "resident_bytes": tally.resident_bytes,
        "difference": difference,
        "before": [str(thing) for thing in sorted(before)],
        "after": [str(thing) for thing in sorted(after)],
    }
    (folder / "soak.json").write_text(json.dumps(document, indent=2) + "\n")


def _tell(
    before: frozenset[Thing],
    after: frozenset[Thing],
    difference: list[str],
    tally: Tally,
    *,
    took_s: float,
) -> None:
    say(f"{tally.count} runs in {render_duration(took_s)}: {render_words(tally)}")
    for kind in sorted({thing.kind for thing in before | after}):
        counts = [sum(thing.kind == kind for thing in listing) for listing in (before, after)]
        say(f"  {kind:<12} {counts[0]} before, {counts[1]} after")
    if tally.resident_bytes:
        first, last = tally.resident_bytes[0], tally.resident_bytes[-1]
        say(f"  memory of this process: {render_bytes(first)}, at last {render_bytes(last)}")
    for line in difference or ["no difference"]:
        say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
