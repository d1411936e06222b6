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

    Parameters
    ----------
    values
        Values of any unit; NaN and values that are not positive are left out.

    Returns
    -------
    Tail

    Examples
    --------
    >>> found = tail((1 - np.arange(1000) / 1000) ** (-1 / 3))  # index 3
    >>> round(found.p50, 2), round(found.index, 1)
    (1.26, 3.1)
    """
    x = np.asarray(values, np.float64).ravel()
    x = np.sort(x[np.isfinite(x) & (x > 0)])
    unknown = float("nan")
    index = low = high = unknown
    quantiles = np.full(3, unknown)
    if len(x):
        quantiles = np.quantile(x, [0.5, 0.9, 0.99])
    most = round(TAIL * len(x))
    if most >= FEWEST:
        inverse = float(np.log(x[-most:] / x[-most - 1]).mean())
        if inverse > 0:  # all equal: no tail
            index = 1 / inverse
            low, high = (index * (1 + s * 1.96 / np.sqrt(most)) for s in (-1, 1))
    p50, p90, p99 = quantiles.tolist()
    return Tail(
        values=len(x),
        p50=p50,
        p90=p90,
        p99=p99,
        index=index,
        index_low=float(low),
        index_high=float(high),
    )
