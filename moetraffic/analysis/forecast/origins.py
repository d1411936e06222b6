"""Forecast origins: split of a series into training, validation and test parts.

A series is split in time into three parts: forecasters are fitted on the first,
settings and the best forecaster are chosen on the second, and the third is for
evaluation.  An *origin* is the last step available to a forecast of ``origin +
horizon``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

FEWEST = 4
"""Minimum number of origins of a part for tuning or evaluation."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A chronological split and the origins in its later parts."""

    steps: int  # T
    train_end: int  # steps before it are for fitting alone
    validation_end: int  # steps from it on are for judging alone
    stride: int  # of the origins: each, or every second ...
    refit_every: int  # steps after which what is fitted is fitted again

    def validation(self, horizon: int) -> Int64:
        """Origins ``[n]`` whose targets lie in the validation part."""
        return self._origins(self.train_end, self.validation_end, horizon)

    def test(self, horizon: int) -> Int64:
        """Origins ``[n]`` from the last validation step on whose targets there are."""
        return self._origins(self.validation_end, self.steps, horizon)

    def refits(self) -> Int64:
        """Steps ``[R]`` after which a fit is made, from what is before: increasing."""
        validation = np.arange(self.train_end, self.validation_end, self.refit_every)
        test = np.arange(self.validation_end, self.steps, self.refit_every)
        return np.concatenate((validation, test)).astype(np.int64)

    def too_short(self, horizon: int) -> str:
        """Reason why no forecast can be evaluated at a horizon; empty if one can."""
        shortest = min(
            self.validation_end - self.train_end, self.steps - self.validation_end
        )
        need = horizon + FEWEST - 1
        if self.train_end >= 2 and shortest >= need:
            return ""
        return (
            f"run too short (needs validation and test parts of {need} iterations, "
            f"has {max(shortest, 0)} in a run of {self.steps} iterations)"
        )

    def _origins(self, begin: int, end: int, horizon: int) -> Int64:
        return np.arange(max(begin - 1, 0), end - horizon, self.stride, dtype=np.int64)


def steps_needed(horizon: int) -> int:
    """Return the iterations of a run for which a horizon can be tested.

    The last quarter then has :data:`FEWEST` blocks of forecasts, each as long as the
    horizon and as the third root of their number (see :func:`gain`).
    """
    return 4 * (max(FEWEST * horizon, 2 * FEWEST) + horizon - 1)


def lacking(horizon: int, steps: int) -> str:
    """State that a run of some steps is too short for a horizon."""
    return (
        f"to test forecasts {horizon:,} iteration{'s' * (horizon > 1)} ahead takes "
        f"{steps_needed(horizon):,} iterations, but there are {steps:,}"
    )


def check_horizons(horizons: Sequence[int] | None, steps: int) -> None:
    """Refuse horizons all of which are beyond a run of some steps."""
    if horizons and 0 < steps <= min(horizons):
        short = lacking(min(horizons), steps)
        raise AnalysisError(f"{short}: give shorter --horizons")


def split(steps: int, *, max_origins: int = 2048) -> Split:
    """Split a series into 50% training, 25% validation and 25% test.

    Parameters
    ----------
    steps
        T.
    max_origins
        Of a part, at least 1: more are thinned to every second, third ...

    Returns
    -------
    Split
        With refits every eighth of the test part.

    Examples
    --------
    >>> found = split(60)
    >>> found.train_end, found.validation_end, found.test(10).tolist()
    (30, 45, [44, 45, 46, 47, 48, 49])
    """
    train = round(steps * 0.5)
    validation = train + round(steps * 0.25)
    longest = max(validation - train, steps - validation)
    return Split(
        steps=steps,
        train_end=train,
        validation_end=validation,
        stride=max(1, -(-longest // max_origins)),
        refit_every=max(1, -(-(steps - validation) // 8)),
    )


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Estimate of ``1 - sum a / sum b`` over origins, with a confidence interval."""

    value: float = float("nan")
    error: float = float("nan")  # standard error; NaN with too few blocks
    low: float = float("nan")  # 95 % interval
    high: float = float("nan")
    p: float = float("nan")  # one-sided, of the hypothesis that it is 0 or below
    blocks: int = 0  # stretches of origins that were left out one after the other


def gain(
    error: Float64, reference: Float64, *, horizon: int = 1, stride: int = 1
) -> Ratio:
    r"""Compute the skill from squared errors, with a block-jackknife interval.

    Origins close to each other err alike, at a horizon h for at least h steps.  They
    are cut into g stretches: at most 20, each of h steps or more, and of no fewer than
    the third root of the number of origins.  Leaving one out at a time gives the
    variance of the logarithm of ``sum a / sum b``, and a Student interval of g - 1
    degrees of freedom, whose ends as skills are below 1.  The p-value is that of a
    one-sided t-test: of equal accuracy against a smaller error (a paired test, as the
    blocks of both errors are the same).

    Parameters
    ----------
    error, reference
        ``[n]`` sums of squared errors of each origin, in time order, of the forecast
        and of what it is compared with.
    horizon, stride
        Steps ahead, and steps from one origin to the next.

    Returns
    -------
    Ratio
        NaN where the reference has no error; the interval also with fewer than 4
        blocks, and where a forecast is compared with itself.

    References
    ----------
    H. R. Künsch, Ann. Stat. 17 (1989) 1217: the jackknife for blocks.  F. X. Diebold
    and R. S. Mariano, J. Bus. Econ. Stat. 13 (1995) 253: equal predictive accuracy.

    Examples
    --------
    >>> found = gain(np.full(27, 1.0), np.full(27, 2.0))
    >>> found.value, found.low, found.high, found.blocks
    (0.5, 0.5, 0.5, 9)
    """
    whole, base = float(error.sum()), float(reference.sum())
    if not base > 0:
        return Ratio()
    value = 1 - whole / base
    # blocks as long as errors stay correlated, but no more than a fifth of the time
    span = max(horizon / stride, len(error) / 20, len(error) ** (1 / 3))
    blocks = int(len(error) / span) if len(error) else 0
    if blocks < FEWEST:
        return Ratio(value=value, blocks=blocks)
    if np.array_equal(error, reference):
        return Ratio(value=0.0, p=1.0, blocks=blocks)
    edges = np.linspace(0, len(error), blocks + 1).astype(np.int64)[:-1]
    above = whole - np.add.reduceat(error, edges)
    below = base - np.add.reduceat(reference, edges)
    if not (below > 0).all():  # all error in one stretch: nothing to compare without it
        return Ratio(value=value, blocks=blocks)
    ratio = above / below
    found = Ratio(value=value, error=_jackknife(ratio), blocks=blocks)
    if whole == 0:
        return replace(found, low=1.0, high=1.0, p=0.0)
    if not (above > 0).all():
        return found
    # the logarithm is nearer to normal, and its interval keeps the skill below 1
    spread, size = _jackknife(np.log(ratio)), float(np.log(whole / base))
    reach = float(stdtrit(blocks - 1, 0.975)) * spread
    low, high = 1 - np.exp([size + reach, size - reach])
    p = float(stdtr(blocks - 1, size / spread)) if spread > 0 else float(value <= 0)
    return replace(found, low=float(low), high=float(high), p=p)


def _jackknife(left: Float64) -> float:
    """Compute the standard error from estimates ``[g]`` without one block each."""
    g = len(left)
    return float(np.sqrt((g - 1) / g * ((left - left.mean()) ** 2).sum()))
