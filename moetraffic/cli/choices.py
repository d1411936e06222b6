"""Options that choose among what a trace has, the same on every verb that reads one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import MoetrafficError
from moetraffic.trace.iterations import number_list

Iterations = Annotated[
    str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
]
"""Read with :func:`moetraffic.trace.iterations.iteration_range`."""

Layers = Annotated[
    list[str] | None,
    typer.Option("--layers", "--layer", help="Only MoE layers of a list: 1,3:6."),
]
"""Read with :func:`layer_numbers`; the option may be given again."""


def layer_numbers(given: list[str] | None) -> tuple[int, ...] | None:
    """The layers of all lists that were given; None for every layer.

    Raises
    ------
    TraceError
        If one is no list of numbers.
    """
    return number_list(",".join(given), "layers") if given else None


def told(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of some options that stand on the command line, as they stand there.

    What a configuration file says holds for many runs: it contradicts none of them.
    """
    given = []
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given.append(f"--{name.replace('_', '-')}")
    return given


def refuse_idle(
    context: typer.Context,
    names: Iterable[str],
    why: str,
    *,
    error: type[MoetrafficError] = MoetrafficError,
) -> None:
    """Refuse options that would do nothing beside the others.

    Parameters
    ----------
    context
        Of the verb.
    names
        Its parameters.
    why
        When they do something, or what takes their place, in words.
    error
        What to raise.

    Raises
    ------
    MoetrafficError
        Of the kind asked for.
    """
    idle = told(context, names)
    if idle:
        verb, them = ("is", "it") if len(idle) == 1 else ("are", "them")
        raise error(f"{why}, but {', '.join(idle)} {verb} given: leave {them} out")


def picture(path: Path | None) -> Path | None:
    """The value of an option that names a picture: its ending says what it is.

    Raises
    ------
    MoetrafficError
        If it says anything but PNG.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise MoetrafficError(
            f"pictures are PNG files, but {path.name!r} has another ending: name it "
            f"{path.stem or 'picture'}.png"
        )
    return path
