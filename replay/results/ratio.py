r"""Ratios and rates with intervals: over iterations of a run, or over runs.

Calls of one run share what differs between runs (the load of the machine, connections,
the state of the network), so that their number does not shorten an interval: the run is
the unit.  A figure x > 0 of n runs has the geometric mean g and, with s the standard
deviation of log x,

.. math:: g \exp(\pm t_{n-1, 0.975} \, s / \sqrt{n})

as interval (Student's t on logarithms: ratios and rates are positive, and skewed).  One
run has no such interval; ratios then have one from the iterations of the run, which
leaves out how runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.times.repeated_runs import WIDEST, mean_of_runs


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio, or rate, with its confidence interval; NaN if unknown."""

    value: float
    low: float
    high: float

    @property
    def determined(self) -> bool:
        """Whether the ends differ by at most a factor of WIDEST, or are unknown."""
        return not self.high > WIDEST * self.low


UNKNOWN_RATIO = Ratio(value=float("nan"), low=float("nan"), high=float("nan"))


def between_runs(values: Sequence[float]) -> Ratio:
    """Compute the geometric mean of a figure of each run with its interval.

    Returns
    -------
    Ratio
        Without an interval for one run; unknown if a value is unknown or not positive.

    Examples
    --------
    >>> found = between_runs([1.0, 2.0, 4.0])
    >>> round(found.value, 6), round(found.low, 3), round(found.high, 3)
    (2.0, 0.357, 11.19)
    """
    every = np.asarray(values, np.float64)
    if not (len(every) and np.isfinite(every).all() and (every > 0).all()):
        return UNKNOWN_RATIO
    if len(every) < 2:
        return Ratio(value=float(every[0]), low=math.nan, high=math.nan)
    return Ratio(**vars(mean_of_runs(every)))
