"""``moetraffic generate``: a synthetic trace of any length and size."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.cli.output import Printing, printed, progress
from moetraffic.errors import AnalysisError, Interrupted, LayoutError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import option, trace_output
from moetraffic.trace import Meta, Trace
from moetraffic.units import byte_size

if TYPE_CHECKING:
    from moetraffic.generate.analog.analog import AnalogDemand
    from moetraffic.generate.fit import Fit, Size
    from moetraffic.generate.parametric.sampling import SampledDemand
    from moetraffic.generate.scenario import Scenario

MODELS = ("analog", "parametric")
"""Generators that are fitted to a trace."""

PARTS = ("figures",)

CAPTURED, SCENARIO = "as captured", "Scenario"


@printed(PARTS)
def generate(
    source: Annotated[
        Path | None,
        typer.Argument(help="Trace to fit, or a model that --save-model wrote."),
    ] = None,
    output: Path | None = trace_output(None),
    preset: str = option(
        "", "Shipped model in place of a file, such as top2-balanced-early.", "--from"
    ),
    kind: str | None = option(
        None,
        "Name of the model fitted to a trace: analog (captured experts and k) or "
        "parametric (any size and scenario).",
        "--model",
        shown="analog where it can sample what is asked for",
        choices=MODELS,
    ),
    rerun: list[Path] | None = option(
        None,
        "Trace of a rerun (capture --data-seed) by which the fit is judged; may be "
        "given again.",
        "--rerun",
    ),
    no_judge: bool = option(
        False, "Do not compare two samples with the run.", "--no-judge"
    ),
    iterations: int | None = option(None, "Number of iterations.", shown=CAPTURED),
    ranks: int | None = option(None, "Number of ranks.", shown=CAPTURED),
    experts: int | None = option(
        None, "Number of experts; the fitted ones are split or merged.", shown=CAPTURED
    ),
    k: int | None = option(None, "Experts per token (top-k).", shown=CAPTURED),
    ep: int | None = option(
        None,
        "Number of expert-parallel ranks.",
        shown="the most that ranks and experts allow",
    ),
    seed: int = option(0, "Random seed; the same seed gives the same file.", min=0),
    skew: float = option(1.0, "Scale the load skew by this factor.", panel=SCENARIO),
    drift: float = option(1.0, "Scale the speed of the load's drift.", panel=SCENARIO),
    rank_imbalance: float = option(
        1.0, "Scale the differences between ranks.", panel=SCENARIO
    ),
    no_times: bool = option(False, "Leave out the times of calls.", "--no-times"),
    save_model: Path | None = option(None, "File for the fitted traffic model."),
    force: bool = option(
        False,
        "Overwrite existing outputs, and write samples that are not accepted.",
        "--force",
    ),
    *,
    printing: Printing,
) -> None:
    """Fit a generator to a trace and sample a synthetic trace from it.

    Two samples are compared with the run in figures that users compute from traffic; if
    one differs by more than is accepted, nothing is written without --force.
    The trace is streamed to disk; Ctrl-C keeps the iterations that are complete.

    Example: moetraffic generate run.h5 -o synthetic.h5 --ranks 64
    """
    # scipy takes a second to import
    from moetraffic.generate import Knobs, TrafficModel
    from moetraffic.generate.fit import Size
    from moetraffic.generate.generator import block_rows
    from moetraffic.generate.scenario import refuse_length
    from moetraffic.generate.writing.trace_writer import write_synthetic_trace
    from moetraffic.report.results.generation import (
        figure_table,
        judgment_lines,
        refusal,
    )

    outputs = (output, save_model)
    validate_outputs(outputs, (source, *(rerun or [])), force=force)
    if source and source.resolve() in {other.resolve() for other in rerun or []}:
        raise LayoutError(
            f"--rerun is another run than the one that is fitted, but {source} is "
            "given twice: capture one with --data-seed"
        )
    if output is None and save_model is None:
        raise LayoutError(
            "generate writes a trace or a model, but neither -o nor --save-model is "
            "given: give -o synthetic.h5"
        )
    knobs = Knobs(
        skew=skew,
        drift=drift,
        rows=rank_imbalance,
    )
    if iterations is not None:
        refuse_length(iterations)
    parametric = bool(save_model or knobs != Knobs())
    if parametric and kind == "analog":
        raise LayoutError(
            "scenario factors and files of a model are of a parametric model, but "
            "--model analog is given: give --model parametric"
        )
    size = Size(ranks=ranks, experts=experts, k=k, ep=ep)
    fit = _fitted(
        source,
        preset,
        kind or ("parametric" if parametric else ""),
        size,
        rerun or [],
        judged=not no_judge,
        quiet=printing.as_json,
    )
    model = fit.model
    if fit.judgment is not None and (failure := refusal(fit.judgment)) and not force:
        raise AnalysisError(failure.format(fit.name, source))
    count = model.fitted if iterations is None else iterations
    demand: AnalogDemand | SampledDemand
    if isinstance(model, TrafficModel):
        demand = model.sample(iterations=count, seed=seed, **asdict(size), knobs=knobs)
    else:
        demand = model.sample(iterations=count, seed=seed, ranks=ranks, ep=ep)
    if save_model is not None and isinstance(model, TrafficModel):
        model.save(save_model, force=force)
    told: dict[str, Any] = {
        "model": str(save_model) if save_model else None,
        "generator": fit.name,
        "judgment": None if fit.judgment is None else asdict(fit.judgment),
    }
    if output is not None:
        rows = min(block_rows(demand.scenario.cells, 0), max(1, count // 20))
        with progress("generating", count, quiet=printing.as_json) as tick:
            written = write_synthetic_trace(
                demand,
                output,
                seed=seed,
                rhythm=None if no_times else model.rhythm,
                source=demand.about,
                rows=rows,
                tick=tick,
                force=force,
            )
        scenario = demand.scenario
        told |= {"file": str(output), "iterations": written.iterations}
        told |= {n: getattr(scenario, n) for n in ("ranks", "experts", "k", "ep")}
        told["times"] = not no_times and model.rhythm is not None
    lines = [] if fit.judgment is None else judgment_lines(fit.judgment, fit.name)
    told["limits"] = list(demand.limits)
    if ep is None and demand.scenario.ep != model.scenario.ep:
        told["limits"][0] += (
            f" EP is {demand.scenario.ep}, captured: {model.scenario.ep}; it is the "
            f"most that {demand.scenario.ranks} ranks and {demand.scenario.experts} "
            "experts spread over evenly (--ep gives another)."
        )
    if fit.run is not None and fit.run.origin == "generated":
        told["limits"][0] += (
            f" {source} is itself synthetic ({fit.run.source}): captured refers to it."
        )
    lines += told["limits"]
    told["next"] = _next(output, source, fit.run, demand.scenario)
    printing.present(
        told,
        *lines,
        *_written(told, output),
        *([f"Next: {told['next']}"] if told["next"] else []),
        parts={"figures": [] if fit.judgment is None else [figure_table(fit.judgment)]},
    )
    if output is not None and not written.complete:
        raise Interrupted(
            f"the generation was interrupted; {written.iterations} of {written.asked} "
            f"iterations are kept in {written.path}",
            signal.SIGINT,
        )


def _fitted(
    source: Path | None,
    preset: str,
    kind: str,
    size: Size,
    reruns: Sequence[Path],
    *,
    judged: bool,
    quiet: bool,
) -> Fit:
    """Fit a generator to a trace and judge it, or read a model."""
    from moetraffic.generate import TrafficModel, preset_model, preset_names
    from moetraffic.generate.fit import Fit, fit_steps, fit_trace
    from moetraffic.generate.parametric.storage import is_model

    if (source is None) == (not preset):
        given = "neither is" if source is None else "both are"
        raise LayoutError(
            "a synthetic trace is generated from a trace or model file, or from one "
            f"of {', '.join(preset_names())}, but {given} given: give a file or "
            "--from"
        )
    if source and str(source) in preset_names() and not source.exists():
        raise LayoutError(
            f"there is no file {source}: give --from {source} for the shipped model of "
            "this name"
        )
    if source is None or is_model(source):
        if kind == "analog" or reruns:
            raise LayoutError(
                "--model analog and --rerun are for a fit to a trace, but a fitted "
                "model is given: give a trace, or leave them out"
            )
        model = preset_model(preset) if source is None else TrafficModel.load(source)
        return Fit(name="parametric", model=model)
    with ExitStack() as stack:
        trace, *others = (
            stack.enter_context(Trace.open(path)) for path in (source, *reruns)
        )
        steps = fit_steps(len(reruns), judged=judged)
        with progress("fitting", steps, quiet=quiet, start=True) as tick:
            return fit_trace(
                trace, kind, size=size, reruns=others, judged=judged, tick=tick
            )


def _next(
    output: Path | None, source: Path | None, run: Meta | None, size: Scenario
) -> str | None:
    """Say what a validation of a sample of another size needs; None: nothing else."""
    if output is None or run is None:
        return None
    made = size.ranks, size.experts, size.k or run.k
    if made == (run.world, run.experts, run.k):
        return None
    from moetraffic.validation.acceptance import USUAL

    return (
        f"validation at this size (moetraffic validate {output} --against rerun*.h5) "
        f"needs {USUAL} real runs of this size, captured with the options of {source} "
        "and other values of --data-seed"
    )


def _written(told: dict[str, Any], output: Path | None) -> list[str]:
    """Name the files that are written."""
    shown = []
    if told["model"]:
        shown.append(f"model written: {told['model']}")
    if output is not None:
        shown.append(
            f"written: {output}, {byte_size(output.stat().st_size)}: "
            f"{told['iterations']} iterations, {told['ranks']} ranks "
            f"(EP {told['ep']}), {told['experts']} experts, k={told['k']}"
            + ("" if told["times"] else ", without times")
        )
    return shown
