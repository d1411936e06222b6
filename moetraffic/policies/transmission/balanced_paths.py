"""Paths that balance the links of a network for the forecast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.fabric.congestion import balance_paths
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import crossing
from moetraffic.policies.service.packet_network import Rounds


@dataclass(frozen=True, kw_only=True)
class BalancedPaths:
    """Split each pair over paths, also longer ones, that balance the forecast's load.

    All flows are sent at once, with rates in proportion to their bytes.

    References
    ----------
    :mod:`moetraffic.fabric.congestion`; X. Liu et al., "TE-CCL", SIGCOMM 2024, solves
    the same problem with a linear program.
    """

    name: str = "balanced-paths"
    family: str = "transmission"
    forecasts: bool = True

    def plan(self, view: View) -> Rounds:
        """Return one round with paths for the forecast."""
        found = balance_paths(
            view.network.topology, view.network.slots, crossing(view.forecast)
        )
        whole = np.ones((1, view.ranks, view.ranks))
        return Rounds(shares=whole, routing=found.matrix, rates="proportional")
