r"""Autoregression: least-squares AR(p) fits of thousands of series at once.

A fit needs only the products of a series with itself at p lags, so series and refits
are solved together: one pass over the series gives the moments of each stretch of time,
a window of stretches is the sum of their moments, and all windows of all series are one
batched solve.  One Cholesky factor of the moments gives the fits and the residual sums
of every order.

Series are ``[C, T]``, series first, so that each is contiguous.  Moments and factors,
small matrices of thousands of series, have the series last, contiguous as well.
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

    products: Float64  # [S, P + 2, P + 2, C]: of each stretch of time
    mean: Float64  # [C] what was taken off
    scale: Float64  # [C] what was divided by

    @property
    def max_order(self) -> int:
        """P, the number of lags."""
        return int(self.products.shape[1]) - 2


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Cholesky factors of the moments of R windows, for fits of any order."""

    lower: Float64  # [R, P + 2, P + 2, C] of a constant, P lags and the target
    level: Float64  # [R, C] mean of the target, standardized
    rows: Float64  # [R, C] equations
    mean: Float64  # [C] as of the moments
    scale: Float64  # [C]

    @property
    def max_order(self) -> int:
        """P, the number of lags."""
        return int(self.lower.shape[1]) - 2


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
    products = np.zeros((len(borders) - 1, wide, wide, len(series)))
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
            found = design @ design.transpose(0, 2, 1)
            products[stretch] += found.transpose(1, 2, 0)
    return Moments(products=products, mean=mean, scale=scale)


def order_of(found: Moments, *, criterion: str = "bic") -> Int64:
    r"""Choose the AR order of each series by an information criterion.

    With n equations and the residual sum RSS of order p, BIC is
    :math:`n \ln(RSS/n) + (p+1) \ln n`, AICc has :math:`2(p+1) n/(n-p-2)` for the last
    term.  All orders are compared on the same equations.

    Parameters
    ----------
    found
        Of the training part; its stretches are added up.
    criterion
        "bic", or "aic", corrected for short series (AICc).

    Returns
    -------
    int64 array ``[C]``
        0 ... P; 0 where there are too few equations, or nothing varies.

    References
    ----------
    G. Schwarz, Ann. Stat. 6 (1978) 461; C. M. Hurvich and C.-L. Tsai, Biometrika 76
    (1989) 297.
    """
    total = found.products.sum(axis=0)
    count = total[0, 0]
    factor = _factor(total, out=np.empty_like(total))
    explained = np.cumsum(factor[-1, :-1] ** 2, axis=0).T
    residual = total[-1, -1, :, None] - explained
    # what rounding and the jitter leave of an exact fit is no better fit
    residual = np.maximum(residual, 1e-9 * count[:, None] + 1e-300)
    p = np.arange(found.max_order + 1)
    n = np.maximum(count, 1)[:, None]
    penalty = (p + 1) * np.log(n)
    if criterion == "aic":
        penalty = 2 * (p + 1) * n / np.maximum(n - p - 2, 1e-9)
    cost = n * np.log(residual / n) + penalty
    cost = np.where(count[:, None] > 2 * (p + 2), cost, np.inf)
    cost[:, 0] = np.where(np.isfinite(cost[:, 0]), cost[:, 0], 0.0)
    return np.asarray(np.argmin(cost, axis=1), np.int64)


def factored(found: Moments, window: npt.ArrayLike) -> Factors:
    """Factor the moments of windows of stretches.

    Parameters
    ----------
    found
        Moments of S stretches.
    window
        ``[R, S]`` 0 or 1: the stretches that each of R fits is from.
    """
    chosen = np.asarray(window, np.float64)
    lower = np.empty((len(chosen), *found.products.shape[1:]))
    level, rows = np.zeros((2, len(chosen), len(found.mean)))
    total = np.zeros(found.products.shape[1:])
    before = np.zeros(chosen.shape[1])
    for fit, used in enumerate(chosen):
        if (used < before).any():  # nothing is subtracted: what is left is exact
            total[:], before = 0.0, np.zeros_like(used)
        for stretch in np.flatnonzero(used > before).tolist():
            total += found.products[stretch]
        before = used
        rows[fit] = total[0, 0]
        level[fit] = total[0, -1] / np.maximum(rows[fit], 1)
        _factor(total, out=lower[fit])
    return Factors(
        lower=lower,
        level=level,
        rows=rows,
        mean=found.mean,
        scale=found.scale,
    )


def _factor(total: Float64, *, out: Float64) -> Float64:
    """Compute Cholesky factors ``[n, n, C]`` of moments with a ridge.

    Written out over all series at once, which is faster than thousands of calls.  What
    is above the diagonal of ``out`` is not set.
    """
    ridge = JITTER * np.maximum(total[0, 0], 1.0)
    for column in range(len(total)):
        below, left = out[column:, column], out[column:, :column]
        np.einsum("ikc,kc->ic", left, left[0], out=below)
        np.subtract(total[column:, column], below, out=below)
        # no pivot is smaller than the ridge, except by rounding
        below[0] = np.sqrt(np.maximum(below[0] + ridge, ridge))
        below[1:] /= below[0]
    return out


def solve(found: Factors, order: npt.ArrayLike) -> Autoregression:
    """Solve AR fits over windows of stretches, all series and windows at once.

    Parameters
    ----------
    found
        Factored moments of R windows.
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
    used = np.arange(found.max_order + 1)[:, None] <= chosen  # constant and lags
    solved = np.zeros((len(found.lower), *used.shape))
    for fit, lower in enumerate(found.lower):
        # the leading part of a factor is the factor of the leading part
        right = np.where(used, lower[-1, :-1], 0.0)
        for row in reversed(range(len(used))):
            known = np.einsum("kc,kc->c", lower[row + 1 : -1, row], right[row + 1 :])
            right[row] = (right[row] - known) / lower[row, row]
        solved[fit] = right
    constant, weights = solved[:, 0], solved[:, 1:].transpose(0, 2, 1)
    # the mean of the window: what a model that had to be scaled falls back to
    constant, weights = _stable(constant, weights, found.level)
    constant = found.mean * (1 - weights.sum(axis=-1)) + found.scale * constant
    return Autoregression(
        constant=np.where(found.rows > 0, constant, np.nan),
        weights=weights,
        order=np.broadcast_to(chosen, found.rows.shape).copy(),
        rows=np.rint(found.rows).astype(np.int64),
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
    >>> fit = solve(factored(sums, np.ones((1, 1))), 1)
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
