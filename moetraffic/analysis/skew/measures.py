"""Measures of load skew over experts, ranks or rank pairs: entropy, Gini, CV, max/mean.

Every measure takes an array and the axis (or axes) that make up one distribution, and
returns one value for each of the others.  Of a demand array ``[N, W, E]``
(occurrence, sending rank, expert):

    axis=(-2, -1)   each matrix as one distribution over its W x E cells -> [N]
    axis=-1         each rank's row                                      -> [N, W]
    axis=-2         each expert's column                                 -> [N, E]

``diagonal=False`` excludes a square matrix's diagonal: rank-local traffic never crosses
the network.  Statistics of routing keep it, statistics of the network
leave it out.

A distribution without cells, whose cells are all zero or hold a NaN, has no shares: its
measures are NaN, without a warning; only :func:`sparsity` is defined for zeros.  Values
may be counts, bytes or shares, integer or float; their unit does not matter.  The
significance of a value is assessed against the noise floor of a balanced router, in
:mod:`moetraffic.analysis.noise.floors`.  For many matrices of counts at once
there is :mod:`moetraffic.analysis.skew.kernels`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError

Axis = int | tuple[int, ...]

LN2 = float(np.log(2.0))


def cells(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Reshape the cells of each distribution to the last axis.

    Parameters
    ----------
    values
        Non-negative array of any shape and real dtype.
    axis
        The axis or axes that make up one distribution.
    diagonal
        False leaves out the diagonal; ``axis`` then names the two axes of a square.

    Returns
    -------
    float64 array ``[..., K]``
        K cells in row-major order; ``R(R-1)`` of them without the diagonal.

    Raises
    ------
    AnalysisError
        If a value is negative, an axis does not exist, or the diagonal of something
        that is not square is to be left out.

    Examples
    --------
    >>> cells([[1, 2], [3, 4]], axis=(-2, -1), diagonal=False).tolist()
    [2.0, 3.0]
    """
    array = np.asarray(values, dtype=np.float64)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    distinct = {a % array.ndim for a in axes if -array.ndim <= a < array.ndim}
    if not axes or len(distinct) < len(axes):
        raise AnalysisError(
            f"a distribution's axes must be distinct axes of the array, but axis is "
            f"{axis} and the shape {array.shape}: name some of its {array.ndim} axes"
        )
    if (array < 0).any():
        raise AnalysisError(
            f"counts and bytes are never negative, but the smallest is {array.min()}: "
            f"remove the marks of what is unknown, or set them to NaN"
        )
    moved = np.moveaxis(array, axes, range(-len(axes), 0))
    if not diagonal:
        if len(axes) != 2 or moved.shape[-1] != moved.shape[-2]:
            raise AnalysisError(
                f"only a square matrix has a diagonal to leave out, but axis {axis} of "
                f"shape {array.shape} is none: use diagonal=True"
            )
        moved = _off_diagonal(moved)
    lead = array.ndim - len(axes)
    return moved.reshape(*moved.shape[:lead], int(np.prod(moved.shape[lead:])))


def _off_diagonal(square: Float64) -> Float64:
    """Remove the diagonal: ``[..., R, R]`` to ``[..., R - 1, R]``, row-major order."""
    *lead, _, size = square.shape
    if size < 2:
        return square[..., :0, :]
    # Dropping the first cell puts the diagonal at the end of each row of R + 1.
    flat = square.reshape(*lead, size * size)[..., 1:]
    kept = flat.reshape(*lead, size - 1, size + 1)[..., :-1]
    return kept.reshape(*lead, size - 1, size)


def shares(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Divide the cells of each distribution by their sum.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array ``[..., K]``
        Shares that add up to 1; all NaN where the sum is zero or not finite.

    Examples
    --------
    >>> shares([[1, 3], [0, 0]]).tolist()
    [[0.25, 0.75], [nan, nan]]
    """
    laid = cells(values, axis=axis, diagonal=diagonal)
    total = laid.sum(axis=-1, keepdims=True)
    return ratio(laid, np.where(np.isfinite(total), total, 0.0))


class Measure(Protocol):
    """Skew measure of distributions: a value for each, of the axes left."""

    def __call__(
        self, values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
    ) -> Float64:
        """Measure the distributions of ``values``, with arguments of :func:`cells`."""


MEASURES: dict[str, Measure] = {}
"""Skew measures by name."""

PARAMETERS = """

Parameters
----------
values, axis, diagonal
    As in :func:`cells`.
"""


def measure(of_shares: Callable[[Float64], Float64]) -> Measure:
    """Turn a function of shares ``[..., K]`` into a measure listed in MEASURES."""

    def measured(
        values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
    ) -> Float64:
        p = shares(values, axis=axis, diagonal=diagonal)
        if not p.shape[-1]:  # a single NaN, so that every sum is NaN
            p = np.full((*p.shape[:-1], 1), np.nan)
        result: Float64 = of_shares(p)[()]
        return result

    measured.__name__ = measured.__qualname__ = of_shares.__name__
    measured.__doc__ = f"{inspect.getdoc(of_shares)}{PARAMETERS}"
    MEASURES[of_shares.__name__] = measured
    return measured


def _entropy(p: Float64) -> Float64:
    # rounding may push the uniform distribution above its limit
    bits: Float64 = np.minimum(entr(p).sum(axis=-1) / LN2, np.log2(p.shape[-1]))
    return bits


@measure
def entropy(p: Float64) -> Float64:
    r"""Compute the Shannon entropy in bits, :math:`H = -\sum_i p_i \log_2 p_i`.

    Between 0 and :math:`\log_2 K`.

    Examples
    --------
    >>> float(entropy([4, 4, 4, 4]))
    2.0
    """
    return _entropy(p)


@measure
def normalized_entropy(p: Float64) -> Float64:
    r"""Compute the entropy normalized by its maximum, :math:`H / \log_2 K`.

    Between 0 (all in one cell) and 1 (even); NaN where there is a single cell.  For a
    rank matrix without its diagonal K is ``R(R-1)``.

    Examples
    --------
    >>> import numpy as np
    >>> permutation = np.roll(np.eye(8), 1, axis=1)
    >>> round(float(normalized_entropy(permutation, axis=(0, 1), diagonal=False)), 6)
    0.516586
    """
    number = p.shape[-1]
    return _entropy(p) / (np.log2(number) if number > 1 else np.nan)


@measure
def gini(p: Float64) -> Float64:
    r"""Gini coefficient, :math:`\sum_i (2i - K - 1) p_{(i)} / K`, shares ascending.

    It is half the mean difference of two cells over their mean, between 0 (even) and
    ``1 - 1/K`` (all in one cell).

    Examples
    --------
    >>> round(float(gini([1, 2, 3, 4])), 6)
    0.25
    """
    number = p.shape[-1]
    weights = (2 * np.arange(1, number + 1) - number - 1) / number
    value: Float64 = np.maximum((np.sort(p, axis=-1) * weights).sum(axis=-1), 0.0)
    return value


def _cv_squared(p: Float64) -> Float64:
    number = p.shape[-1]
    return np.asarray(number * ((p - 1.0 / number) ** 2).sum(axis=-1))


@measure
def cv(p: Float64) -> Float64:
    """Coefficient of variation: population standard deviation over mean.

    Between 0 (even) and ``sqrt(K - 1)`` (all in one cell).

    Examples
    --------
    >>> float(cv([1, 3]))
    0.5
    """
    return np.sqrt(_cv_squared(p))


@measure
def cv_squared(p: Float64) -> Float64:
    r"""Squared coefficient of variation, :math:`K \sum_i (p_i - 1/K)^2`.

    Its expectation under a balanced router is known exactly, unlike that of :func:`cv`.

    Examples
    --------
    >>> float(cv_squared([1, 3]))
    0.25
    """
    return _cv_squared(p)


@measure
def max_over_mean(p: Float64) -> Float64:
    """Compute the largest cell over the mean cell, between 1 (even) and K.

    Examples
    --------
    >>> float(max_over_mean([1, 2, 3, 4]))
    1.6
    """
    return np.asarray(p.shape[-1] * p.max(axis=-1))


def sparsity(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    """Compute the share of the cells that are zero.

    Returns
    -------
    float64 array
        Between 0 and 1; NaN where a cell is not finite, or there is none.

    Examples
    --------
    >>> float(sparsity([0, 2, 0, 4]))
    0.5
    """
    laid = cells(values, axis=axis, diagonal=diagonal)
    known = np.isfinite(laid).all(axis=-1)
    return ratio((laid == 0).sum(axis=-1), np.where(known, laid.shape[-1], 0))


MEASURES["sparsity"] = sparsity


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
    known = np.isfinite(array)
    return ratio(np.where(known, array, 0.0).sum(axis=-1), known.sum(axis=-1))
