"""``moetraffic generate``: a synthetic trace of any length and size."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.errors import Interrupted, LayoutError
from moetraffic.report.console.options import AsJson, Force, option
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs
from moetraffic.units import byte_size

from .output import present, progress

if TYPE_CHECKING:
    from moetraffic.generate import TrafficModel
    from moetraffic.generate.summary import Summary

LOOK = 200
"""Iterations that are sampled for the statistics of the model as fitted."""

CAPTURED, SCENARIO = "as captured", "Scenario"

ROWS = {
    "max_over_mean": ("load of the hottest expert, relative to the mean", "{:.3f}"),
    "max_over_mean_layers": ("range over exchanges", "{0[0]:.3f} to {0[1]:.3f}"),
    "entropy": ("entropy of the load, normalized", "{:.4f}"),
    "change": ("share of the load that changes per iteration", "{:.4f}"),
    "hot_kept": ("hot-expert retention after 10 iterations", "{:.3f}"),
    "rank_over_mean": ("load of the busiest rank, relative to the mean", "{:.3f}"),
    "row_over_mean": ("hottest expert of a rank, relative to the mean", "{:.3f}"),
    "dropped": ("share of token copies dropped over capacity", "{:.4f}"),
}


def generate(
    source: Annotated[
        Path | None,
        typer.Argument(help="Trace to fit, or a model that --save-model wrote."),
    ] = None,
    output: Annotated[Path | None, option("Trace to write.", "-o", "--output")] = None,
    preset: Annotated[
        str, option("Built-in traffic model, instead of a file.", "--from")
    ] = "",
    iterations: Annotated[
        int | None, option("Number of iterations.", shown=CAPTURED)
    ] = None,
    ranks: Annotated[int | None, option("Number of ranks.", shown=CAPTURED)] = None,
    experts: Annotated[
        int | None,
        option(
            "Number of experts; the fitted ones are split or merged.", shown=CAPTURED
        ),
    ] = None,
    k: Annotated[
        int | None, option("Experts per token (top-k).", shown=CAPTURED)
    ] = None,
    ep: Annotated[
        int | None,
        option("Number of expert-parallel ranks.", shown="the most that fit both"),
    ] = None,
    seed: Annotated[int, option("Random seed; the same seed gives the same file.")] = 0,
    skew: Annotated[
        float, option("Scale the load skew by this factor.", panel=SCENARIO)
    ] = 1.0,
    drift: Annotated[
        float, option("Scale the speed of the load's drift.", panel=SCENARIO)
    ] = 1.0,
    layer_imbalance: Annotated[
        float,
        option("Scale the differences in skew between layers.", panel=SCENARIO),
    ] = 1.0,
    rank_imbalance: Annotated[
        float, option("Scale the differences between ranks.", panel=SCENARIO)
    ] = 1.0,
    bursts: Annotated[
        str,
        option(
            "Make an expert of each layer hot: EVERY[:FACTOR[:LENGTH]] in iterations, "
            "such as 100:4:20.",
            panel=SCENARIO,
        ),
    ] = "",
    times: Annotated[
        bool, option("Generate the times of calls, if the trace has them.")
    ] = True,
    dense_model: Annotated[
        str,
        option("Model preset whose dense collectives are added.", panel=SCENARIO),
    ] = "",
    save_model: Annotated[
        Path | None, option("File for the fitted traffic model.")
    ] = None,
    threads: Annotated[
        int,
        option(
            "Number of threads; the file does not depend on it.",
            shown="all cores",
            min=0,
        ),
    ] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a traffic model to a trace and sample a synthetic trace from it.

    The trace is streamed to disk; Ctrl-C keeps the iterations that are complete.

    Example: moetraffic generate run.h5 -o synthetic.h5 --ranks 64 --experts 64
    """
    # scipy takes a second to import
    from moetraffic.generate import Knobs
    from moetraffic.generate.companions import Companions
    from moetraffic.generate.generator import block_rows
    from moetraffic.generate.summary import Watched
    from moetraffic.generate.twin import write_twin
    from moetraffic.generate.what_if import parse_bursts

    validate_outputs((output, save_model), (source,), force=force)
    if output is None and save_model is None:
        raise LayoutError(
            "generate writes a trace or a model, but neither -o nor --save-model is "
            "given: give -o synthetic.h5"
        )
    knobs = Knobs(
        skew=skew,
        drift=drift,
        layers=layer_imbalance,
        rows=rank_imbalance,
        bursts=parse_bursts(bursts),
    )
    model, captured = _model(source, preset)
    count = model.fitted if iterations is None else iterations
    demand = model.sample(
        iterations=count,
        seed=seed,
        ranks=ranks,
        experts=experts,
        k=k,
        ep=ep,
        knobs=knobs,
        threads=threads,
    )
    beside = Companions.of(dense_model, demand.scenario) if dense_model else None
    if save_model is not None:
        model.save(save_model, force=force)
    told: dict[str, Any] = {"model": str(save_model) if save_model else None}
    summaries: dict[str, Summary] = {}
    if captured is not None:
        summaries["captured"] = captured
    elif knobs != Knobs():
        plain = Watched(demand=model.sample(iterations=min(count, LOOK), seed=seed))
        for _ in plain.blocks():
            pass
        summaries["as fitted"] = plain.summary()
    if output is not None:
        watched = Watched(demand=demand)
        rows = min(block_rows(demand.scenario.cells, 0), max(1, count // 20))
        with progress("generating", count, quiet=as_json) as tick:
            written = write_twin(
                watched,
                output,
                seed=seed,
                rhythm=model.rhythm if times else None,
                dense=beside,
                source=f"model fitted to {model.scenario.source}",
                rows=rows,
                tick=tick,
                force=force,
            )
        summaries["generated"] = watched.summary()
        scenario = demand.scenario
        told |= {"file": str(output), "iterations": written.iterations}
        told |= {n: getattr(scenario, n) for n in ("ranks", "experts", "k", "ep")}
        told["times"] = bool(times and model.rhythm is not None)
    told["statistics"] = {name: asdict(s) for name, s in summaries.items()}
    present(told, *_shown(told, summaries, output), as_json=as_json)
    if output is not None and not written.complete:
        raise Interrupted(
            f"the generation was interrupted; {written.iterations} of {written.asked} "
            f"iterations are kept in {written.path}",
            signal.SIGINT,
        )


def _model(source: Path | None, preset: str) -> tuple[TrafficModel, Summary | None]:
    """Return the model, and statistics of the trace that it was fitted to."""
    import numpy as np

    from moetraffic.generate import TrafficModel, preset_model, preset_names
    from moetraffic.generate.scenario import scenario_of
    from moetraffic.generate.storage import is_model
    from moetraffic.generate.summary import Watched

    if (source is None) == (not preset):
        given = "neither" if source is None else "both"
        raise LayoutError(
            "a synthetic trace is generated from a trace or model file, or from one "
            f"of {', '.join(preset_names())}, but {given} is given: give a file or "
            "--from"
        )
    if source is None:
        return preset_model(preset), None
    if is_model(source):
        return TrafficModel.load(source), None
    with Trace.open(source) as trace:
        model = TrafficModel.fit(trace)
        _, layers = scenario_of(trace)
        counts = np.stack([layer.demand for layer in layers], axis=1)
    watched = Watched(demand=model.sample(iterations=len(counts), seed=0))
    watched.take(counts)
    return model, watched.summary()


def _shown(
    told: dict[str, Any], summaries: dict[str, Summary], output: Path | None
) -> list[Any]:
    """Sentences and a table of statistics."""
    shown: list[Any] = []
    if told["model"]:
        shown.append(f"model written: {told['model']}")
    if summaries:
        rows = [
            (label, *(form.format(getattr(s, key)) for s in summaries.values()))
            for key, (label, form) in ROWS.items()
        ]
        columns = {"": "", **dict.fromkeys(summaries, ">")}
        shown.append(Table(columns=columns, rows=rows))
    if output is not None:
        shown.append(
            f"written: {output}, {byte_size(output.stat().st_size)}: "
            f"{told['iterations']} iterations, {told['ranks']} ranks "
            f"(EP {told['ep']}), {told['experts']} experts, k={told['k']}"
            + ("" if told["times"] else ", without times")
        )
    return shown
