"""
What the lab can do, one task each: `./invoke --list`, `./invoke trace --help`.

Everything heavier than this page is imported by the task that needs it, so that
`--help` answers at once.
"""

from quiclab.command.cli import lab_task, main
from quiclab.command.words import (
    BenchWords,
    BuildWords,
    CheckWords,
    CleanWords,
    DoctorWords,
    ProfileWords,
    ScriptsWords,
    TestWords,
    TraceWords,
)


@lab_task(TraceWords)
def trace(words: TraceWords) -> int:
    """
    Run a server under load, watch it with bpftrace, write down what happened.
    """
    from quiclab.command import session

    return session.trace(words)


@lab_task(ScriptsWords)
def scripts(words: ScriptsWords) -> int:
    """
    List the shipped scripts: what each answers, what it fills, what it needs.
    """
    from quiclab.command import inquiry

    return inquiry.scripts(words)


@lab_task(DoctorWords)
def doctor(words: DoctorWords) -> int:
    """
    Check every precondition of a run, and say the fix of each that fails.
    """
    from quiclab.command import inquiry

    return inquiry.doctor(words)


@lab_task(BuildWords)
def build(words: BuildWords) -> int:
    """
    Build the server's native parts, and the image where a Docker engine answers.
    """
    from quiclab.command import upkeep

    return upkeep.build(words)


@lab_task(CleanWords)
def clean(words: CleanWords) -> int:
    """
    Remove what dead runs left behind, and only that.
    """
    from quiclab.command import upkeep

    return upkeep.clean(words)


@lab_task(TestWords)
def test(words: TestWords) -> int:
    """
    Set up what is missing and run the tests.
    """
    from quiclab.command import upkeep

    return upkeep.test(words)


@lab_task(BenchWords)
def bench(words: BenchWords) -> int:
    """
    Measure the server against stock aioquic, against its floor, and as it grows.
    """
    from benchmarks import session

    return session.bench(words)


@lab_task(ProfileWords)
def profile(words: ProfileWords) -> int:
    """
    Sample the server under load: where its time goes, as a table and a flame graph.
    """
    from benchmarks import profiling

    return profiling.profile(words)


@lab_task(CheckWords)
def check(_words: CheckWords) -> int:
    """
    Lint, check the format and check the types.
    """
    from quiclab.command import upkeep

    return upkeep.check()


if __name__ == "__main__":
    import tasks  # the module that plain `invoke` loads, not this `__main__`

    main(tasks)
