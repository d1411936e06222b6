"""``moetraffic estimate``: the time of a training iteration, from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from moetraffic.cli.output import Printing, Shown, printed
from moetraffic.errors import LayoutError
from moetraffic.files import validate_outputs
from moetraffic.patterns import ModelShape, parameter_count, time_model
from moetraffic.patterns.bandwidth.platforms import protocols
from moetraffic.patterns.time_model import GPUS, Configuration, System
from moetraffic.report import run_calibration as report
from moetraffic.report.console.options import (
    APPEARANCE,
    Force,
    Plot,
    on_command_line,
    option,
    positive_numbers,
    takes,
)
from moetraffic.trace import Trace

from .assumptions import (
    ASSUMED,
    SYSTEM,
    fused_by_default,
    is_file,
    measured_shares,
    nominal,
    of_protocol,
    read_bandwidth,
    read_conventions,
    without_network,
)
from .layout import ESTIMATED, usual_micro_batches
from .model_shape import (
    MODEL,
    MODEL_HELP,
    SHAPE,
    SHAPE_OPTIONS,
    based_on,
    model_of,
)
from .time_studies import (
    best_layouts,
    one_estimate,
    projection,
    scaling_sweep,
    varied,
)

if TYPE_CHECKING:
    from moetraffic.analysis.times.calibration import Calibration

PARTS = ("terms", "calibration", "study")

OF_A_CAPTURE = (
    *("model", *SHAPE_OPTIONS, "micro_batch", "dtype", "gradient_dtype"),
    *("platform", "gpu", "peak_tflops", "utilization"),
)
"""What ``--calibrate`` takes from a captured run."""

AS_CAPTURED = (
    *("pp", "tp", "dp", "ep", "cp", "zero", "recompute", "sequence_parallel"),
    *("fused_attention", "dispatch_dtype"),
)
"""What ``--calibrate`` takes from a captured run unless it is given."""

OF_A_PROJECTION = (
    *("project", "sizes", "efficiency", "gpus_per_node"),
    *("plot", *(p.name for p in APPEARANCE.values()), "output"),
    *("force", "tables", "only", "as_json"),
)
"""What ``--project`` does not take from a captured run."""

SWEEPS = (*time_model.SCALINGS, "bandwidth", "nic", "size")
"""What ``--sweep`` varies."""

OF_THE_GPUS = ("pp", "tp", "dp", "cp")
"""Factors of the number of GPUs: ``--best`` keeps those beside ``--gpus``."""

STUDY = "What to estimate"


@printed(PARTS, plot=Plot)
@takes(shape=SHAPE, parallelism=ESTIMATED, assumed=ASSUMED)
def estimate(
    ctx: typer.Context,
    model: str = option(MODEL, MODEL_HELP),
    global_batch: int | None = option(
        None,
        "Number of sequences per iteration (global batch size).",
        shown="micro-batch x dp x pp, twice with dualpipe; --best: 8 x gpus",
        min=1,
    ),
    platform: str = option(
        "",
        "A published system, such as polaris, or a file of moetraffic bench.",
        panel=SYSTEM,
    ),
    gpu: str = option(
        "A100",
        f"GPU: {', '.join(GPUS)}.",
        panel=SYSTEM,
        shown="the platform's, or A100",
        choices=(*GPUS,),
    ),
    peak_tflops: float | None = option(
        None, "Peak TFLOP/s per GPU.", panel=SYSTEM, shown="the GPU's", above=0
    ),
    calibrate: Path | None = option(
        None,
        "Trace of a captured run, whose model, batch and speeds are used.",
        panel=SYSTEM,
    ),
    bandwidth: str = option(
        "",
        "Effective bandwidth, also of links inside nodes: 25GB/s, several to compare: "
        "100Gbps,400Gbps, by kind of traffic: tp=300GB/s,dp=25GB/s, or a file of "
        "moetraffic bench.",
        panel=SYSTEM,
        shown="the platform's",
    ),
    protocol: str = option(
        "",
        f"Protocol between nodes, whose published efficiency the NICs get: "
        f"{', '.join(protocols())}.",
        panel=SYSTEM,
        shown="NCCL over RDMA",
    ),
    imbalance_from: Path | None = option(
        None,
        "Trace whose measured load at --ep ranks gives --imbalance.",
        panel="Parallelism and batch",
    ),
    gpus_per_node: int = option(
        8,
        "Number of GPUs per node, for a file of measurements or a --dispatcher.",
        panel=SYSTEM,
    ),
    memory_gb: float | None = option(
        None, "Memory per GPU in GB.", panel=SYSTEM, shown="the platform's", above=0
    ),
    convention: list[str] | None = option(
        None,
        "How a term is counted, as name=choice: flops=parameters, ends=counted. "
        "May be given again.",
        panel=SYSTEM,
    ),
    sweep: str = option(
        "",
        "Quantity that varies over --sizes: strong or weak (data-parallel ranks), "
        "large-batch (sequences), bandwidth (rates of all links), nic (rates of a "
        "platform's NICs per GPU), size (model presets).",
        panel=STUDY,
        choices=("", *SWEEPS),
    ),
    sizes: str = option(
        "1,2,4,8,16,32,64",
        "Values of --sweep or --project, separated by commas: 1,2,4, 10GB/s,25GB/s "
        "or megatron-1.7b,megatron-3.6b.",
        panel=STUDY,
    ),
    zero_stages: bool = option(
        False, "Compare ZeRO stages 0 to 3.", "--zero-stages", panel=STUDY
    ),
    sensitivity: bool = option(
        False,
        "Show how sensitive the time is to each input.",
        "--sensitivity",
        panel=STUDY,
    ),
    best: bool = option(
        False,
        "Find the fastest configuration of --gpus; sizes that are given are kept.",
        "--best",
        panel=STUDY,
    ),
    project: Path | None = option(
        None,
        "Trace of a captured run, whose measured breakdown is projected to the "
        "ranks in --sizes.",
        panel=STUDY,
    ),
    efficiency: str = option(
        "",
        "Efficiency of the network on these ranks relative to the captured ones: "
        "0.8,0.6, or a file of moetraffic bench.",
        panel=STUDY,
    ),
    gpus: int | None = option(
        None,
        "Number of GPUs for --best; without it, --pp, --tp, --dp and --cp only "
        "make this number.",
        panel=STUDY,
        shown="pp x tp x dp x cp",
    ),
    output: Path | None = option(None, "JSON file to write.", "-o", "--output"),
    force: Force = False,
    *,
    shape: dict[str, Any],
    parallelism: dict[str, Any],
    assumed: dict[str, Any],
    printing: Printing,
) -> None:
    """Estimate the time of an iteration, a scaling sweep or the best configuration.

    Example: moetraffic estimate --model gpt-3b --pp 4 --tp 2 --dp 4 --platform polaris
    """

    def show(shown: Shown, **more: Any) -> None:
        printing.present(
            {**more, **shown.data},
            *shown.summary,
            parts=shown.parts,
            output=output,
            chart=shown.chart,
        )

    validate_outputs(
        (printing.plot, output), (calibrate, imbalance_from, project), force=force
    )
    if project is not None:
        rest = [name for name in ctx.params if name not in OF_A_PROJECTION]
        _refuse_both(ctx, "project", rest)
        show(projection(project, sizes, efficiency, gpus_per_node))
        return
    rates = "," in bandwidth and "=" not in bandwidth
    if sum(map(bool, (sweep, zero_stages, sensitivity, best, rates))) > 1:
        raise LayoutError(
            "only one of --sweep, --zero-stages, --sensitivity, --best and several "
            "bandwidths is allowed at a time: leave out the others"
        )
    published = bool(platform) and not is_file(platform)
    for flag, holds, names in (
        ("calibrate", calibrate is not None, OF_A_CAPTURE),
        ("platform", published, ("gpu",)),
        ("platform", bool(platform) and not published, ("bandwidth",)),
        ("imbalance_from", imbalance_from is not None, ("imbalance",)),
        ("sweep", sweep == "size", ("model", *SHAPE_OPTIONS)),
        ("sweep", sweep in ("bandwidth", "nic"), ("bandwidth", "protocol")),
        ("sweep", sweep in ("strong", "weak"), ("dp",)),
        ("sweep", sweep == "large-batch", ("global_batch",)),
        ("zero_stages", zero_stages, ("zero",)),
        ("bandwidth", bool(bandwidth), ("protocol",)),
    ):
        if holds:
            _refuse_both(ctx, flag, names)
    chosen = dict(parallelism)

    def given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    fit: Calibration | None = None
    if calibrate is None:
        of, gating, usual = model_of(model, shape)
        room = gating.capacity_factor if gating.dispatch == "padded" else 0
        config = Configuration(model=of, k=gating.k, capacity_factor=room)
        if chosen["micro_batch"] is None:
            chosen["micro_batch"] = usual
            if sweep == "size":
                each = [model_of(name, {})[2] for name in _parts(sizes)]
                chosen["micro_batch"] = np.array(each)
        if chosen["fused_attention"] is None:
            chosen["fused_attention"] = fused_by_default(platform, gpu)
        fixed = given("utilization")
        known = nominal(
            *(platform, gpu, protocol),
            roofline=not fixed,
            gpus_per_node=gpus_per_node,
        )
        if peak_tflops is not None:
            known["peak_flops"] = peak_tflops * 1e12
            if "gpu" in known:
                known["gpu"] = replace(known["gpu"], peak_flops=peak_tflops * 1e12)
        what = f"utilization {assumed['utilization']:g}"
        if not fixed:
            what = "compute time by roofline"
        named = based_on(ctx, of, gating, shape) + " " if sweep != "size" else ""
        on = gpu if given("gpu") else f"{gpu} (default)"
        place = f"{on}, {platform}" if is_file(platform) else platform or on
        source = f"{named}on {place}, {what}{of_protocol(protocol)}"
    else:
        config, known, fit = _measured(calibrate)
        model = str(calibrate)
        source = f"sizes and speeds of {model}"
        own = {*OF_A_CAPTURE, *(name for name in AS_CAPTURED if not given(name))}
        chosen = {name: value for name, value in chosen.items() if name not in own}
        chosen["micro_batch"] = int(config.micro_batch)
        if global_batch is None:
            replicas = chosen.get("dp", config.dp)
            global_batch = int(config.sequences / config.dp * replicas)
    batch = global_batch
    if batch is None:
        replicas = chosen["dp"]
        if sweep == "strong":  # one batch for all sizes, the last just fills it
            what = "sizes are whole numbers above 0"
            replicas = max(positive_numbers(sizes, what, "--sizes 1,2,4"))
        several = usual_micro_batches(chosen["pp"], chosen["schedule"])
        batch = several * chosen["micro_batch"] * replicas
    config = replace(config, **chosen, global_batch=batch)
    if imbalance_from is not None:
        if best and not given("ep"):
            raise LayoutError(
                "a measured imbalance is that of a number of expert-parallel ranks, "
                "but --best tries several: give --ep"
            )
        assert isinstance(config.model, ModelShape)  # an option names one model
        shares = measured_shares(imbalance_from, config.model, int(config.ep))
        found = config.ep * shares.max()
        config = replace(config, imbalance=found)
        source += f", busiest of {config.ep:g} ranks {found:.3g} x the mean"
    if rates:
        sweep, sizes = "bandwidth", bandwidth
    elif bandwidth:
        known["bandwidth"] = read_bandwidth(bandwidth, gpus_per_node)
    scales = best or sweep in time_model.SCALINGS
    given_rates = "bandwidth" in known or sweep == "bandwidth"
    if (config.world > 1 or scales) and not given_rates:
        raise without_network(platform, given("gpu"))
    if memory_gb is not None:
        known["memory_bytes"] = memory_gb * 1e9
    if chosen["dispatcher"] != "plain":
        of_links = getattr(known.get("bandwidth"), "gpus", None)
        if of_links is not None and given("gpus_per_node"):
            raise LayoutError(
                f"nodes of {platform} have {of_links:g} GPUs, but --gpus-per-node is "
                "given: leave it out"
            )
        per = gpus_per_node if of_links is None else of_links
        config = replace(config, gpus_per_node=per)
    if "peak_flops" not in known:
        raise LayoutError(
            f"compute time follows from a GPU's peak, but that of {platform} is not "
            "published: give --peak-tflops"
        )
    system = System(**{**assumed, **known})
    conventions = read_conventions(convention or [])
    if best:
        kept = [
            name
            for name in time_model.COLUMNS
            if given("virtual_stages" if name == "virtual" else name)
            and (gpus is not None or name not in OF_THE_GPUS)
        ]
        shown = best_layouts(
            *(config, system, conventions, gpus, global_batch, kept, source)
        )
    elif sweep in ("bandwidth", "nic", "size"):
        values = _parts(sizes)
        shown = varied(config, system, conventions, sweep, values, source)
    elif sweep:
        what = "sizes are whole numbers above 0"
        counts = positive_numbers(sizes, what, "--sizes 1,2,4")
        shown = scaling_sweep(config, system, conventions, sweep, counts, source)
    else:
        what = "zero" if zero_stages else "sensitivity" if sensitivity else ""
        shown = one_estimate(config, system, conventions, what, source)
    if fit is not None:
        shown.summary.insert(1, report.sentence(fit, model))
        shown.parts["calibration"] = [report.table(fit, model)]
    counted = {}
    if isinstance(config.model, ModelShape):
        count = parameter_count(config.model, k=int(config.k))
        counted = {"parameters": {"total": count.total, "active": count.active}}
    fused = bool(config.fused_attention)
    more = {"conventions": vars(conventions), "fused_attention": fused, **counted}
    show(shown, model=model, **more)


def _refuse_both(ctx: typer.Context, flag: str, names: Iterable[str]) -> None:
    """Refuse options of what another one already gives."""
    spelled = {p.name: max(p.opts, key=len) for p in ctx.command.params}
    if twice := on_command_line(ctx, names):
        raise LayoutError(
            f"{spelled[flag]} and {', '.join(spelled[name] for name in twice)} give "
            "the same: leave one of them out"
        )


def _parts(words: str) -> list[str]:
    """Split what commas separate."""
    return [part.strip() for part in words.split(",") if part.strip()]


def _measured(path: Path) -> tuple[Configuration, dict[str, Any], Calibration]:
    """Configuration and system of a captured run, and the fit."""
    from moetraffic.analysis.times.calibration import calibrated

    with Trace.open(path) as trace:
        found = calibrated(trace)
    fields = ("peak_flops", "utilization", "bandwidth")
    known = {name: getattr(found.system, name) for name in fields}
    return found.config, known, found
