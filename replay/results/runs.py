r"""Several timed passes of a replay (runs): mean, spread between runs and its interval.

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
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from .result import LEVEL, UNKNOWN_RATIO, Fidelity, PartFidelity, Ratio

RATIOS = ("over_captured", "transfer_over_captured", "over_bound", "over_model")


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
    logs = np.log(every)
    value = float(np.exp(logs.mean()))
    if len(logs) < 2:
        return Ratio(value=value, low=math.nan, high=math.nan)
    wide = student.ppf((1 + LEVEL) / 2, len(logs) - 1) * logs.std(ddof=1)
    factor = float(np.exp(wide / math.sqrt(len(logs))))
    return Ratio(value=value, low=value / factor, high=value * factor)


def median_run(totals_s: Sequence[float]) -> int:
    """Return the run of the median total time; of an even number, the faster one."""
    order = np.argsort(np.asarray(totals_s), kind="stable")
    return int(order[(len(order) - 1) // 2])


def merge(runs: Sequence[Fidelity], shown: int) -> Fidelity:
    """Combine the fidelity of several runs of one plan.

    Parameters
    ----------
    runs
        Fidelity of each run, with the same parts.
    shown
        Run whose times are kept.
    """
    if len(runs) == 1:
        return runs[0]
    each = zip(*(run.parts for run in runs), strict=True)
    parts = tuple(_merged(part, shown) for part in each)
    return replace(runs[shown], parts=parts, runs=len(runs), shown_run=shown)


def _merged(part: Sequence[PartFidelity], shown: int) -> PartFidelity:
    busbw = between_runs([p.busbw_gbs for p in part])
    ratios: dict[str, Any] = {
        n: between_runs([getattr(p, n).value for p in part]) for n in RATIOS
    }
    return replace(
        part[shown],
        waiting=float(np.mean([p.waiting for p in part])),
        busbw_gbs=busbw.value,
        busbw_low_gbs=busbw.low,
        busbw_high_gbs=busbw.high,
        **ratios,
    )
