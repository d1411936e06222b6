"""Forecast later traffic of an iteration from its first dispatch.

Combine returns the tokens of dispatch, and the backward phases repeat both: a phase
with the same token matrix or its transpose is determined by the first dispatch.  Later
layers are forecast in part: by a column-stochastic map of loads, or by a correction of
the forecast from the past, since forecast errors of layers are correlated.  All are
compared with the best history-based forecaster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.distances import total_variation
from moetraffic.errors import AnalysisError

from .accuracy import hot_recall, mean_of_known
from .candidates import candidates, find_period
from .correction import (
    EARLY,
    PAST,
    learned,
    misses_nothing,
    past_forecast,
    validation_error,
)
from .origins import Split, gain, split
from .usefulness import NAN, TOLERANCES, Verdict, unknown_verdict

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

VALUES = 1 << 22
"""Maximum values of the first dispatch and of a target; the latest are used."""

CELLS = 2048
"""Maximum cells of a target and of the first dispatch used in forecasts."""


@dataclass(frozen=True, kw_only=True)
class WithinIteration:
    """Forecast of one target from the first dispatch, scored over the test part."""

    target: str
    steps: int  # iterations that were used
    origins: int = 0  # forecasts of the test part
    cells: int = 0  # cells of the target that were forecast
    same: float  # share of iterations in which the target equals the first dispatch
    transposed: float  # or its transpose; NaN where the shapes do not allow it
    best: str = ""  # chosen on the validation part: "same", "transposed", "map", ...
    past: str = ""  # best history-based forecaster, chosen there too
    mse: float = NAN  # mean squared error
    past_mse: float = NAN
    skill: float = NAN  # 1 - MSE / MSE of the best history-based forecaster
    skill_low: float = NAN  # 95% confidence interval
    skill_high: float = NAN
    hot_recall: float = NAN
    past_hot_recall: float = NAN
    verdict: Verdict
    reason: str = ""


def identities(first: npt.ArrayLike, later: npt.ArrayLike) -> tuple[float, float]:
    """Compute how often a matrix equals the first dispatch or its transpose.

    Parameters
    ----------
    first, later
        ``[T, ...]`` of the same unit; the transpose is that of ``[T, W, W]``.

    Returns
    -------
    tuple of float
        Shares of the iterations that are known in both, 0 ... 1; NaN where the shapes
        do not allow it, or none is known.

    Examples
    --------
    >>> a = np.arange(8).reshape(2, 2, 2)
    >>> identities(a, a.transpose(0, 2, 1))
    (0.0, 1.0)
    """
    a, b = np.asarray(first), np.asarray(later)
    alike = a.shape == b.shape and a.ndim > 0
    square = alike and a.ndim == 3 and a.shape[1] == a.shape[2]
    return (
        _agree(a, b) if alike else float("nan"),
        _agree(a.transpose(0, 2, 1), b) if square else float("nan"),
    )


def _agree(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> float:
    rows = tuple(range(1, a.ndim))
    known = np.isfinite(a).all(axis=rows) & np.isfinite(b).all(axis=rows)
    equal = (a == b).all(axis=rows)[known]
    return float(equal.mean()) if equal.size else float("nan")


def within_iteration(
    first: npt.ArrayLike,
    later: Mapping[str, npt.ArrayLike],
    *,
    lead_s: Mapping[str, float] | None = None,
    tolerances: Sequence[float] = TOLERANCES,
    max_order: int = 8,
    parts: tuple[float, float, float] = (0.5, 0.25, 0.25),
    max_origins: int = 2048,
    hot: int | None = None,
    seed: int = 0,
) -> tuple[WithinIteration, ...]:
    r"""Forecast later traffic of an iteration from its first dispatch.

    Tried are: the first dispatch itself or its transpose; a column-stochastic map of
    loads (:func:`fit_transition`, up to :data:`WIDEST_MAP` cells); and the regression
    :math:`\hat y_t = e_t + B (x_t - d_t)`, where d and e are the best forecasts from
    the past of the first dispatch and of the target, and B is fitted by ridge to the
    surprises of the past in their main components.  Which is taken, and its ridge, is
    chosen on the validation part, the past alone being among them.

    Parameters
    ----------
    first
        ``[T, ...]`` loads, or matrices, of the first dispatch of each iteration.
    later
        By name, ``[T, ...]`` of the same iterations and unit.
    lead_s
        By name, seconds from when the first dispatch is known to the transfer.
    tolerances, max_order, parts, max_origins, hot
        As in :func:`moetraffic.analysis.forecast.forecasting.forecast`.
    seed
        Of the choice of :data:`CELLS` cells where there are more.  Identities are
        looked for in all cells.

    Returns
    -------
    tuple of WithinIteration
        One a target, in their order.

    Raises
    ------
    AnalysisError
        If a target has other iterations than the first dispatch.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sent = rng.integers(0, 99, size=(40, 4, 4))
    >>> found, = within_iteration(sent, {"combine": sent.transpose(0, 2, 1)})
    >>> found.best, found.skill, found.verdict.within
    ('transposed', 1.0, (1.0, 1.0, 1.0, 1.0))
    """
    x = np.asarray(first)
    found = []
    surprises: dict[int, Float64] = {}  # of the first, by the steps looked at
    for name, target in later.items():
        y = np.asarray(target)
        if not x.ndim or not y.ndim or len(y) != len(x):
            raise AnalysisError(
                f"a target is of the iterations of the first dispatch, but {name} has "
                f"shape {y.shape} and the first {x.shape}: align them"
            )
        found.append(
            _sight(
                x,
                y,
                name=name,
                lead=(lead_s or {}).get(name, float("nan")),
                tolerances=tuple(tolerances),
                max_order=max_order,
                parts=parts,
                max_origins=max_origins,
                hot=hot,
                seed=seed,
                surprises=surprises,
            )
        )
    return tuple(found)


def _sight(
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    *,
    name: str,
    lead: float,
    tolerances: tuple[float, ...],
    max_order: int,
    parts: tuple[float, float, float],
    max_origins: int,
    hot: int | None,
    seed: int,
    surprises: dict[int, Float64],
) -> WithinIteration:
    """Forecast one target from the first dispatch and score the forecast."""
    wide = max(int(np.prod(x.shape[1:])) + int(np.prod(y.shape[1:])), 1)
    keep = min(len(x), max(VALUES // wide, 64))
    x, y = x[len(x) - keep :], y[len(y) - keep :]
    same, transposed = identities(x, y)
    cut = split(keep, parts=parts, max_origins=max_origins)
    why = cut.too_short(1)
    if not why and not (y.size and x.size):
        why = "there are no cells"
    if why:
        return _unseen(name, keep, same, transposed, why, tolerances)
    flat_x = x.reshape(keep, int(np.prod(x.shape[1:])))
    flat_y = y.reshape(keep, int(np.prod(y.shape[1:])))
    rng = np.random.default_rng(seed)
    some_x = _some(rng, flat_x.shape[1])
    some_y = _some(rng, flat_y.shape[1])
    flat_y = flat_y[:, some_y]
    tried = candidates(cut, period=find_period(flat_y, cut), max_order=max_order)
    past_y, told = past_forecast(flat_y, cut, tried, max_order)
    made: dict[str, Float64] = {PAST: past_y}
    if x.shape == y.shape:
        made["same"] = np.asarray(flat_x[:, some_y], np.float64)
        if np.isfinite(transposed):
            turned = x.transpose(0, 2, 1).reshape(flat_x.shape)[:, some_y]
            made["transposed"] = np.asarray(turned, np.float64)
    real_y = np.asarray(flat_y, np.float64)
    if not misses_nothing(real_y, made, cut):
        part_x = flat_x[:, some_x]
        if keep not in surprises:
            # a correction needs no more than a good forecast of the first dispatch
            simple = [c for c in candidates(cut, max_order=max_order) if not c.direct]
            past_x, _ = past_forecast(part_x, cut, simple, max_order)
            surprises[keep] = np.asarray(part_x, np.float64) - past_x
        made |= learned(part_x, surprises[keep], real_y, past_y, cut)
    return _judged(
        real_y,
        made,
        cut,
        name=name,
        lead=lead,
        told=told,
        same=same,
        transposed=transposed,
        tolerances=tolerances,
        hot=hot,
    )


def _some(rng: np.random.Generator, cells: int) -> npt.NDArray[np.int64]:
    """Choose the cells to forecast: all, or a random sample of many, in order."""
    if cells <= CELLS:
        return np.arange(cells)
    return np.sort(rng.choice(cells, CELLS, replace=False))


def _judged(
    y: Float64,
    made: Mapping[str, Float64],
    cut: Split,
    *,
    name: str,
    lead: float,
    told: str,
    same: float,
    transposed: float,
    tolerances: tuple[float, ...],
    hot: int | None,
) -> WithinIteration:
    """Choose the best forecast on the validation part and score it on the test part."""
    best = PAST
    least = validation_error(y, made, PAST, cut)
    for key in made:
        error = validation_error(y, made, key, cut)
        if error < least * EARLY:
            best, least = key, error
    at = cut.test(1) + 1
    x = y[at]
    known = np.isfinite(x) & np.isfinite(made[PAST][at])
    if not known.any():
        why = "no value of the test part is known"
        return _unseen(name, cut.steps, same, transposed, why, tolerances)
    x = np.where(known, x, 0.0)
    past = np.where(known, made[PAST][at], 0.0)
    f = np.where(known & np.isfinite(made[best][at]), made[best][at], past)
    square, base = ((f - x) ** 2).sum(axis=1), ((past - x) ** 2).sum(axis=1)
    skill = gain(square, base, stride=cut.stride)
    cells = x.shape[1]
    amount = hot if hot is not None else max(1, round(cells / 8))
    verdict = Verdict(
        of=name,
        horizon=0,
        forecaster=best.partition(", ")[0],
        setting=best.partition(", ")[2],
        tolerances=tolerances,
        within=_within(f, x, known, tolerances),
        unchanged=_within(past, x, known, tolerances),
        ceiling=(NAN,) * len(tolerances),
        misplaced=mean_of_known(total_variation(np.maximum(f, 0.0), x)),
        skill=skill.value,
        skill_low=skill.low,
        skill_high=skill.high,
        lead_iterations=0.0,
        lead_s=lead,
        origins=len(at),
    )
    return WithinIteration(
        target=name,
        steps=cut.steps,
        origins=len(at),
        cells=cells,
        same=same,
        transposed=transposed,
        best=best,
        past=told,
        mse=float(square.sum() / known.sum()),
        past_mse=float(base.sum() / known.sum()),
        skill=skill.value,
        skill_low=skill.low,
        skill_high=skill.high,
        hot_recall=mean_of_known(hot_recall(f, x, amount)),
        past_hot_recall=mean_of_known(hot_recall(past, x, amount)),
        verdict=verdict,
    )


def _within(
    f: Float64, x: Float64, known: Bool, tolerances: tuple[float, ...]
) -> tuple[float, ...]:
    """Compute the share of bytes in cells forecast to within each tolerance."""
    above = known & (x > 0)
    whole = float(x[above].sum())
    miss = np.abs(f - x)[above]
    value = x[above]
    if not whole > 0:
        return (float("nan"),) * len(tolerances)
    return tuple(
        float(value[miss <= t * (1 + 1e-12) * value].sum()) / whole for t in tolerances
    )


def _unseen(
    name: str,
    steps: int,
    same: float,
    transposed: float,
    why: str,
    tolerances: tuple[float, ...],
) -> WithinIteration:
    return WithinIteration(
        target=name,
        steps=steps,
        same=same,
        transposed=transposed,
        verdict=unknown_verdict(of=name, horizon=0, reason=why, tolerances=tolerances),
        reason=why,
    )
