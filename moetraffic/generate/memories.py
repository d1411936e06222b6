r"""Fit several AR(1) processes to a series observed with known noise.

A series that is the sum of J independent AR(1) of share :math:`a_j` of its variance and
of white noise of share :math:`a_0` has the autocorrelation
:math:`\rho_l = \sum_j a_j \phi_j^l`.  Its likelihood is Whittle's with the exact
expectation of the periodogram of n steps, as in
:mod:`moetraffic.analysis.forecast.attenuation`, which fits one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.stats import norm

Float64 = npt.NDArray[np.float64]

MOST_MEMORIES = 3
FREQUENCIES = 150
"""That are told apart; higher ones are averaged in ever wider bins."""

GAIN = 4.0
"""By which another memory must raise the log-likelihood of independent series."""

FASTEST, SLOWEST = -3.0, 8.0
"""Range of the logarithm of (1 + phi)/(1 - phi)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memories:
    """Autoregressive time scales of a series, the fastest first."""

    phi: Float64  # [J]
    share: Float64  # [J] of the variance seen; with the noise's they add up to 1
    phi_low: Float64  # [J] interval
    phi_high: Float64  # [J]
    noise: float  # share of the noise
    gain: float  # log-likelihood above white noise


def fit_memories(
    series: Float64,
    *,
    weight: Float64,
    noise_share: float,
    worth: float,
    most: int = MOST_MEMORIES,
    slowest: float = 0.0,
    confidence: float = 0.95,
) -> Memories:
    """Fit as many AR(1) processes as the series supports.

    Parameters
    ----------
    series
        ``[n, C]`` cells of one kind, standardized: mean 0, variance 1.
    weight
        ``[C]`` of each series, with the sum 1.
    noise_share
        Of the variance, 0 to below 1.
    worth
        How many independent series the C are worth.
    most
        Memories to try.
    slowest
        Iterations of the longest time scale; 0: as long as may be.
    confidence
        Of the intervals.

    Returns
    -------
    Memories
        At least one.
    """
    found = _Fit(series, weight, noise_share, worth, slowest)
    best = found.maximum(1)
    for count in range(2, most + 1):
        more = found.maximum(count, best)
        if found.value(more) < found.value(best) + GAIN:
            break
        best = more
    phi, share = found.told(best)
    error = found.errors(best)
    reach = float(norm.ppf((1 + confidence) / 2)) * error
    order = np.argsort(phi)
    turned = best[: len(phi)]
    return Memories(
        phi=phi[order],
        share=share[order],
        phi_low=np.tanh((turned - reach) / 2)[order],
        phi_high=np.tanh((turned + reach) / 2)[order],
        noise=noise_share,
        gain=found.value(best) - found.white,
    )


class _Fit:
    """The likelihood over (log odds of phi, log ratios of shares)."""

    def __init__(
        self,
        series: Float64,
        weight: Float64,
        noise: float,
        worth: float,
        slowest: float,
    ) -> None:
        self.slowest = min(SLOWEST, np.log(2 * slowest)) if slowest else SLOWEST
        steps = len(series)
        self.steps, self.noise = steps, noise
        power = np.abs(np.fft.rfft(series, axis=0)) ** 2 / steps
        self.used = np.arange(1, (steps - 1) // 2 + 1)
        power = power[self.used] @ weight
        single = min(len(self.used), FREQUENCIES // 2)
        edges = np.unique(
            np.r_[
                np.arange(single),
                np.rint(np.geomspace(max(single, 1), len(self.used), single + 1)),
            ]
        ).astype(np.int64)
        self.starts = edges[edges < len(self.used)]
        self.weight = np.diff(np.r_[self.starts, len(self.used)]).astype(np.float64)
        self.power = np.add.reduceat(power, self.starts) / self.weight
        self.turn = np.exp(-2j * np.pi * self.used / steps)
        self.worth = worth
        ones = np.ones_like(self.power)
        self.white = float(self._log_likelihood(ones))

    def shape(self, phi: Float64) -> Float64:
        """Expected power ``[J, B]`` of AR(1) of n steps and variance 1."""
        n = self.steps
        z = phi[:, None] * self.turn
        last = (phi**n)[:, None]
        half = 1 / (1 - z) - z * (1 - last) / (n * (1 - z) ** 2)
        power = 2 * half.real - 1
        return np.asarray(np.add.reduceat(power, self.starts, axis=1) / self.weight)

    def told(self, at: Float64) -> tuple[Float64, Float64]:
        """phi ``[J]`` and shares ``[J]`` of a point."""
        count = (len(at) + 1) // 2
        phi = np.tanh(np.clip(at[:count], FASTEST, self.slowest) / 2)
        ratio = np.exp(np.clip(np.r_[0.0, at[count:]], -12, 12))
        return phi, (1 - self.noise) * ratio / ratio.sum()

    def value(self, at: Float64) -> float:
        """Log-likelihood, of as many series as these are worth."""
        phi, share = self.told(at)
        expected = share @ self.shape(phi) + self.noise
        outside = np.clip(at[: len(phi)], FASTEST, self.slowest) - at[: len(phi)]
        return self._log_likelihood(expected) - float((outside**2).sum())

    def _log_likelihood(self, expected: Float64) -> float:
        number = float(self.weight.sum())
        scale = float(((self.power / expected) * self.weight).sum()) / number
        logs = float((np.log(expected) * self.weight).sum())
        return float(self.worth * (-number * np.log(scale) - logs))

    def _cost(self, at: Any, /) -> float:
        return -self.value(at)

    def maximum(self, count: int, before: Float64 | None = None) -> Float64:
        """The best point with so many memories, starting from the best with fewer."""
        if before is None:
            starts = [np.array([turned]) for turned in (-1.0, 1.5, 4.5)]
            starts = [max(starts, key=self.value)]
        else:
            phi, ratios = before[: count - 1], np.r_[0.0, before[count - 1 :]]
            starts = [
                np.r_[phi, new, ratios[1:], ratios.mean() - 1] for new in (-1.0, 2.5)
            ]
        best: Float64 | None = None
        for start in starts:
            found = minimize(
                self._cost,
                start,
                method="Nelder-Mead",
                options={"xatol": 1e-3, "fatol": 1e-4, "maxiter": 150 * count},
            )
            if best is None or -found.fun > self.value(best):
                best = np.asarray(found.x, np.float64)
        assert best is not None
        return best

    def errors(self, at: Float64) -> Float64:
        """Standard errors of the log odds of phi, ``[J]``, by the likelihood's bend."""
        size, step = len(at), 0.02
        bend = np.zeros((size, size))
        unit = np.eye(size) * step
        for a in range(size):
            for b in range(a, size):
                bend[a, b] = bend[b, a] = (
                    self.value(at + unit[a] + unit[b])
                    - self.value(at + unit[a] - unit[b])
                    - self.value(at - unit[a] + unit[b])
                    + self.value(at - unit[a] - unit[b])
                ) / (4 * step**2)
        # a direction that nothing tells has no bend, and any error
        values, vectors = np.linalg.eigh(-bend)
        inverse = (vectors / np.maximum(values, 1e-3)) @ vectors.T
        return np.asarray(np.sqrt(np.diag(inverse))[: (size + 1) // 2], np.float64)
