r"""Quantiles and tail index of a distribution.

The tail index :math:`\alpha` of :math:`P(X > x) \propto x^{-\alpha}` is estimated from
the m largest values by Hill's estimator, :math:`1/\alpha = \frac1m \sum_{i \le m}
\ln(x_{(i)} / x_{(m+1)})`; its relative standard error is :math:`1/\sqrt m` for
independent values.  A small index is a heavy tail: below 2 the variance is infinite.

References
----------
B. M. Hill, A Simple General Approach to Inference About the Tail of a Distribution,
Annals of Statistics 3 (1975).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

QUANTILES = (0.5, 0.9, 0.99)

TAIL = 0.05
"""Share of the values that are taken for the tail."""

FEWEST = 10
"""Fewest values of a tail whose index is estimated."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """Quantiles of a distribution, and the index of its upper tail; NaN if unknown."""

    values: int  # number of values
    p50: float
    p90: float
    p99: float
    index: float  # Hill's estimate; NaN of fewer than 190 values
    index_low: float  # 95% interval, if values are independent
    index_high: float


def tail(values: npt.ArrayLike) -> Tail:
    """Compute quantiles and tail index of positive values of any shape.

    ``values``: Values of any unit; NaN and values that are not positive are left out.

    Examples
    --------
    >>> found = tail((1 - np.arange(1000) / 1000) ** (-1 / 3))  # index 3
    >>> round(found.p50, 2), round(found.index, 1)
    (1.26, 3.1)
    """
    x = np.asarray(values, np.float64).ravel()
    x = np.sort(x[np.isfinite(x) & (x > 0)])
    quantiles = np.quantile(x, QUANTILES) if len(x) else np.full(3, np.nan)
    p50, p90, p99 = quantiles.tolist()
    index, low, high = tail_index(x, round(TAIL * len(x)))
    return Tail(
        values=len(x),
        p50=p50,
        p90=p90,
        p99=p99,
        index=index,
        index_low=low,
        index_high=high,
    )


def tail_index(ordered: Float64, most: int) -> tuple[float, float, float]:
    """Estimate the tail index of the ``most`` largest values, and its 95% interval.

    NaN of fewer than :data:`FEWEST`, or where they are all equal.
    """
    if most < FEWEST:
        return np.nan, np.nan, np.nan
    inverse = float(np.log(ordered[-most:] / ordered[-most - 1]).mean())
    if inverse <= 0:
        return np.nan, np.nan, np.nan
    aside = 1.96 / most**0.5
    return 1 / inverse, (1 - aside) / inverse, (1 + aside) / inverse
