"""The program ``moetraffic``: its verbs, and how errors end it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from moetraffic import __version__
from moetraffic.errors import Interrupted, MoetrafficError

from . import (
    analyze,
    capture,
    demo,
    info,
    merge,
    models,
    place,
    plot,
    replay,
    tolerance,
)

app = typer.Typer(
    name="moetraffic",
    help="Record, analyse and replay the AllToAll traffic of mixture-of-experts "
    "training.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("capture")(capture.capture)
app.command("info")(info.info)
app.command("analyze")(analyze.analyze)
app.command("replay", context_settings=replay.CONTEXT)(replay.replay)
app.command("merge")(merge.merge)
app.command("plot")(plot.plot)
app.command("place")(place.place)
app.command("tolerance")(tolerance.tolerance)
app.command("models")(models.models)


# typer brings its own click, or uses the installed one: this is the class in either
WRONG_USE: type[Exception] = typer.BadParameter.__mro__[2]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"moetraffic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Record, analyse and replay the AllToAll traffic of MoE training."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; bad input ends with one sentence and exit code 2.

    Parameters
    ----------
    arguments
        What follows the program's name; the process's own arguments if not given.

    Returns
    -------
    int
        The exit code.
    """
    logging.basicConfig(format="moetraffic: %(message)s", level=logging.WARNING)
    try:
        code = app(
            list(arguments) if arguments is not None else None, standalone_mode=False
        )
        sys.stdout.flush()
    except Interrupted as error:
        _refuse(str(error))
        return 128 + error.signal
    except MoetrafficError as error:
        return _refuse(str(error))
    except WRONG_USE as error:
        context = getattr(error, "ctx", None)
        verb = context.command_path if context else "moetraffic"
        return _refuse(f"{_told(error)}: see {verb} --help")
    except (KeyboardInterrupt, typer.Abort):
        print("moetraffic: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader has had enough (moetraffic info run.h5 | head): no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return int(code or 0)


def _told(error: Any) -> str:
    """The message of an exception of click's."""
    return str(error.format_message()).rstrip(".")


def _refuse(sentence: str) -> int:
    print(f"moetraffic: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
