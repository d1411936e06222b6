r"""Figures of a replay, and ratios of two, with intervals over their timed runs.

Calls of one run share what differs between runs (the load of the machine, connections,
the state of the network), so that their number does not shorten an interval: the run is
the unit.  Ratios and rates are positive and skewed, so that intervals are Student's t
on logarithms.  With m, s and n the mean, standard deviation and number of log x:

.. math:: \exp(m \pm t_{n-1, 0.975} \, s / \sqrt{n})

is a figure x of the runs, and of two replays the ratio of the second to the first is

.. math:: \exp(m_2 - m_1 \pm t_{\nu, 0.975} \sqrt{s_1^2/n_1 + s_2^2/n_2})

with the degrees of freedom :math:`\nu` of Welch and Satterthwaite.  On hosts that other
processes use, replays of one command differ by more than their runs: each
:math:`s_i^2/n_i` is then :math:`s_i^2 (1/n_i + c)` with c = BETWEEN_COMMANDS.

References
----------
B. L. Welch, "The generalization of Student's problem when several different population
variances are involved", Biometrika 34 (1947) 28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from moetraffic.analysis.intervals import LEVEL, UNKNOWN, Interval
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import Trace

BETWEEN_COMMANDS = 0.3
"""Variance between commands over that between the runs of one, on busy hosts.

From F = 1 + 5 c = 2.5, the larger of two measurements with 5 runs a command
(``benchmarks/replay_reruns.py``)."""

SUMS = ("call", "transfer", "wait", "inside")
"""Times whose sums a replay stores for each run and site."""


def run_sums(trace: Trace, sites: Int64) -> dict[str, Float64]:
    """Sum the times of calls in each run of a replay.

    Parameters
    ----------
    trace
        A replay.
    sites
        ``[n]`` int64, the site of each call.  The runs must have summed as many calls
        of each of these sites; -1 stands for an iteration.

    Returns
    -------
    dict of ndarray
        ``call_s``, ``transfer_s``, ``wait_s`` and ``inside_s``, ``[N]`` of N runs.
        Empty if the trace has one run, or the runs summed other calls.
    """
    used, calls = np.unique(sites, return_counts=True)
    numbers = np.unique(trace.runs["number"])
    rows = trace.runs[np.isin(trace.runs["site"], used)]
    if len(numbers) < 2 or len(rows) != len(numbers) * len(used):
        return {}
    table = np.sort(rows, order=["number", "site"]).reshape(len(numbers), len(used))
    if not (table["calls"] == calls).all():
        return {}
    return {f"{name}_s": table[f"{name}_ns"].sum(axis=1) / 1e9 for name in SUMS}


def mean_of_runs(values: Sequence[float] | Float64) -> Interval:
    """Compute the geometric mean of a figure of each run with its interval.

    Returns
    -------
    Interval
        Without ends for one run; unknown if a value is unknown or not positive.

    Examples
    --------
    >>> mean = mean_of_runs([1.0, 2.0, 4.0])
    >>> round(mean.value, 6), round(mean.low, 3), round(mean.high, 3)
    (2.0, 0.357, 11.19)
    """
    figures = np.asarray(values, np.float64)
    if not (len(figures) and np.isfinite(figures).all() and (figures > 0).all()):
        return UNKNOWN
    if len(figures) < 2:
        return Interval(value=float(figures[0]), low=math.nan, high=math.nan)
    from scipy.special import stdtrit  # slow import

    logs = np.log(figures)
    error = logs.std(ddof=1) / math.sqrt(len(logs))
    factor = float(np.exp(stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * error))
    value = float(np.exp(logs.mean()))
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
    number = np.array([len(x) for x in logs])
    variance = np.array([x.var(ddof=1) for x in logs])
    squares = variance * (1 / number + BETWEEN_COMMANDS * busy)  # of the errors
    difference = float(logs[1].mean() - logs[0].mean())
    value = float(np.exp(difference))
    if not squares.sum():
        return Interval(value=value, low=value, high=value), float(value == 1)
    from scipy.special import stdtr, stdtrit  # slow import

    error = math.sqrt(squares.sum())
    degrees = squares.sum() ** 2 / (squares**2 / (number - 1)).sum()
    factor = float(np.exp(stdtrit(degrees, (1 + level) / 2) * error))
    p = float(2 * stdtr(degrees, -abs(difference) / error))
    return Interval(value=value, low=value / factor, high=value * factor), p
