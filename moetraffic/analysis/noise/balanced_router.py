"""The perfectly balanced gate: its law, drawn from and in closed form.

Each token takes k distinct experts out of E, every set of k equally likely, and every
token for itself.  An expert's token copies are then binomial (N, k/E), and those of one
token's experts are tied together by being distinct.
"""

from __future__ import annotations

from math import comb

import numpy as np
import numpy.typing as npt
import scipy
from scipy.special import gammaln

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def balanced_tokens(
    tokens: npt.ArrayLike, experts: int, k: int, ranks: int | None, sources: int
) -> Int64:
    """Check that a balanced gate with these numbers exists.

    Parameters
    ----------
    tokens
        Tokens N, any shape.
    experts, k, ranks, sources
        E, experts of a token, ranks R that experts are merged to (None: not merged) and
        rows W of a matrix.

    Returns
    -------
    int64 array
        The token counts.

    Raises
    ------
    AnalysisError
        If k is not among 1 ... E, R does not divide E, there is no source, or a token
        count is negative, not whole or NaN.
    """
    if not 1 <= k <= experts:
        raise AnalysisError(
            f"a token's k experts are distinct, but k is {k} of {experts} experts: "
            f"choose k from 1 to {experts}"
        )
    if sources < 1 or (ranks is not None and (ranks < 1 or experts % ranks)):
        raise AnalysisError(
            f"sources must be at least 1 and ranks divide the experts, but there are "
            f"{sources} sources, {ranks} ranks and {experts} experts: leave ranks out "
            f"to keep experts"
        )
    array = np.asarray(tokens)
    if not ((array >= 0) & (array < 2**62) & (array == np.floor(array))).all():
        raise AnalysisError(
            f"tokens are counted in whole numbers from 0 on, but the smallest given is "
            f"{np.min(array)}: give counts of tokens, not bytes and not shares"
        )
    return array.astype(np.int64)


def balanced_counts(
    tokens: npt.ArrayLike, *, experts: int, k: int, draws: int, seed: int = 0
) -> Int64:
    """Draw token copies of each expert from a perfectly balanced gate.

    The law is exactly that of drawing k experts without replacement for each token: the
    experts come one after another, and a token that still needs j of the m experts left
    takes this one with probability j/m.  Only the number of tokens in each such state
    is kept, so that the cost is that of ``E k`` binomial draws, however many tokens.

    Parameters
    ----------
    tokens
        Tokens of each source, any shape.
    experts, k
        E, and how many distinct experts a token has.
    draws
        Independent draws.
    seed
        Of the generator.

    Returns
    -------
    int64 array ``[draws, *shape of tokens, E]``
        Token copies; each row adds up to k times its tokens.

    Examples
    --------
    >>> int(balanced_counts([5, 7], experts=4, k=2, draws=3).sum())
    72
    """
    number = balanced_tokens(tokens, experts, k, None, 1)
    rng = np.random.default_rng(seed)
    shape = (draws, *number.shape)
    if k == 1:
        even = np.full(experts, 1 / experts)
        loads: Int64 = rng.multinomial(np.broadcast_to(number, shape), even)
        return loads
    needing = [np.zeros(shape, dtype=np.int64) for _ in range(k + 1)]
    needing[k] = np.broadcast_to(number, shape).copy()
    counts = np.zeros((*shape, experts), dtype=np.int64)
    for expert in range(experts):
        left = experts - expert
        for need in range(1, min(k, left) + 1):
            taking = rng.binomial(needing[need], need / left)
            counts[..., expert] += taking
            needing[need] -= taking
            needing[need - 1] += taking
    return counts


def deviation_moments(experts: int, k: int, cells: int) -> tuple[float, float, float]:
    """Moments of u, what one token adds to the loads of the cells less its mean.

    A cell is an expert (``cells = E``) or a rank that holds ``E / cells`` of them.

    Parameters
    ----------
    experts, k, cells
        E, distinct experts of a token, and cells, a divisor of E.

    Returns
    -------
    tuple of float
        ``Var |u|^2``, ``E |u|^2`` and ``E [(u . u')^2]`` for two tokens.
    """
    if cells == 1:
        return 0.0, 0.0, 0.0
    held = experts // cells
    spread = k * (1 - 1 / cells) * (experts - k) / (experts - 1)
    # |u|^2 varies as T does, the ordered pairs of the token's experts in a same cell.
    # (x)_2^2 = (x)_4 + 4 (x)_3 + 2 (x)_2 in falling factorials.
    length = 0.0
    if held > 1:
        pairs = cells * _factorial_moment((2,), k, held, experts)
        squared = cells * (
            _factorial_moment((4,), k, held, experts)
            + 4 * _factorial_moment((3,), k, held, experts)
            + 2 * _factorial_moment((2,), k, held, experts)
        ) + cells * (cells - 1) * _factorial_moment((2, 2), k, held, experts)
        length = max(squared - pairs**2, 0.0)
    # The covariance of u is c (I - J/cells); E [(u . u')^2] is the trace of its square.
    return length, spread, spread**2 / (cells - 1)


def _factorial_moment(
    orders: tuple[int, ...], k: int, held: int, experts: int
) -> float:
    """Joint factorial moment of how many of k experts lie in given cells.

    ``(k)_n prod (held)_j / (experts)_n`` with n the sum of the orders: the multivariate
    hypergeometric law.
    """
    drawn, ways = _falling(k, sum(orders)), 1
    for order in orders:
        ways *= _falling(held, order)
    return drawn * ways / _falling(experts, sum(orders)) if drawn and ways else 0.0


def _falling(base: int, order: int) -> int:
    """The falling factorial; 0 where the order passes the base."""
    product = 1
    for step in range(order):
        product *= max(base - step, 0)
    return product


def mean_entropy(tokens: int, experts: int, k: int, sources: int) -> float:
    """Exact mean entropy in bits of W x E counts, each binomial (N, k/E)."""
    count = _likely(tokens, k / experts)
    share = count / (tokens * k * sources)
    chance = scipy.stats.binom.pmf(count, tokens, k / experts)
    return float(-experts * sources * (chance * share * np.log2(share)).sum())


def mean_gini(tokens: int, experts: int, k: int, sources: int) -> float:
    """Exact mean Gini coefficient of W x E counts.

    It is the mean difference of two cells over twice the mean cell.  Two experts of one
    row differ, with each token, by one up or down with chance ``2k(E-k)/(E(E-1))`` in
    all; cells of two rows with chance ``2 k/E (1 - k/E)``.
    """
    p = k / experts
    within = sources * experts * (experts - 1)
    between = sources * (sources - 1) * experts**2
    total = 0.0
    if within:
        step = 2 * p * (experts - k) / (experts - 1)
        total += within * _mean_distance(tokens, step)
    if between:
        total += between * _mean_distance(tokens, 2 * p * (1 - p))
    return total / (2 * (sources * experts) ** 2 * tokens * p)


def empty_share(
    tokens: npt.ArrayLike,
    experts: int,
    k: int,
    *,
    ranks: int | None = None,
    sources: int = 1,
    diagonal: bool = True,
) -> tuple[Float64, Float64]:
    r"""Exact mean and standard deviation of the share of cells without a token copy.

    A token misses h experts with chance :math:`q_h = C(E-h, k) / C(E, k)`; a cell of
    h = E/R experts is empty with :math:`q_h^N`, two cells of a row with
    :math:`q_{2h}^N`, and rows are independent.

    Parameters
    ----------
    tokens
        Tokens of each source; any shape.
    experts, k, ranks, sources
        As in :func:`balanced_tokens`.
    diagonal
        False leaves a cell of each row out; ranks and sources are then the same.

    Returns
    -------
    tuple of float64 arrays
        NaN where there are no tokens or no cells.
    """
    number = balanced_tokens(tokens, experts, k, ranks, sources).astype(np.float64)
    cells = (experts if ranks is None else ranks) - (not diagonal)
    held = 1 if ranks is None else experts // ranks
    all_ways = comb(experts, k)
    one = (comb(experts - held, k) / all_ways) ** number
    two = (comb(max(experts - 2 * held, 0), k) / all_ways) ** number
    pairs = (cells - 1) * (two - one**2)
    variance = np.maximum(one * (1 - one) + pairs, 0.0) / (max(cells, 1) * sources)
    known = (number > 0) & (cells > 0)
    return (
        np.where(known, one, np.nan)[()],
        np.where(known, np.sqrt(variance), np.nan)[()],
    )


def _mean_distance(steps: int, moving: float) -> float:
    """Mean distance of a walk of +1 and -1 that moves in a step with this chance.

    After 2j - 1 or 2j moves it is ``2j C(2j, j) / 4^j``; the moves are binomial.
    """
    moving = min(moving, 1.0)  # rounding may carry it a hair over
    moves = _likely(steps, moving)
    half = (moves + 1) // 2
    log_central = gammaln(2 * half + 1) - 2 * gammaln(half + 1) - half * np.log(4)
    chance = scipy.stats.binom.pmf(moves, steps, moving)
    return float((chance * 2 * half * np.exp(log_central)).sum())


def _likely(trials: int, chance: float) -> Int64:
    """Binomial outcomes above zero, but for tails below 1e-30 in all (Bernstein)."""
    reach = 12 * float(np.sqrt(trials * chance * (1 - chance))) + 50
    low = max(1, int(trials * chance - reach))
    high = min(trials, int(trials * chance + reach) + 1)
    return np.arange(low, high + 1)
