"""``moetraffic pattern``: the collectives of a configuration, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from moetraffic.cli.show import AllTables, AsJson, Force, Only, show
from moetraffic.errors import LayoutError
from moetraffic.files import validate_outputs
from moetraffic.patterns import (
    Gating,
    Layout,
    ModelShape,
    Pattern,
    megatron_pattern,
    parameter_count,
    traffic_matrices,
    trained_pattern,
)
from moetraffic.patterns.collectives import ALGORITHMS
from moetraffic.report.console.options import Plot, option, takes
from moetraffic.report.write import SUFFIXES
from moetraffic.spelling import check_choice

from . import choices as o
from .system import hardware, measured_shares

LIBRARIES = ("megatron", "moetraffic")


class Made(NamedTuple):
    """A pattern with what it is of, and its matrices by kind of traffic."""

    shape: ModelShape
    gating: Gating
    pattern: Pattern
    matrices: Mapping[str, Any]  # csr [R, R]


Inputs = tuple[ModelShape, Layout, Gating, tuple[Any, ...]]
"""Model, layout, routing and shares of the ranks."""


@takes(chosen=o.OPTIONS)
def pattern(
    ctx: typer.Context,
    model: o.Model = o.MODEL_NAME,
    imbalance_from: o.ImbalanceFrom = None,
    settings: o.Set = None,
    help_fields: o.HelpFields = False,
    library: str = option("megatron", f"Library: {', '.join(LIBRARIES)}."),
    algorithm: str = option("ring", f"Of collectives: {', '.join(ALGORITHMS)}."),
    platform: str = option("", "Published system, or a file of bench, for times."),
    output: Path | None = option(
        None, "Trace to write (.h5), or tables (.json, .csv).", "-o", "--output"
    ),
    iterations: int = option(1, "Iterations of the trace.", min=1),
    plot: Plot = None,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    force: Force = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Compute the collectives of an iteration: bytes, groups, order and matrices.

    Options of the model and layout take lists: --dp 1,2,4 is one table of all.

    Example: moetraffic pattern --model gpt2-large --pp 4 --tp 2 --dp 4 --plot m.png
    """
    validate_outputs((plot, output), (imbalance_from,), force=force)
    check_choice("--library", library, LIBRARIES, LayoutError)
    check_choice("--algorithm", algorithm, ALGORITHMS, LayoutError)
    chosen = {"model": o.parts(model), **o.given(chosen, settings)}
    if of_system := [name for name in chosen if o.PART.get(name) == "system"]:
        raise LayoutError(
            f"{', '.join(of_system)} is of a system, which estimate has: leave it out"
        )

    def inputs(row: o.Row) -> Inputs:
        shape, gating, usual = o.model_of(row)
        layout = Layout(**o.layout_fields(row, usual))
        shares: tuple[Any, ...] = ()
        if imbalance_from is not None:
            measured = measured_shares(imbalance_from, shape, int(layout.ep))
            shares = tuple(map(tuple, measured.tolist()))
        return shape, layout, gating, shares

    def made_of(of: Inputs) -> Made:
        shape, layout, gating, shares = of
        if library == "megatron":
            calls = megatron_pattern(shape, layout, gating, shares=shares)
        elif imbalance_from is None:
            calls = trained_pattern(shape, layout, gating)
        else:
            raise LayoutError(
                "moetraffic's own training does not have --imbalance-from: leave it "
                "out, or use --library megatron"
            )
        if not calls.kinds:
            raise LayoutError(
                "a single rank sends nothing: raise --dp, --tp, --pp or --cp"
            )
        nodes = int(layout.gpus_per_node)
        sent = traffic_matrices(calls, algorithm=algorithm, gpus_per_node=nodes)
        return Made(shape, gating, calls, sent)

    from moetraffic.report.views import pattern as view
    from moetraffic.report.views.estimate import head

    rows = o.combinations(chosen)
    made, results = [made_of(inputs(row)) for row in rows], []
    for row, each in zip(rows, made, strict=True):
        if len(rows) == 1:
            o.refuse_idle(ctx, row, inputs, lambda of: compared(made_of(of)))
        layout = Layout.of(each.shape, each.pattern.layout, each.gating)
        times = seconds_of(layout, row, platform) if platform else None
        count = parameter_count(each.shape, k=each.gating.k)
        results.append(
            view.pattern_result(
                each.pattern,
                each.matrices,
                head(layout, each.pattern.name),
                algorithm=algorithm,
                times=times,
                data={"parameters": {"total": count.total, "active": count.active}},
            )
        )
    result = results[0] if len(rows) == 1 else view.joined(results, o.varied(chosen))
    trace = output if output and output.suffix not in SUFFIXES else None
    if trace is not None and len(rows) > 1:
        raise LayoutError("a trace is of one configuration: give no lists of values")
    if trace is not None:
        from moetraffic.analysis.pattern_trace import pattern_trace

        plan = made[0].pattern.layout
        tokens = int(plan.micro_batch * plan.accumulation * made[0].shape.window)
        found = pattern_trace(made[0].pattern, iterations=iterations, tokens=tokens)
        found.save(trace, force=force)
    if plot is not None:
        from moetraffic.report import figures

        first = made[0].pattern
        chart = (
            view.kinds_chart(result)
            if len(rows) > 1
            else view.heatmaps(
                made[0].matrices,
                title=f"{first.name} on {first.layout.world} ranks",
                source=f"Computed for {result.head}; collectives as {algorithm}",
                stage=view.stage_ranks(first.layout),
            )
        )
        figures.save(chart, plot)
    show(
        result,
        as_json=as_json,
        tables=tables,
        only=only,
        output=None if trace else output,
        force=force,
    )


def compared(made: Made) -> Any:
    """Return what two patterns are compared by."""
    sent = {
        kind: (m.indptr.tobytes(), m.indices.tobytes(), m.data.tobytes())
        for kind, m in made.matrices.items()
    }
    return made.pattern.rows(), sent


def seconds_of(layout: Layout, row: o.Row, platform: str) -> dict[str, float]:
    """Estimate the seconds that each kind of traffic takes on a platform."""
    from moetraffic.timemodel import System, estimate

    system = System(**hardware({**row, "platform": platform}, roofline=False))
    found = estimate(layout, system)
    spent = {k: float(v) for k, v in found.communication.items()}
    times = {kind: spent[kind.lower()] for kind in ("PP", "EP", "CP")}
    times |= {"TP": spent["tp"] + spent["ends"], "DP": spent["dp"] + spent["edp"]}
    return times | {"EmbTableSync": spent["embedding"]}
