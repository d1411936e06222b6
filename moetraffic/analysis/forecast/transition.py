r"""Column-stochastic maps from the loads of one layer to those of the next.

Cell (j, i) of a map M is the share of expert i's tokens that expert j of the next layer
receives: M is non-negative and its columns add up to 1, so that it maps shares to
shares.  It is fitted to shares x and y of many iterations by

.. math:: \min_M \sum_t |y_t - M x_t|^2 + \lambda |M - M_0|^2

with :math:`M_0 = \bar y 1^T`, the map that ignores the previous layer.  This is the map
of MixNet, appendix B.1 (SIGCOMM 2025, arXiv 2501.03905), with two changes: a ridge
towards :math:`M_0`, because loads of one run vary little and leave most of M open, and
columns are projected onto the simplex exactly instead of being punished for their sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

ROUNDS = 2000
"""Maximum iterations of the solver; it stops earlier on convergence."""


def simplex(columns: npt.ArrayLike) -> Float64:
    """Project the columns of ``[m, n]`` onto the probability simplex.

    References
    ----------
    M. Held, P. Wolfe, H. P. Crowder, Math. Program. 6 (1974) 62: by sorting.

    Examples
    --------
    >>> simplex([[2.0], [1.5]]).tolist()
    [[0.75], [0.25]]
    """
    v = np.asarray(columns, np.float64)
    falling = -np.sort(-v, axis=0)
    over = np.cumsum(falling, axis=0) - 1
    place = np.arange(1, len(v) + 1)[:, None]
    kept = (falling - over / place > 0).sum(axis=0, keepdims=True)
    shift = np.take_along_axis(over, kept - 1, axis=0) / kept
    return np.asarray(np.maximum(v - shift, 0.0), np.float64)


def fit_transition(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    *,
    ridge: float = 1e-3,
    tolerance: float = 1e-9,
) -> Float64:
    """Fit a column-stochastic map between the loads of two layers.

    Parameters
    ----------
    before, after
        ``[T, m]`` and ``[T, n]``, loads of a layer and of the next in the same
        iterations, 0 and above.  Rows are divided by their sums; one that is not known
        in both, or sums up to 0, is left out.
    ridge
        Pull towards the map that ignores the previous layer, 0 or more, as a share of
        the mean eigenvalue of the moments of x about its mean.  0 needs at least m
        iterations that differ.
    tolerance
        The solver stops when no cell moves by more in a step.

    Returns
    -------
    float64 array ``[n, m]``
        Non-negative, columns add up to 1.  NaN where no iteration is known.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known = np.array([[0.9, 0.0], [0.1, 1.0]])
    >>> x = rng.dirichlet([1, 1], size=50)
    >>> fit_transition(x, x @ known.T, ridge=0).round(6).tolist()
    [[0.9, 0.0], [0.1, 1.0]]
    """
    x, y = np.asarray(before, np.float64), np.asarray(after, np.float64)
    total_x, total_y = x.sum(axis=1), y.sum(axis=1)
    used = np.isfinite(total_x + total_y) & (total_x > 0) & (total_y > 0)
    count, size = int(used.sum()), x.shape[1]
    if not count:
        return np.full((y.shape[1], size), np.nan)
    x, y = x[used] / total_x[used, None], y[used] / total_y[used, None]
    # Step 1: moments, and what the map that ignores the previous layer leaves over.
    ignoring = np.repeat(y.mean(axis=0)[:, None], size, axis=1)
    gram = x.T @ x
    left = y.T @ x - ignoring @ gram
    trace = float(np.trace(gram))
    varied = max(trace - count * float((x.mean(axis=0) ** 2).sum()), 0.0)
    pull = ridge * varied / max(size - 1, 1) + 1e-13 * max(trace, 1e-300)
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0) + pull
    # Step 2: without the sign constraint, which keeps the sums of columns by itself.
    turned = left @ vectors
    fitted = ignoring + (turned / values) @ vectors.T
    if fitted.min() < -1e-12 or np.abs(fitted.sum(axis=0) - 1).max() > 1e-9:
        fitted = _projected(fitted, ignoring, turned, values, vectors, tolerance)
    return np.asarray(np.maximum(fitted, 0.0), np.float64)


def _projected(
    fitted: Float64,
    ignoring: Float64,
    turned: Float64,
    values: Float64,
    vectors: Float64,
    tolerance: float,
) -> Float64:
    """Solve the constrained least-squares problem by ADMM.

    S. Boyd et al., Found. Trends Mach. Learn. 3 (2011) 1, section 3; the step is
    rebalanced (section 3.4.1), and the factor of the moments serves every step.
    """
    # half way between the largest and the smallest eigenvalue, in their logarithm
    largest = float(values.max())
    step = float(np.sqrt(largest * max(float(values.min()), 1e-8 * largest)))
    feasible = simplex(fitted)
    dual = np.zeros_like(fitted)
    shift = np.zeros(fitted.shape[1])
    # arrays that every step uses again: allocating them takes longer than computing
    free, mixed, moved, scratch = (np.empty_like(fitted) for _ in range(4))
    constant, map_ = _step_of(ignoring, turned, values, vectors, step)
    for turn in range(ROUNDS):
        np.subtract(feasible, dual, out=scratch)
        np.matmul(scratch, map_, out=free)
        free += constant
        np.multiply(free, 1.7, out=mixed)
        mixed -= np.multiply(feasible, 0.7, out=scratch)
        np.add(mixed, dual, out=scratch)
        shift = _onto_simplex(scratch, shift, out=moved)
        dual += mixed
        dual -= moved
        apart = _largest(np.subtract(free, moved, out=scratch))
        change = _largest(np.subtract(moved, feasible, out=scratch))
        feasible, moved = moved, feasible
        if max(apart, change) < tolerance:
            break
        if turn % 25 == 24 and (apart > 10 * change or change > 10 * apart):
            factor = 2.0 if apart > change else 0.5
            step, dual = step * factor, dual / factor
            constant, map_ = _step_of(ignoring, turned, values, vectors, step)
    return feasible


def _step_of(
    ignoring: Float64, turned: Float64, values: Float64, vectors: Float64, step: float
) -> tuple[Float64, Float64]:
    """Compute the least-squares step of ADMM: C and K of ``C + aim @ K``."""
    map_ = (vectors * (step / (values + step))) @ vectors.T
    constant = ignoring + (turned / (values + step)) @ vectors.T - ignoring @ map_
    return constant, map_


def _onto_simplex(v: Float64, shift: Float64, *, out: Float64) -> Float64:
    """Project columns as :func:`simplex`, into ``out``; return the shifts ``[n]``.

    By Newton's method from the shifts of the step before, which are close: the sum of a
    shifted column is convex and piecewise linear, so that it ends after a few steps.
    """
    top = v.max(axis=0)
    shift = np.clip(shift, top - 1, top - 1 / len(v))
    for _ in range(len(v) + 2):
        np.subtract(v, shift, out=out)
        np.maximum(out, 0.0, out=out)
        over = out.sum(axis=0) - 1
        if np.abs(over).max() < 1e-14 * len(v):
            break
        shift = shift + over / np.maximum(np.count_nonzero(out, axis=0), 1)
    return shift


def _largest(values: Float64) -> float:
    return max(float(values.max()), -float(values.min()))
