r"""Co-activation of experts: pairs that tokens choose together, and its null test.

The lift of a pair of experts is the number of tokens that have both, over the number
expected if tokens chose independently with the loads of their iteration
(:mod:`.noise.pair_probabilities`): of N tokens with k experts, :math:`n_i` of which
have expert i and :math:`o_{ij}` both i and j,

.. math:: E_{ij} = \varphi_{ij} \frac{n_i n_j - o_{ij}}{N - 1}, \qquad
    \varphi_{ij} = \frac{P_{ij}}{\pi_i \pi_j}

where :math:`\varphi`, which is below 1 as experts are distinct, is computed from the
loads of a block of iterations.  Tokens of another k are treated separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import pdtrc, stdtr, stdtrit

from moetraffic.arrays import Bool, Float64, Floating, Int64

from .claim import LEVEL, Claim, Outcome
from .noise.pair_probabilities import pair_probabilities

LEAST_LIFT = 1.1
"""Lift from which on a pair is claimed.  Of independent scores whose noise has another
distribution (normal, logistic, Gumbel), tested pairs have lifts of up to about 1.1."""

LEAST_SHARE = 0.1
"""Smallest expected count of a tested pair, over the mean of all pairs: of pairs of
rare experts, the distribution of the noise determines the expected count."""

LEAST_ITERATIONS = 10
DETECTED_LIFT = 2.0
"""Lift of a pair of mean count that there must be enough tokens to find."""

MOST_PAIRS = 10
"""Maximum number of pairs listed."""


@dataclass(frozen=True, kw_only=True)
class PairLift:
    """Pair of experts that tokens have together."""

    experts: tuple[int, int]
    tokens: int  # sampled tokens that have both
    expected: float  # under independent choices with the same loads
    lift: float  # tokens over expected
    low: float  # 95% interval, simultaneously for all pairs
    high: float
    p: float  # of a lift of at most 1.1, corrected for the number of pairs


@dataclass(frozen=True, kw_only=True)
class CoActivation:
    """Pairs of experts that tokens have together, by evidence for their lift."""

    tokens: int  # sampled tokens with at least two experts
    iterations: int
    tested: int  # pairs
    coupled: int  # pairs whose lift is above 1.1 at the significance level
    pairs: tuple[PairLift, ...]  # the strongest, at most ten
    needs: int  # tokens with which a lift of 2 is found; at most ``tokens`` if enough


def pair_counts(chosen: Bool) -> Int64:
    """Count the tokens that have both experts of each pair: the co-activation matrix.

    ``chosen``: ``[..., E]`` whether a token has an expert, as from
    :meth:`moetraffic.Trace.choices`.

    Returns
    -------
    ndarray
        ``[E, E]`` int64, symmetric; the diagonal is the load.  Where each token has k
        experts, a row adds up to k times the load.

    Examples
    --------
    >>> pair_counts(np.array([[True, True, False], [True, False, True]])).tolist()
    [[2, 1, 1], [1, 1, 0], [1, 0, 1]]
    """
    rows = chosen.reshape(-1, chosen.shape[-1])
    # exact: float32 has all integers up to 2^24
    exact: type[np.floating] = np.float32 if len(rows) < 1 << 24 else np.float64
    floats: Floating = rows.astype(exact)
    return np.asarray(floats.T @ floats, np.int64)


class PairCounts:
    """Observed and expected numbers of tokens by pair of experts, over iterations."""

    def __init__(self, experts: int) -> None:
        shape = (experts, experts)
        self._iterations = self._tokens = 0
        # sums over the iterations of observed (o) and expected (e) counts and products
        self._sums = {name: np.zeros(shape) for name in ("o", "e", "oo", "oe", "ee")}

    def add(self, masks: Sequence[Bool]) -> None:
        """Add a block of iterations: of each the experts of its tokens, ``[T, E]``."""
        if not masks:
            return
        sizes = [mask.sum(axis=1) for mask in masks]
        counts = np.bincount(np.concatenate(sizes))
        factors = {}
        for k in range(2, len(counts)):
            if counts[k] > 1:
                loads = sum(
                    m[size == k].sum(axis=0)
                    for m, size in zip(masks, sizes, strict=True)
                )
                factors[k] = _factor(np.asarray(loads) / counts[k], k)
        for mask, size in zip(masks, sizes, strict=True):
            o, e = np.zeros_like(self._sums["o"]), np.zeros_like(self._sums["o"])
            for k, factor in factors.items():
                mine = mask[size == k]
                if len(mine) < 2:
                    continue
                both = pair_counts(mine).astype(np.float64)
                load = np.diag(both).copy()
                np.fill_diagonal(both, 0)
                o += both
                e += factor * (np.outer(load, load) - both) / (len(mine) - 1)
                self._tokens += len(mine)
            self._iterations += 1
            for name, value in (
                *(("o", o), ("e", e)),
                *(("oo", o * o), ("oe", o * e), ("ee", e * e)),
            ):
                self._sums[name] += value

    def conclude(self) -> CoActivation | None:
        """Compute the lifts and their tests; None where no token has two experts."""
        if not self._tokens:
            return None
        upper = np.triu_indices(len(self._sums["o"]), 1)
        o, e, oo, oe, ee = (self._sums[n][upper] for n in ("o", "e", "oo", "oe", "ee"))
        count, degrees = self._iterations, max(1, self._iterations - 1)
        tested = np.flatnonzero((e > 0) & (e >= LEAST_SHARE * e.mean()))
        o, e, oo, oe, ee = (each[tested] for each in (o, e, oo, oe, ee))

        def error(lift: Float64 | float) -> Float64:
            """Standard error of the sum of observed - lift x expected counts."""
            total = o - lift * e
            squares = oo - 2 * lift * oe + lift**2 * ee
            rest = np.maximum(squares - total**2 / count, 0)
            return np.asarray(np.sqrt(count / degrees * rest), np.float64)

        above = o - LEAST_LIFT * e
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.nan_to_num(above / error(LEAST_LIFT))
        # counts of independent tokens vary at most as Poisson's; tokens of an iteration
        # may be dependent, and then vary more from one to the next
        single = np.maximum(pdtrc(o - 1, LEAST_LIFT * e), stdtr(degrees, -t))
        single[o == 0] = 1
        p = np.minimum(1, single * len(tested))
        lift = o / e
        half = stdtrit(degrees, 1 - 0.025 / max(1, len(tested))) * error(lift) / e
        best = np.lexsort((-lift, p))[:MOST_PAIRS]
        return CoActivation(
            tokens=self._tokens,
            iterations=count,
            tested=len(tested),
            coupled=int((p <= LEVEL).sum()),
            pairs=tuple(
                PairLift(
                    experts=(int(upper[0][tested[at]]), int(upper[1][tested[at]])),
                    tokens=int(o[at]),
                    expected=float(e[at]),
                    lift=float(lift[at]),
                    low=max(0.0, float(lift[at] - half[at])),
                    high=float(lift[at] + half[at]),
                    p=float(p[at]),
                )
                for at in best
            ),
            needs=_needed(self._tokens, e),
        )


def co_activation_claim(found: CoActivation, *, about: str) -> Claim:
    """Test whether tokens have experts together more often than by chance.

    ``found``: Pairs of experts of sampled tokens.
    """
    first = found.pairs[0] if found.pairs else None
    stated = first is not None and first.p <= LEVEL
    enough = found.iterations >= LEAST_ITERATIONS and found.tokens >= found.needs
    each = found.tokens / found.iterations
    least = max(found.needs, int(np.ceil(LEAST_ITERATIONS * each)))
    return Claim(
        name="co-activated",
        about=about,
        outcome=Outcome.NOT_ENOUGH_DATA
        if found.iterations < LEAST_ITERATIONS or not (stated or enough)
        else Outcome.STATED
        if stated
        else Outcome.NO_EVIDENCE,
        statement=""
        if first is None
        else f"experts {first.experts[0]} and {first.experts[1]} are chosen together "
        f"{first.lift:.2f} times as often as independently with the same loads",
        null=f"independent choices with the loads of each iteration, lift at most "
        f"{LEAST_LIFT}",
        p=float("nan") if first is None else first.p,
        figure=float("nan") if first is None else first.lift,
        low=float("nan") if first is None else first.low,
        high=float("nan") if first is None else first.high,
        used=found.tokens,
        needs=0 if enough else least,
    )


def _factor(loads: Float64, k: int) -> Float64:
    """Compute phi ``[E, E]`` of loads ``[E]``; 0 for experts without load."""
    product = np.outer(loads, loads)
    pairs = pair_probabilities(loads, k)
    return np.divide(pairs, product, out=np.zeros_like(pairs), where=product > 0)


def _needed(tokens: int, expected: Float64) -> int:
    """Compute how many tokens are needed to find a pair of mean count and lift 2."""
    if not len(expected):
        return tokens + 1
    times = np.geomspace(1e-3, 1e9, 1201)
    mean = times * expected.mean()
    p = pdtrc(np.floor(DETECTED_LIFT * mean) - 1, LEAST_LIFT * mean) * len(expected)
    p[DETECTED_LIFT * mean < 1] = 1
    found = np.flatnonzero(p > LEVEL)
    return int(np.ceil(tokens * times[min(found[-1] + 1, len(times) - 1)]))
