r"""Figures of a replay, and ratios of two, with intervals over their timed runs.

Calls of one run share what differs between runs (the load of the machine, connections,
the state of the network), so that their number does not shorten an interval: the run is
the unit.  A figure x > 0 of n runs has the geometric mean g and, with s the standard
deviation of log x,

.. math:: g \exp(\pm t_{n-1, 0.975} \, s / \sqrt{n})

as interval (Student's t on logarithms: ratios and rates are positive, and skewed).  Of
two replays, with :math:`m_i, s_i^2, n_i` the mean, the
variance and the number of the logarithms of a total time in the runs of replay i, the
ratio of the second to the first is

.. math:: \exp(m_2 - m_1 \pm t_{\nu, 0.975} \sqrt{s_1^2/n_1 + s_2^2/n_2})

with the degrees of freedom :math:`\nu` of Welch and Satterthwaite, and the p-value of
no difference is that of this t.  On hosts that other processes use, runs of one command
share their load, and replays of one command differ by more than their runs: each
:math:`s_i^2/n_i` is then :math:`s_i^2 (1/n_i + c)` with c = BETWEEN_COMMANDS, so that
more runs of one command do not narrow the interval without end.

References
----------
B. L. Welch, "The generalization of Student's problem when several different population
variances are involved", Biometrika 34 (1947) 28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.resampling import LEVEL, UNKNOWN, Interval
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import Trace

BETWEEN_COMMANDS = 0.3
"""Variance between commands over that between the runs of one, on busy hosts.

From F = 1 + 5 c = 2.5, the larger of two measurements with 5 runs a command
(``benchmarks/replay_reruns.py``)."""


@dataclass(frozen=True, kw_only=True)
class RunSums:
    """Sums over calls in each of N runs, ``[N]`` float64 seconds each."""

    call_s: Float64
    transfer_s: Float64
    wait_s: Float64
    inside_s: Float64

    def __len__(self) -> int:
        return len(self.call_s)

    @property
    def waiting(self) -> float:
        """Share of the time in calls before the last member's issue, mean of runs."""
        known = bool(self.inside_s.all())
        return float((self.wait_s / self.inside_s).mean()) if known else math.nan


def run_sums(trace: Trace, sites: Int64) -> RunSums | None:
    """Sum the times of calls in each run of a replay; None if they are not stored.

    Parameters
    ----------
    trace
        A replay.
    sites
        ``[n]`` int64, the site of each call.  The runs must have summed as many calls
        of each of these sites; -1 stands for an iteration.

    Returns
    -------
    RunSums or None
        None if the trace has one run, or the runs summed other calls.
    """
    runs = trace.runs
    used, calls = np.unique(sites, return_counts=True)
    numbers = np.unique(runs["number"])
    # rows of a run are in the order of their sites
    mine = np.sort(runs[np.isin(runs["site"], used)], order=["number", "site"])
    if len(numbers) < 2 or len(mine) != len(numbers) * len(used):
        return None
    table = mine.reshape(len(numbers), len(used))
    if not (table["calls"] == calls).all():
        return None
    sums = {n: table[f"{n}_ns"].sum(axis=1) / 1e9 for n in _NAMES}
    return RunSums(**{f"{name}_s": values for name, values in sums.items()})


_NAMES = ("call", "transfer", "wait", "inside")


def mean_of_runs(values: Sequence[float] | Float64) -> Interval:
    """Compute the geometric mean of a figure of each run with its interval.

    Returns
    -------
    Interval
        Without ends for one run; unknown if a value is unknown or not positive.

    Examples
    --------
    >>> found = mean_of_runs([1.0, 2.0, 4.0])
    >>> round(found.value, 6), round(found.low, 3), round(found.high, 3)
    (2.0, 0.357, 11.19)
    """
    every = np.asarray(values, np.float64)
    if not (len(every) and np.isfinite(every).all() and (every > 0).all()):
        return UNKNOWN
    if len(every) < 2:
        return Interval(value=float(every[0]), low=math.nan, high=math.nan)
    from scipy.special import stdtrit  # slow import

    logs = np.log(every)
    value, wide = float(np.exp(logs.mean())), logs.std(ddof=1) / math.sqrt(len(logs))
    factor = float(np.exp(stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * wide))
    return Interval(value=value, low=value / factor, high=value * factor)


def ratio_of_runs(
    below: Float64, above: Float64, *, busy: bool = False, level: float = LEVEL
) -> tuple[Interval, float]:
    """Compute the ratio of geometric means of a total in runs of two replays.

    ``below``, ``above``: ``[n]`` and ``[m]`` positive totals of each run, two or more.
    ``busy``: whether other processes used the hosts, which widens the interval.

    Returns
    -------
    Interval, float
        Of ``level``, by Welch's t, and the p-value of equal means; unknown (NaN) if a
        total is 0.

    Examples
    --------
    >>> ratio_of_runs(np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    (Interval(value=2.0, low=2.0, high=2.0), 0.0)
    """
    if not ((below > 0).all() and (above > 0).all()):
        return UNKNOWN, math.nan
    logs = np.log(below), np.log(above)
    more = BETWEEN_COMMANDS * busy
    shares = np.array([of.var(ddof=1) * (1 / len(of) + more) for of in logs])
    value = float(np.exp(logs[1].mean() - logs[0].mean()))
    if not shares.sum():
        return Interval(value=value, low=value, high=value), float(value == 1)
    from scipy.special import stdtr, stdtrit  # slow import

    degrees = shares.sum() ** 2 / sum(
        share**2 / (len(of) - 1) for share, of in zip(shares, logs, strict=True)
    )
    wide = stdtrit(degrees, (1 + level) / 2) * math.sqrt(shares.sum())
    factor = float(np.exp(wide))
    p = 2 * stdtr(degrees, -abs(math.log(value)) / math.sqrt(shares.sum()))
    return Interval(value=value, low=value / factor, high=value * factor), float(p)
