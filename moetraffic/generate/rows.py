r"""Variation between ranks within an iteration: factors that all layers share.

The tokens of a rank come from few documents, and all layers route the same tokens.  The
log-weights of rank r deviate from the iteration's by

.. math:: u_{r,l,e} = s_e (a_r \Lambda_l g_r + \psi_{l,e} h_{r,l,e}) - o_e

with g (Q factors, shared by the layers) and h (its own in each cell) standard normal
and a lognormal of mean square 1, new for each rank and iteration.
:math:`\Lambda\Lambda^T + \psi^2` is the covariance of shares in units of
:math:`\sqrt{\pi(1 - \pi)}`, *including* that of counting N tokens, which layers share
as well; s makes the variance of a lognormal share that of the capture, and o keeps its
mean.

The experts that have the load change from iteration to iteration, and with them the
directions in which ranks differ.  Fitted over a window, factors of two layers are
therefore less coupled than in any one iteration.  The map of optimal transport between
normal distributions takes each layer's factors, weighted by the load of the iteration,
toward a covariance that all layers share, by a fraction :math:`\alpha` of the way.

References
----------
R. J. McCann, Adv. Math. 128 (1997) 153: interpolation along the map of transport.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .dynamics import CoursePoint
from .shares import probabilities, response

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

TINY = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class RowVariation:
    """Variation of rows of L layers of E experts by Q factors, at K knots."""

    factors: Float64  # [K, L, E, Q] Lambda
    own: Float64  # [K, L, E] psi
    alignment: Float64  # [K, L] alpha, from 0 to 1
    tail: Float64  # [K] standard deviation of log a

    def shared(
        self, rng: np.random.Generator, point: CoursePoint, shape: tuple[int, ...]
    ) -> Float32:
        """a g of an iteration's rows, ``[..., Q]`` with ``shape`` before the last."""
        g = rng.standard_normal((*shape, self.factors.shape[3]), np.float32)
        tail = (1 - point.share) * self.tail[point.before.knot]
        tail += point.share * self.tail[point.after.knot]
        a = np.exp(tail * rng.standard_normal(shape) - tail**2)
        g *= a[..., None].astype(np.float32)
        return g

    def at(
        self, point: CoursePoint, x: Float64, chance: float, *, k: int
    ) -> IterationRows:
        """What the rows of one iteration are drawn from.

        Between two knots an iteration has either's factors, in proportion: a mixture of
        both would couple layers less than either.

        Parameters
        ----------
        point
            Of the course.
        x
            ``[L, E]`` log-weights.
        chance
            Uniform, for which knot's factors.
        k
            Experts per token.
        """
        knot = point.after if chance < point.share else point.before
        source = knot.source
        factors = np.take_along_axis(self.factors[knot.knot], source[..., None], 1)
        own = np.take_along_axis(self.own[knot.knot], source, 1)
        pi = probabilities(x, k)
        spread = np.maximum(pi * (1 - pi), TINY)
        factors = aligned(factors, spread, self.alignment[knot.knot])
        total = (factors**2).sum(axis=2) + own**2
        slope = np.maximum(response(pi, k), TINY)
        variance = np.log1p(total * spread / slope**2)
        size = np.sqrt(variance / np.maximum(total, TINY**2))
        return IterationRows(
            center=(x - variance * (1 - 2 * pi) / 2).astype(np.float32),
            factors=np.ascontiguousarray(
                (factors * size[..., None]).swapaxes(1, 2), np.float32
            ),
            own=(own * size).astype(np.float32),
            variance=variance,
            shares=np.asarray(pi, np.float64),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class IterationRows:
    """Distribution of the rows of an iteration."""

    center: Float32  # [L, E]
    factors: Float32  # [L, Q, E]
    own: Float32  # [L, E]
    variance: Float64  # [L, E] of u
    shares: Float64  # [L, E] of the iteration

    def draw(self, rng: np.random.Generator, shared: Float32, layer: int) -> Float32:
        """Log-weights ``[R, E]`` of a layer's rows, of factors g ``[R, Q]``."""
        own = self.own[layer]
        out = rng.standard_normal((len(shared), len(own)), np.float32)
        out *= own
        # no BLAS: it would sum in another order on other machines and threads
        out += np.einsum("rq,qe->re", shared, self.factors[layer])
        out += self.center[layer]
        return out


def aligned(factors: Float64, spread: Float64, alpha: Float64) -> Float64:
    """Factors ``[L, E, Q]`` with covariances taken toward one that layers share.

    Parameters
    ----------
    factors
        ``[L, E, Q]``.
    spread
        ``[L, E]`` pi (1 - pi), the square of a factor's weight.
    alpha
        ``[L]`` fraction of the way.
    """
    width = factors.shape[2]
    if len(factors) < 2 or not width or not alpha.any():
        return factors
    weighted = factors * np.sqrt(spread)[..., None]
    m = weighted.swapaxes(1, 2) @ weighted
    m /= np.maximum(np.trace(m, axis1=1, axis2=2), TINY**2)[:, None, None]
    m += 1e-3 / width * np.eye(width)
    value, vector = np.linalg.eigh(m)
    _, common = np.linalg.eigh(m.mean(axis=0))
    target = (common * value.mean(axis=0)) @ common.T
    root = (vector * np.sqrt(value)[:, None]) @ vector.swapaxes(1, 2)
    inverse = (vector / np.sqrt(value)[:, None]) @ vector.swapaxes(1, 2)
    value, vector = np.linalg.eigh(root @ target @ root)
    middle = (vector * np.sqrt(np.maximum(value, 0))[:, None]) @ vector.swapaxes(1, 2)
    move = inverse @ middle @ inverse
    a = alpha[:, None, None]
    return np.asarray(factors @ ((1 - a) * np.eye(width) + a * move), np.float64)
