"""Loss tolerance: training-loss increase by share of traffic dropped, and p*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError


@dataclass(frozen=True, kw_only=True)
class Increase:
    """Increase of the training loss when a share of the traffic is dropped."""

    share: float  # of the bytes, 0 to 1
    mean: float  # over seeds, nats per token
    low: float  # confidence interval of the mean
    high: float


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Loss tolerance, of a sweep over dropped shares and seeds."""

    increases: tuple[Increase, ...]  # in order of the shares, 0 left out
    sigma: float  # standard deviation of the loss over seeds, nothing dropped
    p_star: float  # largest tolerated share; 0: none of those tried
    confidence: float  # of the intervals
    seeds: int


def tolerance(
    shares: Sequence[float], losses: Float64, *, confidence: float = 0.95
) -> Tolerance:
    """Estimate the loss increase at each dropped share and the largest tolerated share.

    A seed's runs start from the same parameters and see the same batches, so an
    increase is the difference to the seed's own run without drops.  Its interval is
    Student's, over seeds.  ``p_star`` is the largest share such that its upper bound,
    and that of all smaller shares, is below ``sigma``.

    Parameters
    ----------
    shares
        ``[P]`` increasing, the first 0.
    losses
        ``[P, S]`` final loss of each share and seed, nats a token.

    Examples
    --------
    >>> swept = tolerance([0, 0.01, 0.1], np.array([[2.0, 2.2], [2.0, 2.2], [3, 3.1]]))
    >>> swept.p_star, round(swept.increases[1].mean, 3)
    (0.01, 0.95)
    """
    if not len(shares) or shares[0] != 0 or (np.diff(shares) <= 0).any():
        raise AnalysisError(
            f"the shares increase from 0, but are {list(shares)}: add the run without "
            "drops"
        )
    seeds = losses.shape[1]
    if seeds < 2:
        raise AnalysisError(
            f"an interval over seeds needs 2 of them or more, but there is {seeds}: "
            "raise --seeds"
        )
    sigma = float(losses[0].std(ddof=1))
    paired = losses[1:] - losses[0]
    mean = paired.mean(axis=1)
    width = float(stdtrit(seeds - 1, 0.5 + confidence / 2)) / np.sqrt(seeds)
    low, high = (mean + side * width * paired.std(axis=1, ddof=1) for side in (-1, 1))
    # a loss that is NaN is not tolerated
    tolerated = int(np.logical_and.accumulate(high < sigma).sum())
    columns = (shares[1:], mean.tolist(), low.tolist(), high.tolist())
    return Tolerance(
        increases=tuple(
            Increase(share=float(share), mean=m, low=a, high=b)
            for share, m, a, b in zip(*columns, strict=True)
        ),
        sigma=sigma,
        p_star=float(shares[tolerated]),
        confidence=confidence,
        seeds=seeds,
    )
