"""Scores of the tuned forecasters on the test part, at one horizon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.noise.oracle import OracleBounds

from .accuracy import TOLERANCES, cosine, hot_recall, mean_of_known, share_within
from .candidates import FAMILIES, Candidate, SeriesBlock
from .origins import gain
from .usefulness import NAN, Verdict, unknown_verdict

Float64 = npt.NDArray[np.float64]


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

    def score(self, forecaster: str | None = None) -> ForecastScore | None:
        """Return the score of a forecaster (default: the best); None if unavailable."""
        wanted = self.best if forecaster is None else forecaster
        return next((s for s in self.scores if s.forecaster == wanted), None)


def nothing_known(of: str, horizon: int, why: str) -> HorizonScores:
    """Build scores that are unavailable, with the reason ``why``."""
    verdict = unknown_verdict(of=of, horizon=horizon, reason=why)
    return HorizonScores(horizon=horizon, verdict=verdict, reason=why)


def judge(
    block: SeriesBlock,
    horizon: int,
    chosen: Mapping[Candidate, float],
    *,
    of: str,
    scale: Float64,
    hot: int,
    lead_s: float,
    tokens: npt.NDArray[np.generic] | None,
    bounds: Callable[[Float64, Float64], OracleBounds],
) -> HorizonScores:
    """Score tuned forecasters on the test part of series.

    Parameters
    ----------
    block
        C series.
    horizon
        Iterations ahead.
    chosen
        A setting of each family with its validation error, the best first.
    of
        What the cells are, in words.
    scale
        ``[C]`` bytes of one unit.
    hot
        K of the hot cells.
    lead_s
        Lead time of the forecast, seconds.
    tokens
        ``[T, C]`` tokens that can choose a cell; None: unknown, without noise floors.
    bounds
        Oracle bounds of mean counts and tokens.

    Returns
    -------
    HorizonScores
    """
    origins = block.split.test(horizon)
    x = block.series[:, origins + horizon]
    known = np.isfinite(x) & np.isfinite(block.held[:, origins])
    values, each = int(known.sum()), known.sum(axis=1)
    if not values:
        return nothing_known(of, horizon, "no value of the test part is known")
    size = scale[:, None]
    x = np.where(known, x, 0.0)
    above = x > 0
    mean = _quotient(x.sum(axis=1), each)
    apart = np.where(known, x - np.nan_to_num(mean)[:, None], 0.0)
    spread = (apart**2).sum(axis=1)
    spread = np.where(spread > 1e-24 * (x**2).sum(axis=1), spread, 0.0)
    variation = float((spread * scale**2).sum())
    target = _single(x * size)
    order = sorted(chosen, key=lambda candidate: FAMILIES.index(candidate.family))
    scores: list[ForecastScore] = []
    baseline = np.zeros(0)
    for candidate in order:
        f = np.where(known, block.forecast(candidate, origins, horizon), 0.0)
        square = ((np.abs(f - x) * size) ** 2).sum(axis=0)
        baseline = square if not scores else baseline
        skill = gain(square, baseline, horizon=horizon, stride=block.split.stride)
        made = _single(f * size)
        whole = float(square.sum())
        scores.append(
            ForecastScore(
                forecaster=candidate.family,
                setting=candidate.setting,
                validation_mse=chosen[candidate],
                mse=whole / values,
                nmse=whole / variation if variation > 0 else NAN,
                mape=mean_of_known(np.abs(f - x)[above] / x[above]),
                cosine=mean_of_known(cosine(made, target)),
                total_variation=mean_of_known(
                    total_variation(np.maximum(made, 0), np.maximum(target, 0))
                ),
                hot_recall=mean_of_known(hot_recall(made, target, hot)),
                skill=skill.value,
                skill_error=skill.error,
                skill_low=skill.low,
                skill_high=skill.high,
                within=share_within(f, x, size),
            )
        )
    noise = mape_floor = NAN
    ceiling = np.full(len(TOLERANCES), np.nan)
    if tokens is not None:
        counted = np.where(known, tokens[origins + horizon].T, 0).sum(axis=1)
        floors = bounds(mean, _quotient(counted, each))
        noise = float((floors.variance * each * scale**2)[each > 0].sum())
        positive = above.sum(axis=1)
        hit = positive > 0
        if hit.any():
            mape_floor = float((floors.mape * positive)[hit].sum()) / int(above.sum())
            amount = (x * size).sum(axis=1)
            total = float((x * size)[above].sum())
            ceiling = (floors.within * amount)[:, hit].sum(axis=1) / total
    best = scores[order.index(next(iter(chosen)))]
    return HorizonScores(
        horizon=horizon,
        origins=len(origins),
        values=values,
        scores=tuple(scores),
        best=best.forecaster,
        nmse_floor=noise / variation if variation > 0 else NAN,
        mape_floor=mape_floor,
        verdict=Verdict(
            of=of,
            horizon=horizon,
            forecaster=best.forecaster,
            setting=best.setting,
            within=best.within,
            unchanged=scores[0].within,
            ceiling=tuple(ceiling.tolist()),
            misplaced=best.total_variation,
            skill=best.skill,
            skill_low=best.skill_low,
            skill_high=best.skill_high,
            lead_iterations=float(horizon),
            lead_s=lead_s,
            origins=len(origins),
        ),
    )


def _single(values: Float64) -> npt.NDArray[np.float32]:
    """Transpose to ``[n, C]`` in single precision: for order and shares alone."""
    return np.ascontiguousarray(values.T, np.float32)


def _quotient(total: npt.ArrayLike, count: npt.ArrayLike) -> Float64:
    """Divide sums by counts; NaN where the count is zero."""
    above, below = np.asarray(total, np.float64), np.asarray(count, np.float64)
    out: Float64 = np.full(above.shape, np.nan)
    np.divide(above, below, out=out, where=below > 0)
    return out
