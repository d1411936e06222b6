"""``moetraffic estimate``: an iteration's time from its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.errors import LayoutError
from moetraffic.patterns import preset
from moetraffic.trace.hdf5.durable import validate_outputs, write_whole
from moetraffic.units import seconds

from .assumptions import (
    nominal,
    read_bandwidth,
    read_conventions,
    read_shares,
    read_sizes,
    refuse_figures,
)
from .choices import picture, refuse_idle
from .output import console, json_text, print_json

if TYPE_CHECKING:
    from moetraffic.patterns.time_model import Configuration, Conventions, System
    from moetraffic.report.chart import Chart

SHOWN = 12
"""Of the best configurations."""

OF_A_CAPTURE = (
    *("model", "sequence", "micro_batch", "gradient_bytes", "platform"),
    *("peak_tflops", "utilization"),
)
"""What a captured run says."""

OF_THE_GPUS = ("pp", "tp", "dp", "cp")
"""What multiplies to the GPUs that the best configuration uses."""

OF_THE_BEST = (
    *("ep", "virtual_stages", "micro_batch", "zero", "recompute"),
    *("sequence_parallel", "imbalance"),
)
"""What a search tries, or has one value of."""


def estimate(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="A preset, see moetraffic models.")
    ] = "gpt-1.3b",
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a sequence.", show_default="its own")
    ] = None,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel ranks, ep included.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.")] = 1,
    virtual_stages: Annotated[
        int, typer.Option(help="Pipeline stages that a rank holds.")
    ] = 1,
    micro_batch: Annotated[int, typer.Option(help="Sequences a pass.")] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(help="Sequences an iteration.", show_default="8 a pass and dp"),
    ] = None,
    zero: Annotated[int, typer.Option(help="ZeRO stage.")] = 0,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Megatron's, over tp.")
    ] = False,
    gradient_bytes: Annotated[
        float, typer.Option(help="Of a gradient as it is reduced.")
    ] = 2.0,
    imbalance: Annotated[
        float, typer.Option(help="Busiest expert-parallel rank over the mean.")
    ] = 1.0,
    platform: Annotated[
        str, typer.Option(help="A published system, such as polaris.")
    ] = "",
    peak_tflops: Annotated[
        float | None,
        typer.Option(help="Of a GPU.", show_default="the platform's, or 312"),
    ] = None,
    utilization: Annotated[float, typer.Option(help="Of it while computing.")] = 0.4,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Model, batch and speeds of a captured run."),
    ] = None,
    bandwidth: Annotated[
        str,
        typer.Option(
            help="Effective: 25GB/s, or by kind tp=300GB/s,dp=25GB/s,other=10GB/s, or "
            "a file of moetraffic bench.",
            show_default="the platform's",
        ),
    ] = "",
    gpus_per_node: Annotated[
        int, typer.Option(help="Of a file's measurements: ranks on a node.")
    ] = 8,
    latency: Annotated[str, typer.Option(help="Of a message.")] = "0us",
    layer_overhead: Annotated[
        str, typer.Option(help="Of a layer and micro-batch.")
    ] = "0us",
    iteration_overhead: Annotated[str, typer.Option(help="Of an iteration.")] = "0us",
    overlap: Annotated[
        str,
        typer.Option(help="Shares that may hide: dp=0.8,tp=0.2.", show_default="none"),
    ] = "",
    memory_gb: Annotated[
        float | None,
        typer.Option(help="Of a GPU.", show_default="the platform's, or no limit"),
    ] = None,
    convention: Annotated[
        list[str] | None,
        typer.Option(help="name=choice, such as flops=parameters or ends=counted."),
    ] = None,
    sweep: Annotated[
        str, typer.Option(help="strong, weak or large-batch, over --sizes.")
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="dp, or batches, with commas.")
    ] = "1,2,4,8,16,32,64",
    zero_stages: Annotated[
        bool, typer.Option("--zero-stages", help="ZeRO 0 to 3 side by side.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="What the time depends on.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="The fastest way to use --gpus.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(help="For --best.", show_default="pp tp dp cp")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Picture to write (PNG).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="JSON to write.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite outputs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate an iteration's time, a sweep of it, or the best configuration.

    Example: moetraffic estimate --model gpt-3b --pp 4 --tp 2 --dp 4 --platform polaris
    """
    validate_outputs((plot, output), (calibrate,), force=force)
    if sum(map(bool, (sweep, zero_stages, sensitivity, best))) > 1:
        raise LayoutError(
            "one of --sweep, --zero-stages, --sensitivity and --best is asked for at a "
            "time, but there are several: leave out the others"
        )
    for holds, names, why in (
        (calibrate is not None, OF_A_CAPTURE, "--calibrate takes these from a run"),
        (best, OF_THE_BEST, "--best chooses these itself"),
        (best and gpus is not None, OF_THE_GPUS, "--best spreads over --gpus itself"),
        (not best, ("gpus",), "how many GPUs there are is asked by --best alone"),
        (not sweep, ("sizes",), "sizes are those of --sweep"),
        (sweep in ("strong", "weak"), ("dp",), f"{sweep} scaling is over dp"),
        (
            sweep == "large-batch",
            ("global_batch",),
            "--sizes are the batches",
        ),
        (zero_stages, ("zero",), "--zero-stages shows all four"),
        (
            not bandwidth or "=" in bandwidth or bandwidth[0].isdigit(),
            ("gpus_per_node",),
            "ranks on a node are those of a file of measurements (--bandwidth)",
        ),
    ):
        if holds:
            refuse_idle(context, names, why, error=LayoutError)
    refuse_figures(
        {
            "peak-tflops": peak_tflops,
            "gradient-bytes": gradient_bytes,
            "sequence": sequence,
            "utilization": utilization,
        },
        imbalance,
    )
    from moetraffic.patterns.time_model import Architecture, Configuration, System

    if calibrate is None:
        found = preset(model)
        k = found.gating.k if found.model.experts else 0
        shape = found.model
        if sequence is not None:
            shape = replace(shape, sequence=sequence)
        config = Configuration(model=Architecture.of(shape, k=k))
        told = nominal(platform)
        tables: list[Any] = []
    else:
        config, told, tables = _measured(calibrate)
        model = str(calibrate)
        micro_batch = int(config.micro_batch)
        each = int(config.global_batch / config.dp)
        global_batch = each * dp if global_batch is None else global_batch
        utilization = float(told.pop("utilization"))
    config = replace(
        config,
        pp=pp,
        tp=tp,
        dp=dp,
        ep=ep,
        cp=cp,
        virtual=virtual_stages,
        micro_batch=micro_batch,
        global_batch=8 * micro_batch * dp if global_batch is None else global_batch,
        **_strategy(context, calibrate, zero, recompute, sequence_parallel),
        gradient_bytes=config.gradient_bytes if calibrate else gradient_bytes,
        imbalance=imbalance,
    )
    if bandwidth:
        told["bandwidth"] = read_bandwidth(bandwidth, gpus_per_node)
    if "bandwidth" not in told and (config.world > 1 or best or sweep):
        raise LayoutError(
            "more than one GPU needs a network, but neither platform nor bandwidth is "
            "given: give --platform polaris or --bandwidth 25GB/s"
        )
    if peak_tflops is not None and calibrate is None:
        told["peak_flops"] = peak_tflops * 1e12
    if memory_gb is not None:
        told["memory_bytes"] = memory_gb * 1e9
    system = System(
        **{"peak_flops": 312e12, **told},
        utilization=utilization,
        latency_s=seconds(latency),
        layer_overhead_s=seconds(layer_overhead),
        iteration_overhead_s=seconds(iteration_overhead),
        overlap=read_shares(overlap),
    )
    conventions = read_conventions(convention or [])
    where = "its own ranks" if calibrate else platform or "a system as told"
    share = "" if calibrate else f", u = {utilization:g}"
    source = f"{model} on {where}{share}"
    if best:
        shown = _best(config, system, conventions, gpus, global_batch, source)
    elif sweep:
        shown = _sweep(config, system, conventions, sweep, read_sizes(sizes), source)
    else:
        what = "zero" if zero_stages else "sensitivity" if sensitivity else ""
        shown = _one(config, system, conventions, what, source)
    more, figure, data = shown
    tables += more
    data = {"model": model, "conventions": vars(conventions), **data}
    if plot is not None:
        from moetraffic.report import figures

        figures.save(figure, plot)
    if output is not None:
        write_whole(output, (json_text(data) + "\n").encode())
    if as_json:
        print_json(data)
        return
    for one in tables:
        console.print(one)
    for path in (plot, output):
        if path is not None:
            console.print(str(path))


def _strategy(
    context: typer.Context,
    calibrate: Path | None,
    zero: int,
    recompute: str,
    sequence_parallel: bool,
) -> dict[str, Any]:
    """How memory is saved: as the captured run does, where nothing else is said."""
    asked = {
        "zero": zero,
        "recompute": recompute,
        "sequence_parallel": sequence_parallel,
    }
    if calibrate is None:
        return asked
    sources = {name: context.get_parameter_source(name) for name in asked}
    said = {name for name, of in sources.items() if of and of.name != "DEFAULT"}
    return {name: value for name, value in asked.items() if name in said}


def _measured(path: Path) -> tuple[Configuration, dict[str, Any], list[Any]]:
    """Configuration and system of a captured run, and how well they tell it."""
    from moetraffic.analysis.times.calibration import calibrated
    from moetraffic.report import time_model as report
    from moetraffic.trace import Trace

    with Trace.open(path) as trace:
        found = calibrated(trace)
    told = {
        "peak_flops": found.system.peak_flops,
        "utilization": found.system.utilization,
        "bandwidth": found.system.bandwidth,
    }
    return found.config, told, [report.calibration_table(found, str(path))]


Shown = tuple[list[Any], "Chart", dict[str, Any]]
"""Tables, the picture, and plain data."""


def _one(
    config: Configuration,
    system: System,
    conventions: Conventions,
    what: str,
    source: str,
) -> Shown:
    from moetraffic.patterns import time_model
    from moetraffic.report import time_model as report

    layout = f"(p, t, d) = ({config.pp:g}, {config.tp:g}, {config.dp:g})"
    if what == "zero":
        stages = time_model.zero_stages(config, system, conventions=conventions)
        names = [f"ZeRO {stage}" for stage in range(4)]
        return (
            [report.several(stages, names, "stage", f"{layout}, {source}")],
            report.figure(stages, names, title=f"ZeRO, {layout}", source=source),
            {"zero_stages": report.as_dict(stages)},
        )
    found = time_model.estimate(config, system, conventions=conventions)
    tables = [report.table(found, f"{layout}, {source}")]
    data = {"estimate": report.as_dict(found)}
    if what == "sensitivity":
        moved = time_model.sensitivity(config, system, conventions=conventions)
        tables.append(report.sensitivity_table(moved, "What it depends on"))
        data["elasticities"] = {n: v.tolist() for n, v in moved.elasticities.items()}
        data["other_conventions"] = {
            name: value.tolist() for name, value in moved.conventions.items()
        }
    return tables, report.figure(found, [layout], source=source), data


def _sweep(
    config: Configuration,
    system: System,
    conventions: Conventions,
    scaling: str,
    sizes: list[int],
    source: str,
) -> Shown:
    from moetraffic.patterns import time_model
    from moetraffic.report import time_model as report

    found = time_model.sweep(config, system, scaling, sizes, conventions=conventions)
    unit = "sequence" if scaling == "large-batch" else "GPU"
    counts = sizes if scaling == "large-batch" else found.gpus.astype(int).tolist()
    names = [f"{count} {unit}{'' if count == 1 else 's'}" for count in counts]
    title = f"{scaling} scaling"
    return (
        [report.sweep_table(found, names, f"{title}: {source}")],
        report.figure(
            found.estimate,
            names,
            shares=True,
            title=f"{title.capitalize()}: where an iteration's time goes",
            source=source,
        ),
        {
            "scaling": scaling,
            "sizes": sizes,
            "gpus": found.gpus.tolist(),
            "speedup": found.speedup.tolist(),
            "efficiency": found.efficiency.tolist(),
            "estimate": report.as_dict(found.estimate),
        },
    )


def _best(
    config: Configuration,
    system: System,
    conventions: Conventions,
    gpus: int | None,
    batch: int | None,
    source: str,
) -> Shown:
    from moetraffic.patterns import time_model
    from moetraffic.report import time_model as report

    number = int(config.world) if gpus is None else gpus
    whole = 8 * number if batch is None else batch
    found = time_model.search(
        config.model,
        system,
        gpus=number,
        global_batch=whole,
        conventions=conventions,
        gradient_bytes=float(config.gradient_bytes),
    )
    if not len(found.order):
        least = float(found.estimate.memory.total.min()) / 1e9
        raise LayoutError(
            f"no configuration of {number} GPUs fits into their memory, of which the "
            f"least needs {least:.1f} GB: give more GPUs or --memory-gb"
        )
    names = report.search_names(found, SHOWN)
    title = f"Best of {number} GPUs, {whole} sequences an iteration"
    rows = found.rows(SHOWN)
    times = found.estimate.iteration[found.order[: len(rows)]].tolist()
    data = [{**row, "iteration_s": t} for row, t in zip(rows, times, strict=True)]
    return (
        [report.search_table(found, SHOWN, f"{title}: {source}")],
        report.figure(
            found.estimate,
            names,
            at=found.order[: len(names)],
            title=title,
            source=source,
        ),
        {"gpus": number, "global_batch": whole, "tried": found.tried, "best": data},
    )
