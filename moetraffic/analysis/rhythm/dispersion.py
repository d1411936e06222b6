"""Index of dispersion: burstiness of counts and bytes over windows of several lengths.

The index of dispersion for counts is the variance of the number of events in a window
over its mean: 1 for a Poisson process at any window, less for regular events, and
growing with the window where there is long memory (H. Heffes, D. M. Lucantoni, IEEE J.
Sel. Areas Commun. 4 (1986) 856).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Float64, Int64

WINDOWS = (1, 10, 100)
"""Lengths of the windows, in steps."""

FEWEST_WINDOWS = 10


def dispersion(
    at: Int64,
    amount: Float64 | None = None,
    *,
    step_ns: float,
    parts: tuple[Int64, Int64],
) -> tuple[float, ...]:
    """Compute the index of dispersion over windows of :data:`WINDOWS` steps.

    Parameters
    ----------
    at
        ``[n]`` int64 ns in order, when bursts begin.
    amount
        ``[n]`` of each burst, counted where it begins; divided by the mean, so that
        bursts of equal bytes have the index of their counts.  None: bursts are counted.
    parts
        Starts and ends, int64 ns, of the times that were observed.

    Returns
    -------
    tuple of float
        NaN where fewer than :data:`FEWEST_WINDOWS` windows fit.

    Examples
    --------
    >>> at = np.arange(1000) * 10
    >>> parts = np.array([0]), np.array([10_000])
    >>> dispersion(at, step_ns=10, parts=parts)
    (0.0, 0.0, 0.0)
    """
    weight = np.ones(len(at)) if amount is None else amount
    mean = float(weight.mean()) if len(at) else 0.0
    if not (step_ns > 0 and mean > 0):
        return (float("nan"),) * len(WINDOWS)
    passed = np.concatenate(([0.0], np.cumsum(weight / mean)))
    found = []
    for steps in WINDOWS:
        width = steps * step_ns
        sums = []
        for begin, end in zip(*parts, strict=True):
            number = int((end - begin) / width + 1e-9)
            # int64: times since 1970 lose 100 ns as float64
            borders = begin + np.rint(np.arange(number + 1) * width).astype(np.int64)
            sums.append(np.diff(passed[np.searchsorted(at, borders)]))
        each = np.concatenate(sums) if sums else np.zeros(0)
        enough = len(each) >= FEWEST_WINDOWS and each.mean() > 0
        found.append(float(each.var() / each.mean()) if enough else float("nan"))
    return tuple(found)
