"""
Record what each bpftrace version writes, for the tests that read it.

`python -m tests.scripts.record` (root, the userlands prepared) runs the scripts
of tests/data/bpftrace/scripts and the shipped ones, the latter against the
probe player, and writes tests/data/bpftrace/<version>/. Look through the
difference before committing it: that is what a new version changed.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.scripts.player import Player, events_of_one_download
from tests.scripts.tracing import traced
from tests.userland import REPOSITORY, SUITES, Userland, find_userland

DATA = REPOSITORY / "tests/data/bpftrace"
RUN_LIMIT_S = 30
SETTINGS = {
    "lost": {"BPFTRACE_PERF_RB_PAGES": "1"},
    "full": {"BPFTRACE_MAP_KEYS_MAX": "3", "BPFTRACE_MAX_MAP_KEYS": "3"},
}


def main() -> int:
    """Record everything on every prepared userland."""
    for suite in SUITES.values():
        userland = find_userland(suite)
        if userland is None:
            print(f"{suite.name}: not prepared, left as it is", file=sys.stderr)
            continue
        folder = DATA / userland.bpftrace_version
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="quiclab-record-") as scratch:
            _record_oddities(userland, folder, Path(scratch))
            _record_shipped(userland, folder, Path(scratch))
        print(f"{suite.name}: {folder.relative_to(REPOSITORY)}")
    return 0


def _record_oddities(userland: Userland, folder: Path, scratch: Path) -> None:
    for script in sorted((DATA / "scripts").glob("*.bt")):
        copy = scratch / script.name
        shutil.copy(script, copy)
        settings = [f"{name}={value}" for name, value in SETTINGS.get(script.stem, {}).items()]
        for output_format, suffix in (("json", "jsonl"), ("text", "txt")):
            if output_format == "text" and script.stem != "kinds":
                continue
            output = folder / f"{script.stem}.{suffix}"
            result = userland.run(
                ["env", *settings, "bpftrace", "-f", output_format, "-o", str(output), str(copy)],
                timeout_s=RUN_LIMIT_S,
            )
            if result.returncode != 0:
                raise SystemExit(f"{userland.suite.name} {script.name}: {result.stderr}")
            _hide_scratch(output, scratch)


def _record_shipped(userland: Userland, folder: Path, scratch: Path) -> None:
    player = Player.build(scratch)
    for script in sorted((REPOSITORY / "bpftrace").glob("*.bt")):
        output = folder / f"{script.stem}.jsonl"
        output.unlink(missing_ok=True)
        with traced(userland, script, player.path, output=output):
            player.play(events_of_one_download())
        _hide_scratch(output, scratch)


def _hide_scratch(output: Path, scratch: Path) -> None:
    output.write_text(output.read_text().replace(str(scratch), "/run/quiclab"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as error:
        sys.exit(f"{error.cmd} took over {RUN_LIMIT_S} s")
