"""``moetraffic pattern``: what a configuration sends, computed before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    Gating,
    ModelShape,
    ParallelLayout,
    Training,
    Workload,
    preset,
)
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.patterns.grid import MegatronGrid
from moetraffic.patterns.megatron import megatron_pattern
from moetraffic.patterns.pattern import Pattern
from moetraffic.patterns.router_spec import DISPATCH_FORMS
from moetraffic.patterns.strategy import CONTEXTS, RECOMPUTATIONS, Strategy
from moetraffic.patterns.synchronization import SYNCHRONIZATIONS
from moetraffic.patterns.traffic import traffic_matrices
from moetraffic.patterns.workload_pattern import workload_pattern
from moetraffic.trace.hdf5.durable import validate_outputs

from .choices import picture, refuse_idle
from .output import console, print_json

LIBRARIES = ("megatron", "moetraffic")


def pattern(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="A preset, see moetraffic models.")
    ] = "gpt2-large",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks of a layer.")] = 1,
    cp: Annotated[int, typer.Option(help="Ranks that share a sequence.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that share the experts.")] = 1,
    etp: Annotated[
        int, typer.Option(help="Tensor-parallel ranks of an expert.", show_default="tp")
    ] = 0,
    order: Annotated[
        str, typer.Option(help="Axes over ranks, the fastest first.")
    ] = MegatronGrid().order,
    virtual_stages: Annotated[
        int, typer.Option(help="Chunks of layers on a stage (interleaved 1F1B).")
    ] = 1,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Sequences of a replica in a pass.", show_default="preset's"),
    ] = None,
    accumulation: Annotated[
        int | None,
        typer.Option(help="Micro-batches of an iteration.", show_default="pp"),
    ] = None,
    zero: Annotated[int, typer.Option(help="ZeRO stage: 0, 1, 2 or 3.")] = 0,
    synchronization: Annotated[
        str,
        typer.Option(
            help=f"How copies are kept equal: {', '.join(SYNCHRONIZATIONS)}.",
            show_default="by ZeRO stage",
        ),
    ] = "",
    bucket_mib: Annotated[
        float,
        typer.Option(help="Size of DDP's buckets.", show_default="1, then 25"),
    ] = 0.0,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Spread tokens over tp ranks.")
    ] = False,
    recompute: Annotated[
        str, typer.Option(help=f"Recomputation: {', '.join(RECOMPUTATIONS)}.")
    ] = "none",
    context_parallelism: Annotated[
        str, typer.Option("--context", help=f"How cp works: {', '.join(CONTEXTS)}.")
    ] = "ring",
    dtype: Annotated[
        str, typer.Option(help="Of parameters and activations.")
    ] = "bfloat16",
    gradient_dtype: Annotated[
        str,
        typer.Option(help="Of reduced gradients.", show_default="float32 or dtype"),
    ] = "",
    tied: Annotated[
        bool | None,
        typer.Option(
            help="Whether the head is the embedding.", show_default="preset's"
        ),
    ] = None,
    dispatch: Annotated[
        str | None,
        typer.Option(help="dropless, dropped or padded.", show_default="preset's"),
    ] = None,
    capacity_factor: Annotated[
        float | None, typer.Option(help="Of padded experts.", show_default="preset's")
    ] = None,
    library: Annotated[
        str,
        typer.Option(
            help="Whose calls: megatron, or moetraffic (what capture trains, with "
            "fairscale's and torch's ways)."
        ),
    ] = "megatron",
    algorithm: Annotated[
        str, typer.Option(help=f"How collectives travel: {', '.join(ALGORITHMS)}.")
    ] = "ring",
    gpus_per_node: Annotated[
        int, typer.Option(help="Ranks of a node; 0: all on one.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Heatmaps to draw (PNG).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Trace to write.")
    ] = None,
    iterations: Annotated[int, typer.Option(help="Iterations of the trace.")] = 1,
    force: Annotated[bool, typer.Option(help="Overwrite outputs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute all collectives of an iteration: bytes, groups, order, who to whom.

    Example: moetraffic pattern --model gpt2-large --pp 4 --tp 2 --dp 4 --plot m.png
    """
    validate_outputs((plot, output), force=force)
    if gpus_per_node < 0:
        raise LayoutError(
            f"a node has some ranks, or 0 for all, but gpus-per-node is "
            f"{gpus_per_node}: raise it"
        )
    if output is None:
        refuse_idle(
            context,
            ("iterations",),
            "iterations are those of a trace (-o)",
            error=LayoutError,
        )
    found = preset(model)
    gating = found.gating
    if not found.model.experts:
        refuse_idle(
            context,
            ("dispatch", "capacity_factor"),
            f"{model} is dense and has no experts",
            error=LayoutError,
        )
    if dispatch is not None:
        gating = replace(gating, dispatch=dispatch)
    if capacity_factor is not None:
        gating = replace(gating, capacity_factor=capacity_factor)
    if gating.dispatch not in DISPATCH_FORMS:
        raise LayoutError(
            f"dispatch is one of {', '.join(DISPATCH_FORMS)}, not {gating.dispatch!r}: "
            "choose one"
        )
    if gating.dispatch == "dropless":
        why = "dropless experts take all tokens"
        refuse_idle(context, ("capacity_factor",), why, error=LayoutError)
    if not 0 < gating.capacity_factor < inf:
        raise LayoutError(
            f"the capacity factor is above 0, but is {gating.capacity_factor:g}: raise "
            "--capacity-factor"
        )
    strategy = Strategy(
        grid=MegatronGrid(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, order=order),
        micro_batch=found.micro_batch if micro_batch is None else micro_batch,
        accumulation=pp if accumulation is None else accumulation,
        virtual=virtual_stages,
        zero=zero,
        synchronization=synchronization,
        bucket_mib=bucket_mib,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        context=context_parallelism,
        dtype=dtype,
        gradient_dtype=gradient_dtype,
        tied=tied,
    )
    made = _made(library, found.model, strategy, gating)
    if not made.kinds:
        raise LayoutError(
            "ranks send each other something where there are several, but tp x cp x dp "
            f"x pp is {tp} x {cp} x {dp} x {pp}: raise one of them"
        )
    matrices = traffic_matrices(made, algorithm=algorithm, gpus_per_node=gpus_per_node)
    if output is not None:
        from moetraffic.analysis.pattern_trace import pattern_trace

        tokens = strategy.micro_batch * strategy.accumulation * found.model.window
        made_trace = pattern_trace(made, iterations=iterations, tokens=tokens)
        made_trace.save(output, force=force)
    _tell(made, matrices, strategy, algorithm, plot, output, as_json)


def _made(
    library: str, shape: ModelShape, strategy: Strategy, gating: Gating
) -> Pattern:
    """The pattern of one library.

    Raises
    ------
    LayoutError
        If there is no such library, or it does not know an option.
    """
    if library == "megatron":
        return megatron_pattern(shape, strategy, gating)
    if library != "moetraffic":
        raise LayoutError(
            f"the library is one of {', '.join(LIBRARIES)}, not {library!r}: choose one"
        )
    s, g = strategy, strategy.grid
    own = Strategy()
    left = {
        "--virtual-stages": s.virtual != own.virtual,
        "--sequence-parallel": s.sequence_parallel,
        "--context": s.context != own.context,
        "--gradient-dtype": bool(s.gradient_dtype),
        "--etp": g.etp not in (0, g.tp),
    }
    if any(left.values()):
        raise LayoutError(
            "moetraffic's own training does not know "
            f"{', '.join(name for name, given in left.items() if given)}: leave these "
            "out, or use --library megatron"
        )
    shape = shape if s.tied is None else replace(shape, tied=s.tied)
    work = Workload(
        model=shape,
        gating=gating,
        layout=ParallelLayout(
            dp=g.dp,
            tp=g.tp,
            pp=g.pp,
            ep=g.ep,
            cp=g.cp,
            order=g.order,
            zero=s.zero,
        ),
        training=Training(
            micro_batch=s.micro_batch,
            accumulation=s.accumulation,
            dtype=s.dtype,
            recompute=s.recompute == "full",
        ),
    )
    return workload_pattern(work, s.synchronization, bucket_mib=s.bucket_mib)


def _tell(
    made: Pattern,
    matrices: Mapping[str, npt.NDArray[np.int64]],
    strategy: Strategy,
    algorithm: str,
    plot: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    from moetraffic.report import figures
    from moetraffic.report import pattern as report

    g = strategy.grid
    sizes = {
        "PP": g.pp,
        "TP": g.tp,
        "DP": g.dp,
        "CP": g.cp if g.cp > 1 else 0,
        "EP": g.ep if g.ep > 1 else 0,
    }
    layout = ", ".join(f"{name} {size}" for name, size in sizes.items() if size)
    if plot is not None:
        by_stage = g.world // g.pp if g.pp > 1 and g.order.endswith("pp") else 0
        drawn = report.heatmaps(
            matrices,
            title=f"{made.name} on {g.world} ranks: who sends whom how much",
            source=f"Computed for {layout}; {strategy.accumulation} micro-batches of "
            f"{strategy.micro_batch} sequences, {strategy.dtype}, gradients "
            f"{strategy.gradients} by {strategy.synchronized}; collectives as "
            f"{algorithm}",
            stage=by_stage,
        )
        figures.save(drawn, plot)
    if as_json:
        told = report.as_dict(made, matrices)
        told |= {
            "algorithm": algorithm,
            "files": [str(p) for p in (plot, output) if p is not None],
        }
        print_json(told)
        return
    console.print(f"{made.name} on {g.world} ranks: {layout}\n")
    console.print(report.groups_table(made))
    console.print(report.calls_table(made))
    console.print(report.traffic_table(matrices))
    console.print(
        f"payload: bytes of a member's input; between ranks: as {algorithm}, one "
        "iteration"
    )
    for path in (plot, output):
        if path is not None:
            console.print(f"written: {path}")
