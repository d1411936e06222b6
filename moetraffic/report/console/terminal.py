"""Console, error messages and exit codes of the command line.

Messages go to standard error, tables to standard output; a closed pipe is no error.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.console import (
    Console,
    ConsoleDimensions,
    ConsoleOptions,
    RenderableType,
)
from rich.segment import Segment

from moetraffic.errors import Interrupted, LayoutError, MoetrafficError
from moetraffic.files import remedy
from moetraffic.fitting import indented
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.text import LOG_WIDTH, visible

from . import configuration

# typer bundles click or uses the installed one: this is the class in both cases
WRONG_USE: type[Exception] = typer.BadParameter.__mro__[2]

NUMBERS = {"int_parsing": "a whole number", "float_parsing": "a number"}
"""What options are that pydantic cannot parse, by the type of its error."""

COMMAND = re.compile(r"moetraffic (?:[^.,:;(]|[.,:](?=\S))+(?<! )")
"""A command in a sentence, up to the mark that ends it."""

TOGETHER = re.compile(r"'[^']*'|(?<!\S)(?:moetraffic|-\S+) (?!-)")
"""Parts of a command that are not broken: quoted text, an option and its value."""

IN_QUANTITY = re.compile(r"(?<=\d) (?=(?:[kMGTP]?(?:B(?:/s)?|bps)|[mun]?s)(?!\w))")
"""The space between a number and its unit."""


class Paper(Console):
    """Console that prints text literally: no markup, no control characters.

    Names in files may look like markup or contain terminal escape sequences.  Tables
    and sentences are as wide as the terminal, and in a log or a pipe always of the same
    width.
    """

    def __init__(self, *, width: int | None = None, **options: Any) -> None:
        super().__init__(
            **{"markup": False, "emoji": False, "highlight": False} | options
        )
        self._fixed = width

    @property  # type: ignore[misc]  # it is not set
    def size(self) -> ConsoleDimensions:
        """Width and height in characters."""
        found = super().size
        width = self._fixed or (found.width if self.is_terminal else LOG_WIDTH)
        return ConsoleDimensions(width, found.height)

    def say(self, sentence: str, *, style: str = "") -> None:
        """Print sentences, wrapped: all lines but the first are indented.

        A number and its unit are not separated.  So that commands can be copied, they
        are not broken where they fit into a line, else at options, with backslashes; in
        a log, a line that ends with one is left as it is.
        """

        def unbroken(found: re.Match[str]) -> str:
            if len(found[0]) + 2 <= self.width:  # indented
                return found[0].replace(" ", "\0")
            parts = TOGETHER.sub(lambda part: part[0].replace(" ", "\0"), found[0])
            return parts.replace(" ", "\1 ")

        for line in sentence.split("\n"):
            ends = any(found.end() == len(line) for found in COMMAND.finditer(line))
            whole = IN_QUANTITY.sub("\0", COMMAND.sub(unbroken, line))
            width = self.width - ("\1" in whole)  # space for a backslash
            text = indented(whole, width if self.is_terminal or not ends else 10**9)
            text = text.replace("\1\n", " \\\n").replace("\1", "").replace("\0", " ")
            self.print(text, soft_wrap=True, style=style)

    def show(self, results: Iterable[Any]) -> None:
        """Print tables and sentences."""
        for one in results:
            if isinstance(one, str):
                self.say(one)
            else:
                self.print(one)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render with control characters of texts escaped; rich's own are kept."""
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(visible(segment.text, lines=True), segment.style)
            )

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, for which rich would exit the program."""
        raise BrokenPipeError


def say(text: str) -> None:
    """Print a message on standard error, in a log as one line; ignore a closed pipe."""
    try:
        if sys.stderr.isatty():
            Paper(stderr=True).say(text)
        else:
            print(visible(text, lines=True), file=sys.stderr, flush=True)
    except OSError:
        _discard(2)


def announce(sentence: str) -> None:
    """Print a sentence about the command's work on standard error."""
    say(f"moetraffic: {sentence}")


def run(
    app: typer.Typer,
    arguments: Sequence[str] | None,
    name: str,
    *,
    verb: str = "",
) -> int:
    """Run a command line; invalid input prints one sentence and returns exit code 2.

    Under torchrun and srun, only the first rank of each host prints errors. ``verb`` is
    the verb whose options a configuration file may set; "" for a program that reads
    such a file itself.

    Returns
    -------
    int
        The exit code; 128 + n after signal n.
    """
    given = list(arguments) if arguments is not None else None
    _open_standard_streams()
    code: Any = 0
    try:
        _check_given(sys.argv[1:] if given is None else given)
        told = _configured(app, verb) if verb else {}
        code = _command(app)(
            given, standalone_mode=False, prog_name=name, default_map=told
        )
        sys.stdout.flush()
    except Interrupted as error:
        refuse(str(error))
        return 128 + error.signal
    except MoetrafficError as error:
        return refuse(str(error))
    except WRONG_USE as error:
        wrong: Any = error
        verb = wrong.ctx.command_path if wrong.ctx else name
        return refuse(f"{_wrong_use(wrong)}: see {verb} --help")
    except (KeyboardInterrupt, typer.Abort):
        say("moetraffic: interrupted")
        return 130
    except BrokenPipeError:
        # the reader closed the pipe (moetraffic info run.h5 | head): no error
        _discard(1)
    except OSError as error:
        # unanticipated: this machine refuses a file, or standard output
        if error.filename is None:
            _discard(1)
        return refuse(_environment_error(error))
    return int(code or 0)


def _wrong_use(error: Any) -> str:
    """Describe wrong use; of a number, typer may have pydantic's text and no value."""
    text = str(error.format_message()).rstrip(".")
    for part in getattr(error.__cause__, "errors", list)():
        if rule := NUMBERS.get(part["type"]):
            text = text.replace(part["msg"], f"it is {rule}, not {part['input']!r:.60}")
    return text


def _check_given(arguments: Sequence[str]) -> None:
    """Check that no argument is empty, which would name the current folder."""
    own = list(arguments)
    own = own[: own.index("--")] if "--" in own else own
    for number, text in enumerate(own, 1):
        if not text or (text.startswith("--") and text.endswith("=")):
            raise MoetrafficError(
                f"argument {number} is empty, as of a shell variable that is not set: "
                "give it a value"
            )


@cache
def _command(app: typer.Typer) -> Any:
    """Build the click command once: parsing every verb's signature is slow."""
    return typer.main.get_command(app)


def _configured(app: typer.Typer, verb: str) -> dict[str, Any]:
    """Read a verb's options from the configuration file in the environment."""
    path = os.environ.pop(configuration.VARIABLE, "")  # for no child
    table = configuration.read(Path(path)).get(verb, {}) if path else {}
    return configuration.defaults(table, verb, _command(app).params)


def refuse(sentence: str) -> int:
    """Print an error message in one line, and return the exit code for bad input."""
    if (rank := seat()) is None or rank.local_rank == 0:
        say(f"moetraffic: {' '.join(sentence.split())}")
    return 2


def seat() -> RankEnvironment | None:
    """Return this process's place among another launcher's ranks, if it is sound."""
    try:
        return current_rank()
    except LayoutError:
        return None


def _open_standard_streams() -> None:
    """Open standard streams that are closed, so that no output file takes their place.

    Python does not pass the replacements on to the processes that it starts.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(opened)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _environment_error(error: OSError) -> str:
    """Describe an unexpected error of the operating system in one sentence."""
    reason = error.strerror or str(error)
    if "temporary directory" in reason:  # of module tempfile
        return (
            "temporary files need a folder, but none can be written, not even the "
            "working folder: set TMPDIR to a folder that you may write to, with space"
        )
    place = f"{error.filename} cannot be used" if error.filename else ""
    return f"{place or 'the output cannot be written'} ({reason}): {remedy(error)}"


def _discard(number: int) -> None:
    """Redirect a closed pipe to the null device, to drop buffered output."""
    stream = sys.stdout if number == 1 else sys.stderr
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        return  # a stream without a descriptor is not a pipe
