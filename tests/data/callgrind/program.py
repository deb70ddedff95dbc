"""
What program.out is a recording of: three calls of `outer`, each with two of `inner`.

    PYTHONHASHSEED=0 PYTHONPATH=. valgrind --tool=callgrind --instr-atstart=no \
        --toggle-collect=counted_measured --callgrind-out-file=program.out \
        python tests/data/callgrind/program.py > program.json
"""

import json

from benchmarks.counting import _counting


def inner(depth: int) -> int:
    """Call itself once."""
    return inner(depth - 1) if depth else len("inner")


class Connection:
    """In the place of aioquic's."""

    def ask(self) -> int:
        """Asked of by `outer`."""
        return self.answer()

    def answer(self) -> int:
        """Called by `ask`; in its turn wrapped."""
        return inner(1)


def outer(connection: Connection) -> None:
    """What is measured."""
    for _ in range(2):
        connection.ask()


for name in ("ask", "answer"):
    setattr(Connection, name, _counting.InAioquic(getattr(Connection, name)))
_counting.follow_calls()
_counting.start()
for _ in range(3):
    _counting.measured(outer, Connection())
_counting.stop()
arcs = [
    [
        None if code is None else [code.co_filename, code.co_firstlineno, code.co_qualname]
        for code in arc
    ]
    for arc in _counting.arcs()
]
print(json.dumps(arcs))
