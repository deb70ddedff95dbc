"""
The command line: invoke's tasks under the manners of `docs/exit-codes.md`.

invoke alone answers a wrong word with exit 1 and without near names, takes a
bare `--buffer` for an empty list, and runs a task's Python under `--dry`. So
`./invoke` runs `LabProgram`, which looks the words over before invoke parses
them. The tasks stay plain invoke tasks: `invoke trace ...` runs the same ones.
"""

import difflib
import errno
import functools
import gc
import inspect
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program
from invoke.tasks import task

from quiclab import VERSION
from quiclab.errors import ExitCode, InterruptedRunError, LabError, UsageError

WordsT = TypeVar("WordsT")

_NEAR_NAME_COUNT = 3
_CORE_OPTIONS = frozenset(
    {
        "complete",
        "debug",
        "dry",
        "help",
        "list",
        "list-depth",
        "list-format",
        "print-completion-script",
        "version",
        "write-pyc",
    }
)
"""What is kept of invoke's own options: the others steer `run()`, which no task here uses."""


def lab_task(words: type[WordsT]) -> Callable[[Callable[[WordsT], int]], Any]:
    """
    Turn a function of one dataclass of options into an invoke task.

    The function returns an exit code. Errors that a user can meet become one
    line on stderr and their own exit code.

    Args:
        words: Frozen dataclass; each of its fields was made by `quiclab.command.words.option`.
    """

    def decorate(body: Callable[[WordsT], int]) -> Any:
        @functools.wraps(body)
        def run(_context: Context, /, **given: Any) -> None:
            for name, value in given.items():
                given[name] = tuple(value) if isinstance(value, list) else value
                if value is True and name in bare:  # invoke's word for an option without its value
                    given[name] = bare[name]
            with answered_errors(body.__name__):
                code = body(words(**given))
            if code:
                raise Exit(code=int(code))

        options = fields(words)  # type: ignore[arg-type]  # bound to dataclasses by contract
        bare = {each.name: each.metadata["if_bare"] for each in options if each.metadata["if_bare"]}
        # invoke reads a task's options from its signature; it drops the first parameter.
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
            + [
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None if each.metadata["is_many"] else each.default,
                )
                for each in options
            ]
        )
        return task(
            run,
            help={each.name.replace("_", "-"): each.metadata["help"] for each in options},
            iterable=[each.name for each in options if each.metadata["is_many"]],
            optional=list(bare),
            auto_shortflags=False,  # letters handed out by order would change with each new option
        )

    return decorate


@contextmanager
def answered_errors(name: str) -> Iterator[None]:
    """
    Say a `LabError` as one line after the task's name, then exit with its code.

    TERM and HUP end the block in order too: a task that sets something up has
    `finally` clauses worth running. A HUP that is ignored (`nohup`) stays so. A run that
    traces owns its signals itself.

    Raises:
        Exit: Instead of the error; carries the exit code.
        SystemExit: TERM or HUP came.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        say_error(f"{name}: ended by {signal.Signals(number).name}")
        raise SystemExit(int(ExitCode.TERMINATED))

    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    previous = {each: signal.signal(each, end) for each in heard}
    try:
        yield
    except KeyboardInterrupt:
        say_error(f"{name}: {InterruptedRunError('SIGINT')}")
        raise Exit(code=int(ExitCode.INTERRUPTED)) from None
    except LabError as error:
        say_error(f"{name}: {error}")
        raise Exit(code=int(error.exit_code)) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def say_error(line: str) -> None:
    """
    Write a line to stderr, after everything that stdout still holds.
    """
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """
    Names that a person who wrote `name` may have meant, nearest first.
    """
    return difflib.get_close_matches(
        name.lower().replace("_", "-"), list(names), n=_NEAR_NAME_COUNT, cutoff=0.6
    )


def render_choice(name: str, names: Iterable[str]) -> str:
    """
    `there are a, b, c (did you mean b?)`
    """
    known = sorted(names)
    near = near_names(name, known)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"there are {', '.join(known)}{meant}"


class WordCheck:
    """
    Looks over the words of a command line before invoke parses them.

    Args:
        tasks: What each task understands, by the task's name.
        core: What may stand anywhere.
    """

    def __init__(self, tasks: Mapping[str, ParserContext], core: ParserContext) -> None:
        self._tasks = tasks
        self._core = core
        self._task: ParserContext | None = None
        self._seen: set[str] = set()

    def check(self, words: Sequence[str]) -> None:
        """
        Walk the words once.

        Raises:
            UsageError: A task or option is unknown, lacks its value, has one that it
                does not take, or is given twice.
        """
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                if rest and self._task is not None:  # before a task it belongs to --complete
                    raise UsageError(
                        f'{self._where}: "{rest[0]}" stands behind --, where nothing is read; '
                        "leave out the --"
                    )
                return
            if word.startswith("-") and word != "-":
                self._check_option(word, rest)
            elif word in self._tasks:
                self._task = self._tasks[word]
                self._seen = set()
            else:
                self._refuse(word)

    @property
    def _where(self) -> str:
        return "invoke" if self._task is None else str(self._task.name)

    def _refuse(self, word: str) -> NoReturn:
        if self._task is None:
            raise UsageError(f'invoke: no task "{word}"; {render_choice(word, self._tasks)}')
        raise UsageError(
            f'{self._where}: "{word}" is neither an option nor a task; options begin with --, '
            f"and ./invoke {self._where} --help lists them"
        )

    def _check_option(self, word: str, rest: list[str]) -> None:
        name, equals, value = word.partition("=")
        argument = self._find(name)
        if not argument.takes_value and equals:
            raise UsageError(f"{self._where}: {name} is a switch; leave out ={value}")
        if name in self._seen and argument.kind is not list:
            raise UsageError(f"{self._where}: {name} is given twice; give it once")
        self._seen.add(name)
        if not argument.takes_value:
            return
        if not equals and rest and not rest[0].startswith("--"):
            if argument.optional and rest[0] in self._tasks:
                return
            value = rest.pop(0)
        if not value and not argument.optional:
            raise UsageError(f"{self._where}: {name} needs a value: {argument.help}")

    def _find(self, name: str) -> Argument:
        own = self._task or self._core
        for context in (own, self._core):
            main_name = context.inverse_flags.get(name, name)
            if main_name in context.flags:
                found: Argument = context.flags[main_name]
                return found
        known = [*own.flags, *own.inverse_flags]
        near = near_names(name, known)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        of_task = "" if self._task is None else f"{self._where} "
        raise UsageError(
            f"{self._where}: no option {name}; {meant}./invoke {of_task}--help lists all"
        )


class LabProgram(Program):
    """
    invoke with exit code 2 for wrong words, near names, and `--dry` for `--plan`.
    """

    def core_args(self) -> list[Argument]:
        """Keep the options of invoke that mean something here."""
        kept = [each for each in super().core_args() if each.names[0] in _CORE_OPTIONS]
        for each in kept:
            if each.names[0] == "dry":
                each.help = "The same as the task's --plan: print what would be done."
        return kept

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse what stands before the first task; leave Python's bytecode cache alone."""
        is_cache_off = sys.dont_write_bytecode
        with _parse_errors_are_usage_errors():
            super().parse_core(argv)
        sys.dont_write_bytecode = is_cache_off

    def parse_tasks(self) -> None:
        """Look the words over, then let invoke parse them."""
        WordCheck(self._read_contexts(), self.initial_context).check(self.argv[1:])
        with _parse_errors_are_usage_errors(), self._kept_help():
            super().parse_tasks()
        if self.args.dry.value:
            self._turn_dry_into_plan()

    def parse_cleanup(self) -> None:
        """Answer `--help` and `--list`; an unknown task there gets its near names too."""
        asked = self.args.help.value
        if isinstance(asked, str) and asked not in self.parser.contexts:
            names = list(self._read_contexts())
            raise UsageError(f'invoke: no task "{asked}"; {render_choice(asked, names)}')
        with _parse_errors_are_usage_errors():
            super().parse_cleanup()

    def _read_contexts(self) -> dict[str, ParserContext]:
        """Read what each task takes."""
        with self._kept_help():
            return {str(each.name): each for each in self.collection.to_contexts()}

    @contextmanager
    def _kept_help(self) -> Iterator[None]:
        """Put a task's help texts back: invoke empties them as it reads them."""
        texts = {each: dict(each.help) for each in self.collection.tasks.values()}
        try:
            yield
        finally:
            for each, text in texts.items():
                each.help = text

    def print_version(self) -> None:
        """Say the lab's version."""
        print(f"{self.name} {VERSION}")

    def update_config(self, merge: bool = True) -> None:  # noqa: FBT001, FBT002  (invoke's signature)
        """Skip what invoke's own options would change: they are not offered."""
        if merge:
            self.config.merge()

    def _turn_dry_into_plan(self) -> None:
        for context in self.tasks:
            if "plan" not in context.args:
                raise UsageError(f"{context.name}: has no --plan, so --dry means nothing to it")
            context.args["plan"].value = True


@contextmanager
def _parse_errors_are_usage_errors() -> Iterator[None]:
    try:
        yield
    except (ParseError, ValueError) as error:  # ValueError: `--list-depth x`
        raise UsageError(f"invoke: {error}") from error


def main(tasks: ModuleType, argv: Sequence[str] | None = None) -> NoReturn:
    """
    Run the tasks of a module under the words of a command line, and exit.

    Args:
        tasks: The module that holds them.
        argv: Program name and words; None for those of this process.

    Raises:
        SystemExit: Always; carries the exit code.
    """
    _prepare_streams()
    program = LabProgram(
        name="quiclab",
        binary="./invoke",
        binary_names=["./invoke"],
        namespace=Collection.from_module(tasks),
    )
    code = int(ExitCode.OK)
    try:
        _check_directory()
        program.run(list(argv) if argv is not None else None)
    except UsageError as error:
        say_error(str(error))
        code = int(ExitCode.USAGE)
    except BrokenPipeError:
        # `./invoke scripts | head -1`: the reader left, which is no fault of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say_error(f"invoke: cannot write {error.filename or 'to stdout'}: {error.strerror}")
        code = int(ExitCode.MACHINE_CANNOT)
    gc.freeze()  # the kernel takes all memory back at once; freeing it by objects takes 60 ms
    raise SystemExit(code)


def _prepare_streams() -> None:
    """A narrow locale costs a sign, not a run; a closed stream (`>&-`) costs what goes there."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  (for the process's life)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # By lines also into a file: what cannot be written is then known in time.
            stream.reconfigure(errors="replace", line_buffering=True)


def _check_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("invoke: the current directory is gone; cd to one that exists") from error
