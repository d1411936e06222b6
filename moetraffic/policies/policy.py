"""What a policy is, and what it knows when it plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from moetraffic.arrays import Float64

from .cluster import Cluster
from .optical import OpticalSwitch
from .packets import PacketNetwork
from .series import LayerKey

FAMILIES = {
    "circuits": OpticalSwitch,
    "transmission": PacketNetwork,
    "placement": Cluster,
}
"""What serves the plans of each family."""

UNITS = {"circuits": "bytes", "transmission": "bytes", "placement": "tokens"}
"""What the series of each family are of: bytes between ranks, or tokens of experts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """What is known at a decision point; the arrays are copies for this policy alone.

    The series of the family ``circuits`` and ``transmission`` are bytes between ranks
    ``[W, W]`` (row sends, column receives, rank-local traffic included), those of
    ``placement`` token copies from ranks to experts ``[W, E]``.
    """

    iteration: int  # that the plan will serve first
    layer: LayerKey  # (layer, group) where several groups have experts of their own
    phase: str
    age: int  # iterations from the newest known one to the one that is served first
    hold: int  # iterations that the plan will serve
    past: Float64  # [n, W, W] or [n, W, E], oldest first; at most 64, 64 MiB
    earlier: Float64  # [l, ...] layers before this one in the served iteration, age 1
    forecast: Float64  # [W, W] or [W, E], by the forecaster of this evaluation
    network: Any  # OpticalSwitch, PacketNetwork or Cluster, as the family has it

    @property
    def ranks(self) -> int:
        """Number of ranks W."""
        return len(self.forecast)


@runtime_checkable
class Policy(Protocol):
    """A policy makes plans; it may keep state, one object serves a whole run in order.

    Planning is reproducible: randomness has a fixed seed.
    """

    @property
    def name(self) -> str:
        """Name in tables and messages."""
        ...

    @property
    def family(self) -> str:
        """One of FAMILIES."""
        ...

    @property
    def forecasts(self) -> bool:
        """Whether plans depend on ``view.forecast``."""
        ...

    def plan(self, view: View) -> Any:
        """Return a plan of the family for the exchange that the view describes."""
        ...
