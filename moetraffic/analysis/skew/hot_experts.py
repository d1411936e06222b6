r"""Persistence of the hot set: the K most loaded experts or pairs of each step.

Values are token copies ``[T, C]``, the step first; a step with a NaN or without any
traffic has no hot set.  Ties go to the lower index, so that the set always has K.

Every overlap has two references: the overlap of random sets of K of C, and the overlap
of hot sets of a constant router under *sampling noise*.  If loads are nearly even, the
two are close, and the hot set is noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import LEVEL
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import AnalysisError

LONGEST_LAG = 256
"""Largest lag of the overlap."""

DRAWS = 64
"""Simulated hot sets of a constant router, of which all pairs are compared."""

_CHUNK = 4_000_000


@dataclass(frozen=True, kw_only=True)
class HotSet:
    """Persistence of the K most loaded of C cells; shares of K, NaN where unknown."""

    k: int  # K, size of the set
    of: int  # C, number of cells
    steps: int  # number of steps with a hot set
    lags: Int64  # [L], steps from 1 on
    overlap: Float64  # [L], mean share of the set retained
    random_overlap: float  # of two sets drawn at random: K/C
    counting_overlap: float  # expected from sampling noise for a constant router
    churn: float  # share of the set that is new a step later
    half_life: float  # lag of half the lag-1 excess over random; NaN: not reached, or
    # the overlap at lag 1 is no larger than of shuffled steps


def hot_set(
    values: npt.ArrayLike,
    *,
    k: int,
    experts_per_token: int = 1,
    seed: int = 0,
) -> HotSet:
    """Compute the persistence of the hot set over steps.

    Parameters
    ----------
    values
        ``[T, C]`` token copies.
    k
        K, how many are hot.
    experts_per_token
        Distinct experts of a token, for the sampling noise.
    seed
        Of the simulation of sampling noise.

    Returns
    -------
    HotSet
        At lags up to a half of the steps, at most :data:`LONGEST_LAG`.

    Raises
    ------
    AnalysisError
        If the values are not ``[T, C]``, K is not among 1 ... C, or there are no
        experts per token.

    Examples
    --------
    >>> found = hot_set([[9, 5, 1], [8, 6, 1], [1, 6, 8], [1, 5, 9]], k=2)
    >>> found.overlap.round(3).tolist(), round(found.random_overlap, 3)
    ([0.833, 0.5], 0.667)
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2 or not (1 <= k <= x.shape[1]):
        raise AnalysisError(
            f"a hot set is K of the C columns of [T, C], but K is {k} and the shape is "
            f"{x.shape}: choose K from 1 to C"
        )
    if experts_per_token < 1:
        raise AnalysisError(
            f"a token has an expert or more, but not {experts_per_token}: raise it"
        )
    steps, cells = x.shape
    known: Bool = np.asarray(np.isfinite(x).all(axis=1) & (x > 0).any(axis=1))
    members = hot_members(x, k) & known[:, None]
    lags = np.arange(1, min(steps // 2, LONGEST_LAG) + 1)
    overlap = retention(members, known, lags)
    random = k / cells
    return HotSet(
        k=k,
        of=cells,
        steps=int(known.sum()),
        lags=lags,
        overlap=overlap,
        random_overlap=random,
        counting_overlap=_counting_overlap(x, k, experts_per_token, seed),
        churn=1 - float(overlap[0]) if len(overlap) else float("nan"),
        half_life=_half_life(lags, overlap, random)
        if _lasting(members[known], seed)
        else float("nan"),
    )


def hot_members(x: Float64 | Int64, k: int) -> Bool:
    """Mark the k largest values along the last axis, lower indices first in ties."""
    members = np.zeros(x.shape, dtype=bool)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    np.put_along_axis(members, order, True, axis=-1)
    return members


def retention(members: Bool, known: Bool, lags: Int64) -> Float64:
    """Compute the mean overlap of hot sets a lag apart, as shares of the set, ``[L]``.

    Parameters
    ----------
    members
        ``[T, C]``, K of them True in each known step.
    known
        ``[T]``, whether a step has a hot set.
    lags
        ``[L]`` steps, from 1 on.
    """
    k = members[known].sum() / max(1, known.sum())
    found: Float64 = np.full(len(lags), np.nan)
    for place, lag in enumerate(lags.tolist()):
        both = known[lag:] & known[:-lag]
        if both.any():
            shared = (members[lag:] & members[:-lag]).sum(axis=1)[both]
            found[place] = shared.mean() / k
    return found


def _counting_overlap(
    copies: Float64, k: int, experts_per_token: int, seed: int
) -> float:
    """Simulate the hot-set overlap of a constant router.

    The router is held at the mean shares of the run.  Each column's copies are drawn as
    Binomial(N, p), N the mean number of tokens of a step and p the mean probability
    that a token has a copy there; that columns add up is left out, which hardly changes
    ranks.  The mean has noise of its own: few steps bias the overlap upward.
    """
    total = copies.sum(axis=1)
    usable = np.isfinite(total) & (total > 0)
    if not usable.any():
        return float("nan")
    mean = np.maximum(copies.mean(axis=0, where=usable[:, None]), 0.0)
    tokens = max(round(float(mean.sum()) / experts_per_token), 1)
    rng = np.random.default_rng(seed)
    rows = max(2, min(DRAWS, _CHUNK // copies.shape[1]))
    drawn = rng.binomial(
        tokens, np.minimum(mean / tokens, 1.0), (rows, copies.shape[1])
    )
    members = hot_members(drawn, k).astype(np.float32)
    shared = np.rint(members @ members.T)[np.triu_indices(rows, 1)].astype(np.float64)
    return float(shared.mean()) / k


def _lasting(members: Bool, seed: int) -> bool:
    """Test whether sets of neighbors share more than those of shuffled steps."""
    if len(members) < 3:
        return False
    rng = np.random.default_rng(seed)
    shared = (members[1:] & members[:-1]).sum()
    for _ in range(round(1 / LEVEL) - 1):
        shuffled = members[rng.permutation(len(members))]
        if (shuffled[1:] & shuffled[:-1]).sum() >= shared:
            return False
    return True


def _half_life(lags: Int64, overlap: Float64, random: float) -> float:
    """Compute the lag at which the overlap above random is half of that at lag 1."""
    if not len(lags) or not overlap[0] > random:
        return float("nan")
    excess = (overlap - random) / (overlap[0] - random)
    below = np.flatnonzero(excess <= 0.5)
    if not below.size:
        return float("nan")
    at = int(below[0])
    above, under = excess[at - 1], excess[at]
    part = (above - 0.5) / (above - under) if np.isfinite(above) else 1.0
    return float(lags[at - 1] + part * (lags[at] - lags[at - 1]))
