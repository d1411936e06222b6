"""``moetraffic validate``: can a synthetic run be told from real ones?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs
from moetraffic.trace.iterations import iteration_range

from .choices import Iterations, Layers, layer_numbers, picture
from .output import console, print_json, progress

TOLD_APART = 1
"""Exit code where the synthetic run is told from real ones."""


def validate(
    synthetic: Annotated[Path, typer.Argument(help="Synthetic trace.")],
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="Further real traces, of other seeds; three in all."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="Real trace; may be given again."),
    ] = None,
    layers: Layers = None,
    iterations: Iterations = None,
    ranks_per_host: Annotated[
        int | None,
        typer.Option(
            help="Neighboring ranks that share a host, for the inter-host share.",
            show_default="half of the expert-parallel ranks",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Picture to draw, PNG.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try whether a synthetic run can be told from real ones; exit code 1 if it can.

    With three real runs or more, of other seeds than the one that the generator was
    fitted to, by how seeds differ; with fewer, by swapping time blocks with these.

    Example: moetraffic validate twin.h5 --against seed1.h5 seed2.h5 seed3.h5
    """
    from moetraffic.errors import AnalysisError
    from moetraffic.report import acceptance as report
    from moetraffic.report import figures
    from moetraffic.validation.acceptance import accept
    from moetraffic.validation.features import Features, portrait

    real = [*(against or []), *(more or [])]
    if not against:
        raise AnalysisError(
            "a synthetic run is held against real ones, but none is named: give "
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
                    portrait(
                        trace,
                        layers=layer_numbers(layers),
                        iterations=iteration_range(iterations),
                        ranks_a_host=ranks_per_host,
                    )
                )
            tick(len(runs), str(path))
    found = accept(runs[0], runs[1:])
    if plot is not None:
        figures.save(report.figure(found), plot)
    if as_json:
        print_json(report.as_dict(found))
    else:
        console.print(report.table(found))
        if plot is not None:
            console.print(str(plot))
    if not found.passed:
        raise typer.Exit(TOLD_APART)
