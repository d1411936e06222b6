r"""Null model of a balanced router: simulated counts, and moments of their statistics.

A balanced router assigns each token k distinct experts out of E, with every set of k
equally likely and tokens independent.  Sampling noise alone still loads the experts
unevenly: a measured skew is significant if it exceeds this noise floor.

Noise floors depend on the number of *tokens* N (with ``k N`` token copies), never on
bytes.  Mean and standard deviation come from simulation, which is seeded and draws
counts, not tokens: its cost does not grow with N.  Where counts are large enough they
are drawn from normal variates (:mod:`moetraffic.analysis.noise.normal_counts`), and
where there are few tokens their experts are drawn one by one: both are up to an order
of magnitude faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int32, Int64, Integer
from moetraffic.errors import AnalysisError

from .normal_counts import normal_counts
from .oracle import count_variance

Moments = Mapping[str, tuple[float, float]]

DRAWN_CELLS = 1 << 24
"""Maximum cost of the matrices drawn per number of tokens, in normal cells: about half
a second; twice that for exact draws."""

BINOMIAL_COST, COPY_COST = 4.0, 0.5
"""Cost of an exact binomial draw, and of drawing a token's copy, in normal cells."""

LEAST_VARIANCE, SAFE_VARIANCE = 8.0, 64.0
"""Variance of a count from which on normal variates are used if exact draws take too
long, and from which on always: rounding then adds 1/768 to it."""

AT_ONCE = 1 << 18
"""Cells simulated at a time by each of :data:`THREADS`, to bound memory."""

THREADS = 2
"""Threads that simulate; draws depend on their seed alone."""

FEWEST, MOST = 128, 1 << 13
"""Minimum and maximum number of matrices drawn per number of tokens."""


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

        ``tokens``: Tokens of each source, any shape.

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
        return self._merged(counts)

    def enough_draws(self, tokens: int) -> int:
        """Choose the number of draws D for noise floors: 8,192, fewer if costly.

        The standard error of the mean of a statistic is :math:`D^{-1/2}` of its
        standard deviation; that of the deviation is 0.8% with 8,192 draws of a normal
        statistic, and 1.2% of the largest cell.
        """
        exact = 2 * DRAWN_CELLS / self._exact_cost(tokens)
        most = DRAWN_CELLS if self._near_normal(tokens) else exact
        return int(np.clip(most / self._size, FEWEST, MOST))

    @property
    def _size(self) -> int:
        """Cells of a matrix."""
        return self.sources * self.cells

    def _near_normal(self, tokens: int) -> bool:
        """Return whether counts of N tokens are drawn from normal variates."""
        law = {"k": self.k, "experts": self.experts, "held": self.held}
        spread = count_variance(tokens * self.k / self.cells, tokens, **law)
        costly = self._size * self._exact_cost(tokens) * MOST > 2 * DRAWN_CELLS
        return bool(spread >= (LEAST_VARIANCE if costly else SAFE_VARIANCE))

    def _exact_cost(self, tokens: int) -> float:
        """Cost per cell of exact draws, in normal cells."""
        by_expert = BINOMIAL_COST * self.k * self.held
        return 1 + min(by_expert, COPY_COST * tokens * self.k / self.cells)

    def matrices(self, tokens: int, *, draws: int, seed: int = 0) -> Integer:
        """Draw matrices ``[draws, W, E or R]``, from normal variates where possible."""
        shape = (draws, self.sources, self.cells)
        if self._near_normal(tokens):
            return normal_counts(
                shape, tokens=tokens, k=self.k, held=self.held, seed=seed
            )
        if COPY_COST * tokens < BINOMIAL_COST * self.experts:
            return self._by_token(tokens, draws * self.sources, seed).reshape(shape)
        return self.draw(np.full(self.sources, tokens), draws=draws, seed=seed)

    def _by_token(self, tokens: int, rows: int, seed: int) -> Int64:
        """Draw the experts of each token of some sources, ``[rows, E or R]``.

        By R. W. Floyd's algorithm: the j-th of k copies goes to one of the first
        E - k + j + 1 experts, or to the last of these if the token has that one.
        """
        rng = np.random.default_rng(seed)
        counts = np.zeros((rows, self.cells), np.int64)
        at_once = max(1, AT_ONCE // (self.k * max(tokens, 1)))
        for first in range(0, rows, at_once):
            part = counts[first : first + at_once]
            row = np.repeat(np.arange(len(part)) * self.cells, tokens)
            chosen: list[Int32] = []
            for last in range(self.experts - self.k, self.experts):
                copy = rng.integers(last + 1, size=len(row), dtype=np.int32)
                again = np.zeros(len(row), bool)
                for other in chosen:
                    again |= copy == other
                copy[again] = last
                chosen.append(copy)
                cell = row + (copy // self.held if self.held > 1 else copy)
                part += np.bincount(cell, minlength=part.size).reshape(part.shape)
        return counts

    def _merged(self, counts: Integer) -> Int64:
        """Add the experts of each rank: ``[..., E]`` to ``[..., E or R]``."""
        if self.held > 1:
            counts = counts.reshape(*counts.shape[:-1], self.cells, -1).sum(axis=-1)
        return np.asarray(counts, np.int64)

    def moments(
        self,
        statistics: Callable[[Integer], Mapping[str, npt.ArrayLike]],
        tokens: int,
        *,
        draws: int | None = None,
        seed: int = 0,
    ) -> dict[str, tuple[float, float]]:
        """Estimate by simulation the mean and standard deviation of matrix statistics.

        Parameters
        ----------
        statistics
            Function from counts ``[n, W, E or R]`` to values ``[n]`` by name.
        draws
            Number of draws, at least 2; the standard error of the mean is
            ``std / sqrt(draws)``, that of the deviation ``std / sqrt(2 draws)``.
            None: :meth:`enough_draws`.

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
        number = self.enough_draws(tokens) if draws is None else draws
        at_once = max(1, AT_ONCE // self._size)

        def part(first: int) -> Mapping[str, npt.ArrayLike]:
            some, own = min(at_once, number - first), seed + first // at_once
            return statistics(self.matrices(tokens, draws=some, seed=own))

        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(part, range(0, number, at_once)))
        found = {}
        for name in parts[0]:
            values = np.concatenate([np.asarray(p[name], np.float64) for p in parts])
            if not tokens:
                values[:] = np.nan
            found[name] = float(values.mean()), float(values.std(ddof=1))
        return found

    def sparsity(self, tokens: int, *, diagonal: bool = True) -> tuple[float, float]:
        r"""Compute mean and standard deviation of the share of cells without a copy.

        They are exact: with many tokens no drawn matrix has such a cell.  A token
        misses h experts with probability :math:`q_h = C(E-h, k) / C(E, k)`; a cell of h
        experts is empty with :math:`q_h^N`, two cells of a row with :math:`q_{2h}^N`,
        and rows are independent.

        ``diagonal``: False leaves out one cell of each row.

        Returns
        -------
        tuple of float
            NaN without cells, or without tokens.
        """
        cells, held = self.cells - (not diagonal), self.held
        if not cells or not tokens:
            return float("nan"), float("nan")
        ways = comb(self.experts, self.k)
        one = float(comb(self.experts - held, self.k) / ways) ** tokens
        two = float(comb(max(self.experts - 2 * held, 0), self.k) / ways) ** tokens
        variance = one * (1 - one) + (cells - 1) * (two - one**2)
        return one, float(np.sqrt(max(variance, 0.0) / (cells * self.sources)))


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
