"""A scheduling policy: circuits for large transfers, packets for all others.

Usage: moetraffic evaluate run.h5 --policy rotation,examples/own_policy.py:FewCircuits
"""

from moetraffic.policies.optical import Matchings, max_weight_matchings
from moetraffic.policies.policy import View


class FewCircuits:
    """Keep the configurations that last longer than their reconfiguration."""

    name = "few-circuits"
    family = "circuits"
    forecasts = True  # plan once for each forecaster

    def plan(self, view: View) -> Matchings:
        """Plan at most three matchings of the forecast."""
        largest = max_weight_matchings(view.forecast, most=3)
        used = largest.room > view.network.rate_bytes_s * view.network.delay_s
        return Matchings(receivers=largest.receivers[used], room=largest.room[used])
