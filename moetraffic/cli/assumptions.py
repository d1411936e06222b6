"""What an estimate assumes of a system, as the command line has it in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from moetraffic.errors import LayoutError
from moetraffic.units import bytes_per_second

if TYPE_CHECKING:
    from moetraffic.patterns.time_model import Conventions


def refuse_figures(above: Mapping[str, float | None], imbalance: float) -> None:
    """Refuse amounts that nothing has."""
    for name, value in above.items():
        if value is not None and not 0 < value < inf:
            raise LayoutError(f"{name} is above 0, but is {value:g}: raise --{name}")
    share = above["utilization"]
    if share is not None and share > 1:
        raise LayoutError(
            f"utilization is a share of the peak, 1 at most, but is {share:g}: give "
            "--utilization 0.4"
        )
    if not 1 <= imbalance < inf:
        raise LayoutError(
            "the busiest rank has at least the mean load, 1, but imbalance is "
            f"{imbalance:g}: raise --imbalance"
        )


def nominal(platform: str) -> dict[str, Any]:
    """What a platform's source says of it, as fields of a system."""
    if not platform:
        return {}
    from math import isfinite

    from moetraffic.patterns.platforms import platform as named
    from moetraffic.patterns.time_model import NodeLinks

    found = named(platform)
    told: dict[str, Any] = {
        "peak_flops": found.peak_tflops * 1e12,
        "memory_bytes": found.gpu_memory_gb * 1e9,
        "memory_bytes_s": found.gpu_memory_gbs * 1e9,
    }
    told = {name: value for name, value in told.items() if isfinite(value)}
    links = (found.p2p_bytes_s, found.nic_bytes_s)
    if found.gpus_per_node and all(map(isfinite, links)):
        told["bandwidth"] = NodeLinks(
            gpus=found.gpus_per_node, inside_bytes_s=links[0], nic_bytes_s=links[1]
        )
    return told


def read_bandwidth(text: str, gpus_per_node: int) -> Any:
    """A rate, rates by kind, or a measured table."""
    if "=" in text:
        return {n: bytes_per_second(v) for n, v in _pairs(text, "bandwidth").items()}
    if text[0].isdigit():
        return bytes_per_second(text)
    from moetraffic.patterns.measurements import read_table
    from moetraffic.patterns.time_model import MeasuredLinks

    return MeasuredLinks(table=read_table(text), gpus=gpus_per_node)


def read_shares(text: str) -> dict[str, float]:
    """Shares by kind of traffic."""
    try:
        return {n: float(v) for n, v in _pairs(text, "overlap").items()}
    except ValueError:
        raise LayoutError(
            f"the overlap of a kind is a number, but is {text!r}: write dp=0.8"
        ) from None


def _pairs(text: str, what: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise LayoutError(
                f"{what} is name=value with commas between, not {text!r}: write for "
                "example dp=..."
            )
        found[name] = value
    return found


def read_conventions(given: list[str]) -> Conventions:
    """How terms are counted."""
    from moetraffic.patterns.time_model import CHOICES, Conventions

    chosen = _pairs(",".join(given), "a convention")
    for name in sorted(set(chosen) - set(CHOICES)):
        raise LayoutError(
            f"a convention is one of {', '.join(CHOICES)}, not {name!r}: choose one"
        )
    return Conventions(**chosen)


def read_sizes(text: str) -> list[int]:
    """Sizes of a sweep."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise LayoutError(
            f"sizes are whole numbers above 0 with commas between, not {text!r}: give "
            "--sizes 1,2,4"
        )
    return found
