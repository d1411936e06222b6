"""Hockney's model of a collective's time, fitted to measurements.

    T = alpha steps + wire / beta

``alpha`` is what a round costs however little is sent, ``beta`` the bus bandwidth that
large messages approach.  The fit minimizes the sum of *relative* deviations, not of
their squares: measurements scatter by a share of their value, and single slow ones
(another job on the network) must not move it.  It is a linear programme.

One pair (alpha, beta) fits one topology and number of ranks.  Over several it can be
far off: on a cube mesh of V100s 53% over n = 2 to 8, on NVSwitch 4%.

References
----------
R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2",
Parallel Computing 20 (1994) 389.
B. Iglewicz, D. C. Hoaglin, "How to Detect and Handle Outliers" (1993): a value whose
distance from the median exceeds 3.5 x MAD / 0.6745 is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import AnalysisError

from .collective import steps, wire_bytes

FAR = 3.5 / 0.6745
"""Median absolute deviations from the median from which on a value is an outlier."""

SMALLEST = 0.05
"""Relative deviations below this are scatter, however small the others are."""


@dataclass(frozen=True, kw_only=True)
class Hockney:
    """The two constants of the model."""

    alpha_s: float  # a round's latency
    beta_bytes_s: float  # infinity where time does not grow with size

    def time_s(
        self, collective: str, ranks: npt.ArrayLike, size_bytes: npt.ArrayLike
    ) -> Float64:
        """Time of collectives; arrays are broadcast against each other.

        Examples
        --------
        >>> float(Hockney(alpha_s=1e-6, beta_bytes_s=1e9).time_s("all_reduce", 4, 1000))
        7.5e-06
        """
        wire = wire_bytes(collective, ranks, size_bytes)
        return self.alpha_s * steps(collective, ranks) + wire / self.beta_bytes_s


USABLE = 0.5
"""Median residual at sizes left out, above which a fit is not to be used."""


@dataclass(frozen=True, kw_only=True)
class HockneyFit:
    """A fit and how far each measurement is from it."""

    model: Hockney
    residual: Float64  # [k] measured over fitted time - 1
    left_out: Float64  # [k] the same, fitted without measurements of that size
    outlier: Bool  # [k] by the residual that was left out

    @property
    def median(self) -> float:
        """Median of the absolute residuals that were left out."""
        return float(np.median(np.abs(self.left_out)))

    @property
    def usable(self) -> bool:
        """Whether times at sizes that were left out are within half of the fit's."""
        return self.median <= USABLE


def hockney_fit(
    collective: str,
    ranks: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    time_s: npt.ArrayLike,
) -> HockneyFit:
    """Fit alpha and beta, and say which measurements do not agree.

    Parameters
    ----------
    collective
        One of COLLECTIVES.
    ranks
        A number, or ``[k]``.
    size_bytes, time_s
        ``[k]`` sizes and times.

    Raises
    ------
    AnalysisError
        If there are not measurements of three sizes or more, all positive.

    Examples
    --------
    >>> size = np.array([1e3, 1e5, 1e6, 1e7])
    >>> fit = hockney_fit("broadcast", 2, size, 5e-6 + size / 2e9)
    >>> round(fit.model.alpha_s * 1e6, 6), round(fit.model.beta_bytes_s / 1e9, 6)
    (5.0, 2.0)
    """
    size = np.asarray(size_bytes, np.float64)
    took = np.asarray(time_s, np.float64)
    ok = size.shape == took.shape and size.ndim == 1
    if not ok or len(np.unique(size)) < 3 or not (np.minimum(size, took) > 0).all():
        raise AnalysisError(
            f"a fit needs positive times of three sizes or more, but sizes are {size} "
            f"and times {took}: measure more sizes"
        )
    rounds = np.broadcast_to(steps(collective, ranks), size.shape)
    wire = np.broadcast_to(wire_bytes(collective, ranks, size), size.shape)

    def predicted(keep: Bool) -> tuple[Hockney, Float64]:
        model = _fitted(rounds[keep], wire[keep], took[keep])
        return model, model.alpha_s * rounds + wire / model.beta_bytes_s

    model, every = predicted(np.ones(size.shape, bool))
    left_out = np.empty(size.shape)
    for one in np.unique(size):
        without = predicted(size != one)[1]
        left_out[size == one] = (took / without - 1)[size == one]
    return HockneyFit(
        model=model,
        residual=took / every - 1,
        left_out=left_out,
        outlier=outliers(left_out),
    )


def outliers(values: npt.ArrayLike) -> Bool:
    """Which values lie far from the median of all, measured by their usual distance.

    Examples
    --------
    >>> outliers([0.01, -0.02, 0.3, 0.0, 0.02]).tolist()
    [False, False, True, False, False]
    """
    each = np.asarray(values, np.float64)
    away = np.abs(each - np.median(each))
    return np.asarray(away > max(FAR * float(np.median(away)), SMALLEST), bool)


def _fitted(rounds: Float64, wire: Float64, took: Float64) -> Hockney:
    # min sum of (over + under), with over - under = 1 - (a rounds + w / beta) / t; the
    # columns are scaled to about 1, for seconds are far from what a solver calls zero
    columns = np.stack([rounds / took, wire / took], axis=1)
    scale = columns.max(axis=0)
    count = len(took)
    one = np.eye(count)
    from scipy.optimize import (
        linprog,  # half a second, and no verb but bandwidth needs it
    )

    found = linprog(
        np.concatenate([np.zeros(2), np.ones(2 * count)]),
        A_eq=np.concatenate([columns / scale, one, -one], axis=1),
        b_eq=np.ones(count),
        bounds=(0, None),
        method="highs",
    )
    alpha, inverse = (np.asarray(found.x, np.float64)[:2] / scale).tolist()
    return Hockney(
        alpha_s=alpha, beta_bytes_s=1 / inverse if inverse > 0 else float("inf")
    )
