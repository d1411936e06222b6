"""Six claims about a run, each tested at a level of 1% on arrays of its iterations.

- uneven: chi-square test of the loads against those of a balanced router;
- more even, less even: Mann-Kendall test of ten means of the entropy in order;
- steady: 95% interval of the drift of the entropy over the last third, by least squares
  with Newey-West errors, within 1% of its mean;
- forecast helps: Diebold-Mariano test of squared errors, with Newey-West errors;
- regular: t-test of the correlation of the profiles of successive steps;
- runs differ: permutation test of the means of eight blocks of each run.

They are about what was observed, not about what comes next.  Below 40 iterations
nothing is tested.  ``benchmarks/results/claims.csv`` has how often each is false, or
found, of known processes.

References
----------
H. B. Mann, "Nonparametric tests against trend", Econometrica 13 (1945) 245.
W. K. Newey, K. D. West, Econometrica 55 (1987) 703: errors of autocorrelated series.
F. X. Diebold, R. S. Mariano, "Comparing predictive accuracy", Journal of Business and
Economic Statistics 13 (1995) 253.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64

from .intervals import LEVEL, difference

SIGNIFICANT = 0.01
"""Largest p-value of a claim that is stated."""

LEAST, BLOCKS, WINDOW = 40, 10, 10
"""Iterations that a test needs, blocks of a run, and iterations of a moving mean."""

STEADY, NEAR = 0.01, 0.1
"""Largest drift of a steady entropy over the last third, as a share of its mean, and
share of a change that is left when it is over."""


class Outcome(Enum):
    """Result of a test."""

    STATED = "stated"
    NOT_SHOWN = "not shown"
    TOO_SHORT = "too short"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim about a run, and the evidence for it; NaN where there is none."""

    layer: int = -1
    group: int = -1
    name: str
    subject: str = "expert_load"
    horizon: int = 0  # iterations ahead, of forecasts
    outcome: Outcome
    figure: float = nan
    low: float = nan  # 95% interval of the figure
    high: float = nan
    p: float = nan
    iterations: int = 0  # used
    needs: int = 0  # iterations, where there are too few
    since: int = -1  # first iteration of what is stated; its index until placed

    def placed(self, *, iterations: Int64 | None = None, **place: Any) -> Claim:
        """Return the claim with its place; ``iterations``: ``[T]`` their numbers."""
        if iterations is not None and self.since >= 0:
            place["since"] = int(iterations[self.since])
        return replace(self, **place)

    def row(self) -> dict[str, Any]:
        """Return the row of the table of claims."""
        row = {"claim" if n == "name" else n: value for n, value in vars(self).items()}
        return row | {"outcome": self.outcome.value}


def uneven(load: npt.ArrayLike, *, k: int = 1) -> Claim:
    r"""Test whether the loads of iterations are less even than a balanced router's.

    Under a balanced router the loads n of E experts have the covariance
    :math:`c (I - J/E)`, :math:`c = N k (E - k) / (E (E - 1))` for N tokens, so that
    the sum of :math:`\sum_e (n_e - N k/E)^2 / c` over T iterations is chi-square
    distributed with T (E - 1) degrees of freedom (k = 1: Pearson's test).

    The figure is the root mean square of the CV of shares without sampling noise: the
    probability q that a token has an expert follows from
    :math:`\mathrm{E}\, n (n - 1) = N (N - 1) q^2`.  Its interval is Student's, of the
    means of ten blocks, for shares that are constant or change.

    Parameters
    ----------
    load
        ``[T, E]`` token copies.  Iterations without any are left out.
    k
        Distinct experts of a token; 1, if unknown, has the largest noise.
    """
    from scipy.stats import chi2, t

    n = np.asarray(load, np.float64)
    n = n[n.sum(axis=1) > k]
    experts = n.shape[1]
    few = -(-len(n) * experts // max(float(n.sum()), 1.0))  # a copy for each expert
    claim = _claim("uneven", len(n), needs=max(LEAST, int(few)))
    if experts < 2 or k >= experts or claim.outcome is Outcome.TOO_SHORT:
        return claim
    tokens = n.sum(axis=1) / k
    noise = tokens * k / experts * (experts - k) / (experts - 1)
    chi_square = float((n.var(axis=1) * experts / noise).sum())
    cv2 = experts * (n * (n - 1)).sum(axis=1) / (tokens * (tokens - 1)) / k**2 - 1
    if (n == n[0]).all():  # nothing is drawn
        cv2[:] = (n[0].std() / n[0].mean()) ** 2
    error = _block_means(cv2).std(ddof=1) / np.sqrt(BLOCKS)
    ends = cv2.mean() + error * t.ppf((1 + LEVEL) / 2, BLOCKS - 1) * np.arange(-1, 2)
    low, figure, high = np.sqrt(np.maximum(ends, 0.0)).tolist()
    p = float(chi2.sf(chi_square, len(n) * (experts - 1)))
    return _tested(claim, p, figure, low, high)


def movement(entropy: Float64, steps: Int64) -> Claim:
    """Test whether the load became more or less even.

    ``entropy``: ``[T]`` normalized; ``steps``: ``[T]`` training steps before each.
    The figure is the mean of the last third of the steps minus that of the first;
    ``since`` is of :func:`change_over`.
    """
    from scipy.stats import kendalltau

    values, when = entropy[np.isfinite(entropy)], steps[np.isfinite(entropy)]
    claim = _claim("more even", len(values))
    if claim.outcome is Outcome.TOO_SHORT:
        return claim
    tau, p = kendalltau(np.arange(BLOCKS), _block_means(values))
    early, late = _thirds(steps)
    change = difference(values[when < early], values[when >= late])
    claim = _tested(claim, float(p), change.value, change.low, change.high)
    over = change_over(entropy, steps) if claim.outcome is Outcome.STATED else None
    name = "less even" if tau < 0 else claim.name
    return replace(claim, name=name, since=-1 if over is None else over)


def change_over(entropy: Float64, steps: Int64) -> int | None:
    """Find the index of the iteration by which 90% of a change of evenness was over.

    From it on, the means of ten iterations are within a tenth of the way from the
    farthest of them to the mean of the last third.  None if there is no such change, or
    it was not over before the last third.
    """
    known = np.flatnonzero(np.isfinite(entropy))
    late = known[steps[known] >= _thirds(steps)[1]] if len(known) else known
    if len(known) < LEAST or not len(late):
        return None
    means = np.convolve(entropy[known], np.full(WINDOW, 1 / WINDOW), "valid")
    away = np.abs(means - entropy[late].mean())
    over = known[np.flatnonzero(away >= NEAR * away.max())[-1] + 1]
    return int(over) if over < late[0] else None


def steady(entropy: Float64, steps: Int64) -> Claim:
    """Test whether the load kept its evenness in the last third of the steps.

    The figure is the fitted drift of the entropy from begin to end of that third, and
    ``since`` the index of its first iteration.  Parameters as of :func:`movement`.
    """
    claim = _claim("steady", int(np.isfinite(entropy).sum()))
    if claim.outcome is Outcome.TOO_SHORT:
        return claim
    late = np.flatnonzero((steps >= _thirds(steps)[1]) & np.isfinite(entropy))
    if len(late) < LEAST // 4:
        return claim
    x, y = steps[late].astype(np.float64), entropy[late]
    x = np.stack([np.ones(len(x)), (x - x.mean()) / (x[-1] - x[0])], axis=1)
    drift, low, high, _ = _fitted(y, x, lags=max(3, len(y) // 10))
    margin = STEADY * float(y.mean())
    claim = _tested(claim, nan, drift, low, high)
    if -margin < low and high < margin:
        claim = replace(claim, outcome=Outcome.STATED, since=int(late[0]))
    return claim


def forecast_helps(
    errors: Float64, of_last: Float64, of_mean: Float64, *, horizon: int
) -> Claim:
    """Test whether a forecast had smaller errors than the mean of the past.

    It is not stated if the last values had smaller errors than the forecast.  The
    figure is the share by which the mean squared error was below the mean's.

    Parameters
    ----------
    errors, of_last, of_mean
        ``[n]`` squared errors of the forecast, of the last values repeated and of the
        mean of the past, in successive test iterations: a quarter of the run.
    horizon
        Iterations ahead.
    """
    n, base = len(errors), float(of_mean.sum())
    claim = _claim("forecast helps", 4 * (n + horizon - 1), LEAST + 4 * (horizon - 1))
    claim = replace(claim, iterations=n, horizon=horizon)
    if claim.outcome is Outcome.TOO_SHORT or not base > 0:
        return claim
    lags = min(max(horizon - 1, round(n ** (1 / 3))), n // 2)
    gains = (of_mean - errors) * n / base
    figure, low, high, p = _fitted(gains, np.ones((n, 1)), lags=lags)
    return _tested(claim, 1.0 if errors.sum() > of_last.sum() else p, figure, low, high)


def regular(profiles: Float64) -> Claim:
    """Test whether traffic came at the same times within successive steps.

    ``profiles``: ``[n, bins]`` share of each bin of a step in which there is traffic.
    The figure is the correlation of two successive steps, of pairs without common step.
    """
    from scipy.stats import ttest_1samp

    claim = _claim("regular", len(profiles))
    if claim.outcome is Outcome.TOO_SHORT:
        return claim
    x = profiles - profiles.mean(axis=1, keepdims=True)
    if not x.any():
        return claim
    pairs = x[: len(x) // 2 * 2].reshape(-1, 2, x.shape[1])
    products = (pairs[:, 0] * pairs[:, 1]).mean(axis=1) / (x**2).mean()
    figure = float(products.mean())
    if np.ptp(products) < 1e-12:  # every step is the same
        return _tested(claim, float(figure <= 0), figure, figure, figure)
    p = float(ttest_1samp(products, 0.0, alternative="greater").pvalue)
    low, high = ttest_1samp(products, 0.0).confidence_interval(LEVEL)
    return _tested(claim, p, figure, float(low), float(high))


def differ(a: Float64, b: Float64) -> Claim:
    """Test whether two runs differ in the mean of a value per iteration.

    ``a``, ``b``: ``[T]`` and ``[U]``; the figure is the mean of b minus that of a.
    """
    from scipy.stats import permutation_test

    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    claim = _claim("runs differ", min(len(a), len(b)))
    if claim.outcome is Outcome.TOO_SHORT:
        return claim
    change = difference(a, b)
    test = permutation_test(
        (_block_means(a, 8), _block_means(b, 8)),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=20_000,  # above the 12,870 ways: exact
    )
    return _tested(claim, float(test.pvalue), change.value, change.low, change.high)


def _claim(name: str, iterations: int, needs: int = LEAST) -> Claim:
    """Begin a claim: too short, or unknown unless it is tested."""
    outcome = Outcome.TOO_SHORT if iterations < needs else Outcome.UNKNOWN
    needs = needs if iterations < needs else 0
    return Claim(name=name, outcome=outcome, iterations=iterations, needs=needs)


def _tested(claim: Claim, p: float, figure: float, low: float, high: float) -> Claim:
    """Return the claim with its figure, stated if p is small."""
    outcome = Outcome.STATED if p <= SIGNIFICANT else Outcome.NOT_SHOWN
    return replace(claim, outcome=outcome, p=p, figure=figure, low=low, high=high)


def _block_means(values: Float64, blocks: int = BLOCKS) -> Float64:
    """Average successive blocks of values of about the same length."""
    return np.array([block.mean() for block in np.array_split(values, blocks)])


def _thirds(steps: Int64) -> tuple[float, float]:
    """Return the steps at which the second and the last third of the run begin."""
    first, total = float(steps[0]), float(steps[-1] + 1 - steps[0])
    return first + total / 3, first + total * 2 / 3


def _fitted(y: Float64, x: Float64, *, lags: int) -> tuple[float, float, float, float]:
    """Fit the last column of ``x [n, c]``: its factor, its interval, and one-sided p.

    Standard errors are for residuals that are autocorrelated up to ``lags``.
    """
    from scipy.stats import t
    from statsmodels.regression.linear_model import OLS

    if np.ptp(y) == 0:
        figure = 0.0 if x.shape[1] > 1 else float(y[0])
        return figure, figure, figure, float(figure <= 0)
    options = {"maxlags": lags, "use_correction": True}
    fit = OLS(y, x).fit(cov_type="HAC", cov_kwds=options, use_t=True)
    low, high = fit.conf_int(1 - LEVEL)[-1].tolist()
    return float(fit.params[-1]), low, high, float(t.sf(fit.tvalues[-1], fit.df_resid))
