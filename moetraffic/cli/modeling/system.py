"""Systems of an estimate: published platforms, GPUs, rates and measured collectives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from moetraffic.errors import LayoutError
from moetraffic.patterns import ModelShape
from moetraffic.patterns.bandwidth import (
    BandwidthTable,
    big_red_200,
    platform,
    protocol_share,
    read_table,
)
from moetraffic.report.console.options import named_values
from moetraffic.spelling import check_choice
from moetraffic.timemodel import ATTENTION, GPUS, Gpu, MeasuredLinks, NodeLinks
from moetraffic.units import bytes_per_second

from .choices import Row, parts

BIG_RED_200 = "big-red-200"
"""The published system whose links are measured collectives."""


def is_table(text: str) -> bool:
    """Whether a platform, rate or efficiency is a file of measurements."""
    return text.endswith((".csv", ".json")) or os.path.isfile(text)


def hardware(row: Row, *, roofline: bool) -> dict[str, Any]:
    """Return what is known of a platform, a GPU and rates, as fields of a System.

    ``row`` may have platform, gpu, bandwidth, nic (rate of a GPU), protocol and
    gpus_per_node.  With ``roofline`` the computing time is the GPU's.
    """
    name = row.get("platform", "")
    given = GPUS[_known_gpu(row.get("gpu", "A100"))]
    values = _of_gpu(given, roofline=roofline)
    if name and not is_table(name):
        values = _of_platform(name, row.get("protocol", ""), roofline=roofline)
    elif name:
        values["bandwidth"] = measured(name, row)
    if "nic" in row:
        links = values.get("bandwidth")
        if not isinstance(links, NodeLinks):
            raise LayoutError(
                "rates of NICs are those of a platform's nodes, but none with known "
                "links is given: give --platform dgx-h100, or --bandwidth"
            )
        nominal = NodeLinks.nominal(
            gpus=links.gpus,
            inside_bytes_s=links.inside_bytes_s,
            nic_bytes_s=bytes_per_second(row["nic"]) * links.gpus,
        )
        values["bandwidth"] = replace(links, nic_bytes_s=nominal.nic_bytes_s)
    if "bandwidth" in row:
        values["bandwidth"] = rate(row["bandwidth"], row)
    changed: dict[str, Any] = {}
    if "peak_flops" in row:
        changed["peak_flops"] = values["peak_flops"] = row["peak_flops"]
    if "attention" in row:
        check_choice("attention", row["attention"], ATTENTION, LayoutError)
        changed["attention"] = ATTENTION[row["attention"]]
    if values["gpu"] is not None:
        values["gpu"] = replace(values["gpu"], **changed)
    return values


def rate(text: str, row: Row) -> Any:
    """Read a rate, rates by kind of traffic (dp=25GB/s,tp=1TB/s), or measurements."""
    if "=" in text:
        kinds = named_values(parts(text), "a bandwidth", "dp=25GB/s,tp=300GB/s")
        return {kind: bytes_per_second(value) for kind, value in kinds.items()}
    return measured(text, row) if is_table(text) else bytes_per_second(text)


def measured(text: str, row: Row) -> MeasuredLinks:
    """Read a file of measurements on nodes of ``row["gpus_per_node"]`` GPUs."""
    return MeasuredLinks(table=_table(text), gpus=int(row.get("gpus_per_node", 8)))


@cache
def _table(path: str) -> BandwidthTable:
    return read_table(path)


def _known_gpu(name: str) -> str:
    check_choice("a GPU", name, GPUS, LayoutError)
    return name


def _of_gpu(gpu: Gpu, *, roofline: bool) -> dict[str, Any]:
    return {
        "gpu": gpu if roofline else None,
        "peak_flops": gpu.peak_flops,
        "memory_bytes": gpu.memory_bytes,
        "memory_bytes_s": gpu.memory_bytes_s * gpu.memory_share,
    }


def _of_platform(name: str, by: str, *, roofline: bool) -> dict[str, Any]:
    """Return fields of a published platform; what its source lacks is left out."""
    row = platform(name)
    stated = {
        field: row[column] * unit
        for field, column, unit in (
            ("peak_flops", "peak_tflops", 1e12),
            ("memory_bytes", "gpu_memory_gb", 1e9),
            ("memory_bytes_s", "gpu_memory_gbs", 1e9),
        )
        if row[column] is not None
    }
    model = GPUS.get(row["gpu"])
    if model is None and roofline:
        raise LayoutError(
            f"the roofline of {', '.join(GPUS)} is known, but {name} has "
            f"{row['gpu'] or 'GPUs that its source does not name'}: give "
            "--set utilization=0.4, or --gpu in place of --platform"
        )
    values: dict[str, Any] = {"gpu": None, **stated}
    if model is not None:
        values = _of_gpu(replace(model, **stated), roofline=roofline)
    inside = model.inside_bytes_s if model else 0.0
    inside = row["p2p_gbs"] * 1e9 if row["p2p_gbs"] else inside
    if row["gpus_per_node"] and inside and row["nic_gbps_per_node"]:
        nominal = row["nic_gbps_per_node"] * 1e9 / 8
        links = NodeLinks.nominal(
            gpus=int(row["gpus_per_node"]), inside_bytes_s=inside, nic_bytes_s=nominal
        )
        if by:
            links = replace(links, nic_bytes_s=protocol_share(by) * nominal)
        values["bandwidth"] = links
    elif name == BIG_RED_200:
        values["bandwidth"] = MeasuredLinks(
            table=big_red_200(), gpus=int(row["gpus_per_node"])
        )
    if "peak_flops" not in values:
        raise LayoutError(
            f"compute time follows from a GPU's peak, but that of {name} is not "
            "published: give --set peak_flops=312e12"
        )
    return values


def fused(row: Row) -> bool:
    """Whether attention is usually fused: on all known GPUs but the oldest ones."""
    name = row.get("platform", "")
    gpu = (
        platform(name)["gpu"] if name and not is_table(name) else row.get("gpu", "A100")
    )
    return gpu in GPUS and GPUS[gpu].fused_attention


def overlaps(text: str) -> Mapping[str, float]:
    """Read kinds of traffic that overlap, with a share where only a part does."""
    pairs = [part if "=" in part else f"{part}=1" for part in parts(text)]
    shares = named_values(pairs, "an overlap", "dp,tp=0.2")
    try:
        return {kind: float(share) for kind, share in shares.items()}
    except ValueError:
        raise LayoutError(
            f"the overlap of a kind is a number, but is {text!r}: write dp=0.8"
        ) from None


def measured_shares(path: Path, shape: ModelShape, ranks: int) -> Any:
    """Measure the shares ``[layers, ranks]`` of expert-parallel ranks in a trace.

    Raises
    ------
    LayoutError
        If the model is not spread over ranks.
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
