r"""Oracle bound of count forecasts: the errors that sampling noise alone causes.

If N tokens choose an expert with probability q each, its count has mean Nq and variance
Nq(1-q).  No forecast of a count is better than the oracle, the forecast from the true
q: its errors are lower bounds for any router.  They assume independent tokens; tokens
of one text are correlated, and their noise is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erf, gammaln

from moetraffic.analysis.skew.measures import ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

NORMAL_FROM = 200.0
"""Mean count above which the normal approximation of a binomial is used."""


@dataclass(frozen=True, kw_only=True)
class OracleBounds:
    """Errors of the oracle forecast, one value per cell, ``[C]``.

    They are expected values: over a test part the oracle is above or below by chance.
    Beside each stands the standard deviation of one forecast of the cell.
    """

    variance: Float64  # of the sampling noise, token copies squared
    square_std: Float64  # of the squared error, token copies squared
    mape: Float64  # least mean of |x - f|/x over the counts above zero
    mape_std: Float64  # of |x - f|/x
    within: Float64  # [len(tolerances), C] largest share of copies forecast within each
    within_std: Float64  # [len(tolerances), C]


def count_variance(
    mean: npt.ArrayLike,
    tokens: npt.ArrayLike,
    *,
    k: int = 1,
    experts: int | None = None,
    held: int = 1,
) -> Float64:
    r"""Compute the variance of counts due to sampling noise alone, given their means.

    A cell that is one expert has :math:`m (1 - m/N)`, exactly, for every k: each token
    has it or not.  A rank that holds several of the experts can be chosen up to k times
    by a token; with j = m/N copies a token :math:`N j (1 - j/k) (E-k)/(E-1)`, which is
    exact for a balanced router.

    Parameters
    ----------
    mean
        m, expected token copies of a cell, any shape.
    tokens
        N, tokens that can choose it: of all ranks for the load of an expert, of the
        source for a cell of a matrix.  Broadcasts against ``mean``.
    k, experts, held
        Experts of a token; E and experts of a cell, for cells that hold several.

    Returns
    -------
    float64 array
        Token copies squared; NaN without tokens.

    Raises
    ------
    AnalysisError
        If ``held`` is above 1 and ``experts`` is not given, or k is not among 1 ... E.

    Examples
    --------
    >>> float(count_variance(1024, 4096, k=2))
    768.0
    """
    m, n = np.broadcast_arrays(
        np.asarray(mean, np.float64), np.asarray(tokens, np.float64)
    )
    if held < 1 or k < 1 or (experts is not None and not max(held, k) <= experts):
        raise AnalysisError(
            f"a cell holds 1 to E experts and a token has 1 to E, but held is {held}, "
            f"k {k} and experts {experts}: give numbers of the model"
        )
    if held > 1 and experts is None:
        raise AnalysisError(
            f"the noise of a cell that holds {held} experts depends on how many there "
            f"are, but experts is not given: give it"
        )
    share = ratio(m, n)
    if held == 1:
        return np.maximum(m * (1 - share), 0.0)[()]
    finite = (experts - k) / (experts - 1) if experts is not None and experts > 1 else 0
    return np.maximum(m * (1 - share / k) * finite, 0.0)[()]


def oracle_bounds(
    mean: npt.ArrayLike,
    tokens: npt.ArrayLike,
    *,
    k: int = 1,
    experts: int | None = None,
    held: int = 1,
    tolerances: Sequence[float] = (),
) -> OracleBounds:
    r"""Compute the oracle bounds of count forecasts: MAPE and share within tolerance.

    The forecast of a count X of known law that has the least MAPE is the median
    of X weighted by 1/X, and the best for a tolerance x is that f for which the copies
    in ``f/(1+x) <= X <= f/(1-x)`` are most.  For large counts these are
    :math:`\sqrt{2/\pi} \, \sigma/m` and :math:`erf(x m / (\sigma \sqrt 2))`; small ones
    are summed over the binomial law (of the same mean and variance).

    ``tolerances``: Fractions in (0, 1).

    Returns
    -------
    OracleBounds
        NaN where the mean is not above zero.

    Examples
    --------
    >>> found = oracle_bounds([1024.0], [4096.0], k=2, tolerances=[0.05])
    >>> found.mape.round(4).tolist(), found.within.round(3).tolist()
    ([0.0216], [[0.935]])
    """
    m = np.atleast_1d(np.asarray(mean, np.float64))
    variance = np.atleast_1d(count_variance(m, tokens, k=k, experts=experts, held=held))
    mape: Float64 = np.full(m.shape, np.nan)
    within: Float64 = np.full((len(tolerances), *m.shape), np.nan)
    usable = (m > 0) & np.isfinite(variance)
    exact = usable & (variance <= 0)
    mape[exact], within[:, exact] = 0.0, 1.0
    large = usable & ~exact & (m >= NORMAL_FROM)
    relative = np.sqrt(variance[large]) / m[large]
    mape[large] = np.sqrt(2 / np.pi) * relative
    for at, tolerance in enumerate(tolerances):
        within[at, large] = erf(tolerance / (relative * np.sqrt(2)))
    small = np.flatnonzero(usable & ~exact & ~large)
    for first in range(0, len(small), 512):
        part = small[first : first + 512]
        _small(part, m, variance, tolerances, mape, within)
    # the fourth central moment of a binomial is 3 v^2 + v (1 - 6 q (1 - q)), of which
    # the last factor is at most 1; |x - f|/x is nearly half-normal
    return OracleBounds(
        variance=variance,
        square_std=np.sqrt(2 * variance**2 + variance),
        mape=mape,
        mape_std=mape * np.sqrt(np.pi / 2 - 1),
        within=within,
        within_std=np.sqrt(within * (1 - within)),
    )


def _small(
    part: Int64,
    mean: Float64,
    variance: Float64,
    tolerances: Sequence[float],
    mape: Float64,
    within: Float64,
) -> None:
    """Compute the bounds of small counts by summation over their distribution."""
    m, v = mean[part, None], variance[part, None]
    top = int(np.ceil((m + 12 * np.sqrt(v) + 12).max()))
    x = np.arange(top + 1.0)
    probability = _law(x, m, v)
    copies = np.cumsum(probability * x, axis=1) / m
    # Step 1: the weighted median, and the mean relative distance to it.
    weight = np.zeros_like(probability)
    np.divide(probability, x, out=weight, where=x > 0)
    total = weight.sum(axis=1, keepdims=True)
    median = np.argmax(np.cumsum(weight, axis=1) >= total / 2, axis=1)[:, None]
    hit = 1 - probability[:, 0]
    mape[part] = (weight * np.abs(x - median)).sum(axis=1) / np.maximum(hit, 1e-300)
    # Step 2: the tolerance window, starting at a count, with the most copies.
    low = np.arange(1, top + 1)
    for at, tolerance in enumerate(tolerances):
        reach = low * (1 + tolerance) / (1 - tolerance) if tolerance < 1 else low * top
        high = np.minimum(np.floor(reach + 1e-9), top).astype(np.int64)
        inside = copies[:, high] - copies[:, low - 1]
        within[at, part] = np.minimum(inside.max(axis=1), 1)


def _law(x: Float64, mean: Float64, variance: Float64) -> Float64:
    """Compute binomial probabilities ``[c, n]`` from mean and variance, or Poisson."""
    q = np.clip(1 - variance / mean, 0.0, 1.0)
    poisson = q < 1e-9
    safe = np.where(poisson, 0.5, q)
    number = np.maximum(mean / safe, mean)
    # a fractional number of trials is extended by the gamma function
    short = np.maximum(number - x, -0.5)
    with np.errstate(divide="ignore"):
        log = (
            gammaln(number + 1)
            - gammaln(short + 1)
            + x * np.log(safe)
            + (number - x) * np.log1p(-np.minimum(safe, 1 - 1e-16))
        )
    log = np.where(x <= number + 1e-9, log, -np.inf)
    log = np.where(poisson, x * np.log(mean) - mean, log) - gammaln(x + 1)
    probability = np.exp(log)
    return np.asarray(probability / probability.sum(axis=1, keepdims=True), np.float64)
