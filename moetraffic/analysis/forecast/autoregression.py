r"""Autoregression: least-squares AR(p) fits of thousands of series at once.

A fit needs only the products of a series with itself at p lags, so series and refits
are solved together: one pass over the series gives the moments of each stretch of time,
a window of stretches is the sum of their moments, and all windows of all series are one
batched solve.  A Cholesky factor of the moments gives the residual sums of every order.

Series are ``[C, T]``, series first, so that each is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64

JITTER = 1e-10
"""Relative ridge on the diagonal of the moments, for constant series."""

AT_ONCE = 1 << 22
"""Design-matrix values in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class Autoregression:
    """Coefficients of AR(p) models; leading axes are refits, series, or nothing.

    The forecast is ``constant + sum_j weights[..., j] x[t - j]``, of ``x[t + horizon]``
    from the values up to t.
    """

    constant: Float64  # [...], unit of the series
    weights: Float64  # [..., P], newest value first; 0 beyond the order
    order: Int64  # [...]
    rows: Int64  # [...] equations that the fit is from
    horizon: int  # steps ahead


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums of products of a constant, P lags and the target, of standardized series."""

    products: Float64  # [S, C, P + 2, P + 2]: of each stretch of time
    mean: Float64  # [C] what was taken off
    scale: Float64  # [C] what was divided by

    @property
    def max_order(self) -> int:
        """P, the number of lags."""
        return int(self.products.shape[-1]) - 2


def moments(
    series: Float64,
    borders: Sequence[int],
    *,
    max_order: int,
    known_until: int | None = None,
) -> Moments:
    """Compute the least-squares moments of each stretch of time.

    Parameters
    ----------
    series
        ``[C, T]`` float64; an equation with a NaN in it is left out.
    borders
        Increasing; stretch s has the targets ``borders[s] <= t < borders[s + 1]``.
    max_order
        P.
    known_until
        The series are standardized by their values before this step: pass the end of
        the first window that is fitted, so that nothing looks ahead.  None: all.
    """
    past = series[:, :known_until]
    known = np.isfinite(past)
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, past, 0.0).sum(axis=1) / count
    apart = np.where(known, past - mean[:, None], 0.0)
    spread = np.sqrt((apart**2).sum(axis=1) / count)
    scale = np.where(spread > 1e-12 * np.abs(mean), spread, 1.0)
    wide = max_order + 2
    products = np.zeros((len(borders) - 1, len(series), wide, wide))
    step = max(1, AT_ONCE // max(wide * len(series), 1))
    for stretch, (begin, end) in enumerate(pairwise(borders)):
        for first in range(max(begin, max_order), end, step):
            last = min(first + step, end)
            part = (series[:, first - max_order : last] - mean[:, None]) / scale[
                :, None
            ]
            rows = last - first
            design = np.empty((len(series), wide, rows))
            design[:, 0] = 1.0
            for lag in range(max_order):
                at = max_order - 1 - lag
                design[:, 1 + lag] = part[:, at : at + rows]
            design[:, -1] = part[:, max_order:]
            if not np.isfinite(part).all():
                usable = np.isfinite(design).all(axis=1, keepdims=True)
                design = np.where(usable, design, 0.0)
            products[stretch] += design @ design.transpose(0, 2, 1)
    return Moments(products=products, mean=mean, scale=scale)


def order_of(found: Moments) -> Int64:
    r"""Choose the AR order of each series by AIC, corrected for short series (AICc).

    With n equations and the residual sum RSS of order p, it is
    :math:`n \ln(RSS/n) + 2(p+1) n/(n-p-2)`.  All orders are compared on the same
    equations.

    Parameters
    ----------
    found
        Of the training part; its stretches are added up.

    Returns
    -------
    int64 array ``[C]``
        0 ... P; 0 where there are too few equations, or nothing varies.

    References
    ----------
    C. M. Hurvich and C.-L. Tsai, Biometrika 76 (1989) 297.
    """
    total = found.products.sum(axis=0)
    count = total[:, 0, 0]
    factor = np.linalg.cholesky(_ridged(total))
    residual = total[:, -1, -1:] - np.cumsum(factor[:, -1, :-1] ** 2, axis=1)
    # what rounding and the jitter leave of an exact fit is no better fit
    residual = np.maximum(residual, 1e-9 * count[:, None] + 1e-300)
    p = np.arange(found.max_order + 1)
    n = np.maximum(count, 1)[:, None]
    penalty = 2 * (p + 1) * n / np.maximum(n - p - 2, 1e-9)
    cost = n * np.log(residual / n) + penalty
    cost = np.where(count[:, None] > 2 * (p + 2), cost, np.inf)
    cost[:, 0] = np.where(np.isfinite(cost[:, 0]), cost[:, 0], 0.0)
    return np.asarray(np.argmin(cost, axis=1), np.int64)


def _ridged(total: Float64) -> Float64:
    """Add a ridge to the diagonal of moments ``[..., n, n]``."""
    diagonal = np.einsum("...ii->...i", total)
    ridge = JITTER * np.maximum(diagonal, np.maximum(total[..., 0, :1], 1.0))
    return np.asarray(total + ridge[..., None] * np.eye(total.shape[-1]), np.float64)


def solve(
    found: Moments, window: npt.ArrayLike, order: npt.ArrayLike
) -> Autoregression:
    """Solve AR fits over windows of stretches, all series and windows at once.

    Parameters
    ----------
    found
        Moments of S stretches.
    window
        ``[R, S]`` 0 or 1: the stretches that each of R fits is from.
    order
        ``[C]`` order of each series, or one for all.

    Returns
    -------
    Autoregression
        One step ahead, arrays ``[R, C]``; NaN where there is no equation.  Where a root
        would lie outside the unit circle, all are scaled until the largest lies on it,
        and the mean is kept.
    """
    chosen = np.broadcast_to(np.asarray(order, np.int64), found.mean.shape)
    used = np.arange(found.max_order + 1) <= chosen[:, None]  # constant and lags
    solved = np.zeros((len(np.asarray(window)), *used.shape))
    level, rows = np.zeros((2, *solved.shape[:2]))
    for fit, stretches in enumerate(np.asarray(window, np.float64)):
        total = np.tensordot(stretches, found.products, axes=1)
        rows[fit] = total[:, 0, 0]
        level[fit] = total[:, 0, -1] / np.maximum(rows[fit], 1)
        left = np.where(used[:, :, None] & used[:, None], total[:, :-1, :-1], 0.0)
        right = np.where(used, total[:, :-1, -1], 0.0)
        solved[fit] = np.linalg.solve(_ridged(left), right[..., None])[..., 0]
    # the mean of the window: what a model that had to be scaled falls back to
    constant, weights = _stable(solved[..., 0], solved[..., 1:], level)
    constant = found.mean * (1 - weights.sum(axis=-1)) + found.scale * constant
    return Autoregression(
        constant=np.where(rows > 0, constant, np.nan),
        weights=weights,
        order=np.broadcast_to(chosen, rows.shape).copy(),
        rows=np.rint(rows).astype(np.int64),
        horizon=1,
    )


def ahead(model: Autoregression, horizon: int) -> Autoregression:
    """Compute h-step forecasts by iterating a one-step model.

    Parameters
    ----------
    model
        One step ahead.
    horizon
        h >= 1.

    Returns
    -------
    Autoregression
        With the first row of the h-th power of the companion matrix for weights.

    Examples
    --------
    >>> halves = 8.0 / 2.0 ** np.arange(8)
    >>> sums = moments(halves[None], [0, 8], max_order=1)
    >>> fit = solve(sums, np.ones((1, 1)), 1)
    >>> ahead(fit, 3).weights.round(6).tolist()
    [[[0.125]]]
    """
    lags = model.weights.shape[-1]
    if horizon == 1 or not lags:
        return replace(model, horizon=horizon)
    known = np.isfinite(model.constant)
    constants = np.where(known, model.constant, 0.0)
    fits = zip(constants, model.weights, strict=True)
    power = np.stack([_power(constant, weights, horizon) for constant, weights in fits])
    return replace(
        model,
        constant=np.where(known, power[..., 0], np.nan),
        weights=power[..., 1:],
        horizon=horizon,
    )


def _power(constant: Float64, weights: Float64, horizon: int) -> Float64:
    """Compute constant and weights ``[..., P + 1]`` of the companion matrix' power."""
    lags = weights.shape[-1]
    step = np.zeros((*np.shape(constant), lags + 1, lags + 1))
    step[..., 0, 0] = 1.0
    step[..., 1, 0] = constant
    step[..., 1, 1:] = weights
    below = np.arange(lags - 1)
    step[..., below + 2, below + 1] = 1.0
    return np.asarray(np.linalg.matrix_power(step, horizon)[..., 1, :].copy())


def fitting_order(steps: int, max_order: int) -> int:
    """Compute the largest order with at least five equations per coefficient."""
    return max(0, min(max_order, (steps - 5) // 6))


def _stable(
    constant: Float64, weights: Float64, level: Float64
) -> tuple[Float64, Float64]:
    """Scale the roots of unstable models so that the largest is on the unit circle."""
    lags = weights.shape[-1]
    # sum |a| <= 1 leaves no root outside; only the others need their roots
    suspect = np.abs(weights).sum(axis=-1) > 1
    if not lags or not suspect.any():
        return constant, weights
    companion = np.zeros((int(suspect.sum()), lags, lags))
    companion[:, 0] = weights[suspect]
    below = np.arange(lags - 1)
    companion[:, below + 1, below] = 1.0
    radius = np.abs(np.linalg.eigvals(companion)).max(axis=-1)
    outside = radius > 1
    shrink = 1 / np.maximum(radius, 1.0)
    scaled = weights[suspect] * shrink[:, None] ** np.arange(1, lags + 1)
    kept = level[suspect] * (1 - scaled.sum(axis=-1))
    weights, constant = weights.copy(), constant.copy()
    weights[suspect] = scaled
    constant[suspect] = np.where(outside, kept, constant[suspect])
    return constant, weights
