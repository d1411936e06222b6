"""Assumptions of a time estimate, read from options and published systems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moetraffic.errors import LayoutError
from moetraffic.patterns.time_model import System
from moetraffic.report.console.options import Setting, field_options, named_values
from moetraffic.units import bytes_per_second, seconds

if TYPE_CHECKING:
    from moetraffic.arrays import Float64
    from moetraffic.patterns import ModelShape
    from moetraffic.patterns.time_model import Conventions, Gpu

SYSTEM = "System"

BIG_RED_200 = "big-red-200"
"""The published system whose links are measured collectives."""


def nominal(
    platform: str,
    gpu: str,
    protocol: str = "",
    *,
    roofline: bool,
    gpus_per_node: int = 8,
) -> dict[str, Any]:
    """Return what is known of a platform or a GPU, as fields of a system.

    Parameters
    ----------
    platform
        A published system, or a file of measurements; empty: only the GPU is known.
    gpu
        Name of the GPU where there is no published system.
    protocol
        Published protocol between nodes, whose efficiency the NICs get; empty: the
        share that NCCL's large collectives get.
    roofline
        Whether computing times are the GPU's roofline; otherwise a utilization decides.
    gpus_per_node
        For a file of measurements.
    """
    from dataclasses import replace
    from math import isfinite

    from moetraffic.patterns.bandwidth.measurements import big_red_200
    from moetraffic.patterns.bandwidth.platforms import platform as named
    from moetraffic.patterns.bandwidth.platforms import protocol as named_protocol
    from moetraffic.patterns.time_model import GPUS, MeasuredLinks, NodeLinks

    if protocol and not platform:
        raise LayoutError(
            "a protocol is one of a platform's links, but --protocol is given without "
            "--platform: give --platform, or --bandwidth"
        )
    values: dict[str, Any] = _of_gpu(GPUS[gpu], roofline=roofline)
    if not platform:
        return values
    if is_file(platform):
        return {**values, "bandwidth": read_bandwidth(platform, gpus_per_node)}
    found = named(platform)
    stated = {
        "peak_flops": found.peak_tflops * 1e12,
        "memory_bytes": found.gpu_memory_gb * 1e9,
        "memory_bytes_s": found.gpu_memory_gbs * 1e9,
    }
    stated = {name: value for name, value in stated.items() if isfinite(value)}
    model = GPUS.get(found.gpu)
    if model is None:
        if roofline:
            raise LayoutError(
                f"the roofline of {', '.join(GPUS)} is known, but {platform} has "
                f"{found.gpu or 'GPUs that its source does not name'}: give "
                "--utilization, or --gpu in place of --platform"
            )
        values = dict(stated)
    else:
        values = _of_gpu(
            replace(
                model,
                peak_flops=stated.get("peak_flops", model.peak_flops),
                memory_bytes=stated.get("memory_bytes", model.memory_bytes),
                memory_bytes_s=stated.get("memory_bytes_s", model.memory_bytes_s),
            ),
            roofline=roofline,
        )
    inside = found.p2p_bytes_s
    if not isfinite(inside) and model is not None:
        inside = model.inside_bytes_s
    if found.gpus_per_node and isfinite(inside) and isfinite(found.nic_bytes_s):
        links = NodeLinks.nominal(
            gpus=found.gpus_per_node,
            inside_bytes_s=inside,
            nic_bytes_s=found.nic_bytes_s,
        )
        if protocol:
            share = named_protocol(protocol).efficiency
            links = replace(links, nic_bytes_s=share * found.nic_bytes_s)
        values["bandwidth"] = links
    elif platform == BIG_RED_200:
        values["bandwidth"] = MeasuredLinks(
            table=big_red_200(), gpus=found.gpus_per_node
        )
    return values


def is_file(platform: str) -> bool:
    """Whether a platform is a file of measurements, by its name."""
    return platform.endswith((".csv", ".json"))


def is_table(text: str) -> bool:
    """Whether a rate or an efficiency is a file of measurements in place of numbers."""
    return is_file(text) or os.path.isfile(text)


def _of_gpu(gpu: Gpu, *, roofline: bool) -> dict[str, Any]:
    return {
        "gpu": gpu if roofline else None,
        "peak_flops": gpu.peak_flops,
        "memory_bytes": gpu.memory_bytes,
        "memory_bytes_s": gpu.memory_bytes_s * gpu.memory_share,
    }


def fused_by_default(platform: str, gpu: str) -> bool:
    """Return whether training is usually with fused attention: on all known GPUs but
    the oldest ones."""
    from moetraffic.patterns.bandwidth.platforms import platform as named
    from moetraffic.patterns.time_model import GPUS

    name = named(platform).gpu if platform and not is_file(platform) else gpu
    return name in GPUS and GPUS[name].fused_attention


def without_network(platform: str, gpu_given: bool) -> LayoutError:
    """Return the error of several GPUs without bandwidths between them."""
    why = "neither platform nor bandwidth is given"
    if platform:
        why = f"the links of {platform} are not published"
    instead = "dgx-h100 in place of --gpu" if gpu_given else "polaris"
    return LayoutError(
        f"more than one GPU needs a network, but {why}: give --bandwidth 25GB/s or "
        f"--platform {instead}"
    )


def read_bandwidth(text: str, gpus_per_node: int) -> Any:
    """Read a rate, rates by kind of traffic, or a file of measurements."""
    if "=" in text:
        rates = named_values(text.split(","), "a bandwidth", "dp=25GB/s")
        return {kind: bytes_per_second(rate) for kind, rate in rates.items()}
    if not is_table(text):
        return bytes_per_second(text)
    from moetraffic.patterns.bandwidth.measurements import read_table
    from moetraffic.patterns.time_model import MeasuredLinks

    return MeasuredLinks(table=read_table(text), gpus=gpus_per_node)


def read_shares(text: str) -> dict[str, float]:
    """Read kinds of traffic that overlap, with a share where only a part does."""
    parts = [part if "=" in part else f"{part}=1" for part in text.split(",") if part]
    shares = named_values(parts, "an overlap", "dp,tp=0.2")
    try:
        return {kind: float(share) for kind, share in shares.items()}
    except ValueError:
        raise LayoutError(
            f"the overlap of a kind is a number, but is {text!r}: write dp=0.8"
        ) from None


def measured_shares(path: Path, shape: ModelShape, ranks: int) -> Float64:
    """Measure the shares ``[layers, ranks]`` of expert-parallel ranks in exchanges of a
    trace, for a model that is spread over them.

    Raises
    ------
    LayoutError
        If it is not.
    """
    from moetraffic.analysis.load import rank_shares
    from moetraffic.trace import Trace

    if not shape.experts or ranks == 1:
        raise LayoutError(
            "a measured imbalance is that of expert-parallel ranks, but "
            f"{'ep is 1: give --ep, or' if shape.experts else 'the model is dense:'} "
            "leave out --imbalance-from"
        )
    with Trace.open(path) as trace:
        return rank_shares(trace, ranks)


def read_conventions(given: list[str]) -> Conventions:
    """Read conventions: ``name=choice``, with commas or one by one."""
    from moetraffic.patterns.rules import choose
    from moetraffic.patterns.time_model import CHOICES, Conventions

    parts = filter(None, ",".join(given).split(","))
    chosen = named_values(parts, "a convention", "flops=parameters")
    for name in sorted(set(chosen) - set(CHOICES)):
        choose("a convention", name, CHOICES)
    return Conventions(**chosen)


def of_protocol(name: str) -> str:
    """State the efficiency of a protocol and the link that it was measured on."""
    from moetraffic.patterns.bandwidth.platforms import protocol

    if not name:
        return ""
    found = protocol(name)
    return (
        f", NICs at {found.efficiency:.0%} of their rate, as published for {name} on "
        f"{found.link_gbps:g} Gbps"
    )


ASSUMED = field_options(
    System,
    SYSTEM,
    {
        "utilization": Setting(
            "Model FLOPs utilization (MFU) during compute, in place of a roofline.",
            shown="by roofline",
            rule={"above": 0, "max": 1},
        ),
        "latency_s": Setting(
            "Latency of one message, such as 10us.",
            "--latency",
            kind=float,
            default="0us",
            rule={"read": seconds},
        ),
        "layer_overhead_s": Setting(
            "Fixed time added per layer and micro-batch, such as 50us.",
            "--layer-overhead",
            kind=float,
            default="0us",
            rule={"read": seconds},
        ),
        "iteration_overhead_s": Setting(
            "Fixed time added per iteration, such as 5ms.",
            "--iteration-overhead",
            kind=float,
            default="0us",
            rule={"read": seconds},
        ),
        "overlap": Setting(
            "Kinds of communication that the program overlaps with compute, with a "
            "share where not all of it is: dp,tp=0.2.",
            kind=dict,
            default="",
            shown="none",
            rule={"read": read_shares},
        ),
    },
)
"""Options of a system that are its fields."""
