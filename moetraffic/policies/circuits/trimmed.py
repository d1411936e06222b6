"""Schedules without configurations that did not pay on the recent past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from moetraffic.policies.policy import Policy, View
from moetraffic.policies.service.optical import Matchings, serve_circuits

RECENT = 4
"""Known iterations, before the newest one, on which numbers of configurations are
compared: a plan of the newest would suit it alone."""

MOST_NUMBERS = 24
"""Numbers of configurations that are compared; more are thinned evenly."""


@dataclass(frozen=True, kw_only=True)
class Trimmed:
    """Keep as many first configurations of a schedule as served the past best.

    A forecast has fewer zeros than the traffic, so that a decomposition has late
    configurations for bytes that may never come, and each costs a reconfiguration.
    Only where packets carry what is not planned: a rest that is planned again needs the
    truth, which a policy should not rely on.
    """

    base: Policy  # of the family circuits, whose plans are Matchings
    family: str = "circuits"

    @property
    def name(self) -> str:
        """Name of the base, and that it is trimmed."""
        return f"{self.base.name}-trimmed"

    @property
    def forecasts(self) -> bool:
        """Whether the base uses forecasts."""
        return self.base.forecasts

    def plan(self, view: View) -> Matchings:
        """Trim the plan of the base."""
        return trimmed(self.base.plan(view), view.past[-RECENT - 1 : -1], view.network)


def trimmed(plan: Matchings, past: Any, switch: Any) -> Matchings:
    """Choose the number of first configurations with the least mean completion.

    Parameters
    ----------
    past
        ``[n, W, W]`` bytes; none: the plan stays as it is.
    switch
        Optical switch; without packets for the rest the plan stays as it is.

    Examples
    --------
    >>> from moetraffic.policies.service.optical import OpticalSwitch
    >>> plan = Matchings(receivers=np.array([[1, 0], [1, 0]]), room=np.array([8.0, 4]))
    >>> switch = OpticalSwitch(
    ...     rate_bytes_s=1, delay_s=1, packet_bytes_s=0.1, rest="packets"
    ... )
    >>> trimmed(plan, np.array([[[0, 8.0], [8, 0]]]), switch).room.tolist()
    [8.0]
    """
    number = len(plan.room)
    if number < 2 or not len(past) or not switch.rest.startswith("packets"):
        return plan
    tried = np.unique(np.linspace(1, number, MOST_NUMBERS).round().astype(int))
    plans = [
        Matchings(receivers=plan.receivers[:k], room=plan.room[:k], cyclic=plan.cyclic)
        for k in tried
    ]
    seconds = [
        sum(serve_circuits(one, some, switch).completion_s for one in past)
        for some in plans
    ]
    return plans[int(np.argmin(seconds))]
