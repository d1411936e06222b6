r"""Null model of a balanced router, and the noise floors of statistics under it.

A balanced router assigns each token k distinct experts out of E, with every set of k
equally likely and tokens independent.  Sampling noise alone still loads the experts
unevenly: a measured skew is significant if it exceeds this noise floor, see
:meth:`NoiseFloor.z_score`.

Noise floors depend on the number of *tokens* N (with ``k N`` token copies), never on
bytes.  Mean and standard deviation come from simulation, which is seeded and draws
counts, not tokens: its cost does not grow with N.  For loads and matrices of experts
the mean of CV^2, entropy and Gini, and both moments of sparsity, are exact
(:mod:`moetraffic.analysis.noise.closed_forms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.analysis.skew.measures import MEASURES, ratio
from moetraffic.errors import AnalysisError

from .closed_forms import mean_entropy, mean_gini, sparsity_moments

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Moments = Mapping[str, tuple[float, float]]

DRAWN_CELLS = 1 << 23
"""Maximum cells of the matrices drawn per number of tokens."""

AT_ONCE = 1 << 21
"""Cells simulated at a time, to bound memory."""

FEWEST, MOST = 16, 400
"""Minimum and maximum number of matrices drawn per number of tokens."""

GRID = 8
"""Maximum numbers of tokens at which floors are simulated; others are interpolated."""


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """Mean and standard deviation of a statistic under a balanced router.

    Both arrays have the shape of the token counts; NaN where there are no tokens.
    """

    mean: Float64  # expectation, in the statistic's unit
    std: Float64  # standard deviation from one draw to the next

    def z_score(self, measured: npt.ArrayLike) -> Float64:
        """Compute the standard deviations by which a measured value exceeds the floor.

        A skewed router has z > 0 in CV, Gini and max/mean, z < 0 in entropy and Jain.

        Parameters
        ----------
        measured
            Values that broadcast against ``mean``.

        Returns
        -------
        float64 array
            NaN where the floor has zero variance, as with k = E.

        Examples
        --------
        >>> import numpy as np
        >>> floor = NoiseFloor(mean=np.array(0.2), std=np.array(0.05))
        >>> round(float(floor.z_score(0.3)), 6)
        2.0
        """
        return ratio(np.asarray(measured, np.float64) - self.mean, self.std)


Floors = dict[str, NoiseFloor]


@dataclass(frozen=True, kw_only=True)
class NullModel:
    """Balanced router with W sources; simulates token counts per expert or per rank.

    Raises
    ------
    AnalysisError
        If k is not among 1 ... E, R does not divide E, or there is no source.
    """

    experts: int  # E
    k: int  # distinct experts per token
    sources: int = 1  # W, rows of a matrix
    ranks: int | None = None  # R ranks to merge experts into; None: not merged

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.experts:
            raise AnalysisError(
                f"a token's k experts are distinct, but k is {self.k} of "
                f"{self.experts} experts: choose k from 1 to {self.experts}"
            )
        if self.sources < 1 or (
            self.ranks is not None and (self.ranks < 1 or self.experts % self.ranks)
        ):
            raise AnalysisError(
                f"sources must be at least 1 and ranks divide the experts, but there "
                f"are {self.sources} sources, {self.ranks} ranks and {self.experts} "
                f"experts: leave ranks out to keep experts"
            )

    @property
    def held(self) -> int:
        """Number of experts per cell."""
        return 1 if self.ranks is None else self.experts // self.ranks

    @property
    def cells(self) -> int:
        """Number of cells per row: E or R."""
        return self.experts // self.held

    def draw(self, tokens: npt.ArrayLike, *, draws: int, seed: int = 0) -> Int64:
        """Simulate the token copies received by each expert or rank.

        Experts are processed in sequence; a token that still needs j of the m remaining
        experts selects the next one with probability j/m, which is equivalent to
        drawing k experts without replacement.  Only the number of tokens in each state
        is kept: the cost is ``E k`` binomial draws for any number of tokens.

        Parameters
        ----------
        tokens
            Tokens of each source, any shape.
        draws
            Number of independent draws.
        seed
            Seed of the generator.

        Returns
        -------
        int64 array ``[draws, *shape of tokens, E or R]``
            Each row adds up to k times its tokens.

        Raises
        ------
        AnalysisError
            If a token count is negative or not an integer.

        Examples
        --------
        >>> int(NullModel(experts=4, k=2).draw([5, 7], draws=3).sum())
        72
        """
        number = token_counts(tokens)
        rng = np.random.default_rng(seed)
        shape = (draws, *number.shape)
        if self.k == 1:
            even = np.full(self.experts, 1 / self.experts)
            counts: Int64 = rng.multinomial(np.broadcast_to(number, shape), even)
        else:
            needing = [np.zeros(shape, dtype=np.int64) for _ in range(self.k + 1)]
            needing[self.k] = np.broadcast_to(number, shape).copy()
            counts = np.zeros((*shape, self.experts), dtype=np.int64)
            for expert in range(self.experts):
                left = self.experts - expert
                for need in range(1, min(self.k, left) + 1):
                    taking = rng.binomial(needing[need], need / left)
                    counts[..., expert] += taking
                    needing[need] -= taking
                    needing[need - 1] += taking
        if self.held == 1:
            return counts
        return np.asarray(counts.reshape(*shape, self.cells, -1).sum(axis=-1), np.int64)

    def moments(
        self,
        statistics: Callable[[Int64], Mapping[str, npt.ArrayLike]],
        tokens: int,
        *,
        draws: int = 1000,
        seed: int = 0,
    ) -> dict[str, tuple[float, float]]:
        """Estimate by simulation the mean and standard deviation of matrix statistics.

        Parameters
        ----------
        statistics
            Function from counts ``[n, W, E or R]`` to values ``[n]`` by name.
        tokens
            Tokens of each source.
        draws
            Number of draws, at least 2; the standard error of the mean is
            ``std / sqrt(draws)``, that of the deviation ``std / sqrt(2 draws)``.
        seed
            Seed of the simulation.

        Returns
        -------
        dict of str to tuple of float
            NaN without tokens.

        Examples
        --------
        >>> router = NullModel(experts=8, k=1)
        >>> found = router.moments(lambda c: {"most": c.max(axis=(1, 2))}, 800)
        >>> 100 < found["most"][0] < 130
        True
        """
        at_once = max(1, AT_ONCE // (self.sources * self.experts))
        each = np.full(self.sources, tokens)
        parts = []
        for part, first in enumerate(range(0, draws, at_once)):
            some = min(at_once, draws - first)
            parts.append(statistics(self.draw(each, draws=some, seed=seed + part)))
        found = {}
        for name in parts[0]:
            values = np.concatenate([np.asarray(p[name], np.float64) for p in parts])
            known = float(values.mean()), float(values.std(ddof=1))
            found[name] = known if tokens else (float("nan"), float("nan"))
        return found


def token_counts(tokens: npt.ArrayLike) -> Int64:
    """Validate token counts of any shape and return them as int64.

    Raises
    ------
    AnalysisError
        If one is negative, not an integer or NaN.
    """
    array = np.asarray(tokens)
    if not ((array >= 0) & (array < 2**62) & (array == np.floor(array))).all():
        raise AnalysisError(
            f"numbers of tokens are integers of at least 0, but the smallest given is "
            f"{np.min(array)}: give counts of tokens, not bytes and not shares"
        )
    return array.astype(np.int64)


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
    """Compute the noise floor of a skew measure under a balanced router.

    Expert loads are one distribution over E cells (``sources=1``); a demand matrix
    is one over W x E cells, whose W rows have N tokens each.

    Parameters
    ----------
    measure
        A name of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    tokens
        Tokens N per source, any shape, one floor each.  Each distinct number costs one
        simulation, cached per process.
    experts, k, ranks, sources
        E, distinct experts per token, R ranks to merge experts into, and W.
    diagonal
        False excludes rank-local traffic; R and W are then equal.
    draws, seed
        As in :meth:`NullModel.moments`.

    Returns
    -------
    NoiseFloor
        Arrays of the shape of ``tokens``.

    Raises
    ------
    AnalysisError
        If the measure is unknown, or no balanced router has these numbers.

    Examples
    --------
    >>> floor = noise_floor("normalized_entropy", [100, 10000], experts=8, k=2)
    >>> floor.mean.round(4).tolist()
    [0.9927, 0.9999]
    """
    if measure not in MEASURES:
        raise AnalysisError(
            f"the measure is one of {', '.join(MEASURES)}, not {measure!r}: use "
            f"NullModel.moments for other statistics"
        )
    if not diagonal and ranks != sources:
        raise AnalysisError(
            f"only a square matrix has a diagonal to leave out, but ranks is {ranks} "
            f"and sources {sources}: make them equal"
        )
    model = NullModel(experts=experts, k=k, sources=sources, ranks=ranks)
    return skew_floors(
        (measure,),
        token_counts(tokens),
        model,
        diagonal=diagonal,
        draws=draws,
        seed=seed,
    )[measure]


def skew_floors(
    measures: tuple[str, ...],
    tokens: Int64,
    model: NullModel,
    *,
    diagonal: bool = True,
    draws: int = 1000,
    seed: int = 0,
    most: int | None = None,
) -> Floors:
    """Compute the noise floors of skew measures over all cells of a matrix.

    Parameters
    ----------
    measures
        Names of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    tokens
        Tokens per source, any shape.
    model
        The balanced router.
    diagonal, draws, seed
        As in :func:`noise_floor`.
    most
        Maximum numbers of tokens to simulate; others are interpolated.  None: all.

    Returns
    -------
    dict of str to NoiseFloor
        Arrays of the shape of ``tokens``.
    """
    return _at_tokens(
        lambda number: _skew_moments(model, measures, diagonal, number, draws, seed),
        tokens,
        most,
    )


def matrix_floors(
    measures: tuple[str, ...],
    tokens: Int64,
    model: NullModel,
    *,
    received: tuple[str, ...] = (),
) -> Floors:
    """Compute the noise floors of statistics of a matrix and of its column sums.

    The matrix between ranks, of a model with ranks, has no diagonal.

    Parameters
    ----------
    measures
        Properties of :class:`moetraffic.analysis.skew.kernels.MatrixStatistics`.
    tokens
        ``[T]`` tokens per source.
    model
        The balanced router.
    received
        Names of :data:`moetraffic.analysis.skew.measures.MEASURES` for the column sums,
        returned as ``received.<measure>``.

    Returns
    -------
    dict of str to NoiseFloor
        Arrays ``[T]``, interpolated between at most :data:`GRID` numbers of tokens.
    """
    return _at_tokens(
        lambda number: _matrix_moments(model, measures, received, number), tokens, GRID
    )


@lru_cache(maxsize=4096)
def _skew_moments(
    model: NullModel,
    measures: tuple[str, ...],
    diagonal: bool,
    tokens: int,
    draws: int,
    seed: int,
) -> Moments:
    """Compute moments of measures over all cells of a matrix, exact where known."""

    def statistics(counts: Int64) -> dict[str, npt.ArrayLike]:
        return {
            name: MEASURES[name](counts, axis=(-2, -1), diagonal=diagonal)
            for name in measures
        }

    found = model.moments(statistics, tokens, draws=draws, seed=seed)
    experts, k = model.experts, model.k
    if tokens and diagonal and experts > 1 and "cv_squared" in found:
        mean = (model.cells - 1) * (experts - k) / ((experts - 1) * k * tokens)
        found["cv_squared"] = mean, found["cv_squared"][1]
    law = (tokens, experts, k, model.sources)
    if tokens and "sparsity" in found:
        found["sparsity"] = sparsity_moments(*law, held=model.held, diagonal=diagonal)
    if tokens and diagonal and model.held == 1:
        bits = mean_entropy(*law)
        most = float(np.log2(model.sources * model.experts))
        exact = {"entropy": bits, "gini": mean_gini(*law)}
        if most > 0:
            exact["normalized_entropy"] = bits / most
        for name in exact.keys() & found.keys():
            found[name] = exact[name], found[name][1]
    return found


@lru_cache(maxsize=4096)
def _matrix_moments(
    model: NullModel,
    measures: tuple[str, ...],
    received: tuple[str, ...],
    tokens: int,
) -> Moments:
    """Simulate the moments of matrix statistics and of measures of column sums."""

    def statistics(counts: Int64) -> dict[str, npt.ArrayLike]:
        of = matrix_statistics(counts, diagonal=model.ranks is None)
        return {name: getattr(of, name) for name in measures} | {
            f"received.{name}": MEASURES[name](of.received) for name in received
        }

    fit = DRAWN_CELLS // (model.sources * model.experts)
    return model.moments(statistics, tokens, draws=int(np.clip(fit, FEWEST, MOST)))


def _at_tokens(
    moments: Callable[[int], Moments], tokens: Int64, most: int | None
) -> Floors:
    """Evaluate floors at each number of tokens, interpolated if there are too many."""
    distinct, inverse = np.unique(tokens, return_inverse=True)
    at = distinct
    if coarse := most is not None and len(distinct) > most:
        # 0 tokens have no floor (and no logarithm)
        some = distinct[distinct > 0]
        at = np.unique(np.geomspace(some[0], some[-1], most).round().astype(np.int64))
    found = [moments(number) for number in at.tolist()]

    def expand(values: list[float]) -> Float64:
        if not coarse:
            return np.asarray(np.array(values)[inverse.reshape(tokens.shape)][()])
        read = np.interp(np.log(np.maximum(tokens, 1)), np.log(at), values)
        return np.where(tokens > 0, read, np.nan)

    return {
        name: NoiseFloor(
            mean=expand([f[name][0] for f in found]),
            std=expand([f[name][1] for f in found]),
        )
        for name in found[0]
    }
