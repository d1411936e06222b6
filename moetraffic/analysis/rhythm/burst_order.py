"""Burst order: how many successive bursts make up one step, without step marks.

Steps vary in length, so their bursts drift apart in time; their order does not.  The
lengths of bursts and gaps are therefore compared over burst numbers instead of over
time: a step of m bursts repeats its lengths every m bursts, however irregular its
length is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from moetraffic.arrays import Float64, Int64

FEWEST = 32
"""Fewest repetitions of the longest order that is looked for."""

MOST = 1024
"""Most bursts of a repeated order."""

USED = 1 << 17
"""Most bursts that are compared, those in the middle: this bounds the time."""

WORSE = 4.0
"""Standard errors by which an order must repeat worse than a longer one."""


@dataclass(frozen=True, kw_only=True)
class BurstOrder:
    """Number of bursts after which the lengths of bursts and gaps repeat."""

    bursts: int  # 1 where no longer order is found
    p: float  # of that order among bursts in random order; 1 where there is none
    correlation: float  # of lengths that many bursts apart


def burst_order(first: Int64, last: Int64) -> BurstOrder:
    """Find the number of bursts after which the lengths of bursts and gaps repeat.

    The statistic is the mean autocorrelation of the normal scores of burst and gap
    lengths.  If each burst and its gap come in random order, it is normal at each lag,
    with a variance of at most 1 / n, whatever their correlation; the largest of all
    lags is judged with Bonferroni's correction.  A shorter order is preferred unless
    its lengths repeat significantly worse than those of the best one: multiples of an
    order repeat as well as itself, but its parts do not.

    ``first``, ``last``: ``[n]`` int64 ns: disjoint bursts in order.

    Examples
    --------
    >>> first = np.cumsum(np.tile([10, 30, 20], 50))
    >>> burst_order(first, first + np.tile([4, 6, 2], 50)).bursts
    3
    """
    low = max(0, len(first) - USED) // 2
    first, last = first[low : low + USED], last[low : low + USED]
    nothing = BurstOrder(bursts=1, p=1.0, correlation=float("nan"))
    number = len(first) - 1
    most = min(number // FEWEST, MOST)
    if most < 2:
        return nothing
    lengths = np.stack((last[:-1] - first[:-1], first[1:] - last[:-1]))
    lengths = lengths[np.ptp(lengths, axis=1) > 0]
    if not len(lengths):
        return nothing
    ranks = scipy.stats.rankdata(lengths, axis=1)
    scores = scipy.stats.zscore(ndtri((ranks - 0.5) / number), axis=1)
    power = np.abs(np.fft.rfft(scores, 2 * number, axis=1)) ** 2
    # unbiased: an order that repeats exactly has 1 at each of its multiples
    sums = np.fft.irfft(power.mean(axis=0))[: most + 1]
    acf = sums / (number - np.arange(most + 1))
    best = 1 + int(np.argmax(acf[1:]))
    z = float(acf[best]) * (number - best) ** 0.5
    p = min(1.0, most * float(ndtr(-z)))

    def change(lag: int) -> Float64:
        """Compute the squared change after a lag, ``[n - best]``."""
        each = scores[:, lag:] - scores[:, :-lag]
        return np.asarray((each**2).mean(axis=0)[: number - best], np.float64)

    rule = change(best)
    lags = np.arange(1, best)
    peaks = (acf[lags] >= acf[lags + 1]) & ((lags == 1) | (acf[lags] >= acf[lags - 1]))
    for lag in lags[peaks & (acf[lags] > acf[best] / 2)]:
        excess = change(int(lag)) - rule
        # neighbors are dependent: sums over orders are less so
        sums = excess[: len(excess) // best * best].reshape(-1, best).sum(axis=1)
        if sums.mean() <= WORSE * sums.std() / len(sums) ** 0.5:
            best = int(lag)
            break
    return BurstOrder(bursts=best, p=p, correlation=float(acf[best]))
