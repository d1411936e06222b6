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

A distribution whose cells are all zero, hold a NaN or are none at all has no shares:
its result is NaN, without a warning; only :func:`sparsity` is known of zeros.  Values
may be counts, bytes or shares, integer or float; all measures but :func:`entropy` with
``bias_corrected`` are the same for ``c * values`` as for ``values``.  The
significance of a value is assessed against the noise floor of a balanced router, in
:mod:`moetraffic.analysis.noise.null_model`.  For many matrices of counts at once
there is :mod:`moetraffic.analysis.skew.kernels`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
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
    known = (total > 0) & np.isfinite(total)
    divided: Float64 = np.full_like(laid, np.nan)
    np.divide(laid, total, out=divided, where=known)
    return divided


def _distribution(values: npt.ArrayLike, axis: Axis, diagonal: bool) -> Float64:
    """Compute shares, or a single NaN if there is no cell, so that every sum is NaN."""
    p = shares(values, axis=axis, diagonal=diagonal)
    nothing: Float64 = np.full((*p.shape[:-1], 1), np.nan)
    return p if p.shape[-1] else nothing


def entropy(
    values: npt.ArrayLike,
    *,
    axis: Axis = -1,
    diagonal: bool = True,
    bias_corrected: bool = False,
) -> Float64:
    r"""Compute the Shannon entropy in bits, :math:`H = -\sum_i p_i \log_2 p_i`.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.
    bias_corrected
        Add the Miller-Madow correction :math:`(m - 1) / (2 N \ln 2)`, with N the sum of
        the values and m the number of cells above zero.  Only for *counts* of token
        copies: bytes would make N too large and the correction vanish.  The corrected
        value is not clipped, so it may pass :math:`\log_2 K`.

    Returns
    -------
    float64 array
        Bits, between 0 and :math:`\log_2 K`, of the axes that ``axis`` leaves.

    References
    ----------
    G. A. Miller, Note on the bias of information estimates, in Information Theory in
    Psychology II-B (1955), p. 95.

    Examples
    --------
    >>> float(entropy([4, 4, 4, 4]))
    2.0
    >>> round(float(entropy([4, 4, 4, 4], bias_corrected=True)), 6)
    2.135253
    """
    p = _distribution(values, axis, diagonal)
    # rounding may push the uniform distribution above its limit
    bits: Float64 = np.minimum(entr(p).sum(axis=-1) / LN2, np.log2(p.shape[-1]))
    if bias_corrected:
        counts = cells(values, axis=axis, diagonal=diagonal)
        total = counts.sum(axis=-1)
        seen = np.count_nonzero(counts, axis=-1)
        known = np.isfinite(bits)
        bits = bits + np.divide(
            seen - 1.0, 2 * LN2 * total, out=np.full_like(bits, np.nan), where=known
        )
    result: Float64 = bits[()]
    return result


def normalized_entropy(
    values: npt.ArrayLike,
    *,
    axis: Axis = -1,
    diagonal: bool = True,
    bias_corrected: bool = False,
) -> Float64:
    r"""Compute the entropy normalized by its maximum, :math:`H / \log_2 K`.

    For a rank matrix without its diagonal K is ``R(R-1)``.

    Parameters
    ----------
    values, axis, diagonal, bias_corrected
        As in :func:`entropy`.

    Returns
    -------
    float64 array
        Between 0 (all in one cell) and 1 (even); NaN where there is a single cell.

    Examples
    --------
    >>> import numpy as np
    >>> permutation = np.roll(np.eye(8), 1, axis=1)
    >>> round(float(normalized_entropy(permutation, axis=(0, 1), diagonal=False)), 6)
    0.516586
    """
    bits = entropy(values, axis=axis, diagonal=diagonal, bias_corrected=bias_corrected)
    number = cells(values, axis=axis, diagonal=diagonal).shape[-1]
    result: Float64 = bits / np.log2(number) if number > 1 else bits * np.nan
    return result


def gini(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    r"""Gini coefficient, :math:`\sum_i (2i - K - 1) p_{(i)} / K`, shares ascending.

    It is half the mean difference of two cells over their mean.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 0 (even) and ``1 - 1/K`` (all in one cell).

    Examples
    --------
    >>> round(float(gini([1, 2, 3, 4])), 6)
    0.25
    """
    p = np.sort(_distribution(values, axis, diagonal), axis=-1)
    number = p.shape[-1]
    weights = (2 * np.arange(1, number + 1) - number - 1) / number
    result: Float64 = np.maximum((p * weights).sum(axis=-1), 0.0)[()]
    return result


def cv(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Coefficient of variation: population standard deviation over mean.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 0 (even) and ``sqrt(K - 1)`` (all in one cell).

    Examples
    --------
    >>> float(cv([1, 3]))
    0.5
    """
    result: Float64 = np.sqrt(cv_squared(values, axis=axis, diagonal=diagonal))
    return result


def cv_squared(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    r"""Squared coefficient of variation, :math:`K \sum_i (p_i - 1/K)^2`.

    Its expectation under a balanced gate is known exactly, unlike that of :func:`cv`.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 0 (even) and ``K - 1`` (all in one cell).

    Examples
    --------
    >>> float(cv_squared([1, 3]))
    0.25
    """
    p = _distribution(values, axis, diagonal)
    number = p.shape[-1]
    result: Float64 = (number * ((p - 1.0 / number) ** 2).sum(axis=-1))[()]
    return result


def jain(values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True) -> Float64:
    """Jain's fairness index, ``1 / (1 + CV^2)``.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between ``1/K`` (all in one cell) and 1 (even).

    References
    ----------
    R. Jain, D. Chiu, W. Hawe, DEC-TR-301 (1984).

    Examples
    --------
    >>> round(float(jain([1, 2, 3, 4])), 6)
    0.833333
    """
    result: Float64 = 1.0 / (1.0 + cv_squared(values, axis=axis, diagonal=diagonal))
    return result


def max_over_mean(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    """Compute the largest cell over the mean cell (MaxVio of arXiv 2408.15664 plus 1).

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 1 (even) and K (all in one cell).

    Examples
    --------
    >>> float(max_over_mean([1, 2, 3, 4]))
    1.6
    """
    p = _distribution(values, axis, diagonal)
    result: Float64 = (p.shape[-1] * p.max(axis=-1))[()]
    return result


def max_violation(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    """Compute MaxVio, the largest cell over the mean cell, minus 1.

    For expert loads it is the relative excess of the most loaded expert over the mean.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 0 (even) and ``K - 1`` (all in one cell).

    References
    ----------
    L. Wang, H. Gao, C. Zhao, X. Sun, D. Dai, Auxiliary-Loss-Free Load Balancing
    Strategy for Mixture-of-Experts, arXiv 2408.15664, equation 4.

    Examples
    --------
    >>> round(float(max_violation([1, 2, 3, 4])), 6)
    0.6
    """
    result: Float64 = max_over_mean(values, axis=axis, diagonal=diagonal) - 1.0
    return result


def sparsity(
    values: npt.ArrayLike, *, axis: Axis = -1, diagonal: bool = True
) -> Float64:
    """Compute the share of the cells that are zero.

    Parameters
    ----------
    values, axis, diagonal
        As in :func:`cells`.

    Returns
    -------
    float64 array
        Between 0 (every cell has something) and 1 (nothing anywhere); NaN where a cell
        is not finite, or there is none.

    Examples
    --------
    >>> float(sparsity([0, 2, 0, 4]))
    0.5
    """
    laid = cells(values, axis=axis, diagonal=diagonal)
    number = laid.shape[-1]
    if not number:
        nothing: Float64 = np.full(laid.shape[:-1], np.nan)[()]
        return nothing
    known = np.isfinite(laid).all(axis=-1)
    zeros = np.count_nonzero(laid == 0, axis=-1) / number
    result: Float64 = np.where(known, zeros, np.nan)[()]
    return result


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


MEASURES = {
    "entropy": entropy,
    "normalized_entropy": normalized_entropy,
    "gini": gini,
    "cv": cv,
    "cv_squared": cv_squared,
    "jain": jain,
    "max_over_mean": max_over_mean,
    "max_violation": max_violation,
    "sparsity": sparsity,
}
"""Skew measures by name; each accepts ``axis`` and ``diagonal``."""
