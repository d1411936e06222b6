"""Measures of how unevenly counts or bytes are distributed over experts or ranks.

A measure takes an array and the axis (or axes) of one distribution, and returns a value
for each of the others.  Of a demand array ``[N, W, E]`` (iteration, sending rank,
expert) ``axis=(-2, -1)`` measures each matrix and ``axis=-1`` each rank's row;
``diagonal=False`` leaves out what a rank sends to itself.  Without cells, or where all
are zero or one is NaN, a measure is NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError

Axis = int | tuple[int, ...]


def cells(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Reshape the cells of each distribution to the last axis, ``[..., K]``.

    Parameters
    ----------
    values
        Non-negative array of any shape and real dtype.
    axis
        The axis or axes that make up one distribution.
    diagonal
        False leaves out the diagonal; ``axis`` then names the two axes of a square.

    Raises
    ------
    AnalysisError
        If a value is negative, or the diagonal of no square is to be left out.

    Examples
    --------
    >>> cells([[1, 2], [3, 4]], axis=(-2, -1), diagonal=False).tolist()
    [2.0, 3.0]
    """
    array = np.asarray(values, np.float64)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if (array < 0).any():
        raise AnalysisError(
            f"counts and bytes are never negative, but the smallest is {array.min()}: "
            "set unknown values to NaN"
        )
    moved = np.moveaxis(array, axes, range(-len(axes), 0))
    lead = moved.shape[: array.ndim - len(axes)]
    if diagonal:
        return moved.reshape(*lead, int(np.prod(moved.shape[len(lead) :])))
    if len(axes) != 2 or moved.shape[-1] != moved.shape[-2]:
        raise AnalysisError(
            f"only a square matrix has a diagonal to leave out, but axis {axis} of "
            f"shape {array.shape} is none: use diagonal=True"
        )
    size = moved.shape[-1]
    kept: Float64 = moved[..., ~np.eye(size, dtype=bool)]
    return kept


def shares(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Divide the cells of each distribution by their sum, ``[..., K]``.

    Shares are NaN where the sum is zero or not finite.

    Examples
    --------
    >>> shares([[1, 3], [0, 0]]).tolist()
    [[0.25, 0.75], [nan, nan]]
    """
    laid = cells(values, axis=axis, diagonal=diagonal)
    total = laid.sum(axis=-1, keepdims=True)
    return ratio(laid, np.where(np.isfinite(total), total, 0.0))


def entropy_bits(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    r"""Shannon entropy of the shares, :math:`H = -\sum_i p_i \log_2 p_i`, bits.

    Examples
    --------
    >>> float(entropy_bits([4, 4, 4, 4]))
    2.0
    """
    p = shares(values, axis=axis, diagonal=diagonal)
    if not p.shape[-1]:
        return np.full(p.shape[:-1], np.nan)
    terms = p * np.log2(np.where(p > 0, p, 1.0))
    bits: Float64 = np.maximum(-terms.sum(axis=-1), 0.0)
    return bits


def entropy(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    r"""Entropy over its maximum, :math:`H / \log_2 K`: 0 (one cell) to 1 (even).

    It is NaN of a single cell.  Without the diagonal of a square of R, K is R(R - 1).

    Examples
    --------
    >>> permutation = np.roll(np.eye(8), 1, axis=1)
    >>> round(float(entropy(permutation, axis=(0, 1), diagonal=False)), 6)
    0.516586
    """
    number = cells(values, axis=axis, diagonal=diagonal).shape[-1]
    bits = entropy_bits(values, axis=axis, diagonal=diagonal)
    value: Float64 = bits / (np.log2(number) if number > 1 else np.nan)
    return value


def max_mean(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    """Largest over mean cell, 1 (even) to K.

    Examples
    --------
    >>> float(max_mean([1, 2, 3, 4]))
    1.6
    """
    p = shares(values, axis=axis, diagonal=diagonal)
    if not p.shape[-1]:
        return np.full(p.shape[:-1], np.nan)
    value: Float64 = p.shape[-1] * p.max(axis=-1)
    return value


def cv(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Coefficient of variation: population standard deviation over mean.

    Examples
    --------
    >>> float(cv([1, 3]))
    0.5
    """
    p = shares(values, axis=axis, diagonal=diagonal)
    number = p.shape[-1]
    if not number:
        return np.full(p.shape[:-1], np.nan)
    value: Float64 = np.sqrt(number * ((p - 1.0 / number) ** 2).sum(axis=-1))
    return value


def gini(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    r"""Gini coefficient, :math:`\sum_i (2i - K - 1) p_{(i)} / K`, shares ascending.

    It is half the mean difference of two cells over their mean: 0 to ``1 - 1/K``.

    Examples
    --------
    >>> round(float(gini([1, 2, 3, 4])), 6)
    0.25
    """
    p = shares(values, axis=axis, diagonal=diagonal)
    number = p.shape[-1]
    if not number:
        return np.full(p.shape[:-1], np.nan)
    weights = (2 * np.arange(1, number + 1) - number - 1) / number
    value: Float64 = np.maximum((np.sort(p, axis=-1) * weights).sum(axis=-1), 0.0)
    return value


def zero(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Share of the cells that are zero; also where all are.

    Examples
    --------
    >>> float(zero([0, 2, 0, 4]))
    0.5
    """
    laid = cells(values, axis=axis, diagonal=diagonal)
    finite = np.isfinite(laid).all(axis=-1)
    return ratio((laid == 0).sum(axis=-1), np.where(finite, laid.shape[-1], 0))


MEASURES = {
    "entropy": entropy,
    "entropy_bits": entropy_bits,
    "max_mean": max_mean,
    "cv": cv,
    "gini": gini,
    "zero": zero,
}
"""Measures by name."""


def ratio(value: npt.ArrayLike, by: npt.ArrayLike) -> Float64:
    """Divide ``value / by`` without warnings; NaN where ``by`` is not above zero.

    Examples
    --------
    >>> ratio([1, 2], [4, 0]).tolist()
    [0.25, nan]
    """
    above, below = np.asarray(value, np.float64), np.asarray(by, np.float64)
    out: Float64 = np.full(np.broadcast_shapes(above.shape, below.shape), np.nan)
    np.divide(above, below, out=out, where=below > 0)
    result: Float64 = out[()]
    return result


def means_of_known(values: npt.ArrayLike) -> Float64:
    """Average the finite values along the last axis; NaN where there are none.

    Examples
    --------
    >>> means_of_known([[1, 3], [np.nan, 2]]).tolist()
    [2.0, 2.0]
    """
    array = np.asarray(values, np.float64)
    finite = np.isfinite(array)
    return ratio(np.where(finite, array, 0.0).sum(axis=-1), finite.sum(axis=-1))


def quantiles(values: npt.ArrayLike, shares_below: tuple[float, ...]) -> list[float]:
    """Return quantiles of the values, any shape; NaN where there are none.

    Examples
    --------
    >>> quantiles([1, 2, 3], (0.5, 1.0))
    [2.0, 3.0]
    """
    array = np.asarray(values, np.float64)
    if not array.size:
        return [float("nan")] * len(shares_below)
    return [float(value) for value in np.quantile(array, shares_below)]


def total_variation(p: npt.ArrayLike, q: npt.ArrayLike) -> Float64:
    r"""Total variation distance of shares, :math:`\frac12 \sum_c |p_c - q_c|`, 0 to 1.

    ``p``, ``q``: ``[..., C]`` amounts, which are divided by their sums; leading axes
    broadcast.  NaN where one of the two has no amount.

    Examples
    --------
    >>> total_variation([[1, 1, 2], [4, 0, 0]], [1, 1, 2]).tolist()
    [0.0, 0.75]
    """
    distance: Float64 = np.abs(shares(p) - shares(q)).sum(axis=-1) / 2
    return distance
