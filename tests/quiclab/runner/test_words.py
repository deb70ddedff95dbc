"""
What a role said last: the one line that tells why it ended.
"""

import pytest

from quiclab.runner.words import find_last_words

MEMLOCK = "ERROR: Unknown error -1: couldn't set RLIMIT_MEMLOCK for bpftrace.\n"


def test_an_error_in_a_script_is_told_and_not_its_underline() -> None:
    """The tracer quotes the line and underlines it; the reason stands before both."""
    stderr = (
        f"{MEMLOCK}/tmp/run/tracer/own.bt:1:68-69: ERROR: syntax error, unexpected ;\n"
        "usdt:$1:a { @n = count( ; }\n"
        "                        ~\n"
    )
    assert find_last_words(stderr) == "own.bt:1:68-69: ERROR: syntax error, unexpected ;"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("", ""),
        (MEMLOCK, ""),
        ("one\ntwo\n\n", "two"),
        ("ERROR: no such file\nbye\n", "ERROR: no such file"),
        ("a.bt:1-2: ERROR: first\nx\n~\na.bt:3:1-2: ERROR: next\ny\n~\n", "a.bt:1-2: ERROR: first"),
    ],
)
def test_the_last_error_counts_else_the_last_line(stderr: str, words: str) -> None:
    """Of errors in a script the first counts: the others may follow from it."""
    assert find_last_words(stderr) == words
