"""Scores of the tuned forecasters on the test part, at one horizon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.noise.oracle import oracle_bounds

from .accuracy import cosine, hot_recall, mean_of_known
from .candidates import FAMILIES, Candidate, SeriesBlock
from .origins import Split, gain
from .usefulness import NAN, Verdict, unknown_verdict

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ForecastScore:
    """Errors of one forecaster at one horizon over the test part; NaN if unknown.

    Errors are of bytes (the series times its weights).  ``nmse`` is relative to each
    cell's variance about its own mean in the test part: 0 is exact, 1 the error of
    forecasting that mean.
    """

    forecaster: str
    setting: str  # as tuned on the validation part
    validation_mse: float  # by which it was chosen
    mse: float  # mean squared error, unit squared
    nmse: float
    mape: float  # a fraction, over the cells above zero
    cosine: float  # mean of the origins
    total_variation: float  # mean share that lies in another cell than forecast
    hot_recall: float  # of the K cells with most, the share found
    skill: float  # 1 - MSE / MSE of persistence
    skill_error: float  # standard error, by a block jackknife over origins
    skill_low: float  # 95 % interval
    skill_high: float
    within: tuple[float, ...]  # share of bytes in cells forecast within each tolerance


@dataclass(frozen=True, kw_only=True)
class HorizonScores:
    """Scores of all forecasters at one horizon, and the verdict on the best."""

    horizon: int  # iterations ahead
    origins: int = 0  # number of forecasts of all cells
    values: int = 0  # cells times origins that were known
    scores: tuple[ForecastScore, ...] = ()  # persistence first; empty if too short
    best: str = ""  # chosen on the validation part
    nmse_floor: float = NAN  # lower bound on the error: sampling noise of the tokens
    mape_floor: float = NAN
    verdict: Verdict
    reason: str = ""  # why there are no scores
    made: Float64 | None = field(default=None, repr=False)  # [n, C] by the best
    targets: Int64 | None = field(default=None, repr=False)  # [n] steps forecast

    def score(self, forecaster: str | None = None) -> ForecastScore | None:
        """Return the score of a forecaster (default: the best); None if unavailable."""
        wanted = self.best if forecaster is None else forecaster
        return next((s for s in self.scores if s.forecaster == wanted), None)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Token counts behind the cells, for the noise floors."""

    tokens: npt.NDArray[np.generic]  # that can choose a cell: scalar, [T] or [T, C]
    k: int = 1  # experts of a token
    experts: int | None = None  # E, where a cell holds several
    held: int = 1  # experts of a cell

    def mean(self, steps: Int64, cells: slice, known: npt.NDArray[np.bool_]) -> Float64:
        """Compute the mean tokens of each cell ``[c]`` over known steps ``[c, n]``."""
        if self.tokens.ndim == 0:
            return np.full(len(known), float(self.tokens))
        part = np.asarray(self.tokens[steps], np.float64)
        part = part[:, cells].T if part.ndim == 2 else part[None]
        return _mean(np.where(known, part, 0.0).sum(axis=1), known.sum(axis=1))


class Judge:
    """Accumulator of errors of the tuned forecasters at one horizon, block by block.

    Parameters
    ----------
    horizon
        Iterations ahead.
    cut
        Of the series.
    chosen
        A setting of each family with its validation error, the best first.
    cells
        C, of all blocks.
    tolerances
        Relative errors for the shares within.
    keep
        Whether the forecasts of the best are kept.
    """

    def __init__(
        self,
        horizon: int,
        cut: Split,
        chosen: Sequence[tuple[Candidate, float]],
        cells: int,
        tolerances: tuple[float, ...],
        keep: bool,
    ) -> None:
        self.horizon, self.cut, self.tolerances = horizon, cut, tolerances
        self.origins = cut.test(horizon)
        self.best = chosen[0][0].family
        order = {name: at for at, name in enumerate(FAMILIES)}
        self.chosen = sorted(chosen, key=lambda c: order[c[0].family])
        number, n = len(self.chosen), len(self.origins)
        self.square = np.zeros((number, n))
        self.relative = np.zeros(number)
        self.within = np.zeros((number, len(tolerances)))
        # single precision: for the order and the shares of cells alone
        self.kept = np.zeros((number, n, cells), np.float32)
        self.target = np.zeros((n, cells), np.float32)
        self.made = np.full((n, cells), np.nan) if keep else None
        self.spread = self.bytes = 0.0
        self.values = self.positive = 0
        self.noise = self.mape_floor = 0.0
        self.ceiling = np.zeros(len(tolerances))

    def add(
        self, block: SeriesBlock, part: slice, scale: Float64, counts: Counts | None
    ) -> None:
        """Add the errors of a block of cells ``part``."""
        targets = self.origins + self.horizon
        x = block.series[:, targets]
        known = np.isfinite(x) & np.isfinite(block.held[:, self.origins])
        x = np.where(known, x, 0.0)
        size = scale[:, None]
        amount = x * size
        above = known & (x > 0)
        own = known.sum(axis=1)
        mean = _mean(x.sum(axis=1), own)
        apart = np.where(known, x - np.nan_to_num(mean)[:, None], 0.0)
        spread = (apart**2).sum(axis=1)
        spread = np.where(spread > 1e-24 * (x**2).sum(axis=1), spread, 0.0)
        self.spread += float((spread * scale**2).sum())
        self.bytes += float(amount[above].sum())
        self.values += int(known.sum())
        self.positive += int(above.sum())
        self.target[:, part] = amount.T
        for row, (candidate, _) in enumerate(self.chosen):
            f = block.forecast(candidate, self.origins, self.horizon)
            f = np.where(known, f, 0.0)
            miss = np.abs(f - x)
            self.square[row] += ((miss * size) ** 2).sum(axis=0)
            share = np.zeros_like(x)
            np.divide(miss, x, out=share, where=above)
            self.relative[row] += float(share.sum())
            for at, tolerance in enumerate(self.tolerances):
                hit = above & (share <= tolerance * (1 + 1e-12))
                self.within[row, at] += float(amount[hit].sum())
            self.kept[row][:, part] = (f * size).T
            if self.made is not None and candidate.family == self.best:
                self.made[:, part] = np.where(known, f, np.nan).T
        if counts is not None:
            number = counts.mean(targets, part, known)
            floors = oracle_bounds(
                mean,
                number,
                k=counts.k,
                experts=counts.experts,
                held=counts.held,
                tolerances=self.tolerances,
            )
            used = own > 0
            self.noise += float((floors.variance * own * scale**2)[used].sum())
            positive = above.sum(axis=1)
            hit = positive > 0
            self.mape_floor += float((floors.mape * positive)[hit].sum())
            self.ceiling += (floors.within * amount.sum(axis=1))[:, hit].sum(axis=1)
        else:
            self.noise = self.mape_floor = float("nan")
            self.ceiling[:] = np.nan

    def finish(self, of: str, hot: int, seconds: float) -> HorizonScores:
        """Compute the scores of all blocks added so far."""
        nothing = float("nan")
        if not self.values:
            why = "no value of the test part is known"
            return nothing_known(of, self.horizon, why, self.tolerances)
        scores = tuple(self._score(row, hot) for row in range(len(self.chosen)))
        best = next(s for s in scores if s.forecaster == self.best)
        ceiling = self.ceiling / (self.bytes if self.bytes > 0 else nothing)
        verdict = Verdict(
            of=of,
            horizon=self.horizon,
            forecaster=best.forecaster,
            setting=best.setting,
            tolerances=self.tolerances,
            within=best.within,
            unchanged=scores[0].within,
            ceiling=tuple(ceiling.tolist()),
            misplaced=best.total_variation,
            skill=best.skill,
            skill_low=best.skill_low,
            skill_high=best.skill_high,
            lead_iterations=float(self.horizon),
            lead_s=seconds,
            origins=len(self.origins),
        )
        return HorizonScores(
            horizon=self.horizon,
            origins=len(self.origins),
            values=self.values,
            scores=scores,
            best=self.best,
            nmse_floor=self.noise / self.spread if self.spread > 0 else nothing,
            mape_floor=self.mape_floor / self.positive if self.positive else nothing,
            verdict=verdict,
            made=self.made,
            targets=None if self.made is None else self.origins + self.horizon,
        )

    def _score(self, row: int, hot: int) -> ForecastScore:
        candidate, validation = self.chosen[row]
        nothing = float("nan")
        squares = float(self.square[row].sum())
        skill = gain(
            self.square[row],
            self.square[0],
            horizon=self.horizon,
            stride=self.cut.stride,
        )
        f, x = self.kept[row], self.target
        shares = self.within[row] / self.bytes if self.bytes > 0 else None
        return ForecastScore(
            forecaster=candidate.family,
            setting=candidate.setting,
            validation_mse=validation,
            mse=squares / self.values,
            nmse=squares / self.spread if self.spread > 0 else nothing,
            mape=self.relative[row] / self.positive if self.positive else nothing,
            cosine=mean_of_known(cosine(f, x)),
            total_variation=mean_of_known(
                total_variation(np.maximum(f, 0), np.maximum(x, 0))
            ),
            hot_recall=mean_of_known(hot_recall(f, x, hot)),
            skill=skill.value,
            skill_error=skill.error,
            skill_low=skill.low,
            skill_high=skill.high,
            within=tuple(shares.tolist())
            if shares is not None
            else (nothing,) * len(self.tolerances),
        )


def nothing_known(
    of: str, horizon: int, why: str, tolerances: tuple[float, ...]
) -> HorizonScores:
    """Build scores that are unavailable, with the reason.

    Parameters
    ----------
    of, horizon, tolerances
        As in :class:`Verdict`.
    why
        In words, without a full stop.

    Returns
    -------
    HorizonScores
    """
    verdict = unknown_verdict(of=of, horizon=horizon, reason=why, tolerances=tolerances)
    return HorizonScores(horizon=horizon, verdict=verdict, reason=why)


def _mean(total: npt.ArrayLike, count: npt.ArrayLike) -> Float64:
    """Divide sums by counts; NaN where the count is zero."""
    above, below = np.asarray(total, np.float64), np.asarray(count, np.float64)
    out: Float64 = np.full(above.shape, np.nan)
    np.divide(above, below, out=out, where=below > 0)
    return out
