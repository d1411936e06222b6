r"""Autocorrelation of latent states whose loads have a given autocorrelation.

A load is a bent image :math:`g(u)` of a normal state u: bounded, then raised to the
exponent.  Bending shrinks correlations, negative ones most: a load whose logarithm
swings far up cannot swing as far down.  With :math:`a_j` the coefficients of g in
Hermite polynomials, states with correlation :math:`\rho` have loads with

.. math:: R(\rho) = \sum_{j \ge 1} a_j^2 \rho^j / \sum_{j \ge 1} a_j^2

(F. G. Mehler 1866), which grows with :math:`\rho` from as far below 0 as g allows; it
is turned round in a table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.polynomial import hermite_e

from .dynamics import Dynamics
from .local_memory import with_spectrum

Float64 = npt.NDArray[np.float64]

DEGREES = 12
"""Hermite polynomials of a bent state."""

NODES = 48
"""Of their integrals."""

MOST_SIZE = 2.0
"""Standard deviation of states whose bending is looked at: beyond, loads are all or
nothing, and tell little of their memory."""

GRID = np.tanh(np.linspace(-4.0, 4.0, 201)) / np.tanh(4.0)
"""Correlations of states in the table, dense near -1 and 1."""


def state_correlations(dynamics: Dynamics, loads: Float64) -> Float64:
    """Compute the states' autocorrelations from those of the loads.

    Parameters
    ----------
    dynamics
        With how states are bent around each knot, and how far they move.
    loads
        ``[K, L, E, P + 1]`` autocorrelations of loads.

    Returns
    -------
    float64 array
        ``[K, L, E, P + 1]``; where no states would do, the nearest.
    """
    d = dynamics
    size = np.sqrt((d.sd**2).sum(axis=2))[..., None] * d.scale  # [K, L, E]
    size = np.minimum(size, MOST_SIZE)
    points, weights = hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    u = np.multiply.outer(points, size)  # [N, K, L, E]
    moved = np.stack([_bent(d, u[:, at], at) for at in range(len(d.knots))], axis=1)
    image = np.exp(moved - moved.max(axis=0))
    basis = hermite_e.hermevander(points, DEGREES)  # [N, D + 1]
    unit = np.array([float(weights @ basis[:, j] ** 2) for j in range(DEGREES + 1)])
    power = np.einsum("n,nj,nkle->klej", weights, basis, image) ** 2 / unit
    power = power[..., 1:]
    power /= np.maximum(power.sum(axis=-1, keepdims=True), 1e-300)
    grid = np.power.outer(GRID, np.arange(1, DEGREES + 1))  # [G, D]
    out = np.ones_like(loads)
    for where in np.ndindex(loads.shape[:3]):
        table = np.maximum.accumulate(grid @ power[where])
        out[where][1:] = np.interp(loads[where][1:], table, GRID)
        out[where] = with_spectrum(out[where])
    return out


def _bent(d: Dynamics, state: Float64, knot: int) -> Float64:
    """States ``[N, L, E]`` around a knot as they add to the trend."""
    return d.bent(state.transpose(1, 2, 0), float(d.knots[knot])).transpose(2, 0, 1)
