r"""How ranks differ within an iteration: they read other documents.

A rank's tokens come from a few documents, which favour some experts in every layer at
once.  So a rank's weights are those of the iteration times

.. math:: m = (1 + u/2)^2/(1 + Var(u)/4), \quad u = \Lambda g + \psi h

g (Q factors, shared by all layers of a rank) and h (its own in each cell) are standard
normal, new for each rank and iteration.  The mean of m is one, so that ranks differ and
the load stays.  The square is skewed as a Gamma variable is, and Dirichlet shares are
Gamma variables over their sum (Wilson and Hilferty 1931 take the cube); exp(u) has too
long a tail.  For k > 1 weights stand for odds of being held, which may be large, and m
is :math:`(1 + u/4)^4` over its mean.

In place of the reference's Dirichlet(c p), whose ranks would differ in each layer by
itself: captures of real text show deviations of a rank that are coupled across layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .dynamics import between_knots

Float64 = npt.NDArray[np.float64]

MOST_VARIANCE = (1.5, 30.0)
"""Of u, for squares and fourth powers: beyond, a rank's weights are any."""

GOLDEN = (5**0.5 - 1) / 2

LEAST = 1e-9
"""What any expert keeps of its weight."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpread:
    """Deviations of rows of L layers of E experts, by Q factors."""

    knots: Float64  # [K] iterations at which it is known, ascending
    factors: Float64  # [K, L, E, Q] Lambda
    variance: Float64  # [K, L, E] of u: diag(Lambda Lambda^T) + psi^2
    offset: Float64  # [K, L, E] of logarithms, keeps the load where m bends it
    # [1] variance of the mean of g over R ranks, times R: below 1 where no two ranks
    # read the same document, so that their mean varies less than it would by chance
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
        first, share = between_knots(self.knots, iteration)
        at = first + int((iteration * GOLDEN) % 1.0 < share)
        factors = self.factors[at]
        own = np.maximum(self.variance[at] - (factors**2).sum(axis=2), 0.0)
        return factors, np.sqrt(own), self.offset[at]

    def concentration(self, shares: Float64, iteration: float) -> Float64:
        """c of the Dirichlet(c p) whose shares vary as much, ``[L]``.

        Its shares have a relative variance of ``(1 - p)/(p (c + 1))``.

        Parameters
        ----------
        shares
            ``[L, E]`` p.
        iteration
            When.
        """
        factors, own, _ = self.at(iteration)
        variance = (factors**2).sum(axis=2) + own**2
        ours = (shares**2 * _relative(variance)).sum(axis=1)
        theirs = (shares * (1 - shares)).sum(axis=1)
        return np.asarray(
            np.where(ours > 0, theirs / np.maximum(ours, 1e-300) - 1, np.inf)
        )


def multipliers(
    rng: np.random.Generator,
    shared: Float64,
    factors: Float64,
    own: Float64,
    *,
    k: int,
) -> Float64:
    """m of one layer's rows, ``[rows, E]``.

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
    k
        Experts of a token.
    """
    # factor by factor: the order of the sums is the same wherever this runs
    out = rng.standard_normal((len(shared), len(own))) * own
    for q in np.flatnonzero(factors.any(axis=0)):
        out += np.multiply.outer(shared[:, q], factors[:, q])
    variance = (factors**2).sum(axis=1) + own**2
    if k > 1:
        mean = 1 + 0.375 * variance + 0.01171875 * variance**2
        return np.asarray((1 + 0.25 * out) ** 4 / mean + LEAST, np.float64)
    return np.asarray((1 + 0.5 * out) ** 2 / (1 + 0.25 * variance) + LEAST, np.float64)


def latent_covariance(relative: Float64, *, k: int) -> Float64:
    """The covariance of u under which that of m is so, ``[C, C]``.

    By :math:`Cov(m_i, m_j) = (c + c^2/8)/((1 + c_{ii}/4)(1 + c_{jj}/4))` for normal u;
    for k > 1 u is what was seen: it is put right by trial.

    Parameters
    ----------
    relative
        ``[C, C]`` covariance of m.
    k
        Experts of a token.
    """
    c = relative.copy()
    if k > 1:
        return c
    for _ in range(20):
        own = 1 + 0.25 * np.clip(np.diag(c), 0.0, MOST_VARIANCE[0])
        want = np.clip(relative * np.multiply.outer(own, own), -1.9, None)
        # c + c^2/8 = want
        c = 4 * (np.sqrt(1 + want / 2) - 1)
    return np.asarray(c, np.float64)


def _relative(variance: Float64) -> Float64:
    """Variance of m by that of u."""
    return np.asarray((variance + variance**2 / 8) / (1 + variance / 4) ** 2)
