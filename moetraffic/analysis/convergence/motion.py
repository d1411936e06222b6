r"""Motion of levels under white noise: a walk, a return to a level, or none.

The model of a level is an autoregressive state under white noise,

.. math:: y_t = x_t + \eta_t, \quad x_t = \phi x_{t-1} + \epsilon_t,

the same for all columns.  The cosine transform (DCT-II) makes the coefficients of a
random walk under white noise, :math:`\phi = 1`, exactly independent, with variances
:math:`r (1 + \kappa / (4 \sin^2(\pi j / 2n)))`, :math:`\kappa` the ratio of the
variances of :math:`\epsilon` and :math:`\eta`; those of :math:`\phi < 1` are so
closely.  So the two hypotheses, no motion and a random walk, are compared by likelihood
ratios, whose distribution is simulated at the fitted null hypothesis: no critical value
relies on how visible the walk is under the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.fft import dct
from scipy.special import gammaincc

from moetraffic.analysis.rhythm.periodicity import vertex
from moetraffic.arrays import Bool, Float64

DRAWS = 299
"""Simulated likelihood ratios of a null hypothesis."""

SINGLE = 48
"""Lowest frequencies that are not averaged with their neighbors."""

_WIDENING = 0.04  # width of the bins above, of their frequency
_ROWS = 16  # lowest frequencies that the number of independent columns is of
_KAPPA = np.concatenate(([0.0], np.geomspace(1e-6, 1e4, 51)))
_RATES = 33
_HALF_DROP = 3.841 / 2  # of the log-likelihood at the ends of a 95% interval
_BOTH_DROP = 5.991 / 2  # at the border of a 95% region of phi and kappa
_ONE_SIDED = 2.706 / 2


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Fit of the motion of levels over n steps, with its two tests."""

    steps: int  # n
    columns: float  # effective number of independent columns
    p_still: float  # of white noise alone
    p_walk: float  # of a random walk under white noise
    p_drift: float  # of no slope, under the fitted autoregression
    p_trend: float  # of no slope, under it and under a random walk
    half_life: float  # steps, ln .5 / ln phi
    low: float  # 95% interval of the half-life
    high: float
    phi: float  # of the autoregression, below 1
    kappa: float  # variance of its steps over that of the noise
    walk: float  # upper 95% limit of a random walk's standard deviation over the n
    # steps, over that of the noise of one step


_STILL = {
    **dict.fromkeys(("columns", "p_still", "p_walk", "p_drift", "p_trend"), 1.0),
    **dict.fromkeys(("half_life", "low", "high", "phi", "kappa", "walk"), 0.0),
}
"""Fit of levels that never vary."""


@dataclass(frozen=True, kw_only=True)
class MeanNoise:
    """How far motion and noise move the mean of series over n steps from zero.

    In units of n times the mean square of the columns' means.
    """

    expected: float  # by the best fit
    high: float  # by the worst of a 95% region of phi and kappa, or of a smooth drift
    columns: float  # effective number of independent columns
    walks: bool  # the 95% region has a random walk, and not noise alone

    def p(self, measured: float, noise: float | None = None) -> float:
        """Compute the chance of a value if all columns have the mean zero.

        By the worst of the region, or by another noise.
        """
        over = measured / (self.high if noise is None else noise)
        return float(gammaincc(self.columns / 2, over * self.columns / 2))


def mean_noise(series: Float64) -> MeanNoise:
    r"""Estimate the noise of the mean of series that move.

    A stationary autoregression of coefficient :math:`\phi` under white noise of
    variance r leaves

    .. math:: r \Big(1 + \frac{\kappa}{1 - \phi^2} \Big[\frac{1 + \phi}{1 - \phi}
        - \frac{2 \phi (1 - \phi^n)}{n (1 - \phi)^2}\Big]\Big)

    and a random walk that begins at zero :math:`r (1 + \kappa n^2 / 3)`, which is
    :math:`\pi^2 / 3` times its power at the lowest frequency.  A drift that is smoother
    than a walk has less power at all others, so that the fit misses it: the noise is at
    least this many times the power that is measured at the lowest frequency.

    ``series``: ``[n, D]``, step first, whose columns vary.
    """
    n = len(series)
    coefficients = dct(series - series.mean(axis=0), axis=0, norm="ortho")[1:]
    columns = _independent(coefficients)
    angle, used = np.pi * np.arange(1, n) / n, np.ones(n - 1, dtype=bool)
    power, weight, shape = _binned((coefficients**2).mean(axis=1), angle, used)
    fit = _Fits(angle=shape, weight=weight, columns=columns, steps=n)
    found = fit.likelihood(power[:, None])[..., 0]
    phi = fit.phi[:-1]
    ended = 2 * phi * (1 - phi**n) / (n * (1 - phi) ** 2)
    gain = np.append(((1 + phi) / (1 - phi) - ended) / (1 - phi**2), n**2 / 3)
    level = (power / fit.spectrum) @ weight / fit.number
    noise = level * (1 + np.outer(gain, _KAPPA))
    border = found.max() - _BOTH_DROP
    region = noise[found >= border]
    return MeanNoise(
        expected=float(noise.flat[found.argmax()]),
        high=max(float(region.max()), float(power[0]) * np.pi**2 / 3),
        columns=columns,
        walks=bool((found[-1] >= border).any() and found[0, 0] < border),
    )


def motion(
    levels: Float64,
    *,
    without: Float64 | None = None,
    line: bool = False,
    seed: int = 0,
) -> Motion:
    """Fit the motion of levels, and test it against none and against a random walk.

    Parameters
    ----------
    levels
        ``[n, D]``, step first, columns of similar noise.
    without
        ``[m, 2]`` frequencies in cycles a step, from and to, that are left out: those
        of a period.
    line
        Whether the columns' straight lines are taken off first.  ``p_drift`` is of
        these lines all the same.
    """
    n = len(levels)
    levels = levels - levels[0]  # constant levels have no power but rounding
    if not levels.any():
        return Motion(steps=n, **_STILL)
    angle = np.pi * np.arange(1, n) / n
    raw = dct(levels - levels.mean(axis=0), type=2, axis=0, norm="ortho")[1:]
    coefficients = raw
    if line:
        time = np.arange(n) - (n - 1) / 2
        slope = time @ levels / (time @ time)
        coefficients = dct(levels - time[:, None] * slope, axis=0, norm="ortho")[1:]
    used = np.ones(n - 1, dtype=bool)
    used[0] = not line  # nearly all of a line's power is there
    for first, last in [] if without is None else without:
        used &= (angle < 2 * np.pi * first) | (angle > 2 * np.pi * last)
    columns = _independent(coefficients[used])
    power, weight, shape = _binned((coefficients**2).mean(axis=1), angle, used)
    fit = _Fits(angle=shape, weight=weight, columns=columns, steps=n)
    found = fit.likelihood(power[:, None])[..., 0]  # [rates, kappas]
    rng = np.random.default_rng(seed)
    dof = columns * weight / 2
    # Step 1: white noise.
    best = float(found.max())
    drawn = rng.gamma(dof[:, None], size=(len(dof), DRAWS)) / dof[:, None]
    null = fit.misfit(drawn)
    p_still = _rank(best - found[0, 0], fit.ratio(null, null[:1, 0]))
    # Step 2: a random walk, the last of the rates, with the ratio that fits best.
    walk = int(found[-1].argmax())
    null = fit.misfit(drawn * fit.spectrum[-1, walk][:, None])
    p_walk = _rank(
        float(found[:-1].max()) - found[-1, walk], fit.ratio(null[:-1], null[-1])
    )
    # Step 3: half-life and its interval; upper limit of a random walk.
    profile = found.max(axis=1)
    inside = np.flatnonzero(profile >= best - _HALF_DROP)
    place, _ = vertex(profile, int(profile.argmax()))
    phi = float(np.interp(place, np.arange(len(fit.phi)), fit.phi))
    allowed = np.flatnonzero(found[-1] >= found[-1, walk] - _ONE_SIDED)
    # Step 4: a line's power, which is in the lowest frequency, under what was fitted.
    row, column = np.unravel_index(int(found[:-1].argmax()), found[:-1].shape)
    own = float((raw[0] ** 2).mean())
    returning = fit.chance(own, power, (int(row), int(column)), angle[0])
    walking = fit.chance(own, power, (len(fit.phi) - 1, int(allowed[-1])), angle[0])
    return Motion(
        steps=n,
        columns=columns,
        p_still=p_still,
        p_walk=p_walk,
        p_drift=returning,
        p_trend=max(returning, min(walking, p_walk)),
        half_life=_half_life(phi),
        low=_half_life(fit.phi[max(inside[0] - 1, 0)]),
        high=_half_life(fit.phi[min(inside[-1] + 1, len(fit.phi) - 1)]),
        phi=float(fit.phi[row]),
        kappa=float(_KAPPA[column]),
        walk=float(np.sqrt(_KAPPA[allowed[-1]] * n)),
    )


def _half_life(phi: float) -> float:
    if phi <= 0:
        return 0.0
    return float(np.log(0.5) / np.log(phi)) if phi < 1 else float("inf")


def _rank(seen: float, drawn: Float64) -> float:
    """Compute a p-value from draws of the null hypothesis."""
    return float((1 + (drawn >= seen - 1e-9).sum()) / (1 + len(drawn)))


class _Fits:
    """Log-likelihoods of all settings on a grid, for many spectra at once."""

    def __init__(
        self, *, angle: Float64, weight: Float64, columns: float, steps: int
    ) -> None:
        rates = np.geomspace(1.0, 1 / steps, _RATES)
        self.phi = np.append(1 - rates, 1.0)
        phi = self.phi[:, None, None]
        turned = 1 + phi**2 - 2 * phi * np.cos(angle)
        self.spectrum: Float64 = 1 + _KAPPA[:, None] / turned  # [rates, kappas, bins]
        self.weight, self.number = weight, float(weight.sum())
        size = np.exp(np.log(self.spectrum) @ weight / self.number)
        self._weights = size[..., None] * (weight / self.spectrum) / self.number
        self._scale = columns / 2 * self.number
        self.columns = columns

    def misfit(self, power: Float64) -> Float64:
        """Compute the fitted level times the geometric mean of the spectrum.

        Of spectra ``[bins, S]`` at all settings, ``[rates, kappas, S]``.  The
        likelihood decreases in it, so ratios need the logarithm of the minimum only.
        """
        found: Float64 = self._weights.reshape(-1, len(power)) @ power
        return found.reshape(*self._weights.shape[:2], -1)

    def likelihood(self, power: Float64) -> Float64:
        """Evaluate the log-likelihood of spectra at all settings, as of a misfit."""
        return np.asarray(-self._scale * np.log(self.misfit(power)))

    def ratio(self, misfit: Float64, null: Float64) -> Float64:
        """Compute log-likelihood ratios ``[S]`` of the best settings of two sets."""
        best = misfit.min(axis=(0, 1))
        return np.asarray(self._scale * np.log(null.min(axis=0) / best))

    def chance(
        self, own: float, power: Float64, setting: tuple[int, int], angle: float
    ) -> float:
        """Compute the chance of a power ``own`` at an angle, the others given."""
        level = float((power / self.spectrum[setting]) @ self.weight) / self.number
        phi, kappa = self.phi[setting[0]], _KAPPA[setting[1]]
        expected = level * (1 + kappa / (1 + phi**2 - 2 * phi * np.cos(angle)))
        return float(gammaincc(self.columns / 2, own / expected * self.columns / 2))


def _independent(coefficients: Float64) -> float:
    """Estimate the number of independent columns from the lowest frequencies.

    The squared cosine of two independent Gaussian vectors has the mean 1/D in D equal
    dimensions; one standard error is added, so that D is rather too small.
    """
    low = coefficients[:_ROWS]
    length = np.sqrt((low**2).sum(axis=1, keepdims=True))
    unit = low / np.where(length > 0, length, 1.0)
    cosine = (unit @ unit.T)[np.triu_indices(len(unit), 1)] ** 2
    if not len(cosine):
        return 1.0
    upper = float(cosine.mean() + cosine.std() / np.sqrt(len(cosine)))
    return float(np.clip(1 / max(upper, 1e-9), 1.0, max(coefficients.shape[1] - 1, 1)))


def _binned(
    power: Float64, angle: Float64, used: Bool
) -> tuple[Float64, Float64, Float64]:
    """Average the power over bins: power, number of frequencies and angle of each."""
    kept = np.flatnonzero(used)
    edges = list(range(min(SINGLE, len(kept))))
    while edges and edges[-1] < len(kept):
        edges.append(edges[-1] + max(1, int(_WIDENING * edges[-1])))
    starts = np.array(edges[:-1], np.int64)
    weight = np.diff(np.append(starts, len(kept))).astype(np.float64)
    mean = np.add.reduceat(power[kept], starts) / weight
    return mean, weight, np.add.reduceat(angle[kept], starts) / weight
