r"""Column-stochastic maps from the loads of one layer to those of the next.

Cell (j, i) of a map M is the share of what expert i of a layer was given that expert j
of the next is given: M is non-negative and its columns add up to 1, so that it takes
shares to shares.  It is fitted to shares x and y of many iterations by

.. math:: \min_M \sum_t |y_t - M x_t|^2 + \lambda |M - M_0|^2

with :math:`M_0 = \bar y 1^T`, the map that ignores the previous layer.  This is the map
of MixNet, appendix B.1 (SIGCOMM 2025, arXiv 2501.03905), with two changes: a ridge
towards :math:`M_0`, for loads of one run vary little and leave most of M open, and the
columns are projected onto the simplex exactly instead of being punished for their sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]

ROUNDS = 2000
"""Maximum iterations of the solver; it stops earlier on convergence."""


def simplex(columns: npt.ArrayLike) -> Float64:
    """Project columns onto the probability simplex.

    Parameters
    ----------
    columns
        ``[..., m, n]``.

    Returns
    -------
    float64 array ``[..., m, n]``

    References
    ----------
    M. Held, P. Wolfe, H. P. Crowder, Math. Program. 6 (1974) 62: by sorting.

    Examples
    --------
    >>> simplex([[2.0], [1.5]]).tolist()
    [[0.75], [0.25]]
    """
    v = np.asarray(columns, np.float64)
    falling = -np.sort(-v, axis=-2)
    over = np.cumsum(falling, axis=-2) - 1
    place = np.arange(1, v.shape[-2] + 1)[:, None]
    kept = (falling - over / place > 0).sum(axis=-2, keepdims=True)
    shift = np.take_along_axis(over, kept - 1, axis=-2) / kept
    return np.asarray(np.maximum(v - shift, 0.0), np.float64)


def fit_transition(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    *,
    ridge: float = 1e-3,
    tolerance: float = 1e-9,
) -> Float64:
    """Fit column-stochastic maps between the loads of two layers, many at once.

    Parameters
    ----------
    before, after
        ``[..., T, m]`` and ``[..., T, n]``, loads of a layer and of the next in the
        same iterations, 0 and above; leading axes are fitted apart.  Rows are divided
        by their sums; one that is not known in both, or sums up to 0, is left out.
    ridge
        Pull towards the map that forgets, as a share of the mean of the eigenvalues of
        the moments of x about its mean.  0 wants at least m iterations that differ.
    tolerance
        The solver stops when no cell moves by more in a step.

    Returns
    -------
    float64 array ``[..., n, m]``
        Non-negative, columns add up to 1.  NaN where no iteration is known.

    Raises
    ------
    AnalysisError
        If the shapes do not belong together or the ridge is negative.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known = np.array([[0.9, 0.0], [0.1, 1.0]])
    >>> x = rng.dirichlet([1, 1], size=50)
    >>> fit_transition(x, x @ known.T, ridge=0).round(6).tolist()
    [[0.9, 0.0], [0.1, 1.0]]
    """
    x, y = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if x.ndim < 2 or y.ndim < 2 or x.shape[:-1] != y.shape[:-1]:
        raise AnalysisError(
            f"a map is fitted to loads [..., T, m] and [..., T, n] of the same "
            f"iterations, but they are {x.shape} and {y.shape}: align them"
        )
    if not ridge >= 0:
        raise AnalysisError(
            f"a ridge pulls and is not negative, but is {ridge}: choose 0 or more"
        )
    x, y, used = _shares(x, y)
    outer = x.shape[:-2]
    x = x.reshape(-1, *x.shape[-2:])
    y = y.reshape(-1, *y.shape[-2:])
    count = used.reshape(len(x), -1).sum(axis=1)
    mean_y = y.sum(axis=1) / np.maximum(count, 1)[:, None]
    maps = _fit(x, y, mean_y, count, ridge, tolerance)
    maps[count == 0] = np.nan
    return maps.reshape(*outer, y.shape[-1], x.shape[-1])


def apply_transition(maps: npt.ArrayLike, before: npt.ArrayLike) -> Float64:
    """Predict the loads of the next layer by a map, preserving the total.

    Parameters
    ----------
    maps
        ``[..., n, m]``.
    before
        ``[..., T, m]``.

    Returns
    -------
    float64 array ``[..., T, n]``

    Examples
    --------
    >>> apply_transition([[0.5, 0.0], [0.5, 1.0]], [[8.0, 2.0]]).tolist()
    [[4.0, 6.0]]
    """
    x, m = np.asarray(before, np.float64), np.asarray(maps, np.float64)
    return np.asarray(x @ np.swapaxes(m, -1, -2), np.float64)


def _shares(x: Float64, y: Float64) -> tuple[Float64, Float64, npt.NDArray[np.bool_]]:
    """Convert rows to shares, and mark the usable ones; the others are zero."""
    whole = np.asarray(np.isfinite(x).all(axis=-1) & np.isfinite(y).all(axis=-1))
    x = np.where(whole[..., None], x, 0.0)
    y = np.where(whole[..., None], y, 0.0)
    total_x, total_y = x.sum(axis=-1), y.sum(axis=-1)
    used = whole & (total_x > 0) & (total_y > 0)
    x = np.where(used[..., None], x, 0.0) / np.where(used, total_x, 1.0)[..., None]
    y = np.where(used[..., None], y, 0.0) / np.where(used, total_y, 1.0)[..., None]
    return x, y, used


def _fit(
    x: Float64,
    y: Float64,
    mean_y: Float64,
    count: npt.NDArray[np.int64],
    ridge: float,
    tolerance: float,
) -> Float64:
    """Fit maps ``[L, n, m]`` to shares ``[L, T, m]`` and ``[L, T, n]``."""
    size = x.shape[-1]
    # Step 1: moments, and what the map that forgets leaves over.
    forgets = np.repeat(mean_y[:, :, None], size, axis=2)
    gram = x.transpose(0, 2, 1) @ x
    left = y.transpose(0, 2, 1) @ x - forgets @ gram
    mean_x = x.sum(axis=1) / np.maximum(count, 1)[:, None]
    varied = np.trace(gram, axis1=1, axis2=2) - count * (mean_x**2).sum(axis=1)
    pull = ridge * np.maximum(varied, 0.0) / max(size - 1, 1)
    pull = pull + 1e-13 * np.maximum(np.trace(gram, axis1=1, axis2=2), 1e-300)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0) + pull[:, None]
    # Step 2: without the sign constraint.  Shares keep the columns' sums by themselves.
    turned = left @ vectors
    maps = forgets + (turned / values[:, None]) @ vectors.transpose(0, 2, 1)
    outside = maps.min(axis=(1, 2)) < -1e-12
    off = np.abs(maps.sum(axis=1) - 1).max(axis=1) > 1e-9
    again = np.flatnonzero(outside | off)
    if again.size:
        maps[again] = _projected(
            maps[again],
            forgets[again],
            turned[again],
            values[again],
            vectors[again],
            tolerance,
        )
    return np.asarray(np.maximum(maps, 0.0), np.float64)


def _projected(
    maps: Float64,
    forgets: Float64,
    turned: Float64,
    values: Float64,
    vectors: Float64,
    tolerance: float,
) -> Float64:
    """Solve the constrained least-squares problem by ADMM.

    S. Boyd et al., Found. Trends Mach. Learn. 3 (2011) 1, section 3; the step is
    rebalanced (section 3.4.1), and the factor of the moments serves every step.
    """
    back = vectors.transpose(0, 2, 1)
    # half way between the largest and the smallest eigenvalue, in their logarithm
    largest = values.max(axis=1)
    step = np.sqrt(largest * np.maximum(values.min(axis=1), 1e-8 * largest))
    feasible = simplex(maps)
    dual = np.zeros_like(maps)
    for turn in range(ROUNDS):
        aim = (feasible - dual - forgets) @ vectors * step[:, None, None]
        free = forgets + ((turned + aim) / (values + step[:, None])[:, None]) @ back
        mixed = 1.7 * free - 0.7 * feasible
        moved = simplex(mixed + dual)
        dual += mixed - moved
        apart = np.abs(free - moved).max(axis=(1, 2))
        change = np.abs(moved - feasible).max(axis=(1, 2))
        feasible = moved
        if max(float(apart.max()), float(change.max())) < tolerance:
            break
        if turn % 25 == 24:
            factor = np.where(apart > 10 * change, 2.0, 1.0)
            factor = np.where(change > 10 * apart, 0.5, factor)
            step = step * factor
            dual = dual / factor[:, None, None]
    return feasible
