"""Options that choose among what a trace has, the same on every verb that reads one."""

from __future__ import annotations

from typing import Annotated

import typer

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
