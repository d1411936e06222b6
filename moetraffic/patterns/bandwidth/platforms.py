"""Systems and protocols by name: what published studies say of their networks.

Nominal figures, for where nothing was measured.  A rate is one way; GB is 1e9 bytes.
What a source does not tell is NaN (or 0 for counts, "" for words), never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from moetraffic.data import published
from moetraffic.patterns.rules import choose


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
    source: str

    @property
    def efficiency(self) -> float:
        """Achieved over nominal."""
        return self.achieved_gbps / self.link_gbps

    def bytes_s(self, link_gbps: float | None = None) -> float:
        """Bytes/s over a link, the measured one or another at the same efficiency."""
        nominal = self.link_gbps if link_gbps is None else link_gbps
        return nominal * self.efficiency * 1e9 / 8


Kind = TypeVar("Kind", Platform, Protocol)


@cache
def platforms() -> dict[str, Platform]:
    """All platforms by name."""
    return {row["platform"]: _read(Platform, row) for row in published("platforms")}


@cache
def protocols() -> dict[str, Protocol]:
    """All protocols by name."""
    return {row["protocol"]: _read(Protocol, row) for row in published("protocols")}


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
    choose("a platform", name, platforms())
    return platforms()[name]


def protocol(name: str) -> Protocol:
    """The protocol of a name; see :func:`platform`.

    Examples
    --------
    >>> protocol("IPoIB").bytes_s() / 1e9
    2.5
    """
    choose("a protocol", name, protocols())
    return protocols()[name]


def _read(kind: type[Kind], row: Mapping[str, str]) -> Kind:
    """A row whose first cell is the name, empty numbers as NaN, empty counts as 0."""
    empty = {"float": "nan", "int": "0", "str": ""}
    made: dict[str, Any] = {"name": next(iter(row.values()))}
    for field in fields(kind):
        if field.name != "name":
            text = row[field.name] or empty[str(field.type)]
            made[field.name] = _TYPES[str(field.type)](text)
    return kind(**made)


_TYPES = {"float": float, "int": int, "str": str}
