"""Systems and protocols by name: what published studies say of their networks.

Nominal figures, for where nothing was measured.  A rate is one way; GB is 1e9 bytes.
What a source does not tell is NaN (or 0 for counts, "" for words), never assumed.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from moetraffic.data import published
from moetraffic.errors import LayoutError


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A system that a study was made on."""

    name: str
    system: str
    nodes: int
    gpus_per_node: int
    gpu: str
    gpu_memory_gb: float
    gpu_memory_gbs: float
    peak_tflops: float  # dense fp16 input, fp32 accumulation
    p2p_gbs: float  # measured between two GPUs of a node
    nic: str
    nics_per_node: int
    nic_gbps_per_node: float  # nominal, of all NICs together
    protocol: str

    @property
    def nic_bytes_s(self) -> float:
        """Nominal bytes/s of a node, each way."""
        return self.nic_gbps_per_node * 1e9 / 8

    @property
    def p2p_bytes_s(self) -> float:
        """Bytes/s between two GPUs of a node, each way."""
        return self.p2p_gbs * 1e9


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What a protocol made of a link in a published measurement."""

    name: str
    link_gbps: float
    achieved_gbps: float  # the highest that was seen, each way
    measured_with: str  # "training" or a bare "transfer": not to be compared
    source: str

    @property
    def efficiency(self) -> float:
        """Achieved over nominal."""
        return self.achieved_gbps / self.link_gbps

    def bytes_s(self, link_gbps: float | None = None) -> float:
        """Bytes/s over a link, the measured one or another at the same efficiency."""
        nominal = self.link_gbps if link_gbps is None else link_gbps
        return nominal * self.efficiency * 1e9 / 8


@cache
def platforms() -> dict[str, Platform]:
    """All platforms by name."""
    return {
        row["platform"]: Platform(
            name=row["platform"],
            system=row["system"],
            nodes=int(row["nodes"] or 0),
            gpus_per_node=int(row["gpus_per_node"] or 0),
            gpu=row["gpu"],
            gpu_memory_gb=_number(row["gpu_memory_gb"]),
            gpu_memory_gbs=_number(row["gpu_memory_gbs"]),
            peak_tflops=_number(row["peak_tflops"]),
            p2p_gbs=_number(row["p2p_gbs"]),
            nic=row["nic"],
            nics_per_node=int(row["nics_per_node"] or 0),
            nic_gbps_per_node=_number(row["nic_gbps_per_node"]),
            protocol=row["protocol"],
        )
        for row in published("platforms")
    }


@cache
def protocols() -> dict[str, Protocol]:
    """All protocols by name."""
    return {
        row["protocol"]: Protocol(
            name=row["protocol"],
            link_gbps=float(row["link_gbps"]),
            achieved_gbps=float(row["achieved_gbps"]),
            measured_with=row["measured_with"],
            source=row["source"],
        )
        for row in published("protocols")
    }


def platform(name: str) -> Platform:
    """The platform of a name.

    Raises
    ------
    LayoutError
        If there is none.

    Examples
    --------
    >>> platform("tg40").nic_bytes_s / 1e9
    200.0
    """
    found = platforms().get(name)
    if found is None:
        raise LayoutError(_unknown("platform", name, tuple(platforms())))
    return found


def protocol(name: str) -> Protocol:
    """The protocol of a name.

    Raises
    ------
    LayoutError
        If there is none.

    Examples
    --------
    >>> protocol("IPoIB").bytes_s() / 1e9
    2.5
    """
    found = protocols().get(name)
    if found is None:
        raise LayoutError(_unknown("protocol", name, tuple(protocols())))
    return found


def _number(text: str) -> float:
    return float(text) if text else float("nan")


def _unknown(what: str, name: str, there: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, there, 1)
    perhaps = f"did you mean {near[0]}, or " if near else ""
    return (
        f"a {what} is one of {', '.join(there)}, not {name!r}: {perhaps}choose one of "
        "these"
    )
