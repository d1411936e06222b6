"""``moetraffic generate``: a run that never was, as long and large as is asked for."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from moetraffic.errors import Interrupted, LayoutError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs
from moetraffic.units import byte_size

from .output import console, print_json, progress

if TYPE_CHECKING:
    from moetraffic.generate import TrafficModel
    from moetraffic.generate.summary import Summary
    from moetraffic.generate.twin import Written

LOOK = 200
"""Iterations that are drawn to show what the model does without its knobs."""

ROWS = {
    "max_over_mean": ("hottest expert's load over mean", "{:.3f}"),
    "max_over_mean_layers": ("the same, by exchange", "{0[0]:.3f} to {0[1]:.3f}"),
    "entropy": ("entropy of the load, normalized", "{:.4f}"),
    "change": ("load that moves in an iteration", "{:.4f}"),
    "hot_kept": ("hot experts still hot 10 iterations later", "{:.3f}"),
    "rank_over_mean": ("busiest rank's copies over mean", "{:.3f}"),
    "row_over_mean": ("a rank's favorite expert over mean", "{:.3f}"),
    "dropped": ("dropped over capacity", "{:.4f}"),
}


def generate(
    source: Annotated[
        Path | None,
        typer.Argument(help="Trace to fit, or a model that --save-model wrote."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Trace to write.")
    ] = None,
    preset: Annotated[
        str, typer.Option("--from", help="A model that ships, in place of a file.")
    ] = "",
    iterations: Annotated[
        int | None, typer.Option(help="Iterations.", show_default="as captured")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks.", show_default="as captured")
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(help="Experts, split and merged.", show_default="as captured"),
    ] = None,
    k: Annotated[
        int | None, typer.Option(help="Experts of a token.", show_default="as captured")
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(
            help="Expert-parallel ranks.", show_default="the most that fit both"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same file.")] = 0,
    skew: Annotated[
        float, typer.Option(help="What if: times the skew of the load.")
    ] = 1.0,
    drift: Annotated[
        float, typer.Option(help="What if: times the speed of its drift.")
    ] = 1.0,
    layer_imbalance: Annotated[
        float, typer.Option(help="What if: times the layers' differences in skew.")
    ] = 1.0,
    rank_imbalance: Annotated[
        float, typer.Option(help="What if: times the differences between ranks.")
    ] = 1.0,
    bursts: Annotated[
        str,
        typer.Option(
            help="What if: an expert of each layer becomes hot, "
            "EVERY[:FACTOR[:LENGTH]] in iterations; 100:4:20."
        ),
    ] = "",
    times: Annotated[
        bool, typer.Option(help="Generate when calls are made, where it was captured.")
    ] = True,
    dense_model: Annotated[
        str,
        typer.Option(
            help="Preset of moetraffic models whose dense collectives are added."
        ),
    ] = "",
    save_model: Annotated[
        Path | None, typer.Option(help="Keep the fitted model in a file.")
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Threads; the file does not depend on it.")
    ] = 0,
    force: Annotated[bool, typer.Option(help="Overwrite outputs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a traffic model to a trace and sample a run from it, streamed to disk.

    Ctrl-C keeps the iterations that are complete.

    Example: moetraffic generate run.h5 -o twin.h5 --ranks 64 --experts 64
    """
    # they load scipy, which takes a second: no other verb shall wait for it
    from moetraffic.generate import Knobs
    from moetraffic.generate.companions import Companions
    from moetraffic.generate.generator import block_rows
    from moetraffic.generate.summary import Watched
    from moetraffic.generate.twin import write_twin
    from moetraffic.generate.what_if import parse_bursts

    validate_outputs((output, save_model), (source,), force=force)
    if output is None and save_model is None:
        raise LayoutError(
            "a run is generated into a file, but neither -o nor --save-model names "
            "one: give -o twin.h5"
        )
    if threads < 0:
        raise LayoutError(
            f"threads count from 1, or are 0 for all, but are {threads}: raise "
            "--threads"
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
        told |= {
            "file": str(output),
            "iterations": written.iterations,
            "ranks": demand.scenario.ranks,
            "experts": demand.scenario.experts,
            "k": demand.scenario.k,
            "ep": demand.scenario.ep,
            "times": bool(times and model.rhythm is not None),
        }
    told["statistics"] = {name: asdict(s) for name, s in summaries.items()}
    if as_json:
        print_json(told)
    else:
        _tell(told, summaries, output)
    if output is not None and not written.complete:
        raise Interrupted(_ended(written), signal.SIGINT)


def _model(source: Path | None, preset: str) -> tuple[TrafficModel, Summary | None]:
    """The model, and what the trace that it was fitted to amounts to."""
    import numpy as np

    from moetraffic.generate import TrafficModel, preset_model, preset_names
    from moetraffic.generate.scenario import scenario_of
    from moetraffic.generate.storage import is_model
    from moetraffic.generate.summary import Watched

    if (source is None) == (not preset):
        given = "neither" if source is None else "both"
        raise LayoutError(
            "a run is generated from a trace or model file, or from one of "
            f"{', '.join(preset_names())}, but {given} was named: give a file or --from"
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


def _tell(
    told: dict[str, Any], summaries: dict[str, Summary], output: Path | None
) -> None:
    if told["model"]:
        console.print(f"model written: {told['model']}")
    if summaries:
        table = Table(box=None, header_style="bold", padding=(0, 1))
        table.add_column("")
        for name in summaries:
            table.add_column(name, justify="right")
        for key, (label, form) in ROWS.items():
            table.add_row(
                label, *(form.format(getattr(s, key)) for s in summaries.values())
            )
        console.print(table)
    if output is not None:
        console.print(
            f"written: {output}, {byte_size(output.stat().st_size)}: "
            f"{told['iterations']} iterations, {told['ranks']} ranks "
            f"(EP {told['ep']}), {told['experts']} experts, k={told['k']}"
            + ("" if told["times"] else ", without times")
        )


def _ended(written: Written) -> str:
    return (
        f"the generation was ended early; {written.iterations} of {written.asked} "
        f"iterations are kept in {written.path}"
    )
