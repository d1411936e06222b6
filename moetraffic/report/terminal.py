"""How programs speak: sentences and progress on standard error, tables on output.

What cannot be written, because the reader of a pipe has gone, never ends the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from moetraffic.errors import Interrupted, LayoutError, MoetrafficError
from moetraffic.launch import current_rank

from . import configuration

# typer brings its own click, or uses the installed one: this is the class in either
WRONG_USE: type[Exception] = typer.BadParameter.__mro__[2]


class Paper(Console):
    """A console that leaves it to its caller what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Raise again what rich would end the program for."""
        raise BrokenPipeError


def say(text: str) -> None:
    """One line on standard error, if anybody reads it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _hush(2)


def run(
    app: typer.Typer,
    arguments: Sequence[str] | None,
    name: str,
    *,
    verb: str = "",
) -> int:
    """Run a command line; bad input ends with one sentence and exit code 2.

    Under torchrun and srun the first rank of each host speaks for the others, to whom
    the same happens.

    Parameters
    ----------
    app
        The program.
    arguments
        What follows its name; the process's own arguments if None.
    name
        What its help calls it.
    verb
        The verb of moetraffic that it is, whose options a configuration file may
        give; none for a program that looks for such a file itself.

    Returns
    -------
    int
        The exit code; 128 + n after signal n.
    """
    given = list(arguments) if arguments is not None else None
    try:
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
        context = getattr(error, "ctx", None)
        verb = context.command_path if context else name
        return refuse(f"{_told(error)}: see {verb} --help")
    except (KeyboardInterrupt, typer.Abort):
        say("moetraffic: interrupted")
        return 130
    except BrokenPipeError:
        # the reader has had enough (moetraffic info run.h5 | head): no error
        _hush(1)
        return 0
    return int(code or 0)


@cache
def _command(app: typer.Typer) -> Any:
    """What parses the arguments: to read every verb's signature takes a while."""
    return typer.main.get_command(app)


def _configured(app: typer.Typer, verb: str) -> dict[str, Any]:
    """What the configuration file that the environment names says of a verb."""
    path = configuration.asked()
    if not path:
        return {}
    # other verbs' tables are not looked at: they were, where the verb was chosen
    told = configuration.read(Path(path), [verb], strict=False)
    command = _command(app)
    return configuration.defaults(told.get(verb, {}), verb, command.params, path)


def refuse(sentence: str) -> int:
    """Say what is wrong, and return the exit code of it."""
    if _speaks():
        say(f"moetraffic: {' '.join(sentence.split())}")
    return 2


def _speaks() -> bool:
    """Whether this process is no rank of another launcher, or the first of its host."""
    try:
        seat = current_rank()
    except LayoutError:
        return True
    return seat is None or seat.local_rank == 0


def _told(error: Any) -> str:
    """The message of an exception of click's."""
    return str(error.format_message()).rstrip(".")


def _hush(number: int) -> None:
    """Let what is still buffered for a closed pipe go nowhere."""
    stream = sys.stdout if number == 1 else sys.stderr
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        return  # a stream without a descriptor has no pipe behind it
