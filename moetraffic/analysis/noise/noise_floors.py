r"""Noise floors: the skew that a perfectly balanced gate shows by chance alone.

A gate that gives each token k distinct experts out of E, every set of k equally likely
and every token for itself, still fills the experts unevenly.  A measured skew means
something as far as it stands out of this floor: :meth:`NoiseFloor.z_score`.

Where the simulation draws from is :mod:`moetraffic.analysis.noise.balanced_router`.
Floors depend on the number of *tokens* N (with ``k N`` token copies), never on bytes.

    measure              mean                     standard deviation
    cv_squared,          exact                    exact
    sparsity
    entropy,             exact for experts,       simulated
    normalized_entropy   simulated for ranks
    gini                 exact for experts,       simulated
                         simulated for ranks
    cv, jain,            simulated                simulated
    max_over_mean,
    max_violation

Without the diagonal the total is itself random, and everything but sparsity is
simulated.  What is said of a whole matrix, its columns and hosts has its floors in
:mod:`moetraffic.analysis.noise.matrix_floors`.  The
simulation is seeded and draws counts, not tokens: its cost does not grow with N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew import measures
from moetraffic.errors import AnalysisError

from .balanced_router import (
    balanced_counts,
    balanced_tokens,
    deviation_moments,
    empty_share,
    mean_entropy,
    mean_gini,
)

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """What a measure is under a perfectly balanced gate; NaN where there are no tokens.

    Both arrays have the shape of the token counts that the floor was asked for.
    """

    mean: Float64  # expectation, in the measure's unit
    std: Float64  # standard deviation from one draw to the next

    def z_score(self, measured: npt.ArrayLike) -> Float64:
        """Standard deviations that a measured value lies above the floor's mean.

        A skewed gate has z > 0 in CV, Gini and max/mean, z < 0 in entropy and Jain.

        Parameters
        ----------
        measured
            Values that broadcast against ``mean``.

        Returns
        -------
        float64 array
            NaN where the floor does not vary, as with k = E.

        Examples
        --------
        >>> floor = cv_squared_floor(4096, experts=8, k=1)
        >>> round(float(floor.z_score(2 * floor.mean)), 3)
        1.871
        """
        above = np.asarray(measured, dtype=np.float64) - self.mean
        std = np.broadcast_to(self.std, above.shape)
        score: Float64 = np.full_like(above, np.nan)
        np.divide(above, std, out=score, where=std > 0)
        result: Float64 = score[()]
        return result


def cv_squared_floor(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    ranks: int | None = None,
    sources: int = 1,
) -> NoiseFloor:
    r"""Floor of the squared coefficient of variation, exact for every N, E, k and R.

    The loads of E experts have :math:`E[CV^2] = (E-k)/(kN)`, and those of R ranks, with
    E/R experts each, :math:`(R-1)(E-k)/((E-1)kN)`.

    Both moments follow from writing the deviations of the loads as a sum of N
    independent vectors u of mean zero, one a token: the mean of the squared length is
    :math:`N E|u|^2`, its variance :math:`N Var|u|^2 + 2N(N-1) E[(u \cdot u')^2]`.  For
    k = 1 the variance is that of Pearson's chi-square with equal cells, by J. B. S.
    Haldane, Biometrika 29 (1937) 133.

    Parameters
    ----------
    tokens
        N: tokens routed (of each source, where there are several); any shape.
    experts, k
        E, and how many distinct experts a token has.
    ranks
        R, to merge experts to the ranks that hold E/R of them each; None keeps experts.
    sources
        W: rows of a matrix, each with N tokens of its own.  The CV is over all cells.

    Returns
    -------
    NoiseFloor

    Raises
    ------
    AnalysisError
        If k is not among 1 ... E, R does not divide E, or a token count is negative.

    Examples
    --------
    >>> round(float(cv_squared_floor(4096, experts=8, k=1).mean), 8)
    0.00170898
    """
    number = balanced_tokens(tokens, experts, k, ranks, sources).astype(np.float64)
    cells = experts if ranks is None else ranks
    length, spread, overlap = deviation_moments(experts, k, cells)
    # from the squared length of the deviations to CV^2, over W independent rows
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 1 / (cells * (number * k / cells) ** 2)
        mean = np.where(number > 0, scale * number * spread, np.nan)
        variance = number * length + 2 * number * (number - 1) * overlap
        std = np.where(number > 0, scale * np.sqrt(variance / sources), np.nan)
    return NoiseFloor(mean=mean[()], std=std[()])


def noise_floor(
    measure: str,
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    ranks: int | None = None,
    sources: int = 1,
    diagonal: bool = True,
    draws: int = 1000,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of a measure of skew under a perfectly balanced gate.

    Loads of experts are one distribution over E cells (``sources=1``); a demand matrix
    is one over W x E cells, whose W rows have N tokens each.

    Parameters
    ----------
    measure
        A name of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    tokens, experts, k, ranks, sources
        As in :func:`cv_squared_floor`.  Each different token count costs a simulation,
        once in a process.
    diagonal
        False leaves out what a source sends to itself; R and W are then the same.
    draws
        At least 2, simulated; the mean is known to ``std / sqrt(draws)``, the standard
        deviation to ``std / sqrt(2 draws)``.
    seed
        Of the simulation.

    Returns
    -------
    NoiseFloor
        Arrays of the shape of ``tokens``.

    Raises
    ------
    AnalysisError
        If the measure is not known, k is not among 1 ... E, R does not divide E, or a
        token count is negative.

    Examples
    --------
    >>> floor = noise_floor("normalized_entropy", [100, 10000], experts=8, k=2)
    >>> floor.mean.round(4).tolist()
    [0.9927, 0.9999]
    """
    if measure not in measures.MEASURES:
        raise AnalysisError(
            f"a noise floor is of one of {', '.join(measures.MEASURES)}, "
            f"not {measure!r}: "
            f"use simulated_floor for a measure of your own"
        )
    number = balanced_tokens(tokens, experts, k, ranks, sources)
    if not diagonal and ranks != sources:
        raise AnalysisError(
            f"only a square matrix has a diagonal to leave out, but ranks is {ranks} "
            f"and sources {sources}: make them the same"
        )
    if measure == "cv_squared" and diagonal:
        return cv_squared_floor(
            number, experts=experts, k=k, ranks=ranks, sources=sources
        )
    if measure == "sparsity":
        mean, std = empty_share(
            number,
            experts,
            k,
            ranks=ranks,
            sources=sources,
            diagonal=diagonal,
        )
        return NoiseFloor(mean=mean, std=std)
    distinct, inverse = np.unique(number, return_inverse=True)
    found = np.array(
        [
            _floor_of(
                measure, int(n), experts, k, ranks, sources, diagonal, draws, seed
            )
            for n in distinct
        ]
    ).reshape(-1, 2)[inverse.reshape(number.shape)]
    return NoiseFloor(mean=found[..., 0][()], std=found[..., 1][()])


@lru_cache(maxsize=4096)
def _floor_of(
    measure: str,
    tokens: int,
    experts: int,
    k: int,
    ranks: int | None,
    sources: int,
    diagonal: bool,
    draws: int,
    seed: int,
) -> tuple[float, float]:
    """Mean and standard deviation for one token count."""
    if tokens == 0:
        return float("nan"), float("nan")
    simulated = simulated_floor(
        lambda c: measures.MEASURES[measure](c, axis=(-2, -1), diagonal=diagonal),
        np.full(sources, tokens),
        experts=experts,
        k=k,
        ranks=ranks,
        draws=draws,
        seed=seed,
    )
    mean = float(simulated.mean)
    if diagonal and ranks in (None, experts):
        exact = {"gini": mean_gini, "entropy": mean_entropy}
        if measure == "normalized_entropy" and experts * sources > 1:
            bits = mean_entropy(tokens, experts, k, sources)
            mean = bits / float(np.log2(experts * sources))
        elif measure in exact:
            mean = exact[measure](tokens, experts, k, sources)
    return mean, float(simulated.std)


def simulated_floor(
    measure: Callable[[Int64], npt.ArrayLike],
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    ranks: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of any measure, for sources with token counts of their own.

    Parameters
    ----------
    measure
        Takes counts ``[draws, *shape of tokens, E]`` (``R`` with ``ranks``) and gives
        ``[draws, ...]``.
    tokens
        Tokens of each source, any shape.
    experts, k, ranks
        As in :func:`cv_squared_floor`.
    draws, seed
        As in :func:`noise_floor`.

    Returns
    -------
    NoiseFloor
        Over the first axis of what ``measure`` gives.

    Examples
    --------
    >>> floor = simulated_floor(lambda c: c.max(axis=-1), 800, experts=8, k=1)
    >>> bool(100 < floor.mean < 130)
    True
    """
    counts = balanced_counts(tokens, experts=experts, k=k, draws=draws, seed=seed)
    if ranks is not None:
        balanced_tokens(tokens, experts, k, ranks, 1)
        counts = counts.reshape(*counts.shape[:-1], ranks, -1).sum(axis=-1)
    values = np.asarray(measure(counts), dtype=np.float64)
    return NoiseFloor(mean=values.mean(axis=0), std=values.std(axis=0, ddof=1))
