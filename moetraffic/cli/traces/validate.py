"""``moetraffic validate``: test a synthetic trace against real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moetraffic.cli.output import Printing, printed, progress
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    Force,
    Iterations,
    Layers,
    Plot,
    option,
    trace_argument,
)
from moetraffic.trace import Meta, Trace
from moetraffic.trace.iterations import layer_numbers

if TYPE_CHECKING:
    from moetraffic.validation.acceptance import Acceptance

PARTS = ("tests",)
EXIT_CODES = {"passed": 0, "failed": 1, "cannot be judged": 3}


@printed(PARTS, plot=Plot)
def validate(
    synthetic: Annotated[Path, trace_argument("Synthetic trace.")],
    more: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Further real traces, three in all; with --fits the run that the "
            "synthetic trace was fitted to, and further pairs."
        ),
    ] = None,
    against: list[Path] | None = option(
        None, "Real trace; may be given again.", "--against"
    ),
    fits: bool = option(
        False,
        "Test a generator: pairs of a synthetic trace and the run that it was "
        "fitted to, three or more.",
        "--fits",
    ),
    layers: Layers = None,
    iterations: Iterations = None,
    ranks_per_host: int | None = option(
        None,
        "Number of consecutive ranks per host, for the inter-host share.",
        shown="half of the expert-parallel ranks",
    ),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Test whether a synthetic trace differs from real runs.

    Exit code 1 if it does, 3 if there are too few real runs to judge: at least three
    are needed, and seven are enough for most trainings.  Real runs are reruns of one
    training (capture --data-seed), or runs of other seeds: a synthetic trace passes if
    it is as close to them as they are to each other.

    Example: moetraffic validate synthetic.h5 --against run1.h5 run2.h5 run3.h5
    """
    from moetraffic.report.results import acceptance as report
    from moetraffic.validation.acceptance import accept, accept_fits
    from moetraffic.validation.features import Features, trace_features

    paths = runs_named(synthetic, more or [], against or [], fits=fits)
    validate_outputs((printing.plot,), paths, force=force)
    for path in paths:  # before the first is read as a whole, which takes a while
        Trace.open(path).close()
    runs: list[Features] = []
    metas: list[Meta] = []
    with progress("reading runs", len(paths), quiet=printing.as_json) as tick:
        for path in paths:
            with Trace.open(path) as trace:
                metas.append(trace.meta)
                runs.append(
                    trace_features(
                        trace,
                        layers=layer_numbers(layers),
                        iterations=iterations,
                        ranks_a_host=ranks_per_host,
                    )
                )
            tick(len(runs), str(path))
    found = accept_fits(runs[::2], runs[1::2]) if fits else accept(runs[0], runs[1:])
    printing.present(
        report.as_dict(found),
        *report.sentences(found),
        *_needed(found, paths[1], metas),
        parts={"tests": report.tables(found)},
        chart=report.figure(found),
        code=EXIT_CODES[found.outcome],
    )


def _needed(found: Acceptance, first: Path, metas: Sequence[Meta]) -> list[str]:
    """State which real runs a judgment lacks: like the ``first`` one, or resized.

    The synthetic trace is the first of ``metas``.
    """
    synthetic, *real = metas
    missing = found.power.needed - (0 if found.resized else len(real))
    if found.outcome != "cannot be judged" or found.way == "fits" or missing < 1:
        return []
    like = f"further real runs like {first}"
    if found.resized:
        like = (
            f"real runs of {synthetic.world} ranks (EP {synthetic.ep}), "
            f"{synthetic.experts} experts and k {synthetic.k}"
        )
    return [f"Needed: {missing} {like}, captured with other values of --data-seed."]


def runs_named(
    synthetic: Path, more: list[Path], against: list[Path], *, fits: bool
) -> list[Path]:
    """List the synthetic trace and the real ones, or pairs of both, each named once."""
    from moetraffic.errors import AnalysisError

    if fits and (against or len(more) % 2 == 0):
        raise AnalysisError(
            "with --fits each synthetic trace is followed by the run that it was "
            f"fitted to, without --against, but {1 + len(more)} traces are named"
            f"{' and --against' * bool(against)}: give pairs, such as synthetic1.h5 "
            "run1.h5 synthetic2.h5 run2.h5"
        )
    if not fits and not against:
        raise AnalysisError(
            "a synthetic trace is compared with real runs, but none is named: give "
            "--against real.h5"
        )
    paths = [synthetic, *against, *more]
    if len({path.resolve() for path in paths}) < len(paths):
        raise AnalysisError(
            "each run counts once, but a file is named twice: name the synthetic trace "
            "and each real run once"
        )
    return paths
