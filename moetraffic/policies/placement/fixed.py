"""Placements that never change: contiguous and strided experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.patterns.placement import place
from moetraffic.policies.policy import View
from moetraffic.policies.service.cluster import ExpertPlacement


@dataclass(frozen=True, kw_only=True)
class FixedPlacement:
    """Contiguous or strided experts; further slots repeat the first experts."""

    name: str  # contiguous or strided
    family: str = "placement"
    forecasts: bool = False

    def plan(self, view: View) -> ExpertPlacement:
        """Return the same placement each time."""
        ranks, experts = view.forecast.shape
        slots = experts + view.network.replicas
        expert, rank = place(self.name, np.ones(experts), ranks, slots)
        return ExpertPlacement(experts=expert, ranks=rank)
