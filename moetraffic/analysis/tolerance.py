"""Loss tolerance: training-loss increase by share of traffic dropped, and p*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

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
    """Loss-tolerance result of a sweep over dropped shares and seeds."""

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
    and that of every smaller share, is below ``sigma``.

    Parameters
    ----------
    shares
        ``[P]`` increasing, the first 0.
    losses
        ``[P, S]`` final loss of each share and seed, nats a token.
    confidence
        Level of the two-sided intervals.

    Raises
    ------
    AnalysisError
        If there are fewer than 2 seeds, or no run without drops.

    Examples
    --------
    >>> import numpy as np
    >>> told = tolerance([0, 0.01, 0.1], np.array([[2.0, 2.2], [2.0, 2.2], [3, 3.1]]))
    >>> told.p_star, round(told.increases[1].mean, 3)
    (0.01, 0.95)
    """
    if not len(shares) or shares[0] != 0 or (np.diff(shares) <= 0).any():
        raise AnalysisError(
            f"the shares increase from 0, but are {list(shares)}: add the run without "
            "drops"
        )
    count, seeds = losses.shape
    if seeds < 2:
        raise AnalysisError(
            f"an interval over seeds needs 2 of them or more, but there is {seeds}: "
            "raise --seeds"
        )
    sigma = float(losses[0].std(ddof=1))
    reach = float(scipy.stats.t.ppf(0.5 + confidence / 2, seeds - 1)) / np.sqrt(seeds)
    increases, p_star, borne = [], 0.0, True
    for at in range(1, count):
        paired = losses[at] - losses[0]
        mean = float(paired.mean())
        half = float(reach * paired.std(ddof=1))
        increases.append(
            Increase(
                share=float(shares[at]), mean=mean, low=mean - half, high=mean + half
            )
        )
        borne = borne and mean + half < sigma
        if borne:
            p_star = float(shares[at])
    return Tolerance(
        increases=tuple(increases),
        sigma=sigma,
        p_star=p_star,
        confidence=confidence,
        seeds=seeds,
    )
