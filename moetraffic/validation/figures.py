r"""Tests of figures: is a run as far from real runs as these are from each other?

A *figure* is a statistic of :data:`.features.SERIES`, or the ratio of two: a change of
the load is taken relative to sampling noise, or to that of another lag, which differ
less between runs.  Of each run there is a vector x: the figure in SECTIONS sections of
the run, of all layers, as logarithms where ratios matter.  One test a figure takes all
sections and layers together.

With n real runs of mean m and :math:`W = \sum_i |x_i - m|^2 / (n-1)`, a further run y
of the same distribution has

.. math:: F = \frac{|y - m|^2}{(1 + 1/n)\,W} \sim F(\nu, \nu (n-1)), \qquad
          \nu = \frac{(\mathrm{tr}\,\Sigma)^2}{\mathrm{tr}\,\Sigma^2}

with :math:`\nu` the number of directions in which runs of covariance :math:`\Sigma`
vary (F. E. Satterthwaite, Biometrics Bulletin 2, 1946).  In one direction this is
Student's prediction test.  Both traces are estimated without bias from the runs'
Gram matrix (Z. Bai and H. Saranadasa, Statistica Sinica 6, 1996).  As few runs
determine their ratio badly, and scatter with heavier tails than normal ones, half of
the smaller is taken of a figure's own and of the one of all figures together.

Figures that are 0 if rows have no structure differ between runs by factors, not by
amounts, so their inverse hyperbolic sine is taken: a logarithm beyond RESOLVED, linear
around 0.  One test of all figures together combines their p-values by the mean of
Cauchy variables, whatever their dependence (Y. Liu and J. Xie, J. Am. Stat. Assoc. 115,
2020): several figures that differ moderately reject as one that differs much does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from moetraffic.analysis.measures import entropy, means_of_known
from moetraffic.arrays import Float64

from .features import LAGS, Features, changes, sampling_noise

LEVEL = 0.05
"""Probability that at least one figure of a further real run fails."""

SECTIONS = 5
"""Sections of a run whose means are compared."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What is compared: section means of a series, or their ratio to another's."""

    series: str
    over: str = ""  # series that it is divided by
    # "log": ratios matter, not differences; "asinh": these do too, but of either sign
    scale: Literal["linear", "log", "asinh"] = "linear"

    def scaled(self, x: Float64) -> Float64:
        """Means on the scale on which runs are compared."""
        if self.scale == "log":
            return np.log(np.maximum(x, LEAST))
        return np.arcsinh(x / RESOLVED) if self.scale == "asinh" else x

    def unscaled(self, x: float) -> float:
        """Undo :meth:`scaled`."""
        if self.scale == "log":
            return float(np.exp(x))
        return RESOLVED * float(np.sinh(x)) if self.scale == "asinh" else x


FIGURES = {
    "entropy": Figure(series="entropy"),
    "max over mean": Figure(series="max over mean", scale="log"),
    "line efficiency": Figure(series="line efficiency"),
    "inter-host share": Figure(series="inter-host share"),
    "row dispersion": Figure(series="row dispersion", scale="asinh"),
    "row entropy spread": Figure(series="row entropy spread", scale="log"),
    "row spectrum": Figure(series="row spectrum", scale="log"),
    "empty cells": Figure(series="empty cells", scale="asinh"),
    "row persistence": Figure(series="row persistence", scale="asinh"),
    "row coupling": Figure(series="row coupling", scale="asinh"),
    "change over sampling noise": Figure(
        series=f"change over {LAGS[0]}", over="sampling noise", scale="log"
    ),
    **{
        f"change over {lag} relative to {LAGS[0]}": Figure(
            series=f"change over {lag}", over=f"change over {LAGS[0]}", scale="log"
        )
        for lag in LAGS[1:]
    },
}
"""Tested figures."""

ROUNDING = 1e-18
"""Largest mean square difference that is none."""

LEAST = 1e-3
"""Smallest value whose logarithm is taken."""

RESOLVED = 0.01
"""Share, or correlation, below which amounts matter and not ratios."""

LEAST_P = 1e-15
"""Smallest p-value that is combined, and the largest is as far from 1 as 1e-3."""

COUNTED = 0.5
"""Share of the estimated directions that is counted on: reruns scatter with heavier
tails than normal ones.  With all, 5 of 36 reruns failed against three others."""

MOST_DIRECTIONS = 50.0
"""Of runs that vary in more directions than can be estimated."""

CERTAIN = 100.0
"""Times its limit that F is certain to be exceeded at."""

LARGEST_POWER = 20.0
"""To which loads are raised."""


@dataclass(frozen=True, kw_only=True)
class FigureTest:
    """Test of one figure, all layers and sections together."""

    name: str
    synthetic: float  # mean over sections and layers
    real: tuple[float, ...]  # [n] the same of each real run
    own: tuple[float, ...]  # [n] distances of the real runs from their mean
    distance: float  # sqrt(F) of the synthetic run; 1 is usual for a real run
    limit: float  # distance at which p is LEVEL over the number of passed figures
    p: float
    adjusted: float  # by Holm over the figures

    @property
    def passed(self) -> bool:
        """Whether the distance is not significantly larger than between real runs."""
        return self.adjusted >= LEVEL


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Spread of n runs about their mean in one figure, and the unit of F."""

    deviations: Float64  # [n, D] of the runs from their mean
    total: float  # W, the trace of their covariance
    runs: int  # n
    factor: float  # variance of what is tested, relative to that of one run
    directions: float  # nu

    @property
    def freedom(self) -> tuple[float, float]:
        """Degrees of freedom of F."""
        return self.directions, self.directions * (self.runs - 1)

    def ratio(self, away: Float64) -> float:
        """F of what lies ``away`` from the runs' mean, ``[D]``."""
        far, unit = float(away @ away), self.total * self.factor
        if far <= ROUNDING * len(away):
            return 0.0
        return far / unit if unit > 0 else float("inf")

    def p(self, away: Float64) -> float:
        """Compute the p-value of what lies ``away`` from the runs' mean."""
        from scipy import stats

        return float(stats.f.sf(self.ratio(away), *self.freedom))

    def limit(self, level: float) -> float:
        """Compute the F that is exceeded with probability ``level``."""
        from scipy import stats

        return float(stats.f.isf(level, *self.freedom))

    def power(self, away: Float64, level: float) -> float:
        """Compute the probability that a run shifted by ``away`` exceeds the limit.

        The spread is taken for known.
        """
        from scipy import stats

        ratio = self.ratio(away)
        if ratio > CERTAIN * self.limit(level):  # scipy's noncentral F takes for ever
            return 1.0
        shift = self.directions * ratio
        if shift == 0:  # scipy's noncentral F is wrong there
            return level
        return float(stats.ncf.sf(self.limit(level), *self.freedom, shift))


def vectors(runs: Sequence[Features]) -> dict[str, Float64]:
    """Compute the vectors that are compared, ``[n, D]`` for each figure.

    Figures that a run lacks in some section (row coupling of one layer) are left out.
    """
    found = {}
    for name, each in FIGURES.items():
        x = np.stack([_sections(run.series[each.series]) for run in runs])
        if each.over:
            other = np.stack([_sections(run.series[each.over]) for run in runs])
            x = x / np.maximum(other, LEAST)
        if np.isfinite(x).all():
            found[name] = each.scaled(x).reshape(len(runs), -1)
    return found


def value(name: str, vector: Float64) -> float:
    """Average a figure's vector ``[D]``; of logarithms, the geometric mean."""
    return FIGURES[name].unscaled(float(vector.mean()))


def _sections(series: Float64) -> Float64:
    """Average ``[T, L]`` over each section, ``[SECTIONS, L]``; NaN: unknown there."""
    parts = np.array_split(series, SECTIONS)
    return np.stack([means_of_known(part.T) for part in parts])


def spreads(deviations: Mapping[str, Float64], factor: float) -> dict[str, Spread]:
    """Estimate the spread of runs in each figure.

    Parameters
    ----------
    deviations
        ``[n, D]`` of n runs from their mean, by figure.
    factor
        Variance of what is tested relative to that of a run: 1 + 1/n for a further run
        against the mean of n.
    """
    moments = {name: _moments(x) for name, x in deviations.items()}
    common = _directions(*np.sum(list(moments.values()), axis=0))
    return {
        name: Spread(
            deviations=x,
            runs=len(x),
            total=float((x**2).sum() / (len(x) - 1)),
            factor=factor,
            directions=max(1.0, COUNTED * min(common, _directions(*moments[name]))),
        )
        for name, x in deviations.items()
    }


def _moments(x: Float64) -> tuple[float, float]:
    """Estimate (tr S)^2 and tr S^2 without bias, relative to the squared trace."""
    m = len(x) - 1
    gram = x @ x.T / m
    whole = float(np.trace(gram)) ** 2
    if m < 2 or not whole > 0:
        return 0.0, 0.0
    square = float((gram**2).sum()) / whole
    of_square = (square - 1 / m) / ((1 - 1 / m) * (1 + 2 / m))
    return 1 - 2 * of_square / m, of_square


def _directions(whole: float, of_square: float) -> float:
    """Divide the two traces; 1 where two runs or none determine nothing."""
    if whole == of_square == 0:
        return 1.0
    return max(1.0, whole / of_square) if of_square > 0 else MOST_DIRECTIONS


def figure_tests(
    spread: Mapping[str, Spread],
    away: Mapping[str, Float64],
    synthetic: Mapping[str, Float64],
    real: Mapping[str, Float64],
) -> tuple[FigureTest, ...]:
    """Test each figure, ``away [D]`` from the runs' mean; most significant first.

    ``synthetic`` and ``real`` are the vectors of :func:`vectors`.
    """
    from statsmodels.stats.multitest import multipletests

    if not spread:
        return ()
    p = [each.p(away[name]) for name, each in spread.items()]
    adjusted: Any = multipletests(p, method="holm")[1]
    # the level at which Holm's method stops: a figure fails if its p-value is below
    # it, so if its distance is beyond the limit of this level
    level = LEVEL / max(1, int((adjusted >= LEVEL).sum()))
    found = []
    for (name, each), one, corrected in zip(spread.items(), p, adjusted, strict=True):
        far = np.linalg.norm(each.deviations, axis=1)
        unit = np.sqrt(each.total * (1 - 1 / len(far)))
        found.append(
            FigureTest(
                name=name,
                synthetic=value(name, synthetic[name]),
                real=tuple(value(name, x) for x in real[name]),
                own=tuple((far / unit if unit > 0 else far).tolist()),
                distance=float(np.sqrt(each.ratio(away[name]))),
                limit=float(np.sqrt(each.limit(level))),
                p=one,
                adjusted=float(corrected),
            )
        )
    return tuple(sorted(found, key=lambda t: t.p))


def combined(tests: Sequence[FigureTest]) -> float:
    """Compute the p-value of all figures together, by the mean of Cauchy variables.

    Examples
    --------
    Thirteen figures at p = 0.02, none of which fails by Holm's method, fail together.
    """
    from scipy import stats

    if not tests:
        return 1.0
    p = np.clip([t.p for t in tests], LEAST_P, 1 - 1e-3)
    return float(stats.cauchy.sf(np.mean(np.tan((0.5 - p) * np.pi))))


# ---- power ---------------------------------------------------------------------


def tempered(run: Features, change: float) -> Features:
    r"""Raise the loads to a power that changes the mean max over mean by a share.

    .. math:: p_e \to p_e^a / \sum_f p_f^a

    The figures of the load follow; those of the rows stay as they are.  Where the load
    cannot be made as uneven (max over mean is at most E), the change is downward, by
    mixing with an even load.  A ``change`` of 0.2 is 20%.
    """
    from scipy.optimize import brentq

    def raised(power: float) -> Float64:
        high = run.load.max(axis=2, keepdims=True)
        found = (run.load / np.where(high > 0, high, 1)) ** power
        return np.asarray(found / np.maximum(found.sum(axis=2, keepdims=True), 1e-12))

    def skew(power: float) -> float:
        return float(raised(power).max(axis=2).mean())

    now, even = skew(1.0), 1 / run.shape[1]
    aim = now * (1 + change)
    if aim < skew(LARGEST_POWER):
        load = raised(brentq(lambda power: skew(power) - aim, 1.0, LARGEST_POWER))
    else:
        part = min(1.0, (now - now / (1 + change)) / max(now - even, 1e-12))
        load = (1 - part) * run.load + part * even
    series = {
        "entropy": entropy(load),
        "max over mean": load.max(axis=2) * load.shape[2],
        "sampling noise": sampling_noise(load, run.tokens),
        **changes(load),
    }
    return replace(run, load=load, series=run.series | series)


def shifts(real: Sequence[Features], change: float) -> dict[str, Float64]:
    """Compute how a change of max/mean shifts each figure's vector, ``[D]``.

    The mean over real runs, into which the change is injected (:func:`tempered`).
    """
    before, after = vectors(real), vectors([tempered(run, change) for run in real])
    return {name: (after[name] - x).mean(axis=0) for name, x in before.items()}


def detected(spread: Mapping[str, Spread], shift: Mapping[str, Float64]) -> float:
    """Compute the probability that a shift ``[D]`` of the figures is found.

    It is that of the figure which finds it best, a lower bound of that of all.
    """
    level = LEVEL / len(spread)
    return max(each.power(shift[name], level) for name, each in spread.items())
