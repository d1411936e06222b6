r"""Attenuation bias: autocorrelation of shares that are measured with sampling noise.

Shares p follow an AR(1) with coefficient :math:`\phi`, but are measured by counts of N
tokens, which add white noise (errors in variables).  The measured autocorrelation is
then :math:`\rho_l = a \phi^l` from lag 1 on, with :math:`a = Var(p)/Var(share)`: the
lag-1 autocorrelation alone estimates :math:`a \phi`, which is attenuated by the noise.
The decay over many lags identifies both parameters, here by maximum likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from moetraffic.analysis.rhythm.periodicity import vertex
from moetraffic.arrays import Float64, Int64

from .bounds import longest_run

NAN = float("nan")

BINS = 256
"""Maximum number of frequency bins, which widen toward high frequencies."""

GRID = 41
"""Grid points per parameter; the grid is refined around the maximum."""

ZOOMS = 5

MARGIN = 3
"""Cells kept around what is not ruled out: a coarse grid may miss the ridge."""


@dataclass(frozen=True, kw_only=True)
class Persistence:
    """Persistence and noise of a series; NaN and a reason where unidentifiable."""

    phi: float = NAN  # AR(1) coefficient of the shares without sampling noise
    phi_low: float = NAN  # confidence interval from the profile likelihood
    phi_high: float = NAN
    noise_share: float = NAN  # white noise's part of the variance, 1 - a: 0 ... 1
    noise_low: float = NAN
    noise_high: float = NAN
    acf1: float = NAN  # a phi: lag-1 autocorrelation of the measured shares
    half_life: float = NAN  # steps until a deviation has halved: ln .5 / ln phi
    steps: int  # used
    series: float = NAN  # effective number of independent series
    reason: str = ""


def fit_memory(series: npt.ArrayLike) -> Persistence:
    r"""Fit an AR(1) plus white noise to shares, by the debiased Whittle likelihood.

    The likelihood is Whittle's with the exact expectation of the periodogram of n steps
    in place of the spectrum ("debiased"): at each Fourier frequency
    :math:`E I = \sigma^2 (a K_\phi + 1 - a)`, K the transform of
    :math:`(1 - |l|/n) \phi^{|l|}`.  It is the state-space likelihood but for terms that
    vanish with n.  All series share :math:`\phi` and a, each has its own variance and
    mean; what they are worth together follows from their correlations.

    Parameters
    ----------
    series
        ``[T]`` or ``[T, C]``: shares or loads of cells of one kind.  The longest run of
        steps that are known in all cells is used, and of more than 1024 cells as many,
        evenly chosen; cells that never vary are left out.

    Returns
    -------
    Persistence
        With 95% intervals; NaN where fewer than 16 steps are known, or where the series
        is indistinguishable from white noise.

    References
    ----------
    P. Whittle, Ark. Mat. 2 (1953) 423; A. M. Sykulski et al., Biometrika 106 (2019)
    251: the debiased Whittle likelihood.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = np.zeros((2000, 8))
    >>> for t in range(1, 2000):
    ...     p[t] = 0.9 * p[t - 1] + rng.normal(size=8)
    >>> found = fit_memory(p + rng.normal(size=p.shape) * p.std())
    >>> abs(found.phi - 0.9) < 0.03, abs(found.noise_share - 0.5) < 0.05
    (True, True)
    """
    x = _usable(np.asarray(series, np.float64))
    if len(x) < 16 or not x.shape[1]:
        why = f"{len(x)} steps of {x.shape[1]} cells that vary are too few"
        return Persistence(steps=len(x), reason=why)
    power, weight, owner = _periodogram(x)
    likelihood = _Likelihood(power, weight, owner, len(x), x.shape[1])
    # Step 1: the effective number of series, which requires a first estimate.
    worth = 1.0
    if x.shape[1] > 1:
        rough = _maximum(likelihood, 1.0, zooms=2)
        worth = _worth(x, rough[0], 1 - rough[1])
    # Step 2: the maximum, and the intervals.
    found = _maximum(likelihood, worth / x.shape[1])
    phi, noise, phi_range, noise_range, rise = found
    if rise < _drop():
        why = "indistinguishable from white noise"
        return Persistence(steps=len(x), reason=why, series=worth)
    half_life = float(np.log(0.5) / np.log(phi)) if 0 < phi < 1 else NAN
    return Persistence(
        phi=phi,
        phi_low=phi_range[0],
        phi_high=phi_range[1],
        noise_share=noise,
        noise_low=noise_range[0],
        noise_high=noise_range[1],
        acf1=(1 - noise) * phi,
        half_life=half_life,
        steps=len(x),
        series=worth,
    )


def _drop() -> float:
    """Compute the drop of the log-likelihood at the ends of a 95% interval."""
    return float(scipy.stats.chi2.ppf(0.95, 1)) / 2


def _usable(x: Float64) -> Float64:
    """Select the longest run of known steps of varying cells, standardized."""
    x = x.reshape(len(x), int(np.prod(x.shape[1:])))
    some = np.unique(np.linspace(0, max(x.shape[1] - 1, 0), min(x.shape[1], 1024)))
    x = x[:, some.astype(np.int64)]
    x = x[:, np.isfinite(x).any(axis=0)]
    whole = np.isfinite(x).all(axis=1) & (x.shape[1] > 0)
    first, last = longest_run(np.asarray(whole))
    x = x[first:last]
    if not len(x):
        return x
    apart = x - x.mean(axis=0)
    spread = np.sqrt((apart**2).mean(axis=0))
    varies = spread > 1e-9 * np.abs(x).max(axis=0)
    return np.asarray(apart[:, varies] / spread[varies], np.float64)


def _periodogram(x: Float64) -> tuple[Float64, Float64, Int64]:
    """Compute the binned periodogram: mean power and number of ordinates per bin."""
    steps = len(x)
    used = np.arange(1, (steps - 1) // 2 + 1)
    power = np.abs(np.fft.rfft(x, axis=0)[used]) ** 2 / steps
    if len(used) <= BINS:
        return power, np.ones(len(used)), np.arange(len(used))
    single = BINS // 2
    edges = np.geomspace(single, len(used), BINS - single + 1)
    edges = np.unique(np.concatenate((np.arange(single), np.rint(edges))))
    starts = edges[:-1].astype(np.int64)
    weight = np.diff(edges)
    owner = np.repeat(np.arange(len(starts)), weight.astype(np.int64))
    total = np.add.reduceat(power, starts, axis=0)
    return total / weight[:, None], weight, owner


class _Likelihood:
    """Log-likelihood evaluated on grids of phi and a."""

    def __init__(
        self,
        power: Float64,
        weight: Float64,
        owner: Int64,
        steps: int,
        cells: int,
    ) -> None:
        self.power, self.weight, self.owner = power * weight[:, None], weight, owner
        self.steps, self.cells = steps, cells

    def shapes(self, phi: Float64) -> Float64:
        """Compute the expected power of a unit-variance AR(1), ``[G, B]``."""
        n = self.steps
        z = phi[:, None] * np.exp(-2j * np.pi * np.arange(1, len(self.owner) + 1) / n)
        # sum over l < n of (1 - l/n) z^l, in closed form; z^n = phi^n
        last = (phi**n)[:, None]
        half = 1 / (1 - z) - z * (1 - last) / (n * (1 - z) ** 2)
        power = 2 * half.real - 1
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        return np.asarray(np.add.reduceat(power, starts, axis=1) / self.weight)

    def at(self, phi: Float64, a: Float64) -> Float64:
        """Evaluate the log-likelihood at phi ``[G]`` and a ``[G, A]``."""
        number = float(self.weight.sum())
        out = np.empty(a.shape)
        for row, (shape, amounts) in enumerate(zip(self.shapes(phi), a, strict=True)):
            part = amounts[:, None]
            expected = np.maximum(part * shape + (1 - part), 1e-12)
            scale = (1 / expected) @ self.power / number
            logs = np.log(expected) @ self.weight
            out[row] = -number * np.log(scale).sum(axis=1) - self.cells * logs
        return out


Range = tuple[float, float]


def _maximum(
    likelihood: _Likelihood,
    share: float,
    zooms: int = ZOOMS,
) -> tuple[float, float, Range, Range, float]:
    """Maximize the likelihood: phi, noise, intervals, gain over white noise."""
    drop = _drop()
    # phi near 1 needs a finer grid: by the logarithm of (1 + phi)/(1 - phi).  And a, by
    # the logarithm of the noise over what is new in p in a step: of a slow series that
    # ratio is known long before phi and a are, which would make a narrow ridge.
    low, high = np.array([-4.6, -14.0]), np.array([9.0, 14.0])
    floor = float(likelihood.at(np.zeros(1), np.zeros((1, 1)))[0, 0])
    for _ in range(zooms):
        turned, ratio = (np.linspace(low[i], high[i], GRID) for i in (0, 1))
        phi = np.tanh(turned / 2)
        a = 1 / (1 + np.exp(ratio) * (1 - phi[:, None] ** 2))
        value = likelihood.at(phi, a) * share
        best = float(value.max())
        # the grid closes in on all that is not ruled out, and MARGIN cells around it
        inside = value > best - 2 * drop - 0.5
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        low[0] = turned[max(rows[0] - MARGIN, 0)]
        high[0] = turned[min(rows[-1] + MARGIN, GRID - 1)]
        low[1] = ratio[max(columns[0] - MARGIN, 0)]
        high[1] = ratio[min(columns[-1] + MARGIN, GRID - 1)]
    row, column = np.unravel_index(int(value.argmax()), value.shape)
    best_turned = turned[0] + vertex(value[:, column], int(row))[0] * np.diff(turned)[0]
    reach = _interval(turned, value.max(axis=1), best - drop)
    # of anything else, the interval is its range over all that is not ruled out
    left = value >= best - drop
    kept = 1 - a[left]
    # not ruled out at the border of the ratios: no noise, or nothing but noise
    least = 0.0 if left[:, 0].any() else float(kept.min())
    most = 1.0 if left[:, -1].any() else float(kept.max())
    return (
        float(np.tanh(best_turned / 2)),
        float(1 - a[row, column]),
        (float(np.tanh(reach[0] / 2)), float(np.tanh(reach[1] / 2))),
        (least, most),
        best - floor * share,
    )


def _interval(x: Float64, y: Float64, level: float) -> Range:
    """Find the interval in which a profile exceeds a level, interpolated."""
    above = np.flatnonzero(y >= level)
    first, last = int(above[0]), int(above[-1])
    low, high = float(x[first]), float(x[last])
    if first > 0:
        low -= (
            (x[first] - x[first - 1]) * (y[first] - level) / (y[first] - y[first - 1])
        )
    if last < len(x) - 1:
        high += (x[last + 1] - x[last]) * (y[last] - level) / (y[last] - y[last + 1])
    return float(low), float(high)


def _worth(x: Float64, phi: float, a: float) -> float:
    """Compute the effective number of independent series: C^2 / sum of r^2.

    Two unrelated series have a mean squared sample correlation of
    ``(1 + 2 sum rho_l^2)/n``, which is subtracted.
    """
    steps, cells = x.shape
    r = x.T @ x / steps
    squares = float((r**2).sum()) - cells
    by_chance = (1 + 2 * a**2 * phi**2 / max(1 - phi**2, 1e-3)) / steps
    real = max(squares - cells * (cells - 1) * min(by_chance, 1.0), 0.0)
    # shares that add up to one have at least the correlation that this brings
    real = max(real, cells / (cells - 1))
    return float(cells**2 / (cells + real))
