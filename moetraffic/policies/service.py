"""How an exchange was served: its completion time, and what carried its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64


@dataclass(frozen=True, kw_only=True)
class Service:
    """How one exchange was served; all bytes are between different ranks."""

    completion_s: float
    demand_bytes: float
    planned_bytes: float  # carried by what the plan provides for
    rest_bytes: float = 0.0  # carried otherwise
    reconfigurations: int = 0
    moved_experts: int = 0  # that ranks receive for a new placement
    moved_bytes: float = 0.0  # their weights
    loads: tuple[float, ...] = ()  # [W] token copies of each rank, if known

    @property
    def load_imbalance(self) -> float:
        """Maximum over mean tokens of a rank; NaN if unknown."""
        total = sum(self.loads)
        return max(self.loads) * len(self.loads) / total if total else float("nan")


def together(services: Sequence[Service]) -> Service:
    """Join the services of a layer's groups: it waits for the slowest of them."""
    names = ["demand_bytes", "planned_bytes", "rest_bytes", "reconfigurations"]
    names += ["moved_experts", "moved_bytes"]
    sums: dict[str, Any] = {n: sum(getattr(s, n) for s in services) for n in names}
    loads = tuple(load for service in services for load in service.loads)
    slowest = max(service.completion_s for service in services)
    return Service(completion_s=slowest, loads=loads, **sums)


def crossing(demand: npt.ArrayLike) -> Float64:
    """Return a copy of a byte matrix ``[W, W]`` without rank-local traffic."""
    matrix = np.array(demand, np.float64)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def line_bytes(demand: Float64) -> float:
    """Return the largest row or column sum of a byte matrix ``[W, W]``."""
    lines = demand.sum(axis=0).max(initial=0), demand.sum(axis=1).max(initial=0)
    return float(max(lines))
