r"""Differences between ranks within an iteration, due to their documents.

A rank's tokens come from a few documents, which favor some experts in every layer at
once.  The probability :math:`\pi` that a token holds an expert is an angle
:math:`2 \arcsin \sqrt{\pi}`, in which shares of any size vary alike: a rank's is

.. math:: \pi_r = \frac{1 - \cos(\min(\max(a + u, 0), \pi))}{2}, \quad
          u = w(\pi) (\Lambda g + \psi h)

g (Q factors, shared by all layers of a rank) and h (its own in each cell) are standard
normal, new for each rank and iteration; a is such that the mean over ranks is what the
iteration's is.  To first order :math:`Var(\pi_r) = \pi (1 - \pi) Var(u)`, as of the
reference's Dirichlet(c p) with :math:`Var(u) = 1/(c + 1)`.  Experts that hold little
do so in most documents: ranks differ less in them, by

.. math:: w(\pi) = \sqrt{\frac{x (1 + s)}{x + s}}, \quad x = \pi E / k,

which is 1 for an even share, and at any share where s is 0.

Where a token holds k > 1 experts a rank's weights are the iteration's times the ratio
of the odds :math:`\pi_r/(1 - \pi_r)` to the iteration's.

In place of Dirichlet(c p), whose ranks would differ in each layer by itself: captures
of real text show deviations of a rank that are coupled across layers.

References
----------
M. F. Freeman, J. W. Tukey, Ann. Math. Stat. 21 (1950) 607: the angle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from .dynamics import between_knots
from .inclusion import inclusion

Float64 = npt.NDArray[np.float64]

MOST_VARIANCE = 2.0
"""Of u: beyond, a rank's share is any."""

MOST_SPLIT = 1.2
"""Largest standard deviation of the logarithms of a split expert's parts."""

GOLDEN = (5**0.5 - 1) / 2

LEAST = 1e-9
"""What any expert keeps of its weight."""

NEAR = 0.002
"""Angle that is left to a probability of 1 where weights are odds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpread:
    """Deviations of rows of L layers of E experts, by Q factors."""

    knots: Float64  # [K] iterations at which it is known, ascending
    factors: Float64  # [K, L, E, Q] Lambda
    variance: Float64  # [K, L, E] of u: diag(Lambda Lambda^T) + psi^2
    offset: Float64  # [K, L, E] of logarithms, keeps the load where sums bend it
    # [L] s, of the even share: below, rows vary less; 0: as much at any share
    half: Float64 = field(default_factory=lambda: np.zeros(1))
    # [1] variance of the mean of g over R ranks, times R: below 1 where no two ranks
    # read the same document, above where they read parts of the same
    apart: Float64 = field(default_factory=lambda: np.ones(1))

    def shared(self, rng: np.random.Generator, *, slots: int, ranks: int) -> Float64:
        """g of an iteration's rows, ``[slots, ranks, Q]``."""
        g = rng.standard_normal((slots, ranks, self.factor_count))
        g -= (1 - np.sqrt(self.apart[0])) * g.mean(axis=(0, 1))
        return np.asarray(g, np.float64)

    @property
    def factor_count(self) -> int:
        """Factors of a moment, Q."""
        return int(self.factors.shape[3])

    def at(self, iteration: float) -> tuple[Float64, Float64, Float64]:
        """Lambda ``[L, E, Q]``, psi ``[L, E]`` and the offset ``[L, E]``.

        Between two knots an iteration has either's, in proportion: a mixture of both
        factors would couple layers less than either.  Which one follows the multiples
        of the golden ratio, whose fractions are spread evenly over any stretch.
        """
        at = self._knot(iteration)
        factors = self.factors[at]
        own = np.maximum(self.variance[at] - (factors**2).sum(axis=2), 0.0)
        return factors, np.sqrt(own), self.offset[at]

    def _knot(self, iteration: float) -> int:
        first, share = between_knots(self.knots, iteration)
        return first + int((iteration * GOLDEN) % 1.0 < share)


@dataclass(frozen=True, kw_only=True, eq=False)
class Middle:
    """What the rows of an iteration differ from."""

    angle: Float64  # [..., E] a
    size: Float64  # [..., E] w, by which deviations are multiplied
    ratio: Float64  # [..., E] of a weight to the odds, for k > 1


def middle(
    state: Float64, deviation: Float64, *, k: int, half: npt.ArrayLike = 0.0
) -> Middle:
    """The angles around which rows are, such that their mean is that of a state.

    Parameters
    ----------
    state
        ``[..., E]`` logarithms of weights.
    deviation
        ``[..., E]`` standard deviation of u, of an expert with an even share.
    k
        Experts of a token.
    half
        ``[...]`` s.
    """
    weights = np.exp(state - state.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    holds = inclusion(weights, k)
    size = at_share(holds, half, k=k)
    return Middle(
        angle=_center(holds, size * deviation),
        size=size,
        ratio=weights * (1 - np.minimum(holds, 1 - LEAST)) / np.maximum(holds, LEAST),
    )


def at_share(holds: Float64, half: npt.ArrayLike, *, k: int) -> Float64:
    """w, how far rows differ in an expert of some share, over that of an even one.

    Parameters
    ----------
    holds
        ``[..., E]`` probability that a token holds the expert.
    half
        ``[...]`` s.
    k
        Experts of a token.
    """
    relative = holds * (holds.shape[-1] / k)
    s = np.asarray(half, np.float64)[..., None]
    with np.errstate(invalid="ignore"):
        square = relative * (1 + s) / (relative + s)
    return np.asarray(np.sqrt(np.where(s > 0, square, 1.0)), np.float64)


def row_weights(
    rng: np.random.Generator,
    shared: Float64,
    factors: Float64,
    own: Float64,
    around: Middle,
    *,
    k: int,
) -> Float64:
    """Weights of one layer's rows, ``[rows, E]``, not normalized.

    Parameters
    ----------
    rng
        Source of the cells' own chance.
    shared
        ``[rows, Q]`` g.
    factors
        ``[E, Q]`` Lambda of the layer.
    own
        ``[E]`` psi.
    around
        Of the layer, ``[E]`` or ``[rows, E]``.
    k
        Experts of a token.
    """
    size = around.size
    if size.ndim == 1:  # cheaper in what all rows share
        own, factors = own * size, factors * size[:, None]
    out = rng.standard_normal((len(shared), len(own)))
    out *= own
    # no BLAS: it would sum in another order on other machines and threads
    used = factors.any(axis=0)
    out += np.einsum(
        "rq,qe->re", shared[:, used], np.ascontiguousarray(factors.T[used])
    )
    if size.ndim > 1:
        out *= size
    out += around.angle
    np.clip(out, 0.0, np.pi if k == 1 else np.pi - NEAR, out=out)
    np.cos(out, out=out)
    if k == 1:
        out *= -0.5
        out += 0.5 + LEAST
        return out
    return np.asarray(around.ratio * ((1 - out) / (1 + out) + LEAST), np.float64)


def split_size(holds: Float64, deviation: Float64, *, k: int) -> Float64:
    """Standard deviation of the logarithms of a split expert's parts, ``[..., E]``.

    Parts differ between rows as much as their expert does.

    Parameters
    ----------
    holds
        ``[..., E]`` probability that a token holds the expert.
    deviation
        ``[..., E]`` standard deviation of u.
    k
        Experts of a token.
    """
    free = 1 - holds if k == 1 else 1 / np.maximum(1 - holds, LEAST)
    return np.minimum(deviation * np.sqrt(free / np.maximum(holds, LEAST)), MOST_SPLIT)


DEVIATIONS = np.sqrt(MOST_VARIANCE) * np.linspace(0.0, 1.0, 48) ** 2
"""For which angles are tabled, denser where they are small."""

LOGITS = np.linspace(-16.0, 0.0, 161)
"""Of means up to a half, for which angles are tabled."""


NODES = 200
"""Of an integral over angles."""


@cache
def _table() -> Float64:
    """Angles ``[48, 161]`` by deviation and logit of the mean, rows clipped at 0.

    Above a half the other side's is taken.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    out = np.empty((len(DEVIATIONS), len(LOGITS)))
    out[0] = np.arccos(1 - 2 / (1 + np.exp(-LOGITS)))
    for at, deviation in enumerate(DEVIATIONS[1:], 1):
        angles = np.linspace(-6.0 * deviation, np.pi / 2, 600)[:, None]
        low = np.maximum(angles - 8.0 * deviation, 0.0)
        high = np.minimum(angles + 8.0 * deviation, np.pi)
        u = low + (high - low) * (nodes + 1) / 2
        dense = np.exp(-0.5 * ((u - angles) / deviation) ** 2)
        dense *= (high - low) / (2 * deviation * np.sqrt(2 * np.pi))
        got = (np.sin(u / 2) ** 2 * dense) @ weights
        got += ndtr((angles[:, 0] - np.pi) / deviation)
        logits = np.log(got / (1 - got))
        out[at] = np.interp(LOGITS, logits, angles[:, 0])
    return out


def _center(mean: Float64, deviation: Float64) -> Float64:
    """a such that rows around it have this mean, ``[..., E]``."""
    table = _table()
    less = np.clip(np.minimum(mean, 1 - mean), 1e-12, 0.5)
    x = (np.log(less / (1 - less)) - LOGITS[0]) / (LOGITS[1] - LOGITS[0])
    x = np.clip(x, 0.0, len(LOGITS) - 1.000001)
    y = np.sqrt(np.clip(deviation, 0.0, DEVIATIONS[-1]) / DEVIATIONS[-1])
    y = np.clip(y * (len(DEVIATIONS) - 1), 0.0, len(DEVIATIONS) - 1.000001)
    x, y = np.broadcast_arrays(x, y)
    left, low = x.astype(np.int64), y.astype(np.int64)
    across, up = x - left, y - low
    angle = (1 - up) * (
        (1 - across) * table[low, left] + across * table[low, left + 1]
    ) + up * ((1 - across) * table[low + 1, left] + across * table[low + 1, left + 1])
    return np.asarray(np.where(mean > 0.5, np.pi - angle, angle), np.float64)
