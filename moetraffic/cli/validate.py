"""``moetraffic validate``: test a synthetic trace against real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.report.console.options import (
    AllTables,
    AsJson,
    Force,
    Iterations,
    Layers,
    Plot,
    layer_numbers,
    only_option,
    option,
    parts_of,
)
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs

from .output import present, progress

PARTS = ("tests",)
DIFFERS = 1
"""Exit code where the synthetic trace differs from real ones."""


def validate(
    synthetic: Annotated[Path, typer.Argument(help="Synthetic trace.")],
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="Further real traces, of other seeds; three in all."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        option("Real trace; may be given again.", "--against"),
    ] = None,
    layers: Layers = None,
    iterations: Iterations = None,
    ranks_per_host: Annotated[
        int | None,
        option(
            "Number of consecutive ranks per host, for the inter-host share.",
            shown="half of the expert-parallel ranks",
        ),
    ] = None,
    plot: Plot = None,
    force: Force = False,
    tables: AllTables = False,
    only: Annotated[str | None, only_option(PARTS)] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether a synthetic trace differs from real ones; exit code 1 if it does.

    With three or more real traces of other seeds than the one that the generator was
    fitted to, the reference is the difference between seeds; with fewer, a permutation
    of time blocks.

    Example: moetraffic validate synthetic.h5 --against seed1.h5 seed2.h5 seed3.h5
    """
    names = parts_of(only, PARTS, tables=tables)
    from moetraffic.errors import AnalysisError
    from moetraffic.report.results import acceptance as report
    from moetraffic.validation.acceptance import accept
    from moetraffic.validation.features import Features, trace_features

    real = [*(against or []), *(more or [])]
    if not against:
        raise AnalysisError(
            "a synthetic run is compared with real ones, but none is named: give "
            "--against real.h5"
        )
    same = [p for p in real if p.exists() and p.resolve() == synthetic.resolve()]
    twice = len({p.resolve() for p in real}) < len(real)
    if same or twice:
        raise AnalysisError(
            "each run counts once, but a file is named twice: name the synthetic run "
            "and each real one once"
        )
    validate_outputs((plot,), (synthetic, *real), force=force)
    runs: list[Features] = []
    with progress("runs", len(real) + 1, quiet=as_json) as tick:
        for path in (synthetic, *real):
            with Trace.open(path) as trace:
                runs.append(
                    trace_features(
                        trace,
                        layers=layer_numbers(layers),
                        iterations=iterations,
                        ranks_a_host=ranks_per_host,
                    )
                )
            tick(len(runs), str(path))
    found = accept(runs[0], runs[1:])
    present(
        report.as_dict(found),
        *report.sentences(found),
        as_json=as_json,
        parts={"tests": [report.table(found)]},
        only=names,
        tables=tables,
        chart=report.figure(found),
        plot=plot,
    )
    if not found.passed:
        raise typer.Exit(DIFFERS)
