"""Scores of the tuned forecasters on the test part, at one horizon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.noise.oracle import OracleBounds
from moetraffic.analysis.skew.measures import ratio
from moetraffic.arrays import Float32, Float64, Int64

from .accuracy import TOLERANCES, hot_recall, mean_of_known, share_within
from .candidates import FAMILIES, MEAN_OF_PAST, Candidate, SeriesBlock
from .origins import Ratio, gain
from .usefulness import NAN, Verdict, unknown_verdict


@dataclass(frozen=True, kw_only=True)
class ForecastScore:
    """Errors of one forecaster at one horizon over the test part; NaN if unknown.

    Errors are of bytes (the series times its weights).  ``nmse`` is the MSE over that
    of the mean of the past (:data:`~.candidates.MEAN_OF_PAST`) at the same origins: 0
    is exact, below 1 recent history helps.  Bounds are over the same MSE.
    """

    forecaster: str
    setting: str  # as tuned on the validation part
    validation_mse: float  # by which it was chosen
    mse: float  # mean squared error, unit squared
    nmse: float  # MSE / MSE of the mean of the past
    mape: float  # a fraction, over the cells above zero
    hot_recall: float  # of the K cells with most, the share found
    skill: Ratio  # 1 - NMSE
    reduction: Ratio  # 1 - MSE / MSE of persistence
    within: tuple[float, ...]  # share of bytes in cells forecast within each tolerance


@dataclass(frozen=True, kw_only=True)
class HorizonScores:
    """Scores of all forecasters at one horizon, and the verdict on the best."""

    horizon: int  # iterations ahead
    origins: int = 0  # number of forecasts of all cells
    values: int = 0  # cells times origins that were known
    scores: tuple[ForecastScore, ...] = ()  # persistence first; empty if too short
    best: str = ""  # chosen on the validation part
    mean_mse: float = NAN  # MSE of the mean of the past: what an NMSE is relative to
    # oracle bounds (true gate probabilities; sampling noise only): expected values, and
    # their standard errors over the test part
    nmse_floor: float = NAN
    nmse_floor_error: float = NAN
    mape_floor: float = NAN
    mape_floor_error: float = NAN
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
    chosen
        A setting of each family with its validation error, the best first.
    scale
        ``[C]`` bytes of one unit.
    tokens
        ``[T, C]`` tokens that can choose a cell; None: unknown, without noise floors.
    bounds
        Oracle bounds of mean counts and tokens.
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
    mean = ratio(x.sum(axis=1), each)

    def errors(candidate: Candidate) -> tuple[Float64, Float64]:
        """Forecast, and sum the squared errors of each origin."""
        f = np.where(known, block.forecast(candidate, origins, horizon), 0.0)
        miss = f - x
        # what is smaller is rounding
        miss[np.abs(miss) <= 1e-12 * np.abs(x)] = 0.0
        return f, ((miss * size) ** 2).sum(axis=0)

    _, reference = errors(MEAN_OF_PAST)
    variation = float(reference.sum())
    compare = partial(gain, horizon=horizon, stride=block.split.stride)
    target = _single(x * size)
    order = sorted(chosen, key=lambda candidate: FAMILIES.index(candidate.family))
    scores: list[ForecastScore] = []
    unchanged = np.zeros(0)
    for candidate in order:
        f, square = errors(candidate)
        unchanged = square if not scores else unchanged
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
                hot_recall=mean_of_known(hot_recall(made, target, hot)),
                skill=compare(square, reference),
                reduction=compare(square, unchanged),
                within=share_within(f, x, size),
            )
        )
    oracle = _Oracle()
    if tokens is not None:
        counted = np.where(known, tokens[origins + horizon].T, 0).sum(axis=1)
        floors = bounds(mean, ratio(counted, each))
        oracle = _oracle(floors, x * size, each, scale)
    best = scores[order.index(next(iter(chosen)))]
    return HorizonScores(
        horizon=horizon,
        origins=len(origins),
        values=values,
        scores=tuple(scores),
        best=best.forecaster,
        mean_mse=variation / values,
        nmse_floor=oracle.square / variation if variation > 0 else NAN,
        nmse_floor_error=oracle.square_error / variation if variation > 0 else NAN,
        mape_floor=oracle.mape,
        mape_floor_error=oracle.mape_error,
        verdict=Verdict(
            of=of,
            horizon=horizon,
            forecaster=best.forecaster,
            setting=best.setting,
            within=best.within,
            unchanged=scores[0].within,
            oracle_bound=oracle.within,
            oracle_bound_error=oracle.within_error,
            reduction=best.reduction,
            lead_iterations=float(horizon),
            lead_s=lead_s,
            origins=len(origins),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Oracle:
    """Oracle bounds over a test part, and their standard errors."""

    square: float = NAN  # sum of squared errors
    square_error: float = NAN
    mape: float = NAN
    mape_error: float = NAN
    within: tuple[float, ...] = (NAN,) * len(TOLERANCES)
    within_error: tuple[float, ...] = (NAN,) * len(TOLERANCES)


def _oracle(
    floors: OracleBounds, amounts: Float64, each: Int64, scale: Float64
) -> _Oracle:
    """Sum the oracle bounds of cells over a test part.

    Counts of one iteration share its tokens: of C even cells each pair is correlated
    by ``-1/(C - 1)``, which adds a part of ``1/(C - 1)`` to the variance of a sum of
    squares.  Iterations are independent.

    Parameters
    ----------
    floors
        Of C cells.
    amounts
        ``[C, n]`` bytes; 0 where unknown.
    each
        ``[C]`` known values.
    scale
        ``[C]`` bytes of one unit.
    """
    cells = len(each)
    shared = cells / max(cells - 1, 1)
    seen = each > 0
    square = float((floors.variance * each * scale**2)[seen].sum())
    doubt = (floors.square_std**2 * each * scale**4)[seen].sum()
    found = _Oracle(square=square, square_error=float(np.sqrt(doubt * shared)))
    positive = (amounts > 0).sum(axis=1)
    hit = positive > 0
    if not hit.any():
        return found
    number = int(positive.sum())
    doubt = ((floors.mape_std**2 * positive)[hit]).sum() * shared
    total = float(amounts.sum())
    whole = amounts.sum(axis=1)
    doubts = (floors.within_std**2 * (amounts**2).sum(axis=1))[:, hit].sum(axis=1)
    return replace(
        found,
        mape=float((floors.mape * positive)[hit].sum()) / number,
        mape_error=float(np.sqrt(doubt)) / number,
        within=tuple(((floors.within * whole)[:, hit].sum(axis=1) / total).tolist()),
        within_error=tuple((np.sqrt(doubts * shared) / total).tolist()),
    )


def _single(values: Float64) -> Float32:
    """Transpose to ``[n, C]`` in single precision: for order and shares alone."""
    return np.ascontiguousarray(values.T, np.float32)
