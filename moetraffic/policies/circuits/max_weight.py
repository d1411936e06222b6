"""Bounded greedy maximum-weight matchings of a forecast, whole pairs at a time."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import Matchings, max_weight_matchings


@dataclass(frozen=True, kw_only=True)
class MaxWeight:
    """Serve the forecast by at most K maximum-weight matchings, without slack.

    Each pair is served once, so that an expert's batch is not cut.

    References
    ----------
    C. Amponsah, V. Addanki, HotOptics 2026, arXiv 2605.26845.
    """

    name: str = "max-weight"
    family: str = "circuits"
    forecasts: bool = True
    most: int | None = None  # K; None: until all bytes are served

    def plan(self, view: View) -> Matchings:
        """Plan the forecast."""
        return max_weight_matchings(view.forecast, most=self.most)
