"""Select the operations of a replay whose received bytes are verified.

Sizes and order are always compared, for every operation.  A sample draws a share of
each site's operations, so that it contains every group, layer, phase and kind, and adds
the largest operation of each group.  It depends on the plan and a seed alone: all ranks
draw the same sample.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.trace.model import Bool

from .program import Plan


class Depth(str, enum.Enum):
    """Extent of byte verification before the timed pass: all, a sample, or none."""

    FULL = "full"
    SAMPLE = "sample"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Settings of the byte verification before the timed pass.

    Raises
    ------
    ReplayError
        If the share is not above 0 and at most 1.
    """

    depth: Depth = Depth.FULL
    share: float = 0.01  # of operations whose bytes are checked in a sample
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.seed < 0:  # NaN is neither
            raise ReplayError(
                "a sample is a share above 0 and at most 1, drawn by a seed from 0 on, "
                f"but is {self.share:g} by {self.seed}: change --sample or "
                "--sample-seed"
            )

    def __str__(self) -> str:
        if self.depth is Depth.SAMPLE:
            return f"sample of {self.share:g}, seed {self.seed}"
        return str(self.depth.value)

    def chosen(self, plan: Plan) -> Bool:
        """Select the operations of a plan whose bytes are verified.

        Returns
        -------
        ndarray
            ``[n]`` bool: all operations; none; or ceil(share m) of the m operations
            of each site, and the largest of each group.
        """
        if self.depth is Depth.FULL:
            return np.ones(len(plan), bool)
        found = np.zeros(len(plan), bool)
        if self.depth is Depth.NONE or not len(plan):
            return found
        order = np.argsort(plan.site, kind="stable")
        edges = np.flatnonzero(np.diff(plan.site[order])) + 1
        for same in np.split(order, edges):
            random = np.random.default_rng([self.seed, int(plan.site[same[0]])])
            count = math.ceil(self.share * len(same))
            found[random.choice(same, count, replace=False, shuffle=False)] = True
        for group in np.unique(plan.group).tolist():
            mine = np.flatnonzero(plan.group == group)
            found[mine[plan.largest_bytes[mine].argmax()]] = True
        return found


FULL_VERIFICATION = Verification()
"""Verification of every byte of every operation."""
