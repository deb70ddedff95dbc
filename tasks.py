"""
What the lab can do, one task each: `./invoke --list`, `./invoke trace --help`.
"""

from quiclab.cli import lab_task, main
from quiclab.errors import ExitCode
from quiclab.plan import TraceWords


@lab_task(TraceWords)
def trace(words: TraceWords) -> int:
    """
    Run a server under load, watch it with bpftrace, and write down what happened.
    """
    print(words)
    return ExitCode.OK


if __name__ == "__main__":
    import tasks  # the collection is made of the module that plain `invoke` loads, too

    main(tasks)
