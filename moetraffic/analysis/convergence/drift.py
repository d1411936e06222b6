r"""Drift of traffic shares, with the distance expected from sampling noise.

The distance of two sets of shares is their total variation,
:math:`\frac12 \sum_c |p_c - q_c|`: the share of the traffic to redirect to make them
equal, 0 to 1.  Shares of N tokens differ from their mean by sampling noise; each
distance has a noise floor computed from it.

Values are token copies ``[T, C]``, or bytes with the size of a copy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ive

from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.skew.measures import shares
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_CHUNK = 2_000_000
_NUMBERS = 2048


def distance_curve(values: npt.ArrayLike, reference: npt.ArrayLike) -> Float64:
    """Compute the total variation distance of each step's shares from a reference.

    Parameters
    ----------
    values
        ``[T, C]``, step first.
    reference
        ``[C]``, any scale.

    Returns
    -------
    float64 array ``[T]``
        0 to 1; NaN for steps with a NaN or without traffic, and everywhere if the
        reference has none.

    Examples
    --------
    >>> distance_curve([[1, 1, 2], [4, 0, 0]], [1, 1, 2]).tolist()
    [0.0, 0.75]
    """
    x = np.asarray(values, dtype=np.float64)
    parts = [total_variation(x[rows], reference) for rows in _row_blocks(x)]
    return np.concatenate([*parts, np.zeros(0)])


def step_change(values: npt.ArrayLike) -> Float64:
    """Compute the total variation distance between shares of successive steps.

    Parameters
    ----------
    values
        ``[T, C]``, step first.

    Returns
    -------
    float64 array ``[T]``
        The first, and where either step has no shares, NaN.

    Examples
    --------
    >>> step_change([[1, 1], [3, 1], [1, 3]]).tolist()
    [nan, 0.25, 0.5]
    """
    x = np.asarray(values, dtype=np.float64)
    found: Float64 = np.full(len(x), np.nan)
    for rows in _row_blocks(x[1:]):
        after = slice(rows.start + 1, rows.stop + 1)
        found[after] = total_variation(x[after], x[rows])
    return found


def distance_floor(
    copies: npt.ArrayLike, reference: npt.ArrayLike, *, experts_per_token: int = 1
) -> Float64:
    r"""Compute the expected distance of sampled shares from their probabilities.

    A column's copies are Binomial(N, kp) of N tokens with k experts each; the mean
    absolute deviation of a binomial count is, exactly, :math:`2 m \binom{N}{m} p^m
    (1-p)^{N-m+1}` with :math:`m = \lfloor Np \rfloor + 1` (De Moivre).  Half the sum
    over the columns is the mean of the total variation, whatever ties columns to each
    other.

    Parameters
    ----------
    copies
        Token copies of each step, any shape; fractions are rounded to tokens.
    reference
        ``[C]`` probabilities, any scale.
    experts_per_token
        k, distinct experts of a token.

    Returns
    -------
    float64 array, shape of ``copies``
        NaN without copies.

    References
    ----------
    P. Diaconis and S. Zabell, Statist. Sci. 6 (1991) 284: De Moivre's formula.

    Examples
    --------
    >>> round(float(distance_floor(2, [1, 1])), 6)  # 1/4 at two ends, 0 in the middle
    0.25
    """
    k = _positive(experts_per_token)
    number = np.asarray(copies, dtype=np.float64)
    p = shares(reference)
    tokens = np.rint(number / k)
    found: Float64 = np.full(number.shape, np.nan)
    usable: Bool = np.isfinite(tokens) & (tokens >= 1) & bool(np.isfinite(p).all())
    values, where = np.unique(tokens[usable], return_inverse=True)
    if len(values) > _NUMBERS:  # the floor is smooth in the copies: interpolate
        values = np.unique(np.rint(np.geomspace(values[0], values[-1], _NUMBERS)))
        where = np.searchsorted(values, tokens[usable]).clip(0, len(values) - 1)
    each = np.array([_mean_deviation(n, np.minimum(k * p, 1.0)) for n in values])
    found[usable] = (each / (values * k) / 2)[where] if len(values) else 0.0
    result: Float64 = found[()]
    return result


def _mean_deviation(n: float, p: Float64) -> float:
    """Compute the sum over p of the mean deviation E|X - np| of binomial counts."""
    inside = p[(p > 0) & (p < 1)]
    m = np.minimum(np.floor(n * inside) + 1, n)
    logs = gammaln(n + 1) - gammaln(m + 1) - gammaln(n - m + 1)
    logs = logs + m * np.log(inside) + (n - m + 1) * np.log1p(-inside)
    return float((2 * m * np.exp(logs)).sum())


def step_change_floor(
    values: npt.ArrayLike,
    *,
    experts_per_token: int = 1,
    copy_size: float = 1.0,
    window: int = 9,
) -> Float64:
    r"""Compute the expected step-to-step change due to sampling noise alone.

    Two counts of variance v each differ by :math:`2 v e^{-2v} (I_0(2v) + I_1(2v))` in
    the mean if they are Poisson; here v is :math:`N k p (1 - k p)`, so that it holds
    for few copies and, as :math:`\sqrt{4 v / \pi}`, for many.  p is the mean share of
    the ``window`` steps about each step: within them the router is taken to stay.

    Parameters
    ----------
    values
        ``[T, C]``, step first.
    experts_per_token
        k, distinct experts of a token.
    copy_size
        What one token copy counts in ``values``; bytes of a row for bytes.
    window
        Steps.

    Returns
    -------
    float64 array ``[T]``
        NaN where :func:`step_change` is.

    Examples
    --------
    >>> drawn = np.random.default_rng(0).multinomial(900, [0.5, 0.3, 0.2], 2000)
    >>> floor, seen = step_change_floor(drawn)[1:], step_change(drawn)[1:]
    >>> bool(abs(seen.mean() / floor.mean() - 1) < 0.05)
    True
    """
    k = _positive(experts_per_token)
    x = np.asarray(values, dtype=np.float64)
    found: Float64 = np.full(len(x), np.nan)
    reach = window // 2
    copies = x.sum(axis=1) / copy_size
    for rows in _row_blocks(x[1:]):
        first = max(rows.start - reach, 0)
        last = min(rows.stop + 1 + reach, len(x))
        part = shares(x[first:last])
        known: Bool = np.isfinite(np.asarray(part.sum(axis=1)))
        zero = np.zeros((1, part.shape[1]))
        passed = np.cumsum(np.where(known[:, None], part, 0.0), axis=0)
        passed = np.concatenate((zero, passed))
        count = np.concatenate(([0], np.cumsum(known)))
        steps = np.arange(rows.start + 1, rows.stop + 1)
        low = np.maximum(steps - 1 - reach, first) - first
        high = np.minimum(steps + reach, last - 1) + 1 - first
        held = np.maximum(count[high] - count[low], 1)
        p = np.clip((passed[high] - passed[low]) / held[:, None], 0.0, 1 / k)
        now, before = copies[steps], copies[steps - 1]
        known_both = np.isfinite(now) & np.isfinite(before)
        least = np.where(known_both, np.minimum(now, before), 0.0)
        usable: Bool = np.asarray(least > 0)
        # the harmonic mean of unequal numbers gives the variance of the difference
        both = 2 / (1 / now[usable] + 1 / before[usable])
        v = both[:, None] * p[usable] * (1 - k * p[usable])
        moved = _mean_difference(v)
        found[steps[usable]] = moved.sum(axis=1) / both / 2
    return found


def _mean_difference(v: Float64) -> Float64:
    """Approximate E|X - Y| of two Poisson counts of mean v to 5 digits."""
    root = np.linspace(0.0, 10.0, 4096)
    z = 2 * root**2
    exact = z * (ive(0, z) + ive(1, z))
    few: Float64 = np.interp(np.sqrt(v), root, exact)
    with_many = np.sqrt(4 * v / np.pi) * (1 - 1 / (16 * np.maximum(v, 1.0)))
    found: Float64 = np.where(v < 100, few, with_many)
    return found


def _row_blocks(x: Float64) -> list[slice]:
    if x.ndim != 2:
        raise AnalysisError(
            f"shares are of values [T, C], but the array has shape {x.shape}: give a "
            f"row a step and a column a cell"
        )
    size = max(1, _CHUNK // max(x.shape[1], 1))
    return [slice(at, min(at + size, len(x))) for at in range(0, len(x), size)]


def _positive(experts_per_token: int) -> int:
    if experts_per_token < 1:
        raise AnalysisError(
            f"a token has an expert or more, but experts_per_token is "
            f"{experts_per_token}: give k, at least 1"
        )
    return experts_per_token
