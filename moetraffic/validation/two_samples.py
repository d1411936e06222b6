"""Two-sample distances between runs, and p-values by exchangeability of runs.

A *run* is one training from one seed.  Iterations of a run are autocorrelated, so a
test that assumes independence rejects too often; exchangeable units are whole runs
(:func:`outlier_p`) or long blocks of iterations (:func:`swap_p`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy
from scipy.spatial.distance import cdist, pdist

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]

FEWEST_RUNS = 3
"""Minimum number of real runs to estimate the variation between runs."""

FEWEST_PAIRS = 4
"""Minimum pairs of a real run and its synthetic trace for paired comparison."""

MOST_POINTS = 600
"""Maximum evenly spaced points per sample in sums over all pairs."""


# ---- distances -----------------------------------------------------------------


def kolmogorov_smirnov(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Compute the Kolmogorov-Smirnov distance of two samples, between 0 and 1.

    Parameters
    ----------
    x, y
        ``[n]`` and ``[m]``; what is not finite is left out.

    Returns
    -------
    float
        NaN where a sample is empty.

    Examples
    --------
    >>> kolmogorov_smirnov([0, 1, 2, 3], [2, 3, 4, 5])
    0.5
    """
    a, b = (v[np.isfinite(v)] for v in (np.asarray(x), np.asarray(y)))
    if not (len(a) and len(b)):
        return float("nan")
    with np.errstate(divide="ignore"):  # of the p-value, which is not used
        return float(scipy.stats.ks_2samp(a, b, method="asymp").statistic)


def energy_distance(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    r"""Energy distance of two samples of vectors.

    .. math:: \sqrt{2 E|X-Y| - E|X-X'| - E|Y-Y'|}

    with sample means over all pairs, a point with itself included (the V-statistic,
    which is never negative).

    Parameters
    ----------
    x, y
        ``[n, F]`` and ``[m, F]`` float; coordinates in comparable units.

    References
    ----------
    G. J. Szekely and M. L. Rizzo, Energy statistics, J. Statistical Planning and
    Inference 143 (2013), equation 2.

    Examples
    --------
    >>> energy_distance([[0.0]], [[2.0]])
    2.0
    """
    a, b = _points(x), _points(y)
    squared = 2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean()
    return float(np.sqrt(max(float(squared), 0.0)))


def maximum_mean_discrepancy(
    x: npt.ArrayLike, y: npt.ArrayLike, *, width: float
) -> float:
    r"""MMD of two samples of vectors with the kernel exp(-|x-y|^2 / (2 width^2)).

    .. math:: \sqrt{E k(X,X') + E k(Y,Y') - 2 E k(X,Y)}

    Parameters
    ----------
    x, y
        ``[n, F]`` and ``[m, F]`` float.
    width
        Of the kernel, above 0, in the coordinates' unit; :func:`median_distance` of
        the samples is usual.

    Returns
    -------
    float
        The biased estimate (a point with itself included), between 0 and sqrt(2).

    References
    ----------
    A. Gretton et al., A kernel two-sample test, JMLR 13 (2012), equation 5.
    """
    if not width > 0:
        raise AnalysisError(
            f"a kernel has a width above 0, but it is {width}: give the median distance"
        )
    a, b = _points(x), _points(y)

    def kernel(p: Float64, q: Float64) -> float:
        return float(np.exp(-cdist(p, q, "sqeuclidean") / (2 * width**2)).mean())

    return float(np.sqrt(max(kernel(a, a) + kernel(b, b) - 2 * kernel(a, b), 0.0)))


def median_distance(x: npt.ArrayLike) -> float:
    """Compute the median distance between points ``[n, F]``; 1 if it is 0."""
    distances = pdist(_points(x))
    middle = float(np.median(distances)) if distances.size else 0.0
    return middle if middle > 0 else 1.0


def _points(x: npt.ArrayLike) -> Float64:
    array = np.asarray(x, np.float64)
    if array.ndim != 2 or not len(array):
        raise AnalysisError(
            f"a sample of vectors is [n, F] with n above 0, but its shape is "
            f"{array.shape}: give one row a vector"
        )
    if len(array) > MOST_POINTS:
        array = array[np.linspace(0, len(array) - 1, MOST_POINTS).astype(np.int64)]
    return array


# ---- p-values ------------------------------------------------------------------


def outlier_p(among: npt.ArrayLike, to: npt.ArrayLike) -> float:
    r"""Compute the p-value of a run's distance from others under exchangeable runs.

    Distances d are taken for Euclidean in some space, in which runs of a kind scatter
    normally in :math:`\nu` directions alike.  With S runs of mean square distance
    :math:`2W` between two of them, and the new one's mean square distance Q to them,

    .. math::
        F = \frac{Q - W (S-1)/S}{W (1 + 1/S)} \sim F(\nu, \nu (S-1)).

    For one direction that is Student's prediction test exactly.  :math:`\nu = (\sum
    \lambda)^2 / \sum \lambda^2` is estimated from the runs' Gram matrix (as
    Satterthwaite matches moments), and comes out too small for few runs: the test then
    rejects less often than its level.

    Parameters
    ----------
    among
        ``[S, S]`` distances between the runs, symmetric, zeros on the diagonal.
    to
        ``[S]`` distances of the run in question to each of them.

    Returns
    -------
    float
        Between 0 and 1; 0 where only the run in question lacks the quantity (infinite
        distances), 1 where all agree or real runs lack it.

    Raises
    ------
    AnalysisError
        If there are fewer than FEWEST_RUNS runs, or shapes disagree.

    References
    ----------
    Distances and Gram matrix: J. C. Gower, Biometrika 53 (1966).  Moments: F. E.
    Satterthwaite, Biometrics Bulletin 2 (1946).

    Examples
    --------
    >>> runs = np.array([0.0, 1.0, 2.0, 3.0])
    >>> apart = np.abs(runs[:, None] - runs)
    >>> round(outlier_p(apart, np.abs(runs - 1.5)), 3)
    1.0
    >>> outlier_p(apart, runs + 50) < .001
    True
    """
    d, q = np.asarray(among, np.float64), np.asarray(to, np.float64)
    number = len(q)
    if d.shape != (number, number) or number < FEWEST_RUNS:
        raise AnalysisError(
            f"a run is compared with {FEWEST_RUNS} or more others, [S, S] distances, "
            f"but the shape is {d.shape} for {number}: give more seeds"
        )
    if not np.isfinite(d).all():
        return 1.0
    if not np.isfinite(q).all():
        return 0.0
    within, directions = _scatter(d)
    far = float((q**2).mean() - within * (number - 1) / number)
    if not within > 0:
        return 1.0 if far <= 0 else 0.0
    ratio = max(far / (within * (1 + 1 / number)), 0.0)
    return float(scipy.stats.f.sf(ratio, directions, directions * (number - 1)))


def outlier_limit(among: Float64, level: float) -> float:
    """Compute the distance to all runs at which :func:`outlier_p` is ``level``.

    Parameters
    ----------
    among
        ``[S, S]`` distances between the runs.
    level
        Between 0 and 1.

    Returns
    -------
    float
        NaN where the runs lack the quantity (infinite distances).
    """
    if not np.isfinite(among).all():
        return float("nan")
    number = len(among)
    within, directions = _scatter(among)
    ratio = scipy.stats.f.isf(level, directions, directions * (number - 1))
    square = within * ((number - 1) / number + float(ratio) * (1 + 1 / number))
    return float(np.sqrt(square))


def _scatter(among: Float64) -> tuple[float, float]:
    """Compute half the mean square distance of runs, and their degrees of freedom."""
    square, number = among**2, len(among)
    within = float(square.sum() / (number * (number - 1)) / 2)
    if not within > 0:
        return 0.0, 1.0
    gram = -0.5 * (
        square
        - square.mean(axis=0)
        - square.mean(axis=1, keepdims=True)
        + square.mean()
    )
    # a measure that is not quite Euclidean may leave a little below zero
    spread = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    return within, max(1.0, float(spread.sum() ** 2 / (spread**2).sum()))


def paired_p(synthetic: npt.ArrayLike, among: npt.ArrayLike) -> float:
    r"""Compute the p-value of distances of synthetic runs to real against real runs.

    Run k and synthetic run k, fitted to it, are both compared with all runs but k: if
    the synthetic run is like one more run of the same seed, either may be farther.  So
    the S differences of log mean distances go through a paired, one-sided t test with
    S - 1 degrees of freedom.  The differences share runs; the standard error is
    therefore taken with S - 1 in place of S.  In simulation about 5% of perfect
    synthetic runs are rejected at 5%, and up to 2% at 1% for 4 pairs, fewer for more.

    Parameters
    ----------
    synthetic
        ``[S, S]`` distance of synthetic run k (row) to run j; the diagonal is ignored.
    among
        ``[S, S]`` distances between the runs.

    Returns
    -------
    float
        0 where synthetic runs alone lack the quantity (infinite distances).

    Raises
    ------
    AnalysisError
        If there are fewer than FEWEST_PAIRS pairs.
    """
    c, d = np.asarray(synthetic, np.float64), np.asarray(among, np.float64)
    number = len(d)
    if c.shape != d.shape or d.shape != (number, number) or number < FEWEST_PAIRS:
        raise AnalysisError(
            f"{FEWEST_PAIRS} runs or more and a synthetic run of each are compared, "
            f"[S, S] distances, but the shapes are {c.shape} and {d.shape}: give more "
            "pairs"
        )
    off = ~np.eye(number, dtype=bool)
    if not np.isfinite(d[off]).all():
        return 1.0
    if not np.isfinite(c[off]).all():
        return 0.0
    means = [each.sum(axis=1, where=off) / (number - 1) for each in (c, d)]
    further = np.subtract(*np.log(np.maximum(means, 1e-12)))
    error = float(further.std(ddof=1)) / np.sqrt(number - 1)
    if not error > 0:
        return 1.0 if further.mean() <= 0 else 0.0
    return float(scipy.stats.t.sf(further.mean() / error, number - 1))


def swap_p(
    x: npt.ArrayLike, y: npt.ArrayLike, *, draws: int = 1999, seed: int = 0
) -> float:
    """Compute the p-value of the difference of two runs by swapping time blocks.

    Under the null hypothesis the two differ at random at each time, independently in
    each block: then the two may be swapped in any block.  A common trend does no harm.
    Blocks must be long relative to the correlation time of the runs; where they are
    not, the test rejects too often.

    Parameters
    ----------
    x, y
        ``[B, F]``: a row of statistics of each of B blocks of iterations, in the same
        order for both runs.
    draws
        Random swaps.
    seed
        Of these.

    Returns
    -------
    float
        From ``1 / (draws + 1)`` to 1; 1 where both are unknown (NaN), the smallest
        where one is.

    References
    ----------
    Paired (sign-flipping) permutation test: R. A. Fisher, The Design of Experiments
    (1935), section 21; plus one: B. Phipson and G. K. Smyth, arXiv 1603.05766.
    """
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.shape != b.shape or a.ndim != 2:
        raise AnalysisError(
            f"the same blocks of two runs are swapped, [B, F] each, but the shapes are "
            f"{a.shape} and {b.shape}: cut both alike"
        )
    known = np.isfinite(a), np.isfinite(b)
    if (known[0] != known[1]).any():
        return 1 / (draws + 1)
    gap = np.where(known[0], a - b, 0.0)
    # each figure in units of its own scatter, and a constant gap in those of the gap
    unit = np.sqrt((gap**2).mean(axis=0))
    gap = gap / np.where(unit > 0, unit, 1.0)
    seen = float((gap.mean(axis=0) ** 2).sum())
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (draws, len(gap)))
    drawn = ((signs @ gap / len(gap)) ** 2).sum(axis=1)
    return float((1 + (drawn >= seen * (1 - 1e-12)).sum()) / (1 + draws))
