r"""Variation between ranks within an iteration: factors that all layers share.

The tokens of a rank come from few documents, and all layers route the same tokens.  The
share of rank r is the square of a censored normal variable,

.. math:: q_{r,l,e} = s_e \max(0, m_e + u_{r,l,e})^2, \quad
          u_{r,l,e} \propto \Lambda_l g_r + \psi_{l,e} h_{r,l,e}

with g (Q factors, shared by the layers) and h (its own in each cell) standard normal,
new for each rank and iteration, and u of variance 1.  :math:`\Lambda\Lambda^T + \psi^2`
is the covariance of shares in units of :math:`\sqrt{\pi(1 - \pi)}`, *including* that of
counting N tokens, which layers share as well; m and s give the share the iteration's
mean and this variance.  Captured rows have more empty cells than lognormal ones of the
same moments, and fewer than censored normal ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from moetraffic.arrays import Float32, Float64

from .shares import bounded, probabilities

TINY = 1e-9
LEAST_SHARE = 1e-7
"""Share of an empty cell, so that no row is empty as a whole."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowVariation:
    """Variation of rows of L layers of E experts by Q factors."""

    factors: Float64  # [L, E, Q] Lambda
    own: Float64  # [L, E] psi

    def scaled(self, size: Float64) -> RowVariation:
        """Multiply the differences between rows by ``[L]`` sizes."""
        return RowVariation(
            factors=self.factors * size[:, None, None], own=self.own * size[:, None]
        )

    def at(self, x: Float64, k: int) -> IterationRows:
        """What the rows of an iteration of log-weights ``[L, E]`` are drawn from."""
        factors, own = self.factors, self.own
        pi = np.asarray(probabilities(x, k), np.float64)
        spread = np.maximum(pi * (1 - pi), TINY)
        total = np.maximum((factors**2).sum(axis=2) + own**2, TINY**2)
        variance = total * spread
        center, scale = squared_normal(pi, variance)
        size = 1 / np.sqrt(total)
        return IterationRows(
            center=center.astype(np.float32),
            factors=np.ascontiguousarray(
                (factors * size[..., None]).swapaxes(1, 2), np.float32
            ),
            own=(own * size).astype(np.float32),
            scale=scale.astype(np.float32),
            variance=np.log1p(variance / np.maximum(pi, TINY) ** 2),
            shares=pi,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class IterationRows:
    """Distribution of the rows of an iteration."""

    center: Float32  # [L, E] means of normals of variance 1
    factors: Float32  # [L, Q, E]
    own: Float32  # [L, E]
    scale: Float32  # [L, E] of the squares
    variance: Float64  # [L, E] of the logarithm of a lognormal share of these moments
    shares: Float64  # [L, E] of the iteration

    def draw(
        self, rng: np.random.Generator, shared: Float32, layer: int, k: int
    ) -> Float32:
        """Shares ``[R, E]`` of rows of a layer, of factors g ``[R, Q]``, with sum k."""
        own = self.own[layer]
        out = rng.standard_normal((len(shared), len(own)), np.float32)
        out *= own
        # no BLAS: it would sum in another order on other machines and threads
        out += np.einsum("rq,qe->re", shared, self.factors[layer])
        out += self.center[layer]
        np.maximum(out, 0, out=out)
        out *= out
        out *= self.scale[layer]
        np.clip(out, LEAST_SHARE, 1, out=out)
        return bounded(out, k)


def squared_normal(mean: Float64, variance: Float64) -> tuple[Float64, Float64]:
    """Find the square of a censored normal variable that has given moments.

    Center and scale ``[...]`` of shares of these moments, ``[...]`` each, which are
    ``scale * max(0, center + z)**2`` with z standard normal.

    Examples
    --------
    >>> center, scale = squared_normal(np.array([0.1]), np.array([0.01]))
    >>> z = np.random.default_rng(0).standard_normal(100_000)
    >>> shares = scale * np.maximum(center + z, 0) ** 2
    >>> (shares.mean().round(2), shares.std().round(2))
    (np.float64(0.1), np.float64(0.1))
    """
    near = np.maximum(mean, TINY)
    center = np.interp(np.log(np.maximum(variance, TINY**2) / near**2), *_CENTERS)
    return center, near / _mean_square(center)


def _mean_square(center: Float64) -> Float64:
    density = np.exp(-(center**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray((center**2 + 1) * ndtr(center) + center * density)


def _centers() -> tuple[Float64, Float64]:
    """Logarithm of variance over squared mean, ascending, and centers."""
    at = np.r_[np.arange(-5, 8, 0.02), np.geomspace(8, 1e5, 400)]
    density = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
    fourth = (at**4 + 6 * at**2 + 3) * ndtr(at) + (at**3 + 5 * at) * density
    ratio = np.log(fourth / _mean_square(at) ** 2 - 1)
    return ratio[::-1].copy(), at[::-1].copy()


_CENTERS = _centers()
