"""``moetraffic pattern``: the collectives of a configuration, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from moetraffic.cli.output import Printing, Shown, printed
from moetraffic.errors import LayoutError
from moetraffic.files import validate_outputs
from moetraffic.patterns import (
    Gating,
    ModelShape,
    Parallelism,
    ParameterCount,
    parameter_count,
)
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.patterns.megatron import megatron_pattern
from moetraffic.patterns.pattern import Pattern
from moetraffic.patterns.rules import choose
from moetraffic.patterns.stage import Shares
from moetraffic.patterns.synchronization import SYNCHRONIZATIONS
from moetraffic.patterns.traffic import traffic_matrices
from moetraffic.patterns.workload_pattern import trained_pattern
from moetraffic.patterns.workloads.router_spec import DISPATCH_FORMS
from moetraffic.report.console.options import (
    Force,
    Plot,
    Setting,
    field_options,
    option,
    takes,
    trace_output,
)

from .assumptions import measured_shares
from .layout import LAYOUT, MICRO_BATCH, usual_micro_batches
from .model_shape import MODEL, MODEL_HELP, SHAPE, based_on, model_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PARTS = ("traffic", "groups", "calls")

LIBRARIES = ("megatron", "moetraffic")

GRID = field_options(
    Parallelism,
    "Parallelism",
    {
        **LAYOUT,
        "order": "Order of the parallel axes over ranks, fastest-varying first.",
        "synchronization": Setting(
            f"Synchronization of replicas: {', '.join(SYNCHRONIZATIONS)}.",
            shown="by ZeRO stage",
        ),
        "bucket_mib": Setting("Size of DDP's buckets in MiB.", shown="1, then 25"),
        "gpus_per_node": Setting(
            "Number of ranks per node; 0: all ranks on one node.", rule={"min": 0}
        ),
    },
)
TRAINING = field_options(
    Parallelism,
    "Training",
    {
        "micro_batch": MICRO_BATCH,
        "accumulation": Setting(
            "Number of micro-batches per iteration.",
            shown="pp; 2 x pp with dualpipe",
            kind=int | None,
            default=None,
        ),
    },
)
ROUTING = field_options(
    Gating,
    "Routing",
    {
        "dispatch": Setting(
            "Dispatch form: dropless, dropped or padded.", shown="the preset's"
        ),
        "capacity_factor": Setting(
            "Expert capacity, relative to a balanced load, of padded experts.",
            shown="the preset's",
            rule={"above": 0},
        ),
    },
    optional=True,
)


@printed(PARTS, plot=Plot)
@takes(shape=SHAPE, grid=GRID, training=TRAINING, routing=ROUTING)
def pattern(
    ctx: typer.Context,
    model: str = option(MODEL, MODEL_HELP),
    library: str = option(
        "megatron",
        "Library whose calls are computed: megatron, or moetraffic (the training "
        "of moetraffic capture).",
        choices=LIBRARIES,
    ),
    algorithm: str = option(
        "ring", f"Algorithm of collectives: {', '.join(ALGORITHMS)}."
    ),
    global_batch: int | None = option(
        None,
        "Number of sequences per iteration (global batch size).",
        panel="Training",
        shown="micro-batch x dp x --accumulation",
        min=1,
    ),
    imbalance_from: Path | None = option(
        None,
        "Trace whose measured load at --ep ranks gives the ranks' shares.",
        panel="Routing",
        shown="equal shares",
    ),
    output: Path | None = trace_output(None),
    iterations: int = option(1, "Number of iterations in the trace."),
    force: Force = False,
    *,
    shape: dict[str, Any],
    grid: dict[str, Any],
    training: dict[str, Any],
    routing: dict[str, Any],
    printing: Printing,
) -> None:
    """Compute the collectives of an iteration: bytes, groups, order and matrices.

    Example: moetraffic pattern --model gpt2-large --pp 4 --tp 2 --dp 4 --plot m.png
    """
    validate_outputs((printing.plot, output), (imbalance_from,), force=force)
    of, routed, batch = model_of(model, shape)
    chosen = {name: value for name, value in routing.items() if value is not None}
    gating = replace(routed, **chosen)
    choose("dispatch", gating.dispatch, DISPATCH_FORMS)
    if global_batch is not None and training["accumulation"] is not None:
        raise LayoutError(
            "--global-batch gives the number of micro-batches, but --accumulation is "
            "given, too: leave one out"
        )
    for name, value in (
        ("micro_batch", batch),
        ("accumulation", usual_micro_batches(grid["pp"], grid["schedule"])),
    ):
        if training[name] is None:
            training[name] = value
    plan = Parallelism(**grid, **training, global_batch=global_batch)
    shares: Shares = ()
    if imbalance_from is not None:
        if library != "megatron":
            raise LayoutError(
                "moetraffic's own training does not have --imbalance-from: leave it "
                "out, or use --library megatron"
            )
        measured = measured_shares(imbalance_from, of, plan.ep)
        shares = tuple(map(tuple, measured.tolist()))
    if library == "megatron":
        made = megatron_pattern(of, plan, gating, shares=shares)
    else:
        made = trained_pattern(of, plan, gating)
    if not made.kinds:
        raise LayoutError(
            "a single rank sends nothing, but tp x cp x dp x pp is "
            f"{' x '.join(str(grid[axis]) for axis in ('tp', 'cp', 'dp', 'pp'))}: "
            "raise one of them"
        )
    nodes = plan.gpus_per_node
    matrices = traffic_matrices(made, algorithm=algorithm, gpus_per_node=nodes)
    if output is not None:
        from moetraffic.analysis.pattern_trace import pattern_trace

        tokens = plan.micro_batch * plan.accumulation * of.window
        made_trace = pattern_trace(made, iterations=iterations, tokens=tokens)
        made_trace.save(output, force=force)
    from moetraffic.report.trained import shape_words

    count = parameter_count(of, k=gating.k)
    written = [printing.plot, output]
    as_json = printing.as_json
    words = f"{based_on(ctx, of, gating, shape)}, {shape_words(of, gating.k)}"
    shown = _shown(of, count, made, matrices, plan, algorithm, as_json, written)
    shown.summary.insert(1, f"Model: {words}.")
    printing.present(
        shown.data,
        *shown.summary,
        parts=shown.parts,
        written=(output,),
        chart=shown.chart,
    )


def _shown(
    shape: ModelShape,
    count: ParameterCount,
    made: Pattern,
    matrices: Mapping[str, csr_array],
    plan: Parallelism,
    algorithm: str,
    as_json: bool,
    written: Sequence[Path | None],
) -> Shown:
    from moetraffic.report.results import pattern as report
    from moetraffic.report.trained import batch_words

    g = plan
    batch = batch_words(g.accumulation, g.micro_batch, g.dp, shape.sequence)
    sizes = {
        "PP": g.pp,
        "TP": g.tp,
        "DP": g.dp,
        "CP": g.cp if g.cp > 1 else 0,
        "EP": g.ep if shape.experts else 0,
    }
    layout = ", ".join(f"{name} {size}" for name, size in sizes.items() if size)
    chart, told = None, {}
    if written[0]:
        chart = report.heatmaps(
            matrices,
            title=f"{made.name} on {g.world} ranks: bytes between ranks",
            source=f"Computed for {layout}; {plan.accumulation} micro-batches of "
            f"{plan.micro_batch} sequences, {plan.dtype}, gradients "
            f"{plan.gradients} by {plan.synchronized}; collectives as "
            f"{algorithm}",
            stage=g.world // g.pp if g.pp > 1 and g.order.endswith("pp") else 0,
        )
    if as_json:  # [R, R] cells of each kind
        told = report.as_dict(made, matrices)
        told["parameters"] = {"total": count.total, "active": count.active}
        told |= {"algorithm": algorithm, "files": [str(p) for p in written if p]}
    figures = report.traffic_figures(made, matrices)
    traffic = report.traffic_table(figures)
    note = f"Between ranks: bytes of an iteration with {algorithm} collectives."
    most = "Bottleneck rank: the rank that sends most of a kind (with "
    most += "--imbalance-from, in each exchange the rank that sends or receives most)."
    payload = "payload: input bytes of a group member"
    return Shown(
        summary=[
            report.sentence(made, matrices, figures, layout, batch),
            note,
        ],
        parts={
            "traffic": [traffic, note, most],
            "groups": [report.groups_table(made)],
            "calls": [report.calls_table(made), payload],
        },
        chart=chart,
        data=told,
    )
