"""Forecast later traffic of an iteration from its first dispatch.

Combine returns the tokens of dispatch, and the backward phases repeat both: a phase
with the same token matrix or its transpose is determined by the first dispatch.  Later
layers are forecast in part, by a correction of the forecast from the past, since
forecast errors of layers are correlated.  All are compared with the best history-based
forecaster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .accuracy import TOLERANCES, hot_recall, mean_of_known, share_within
from .candidates import best_of, candidates, find_period
from .correction import correction, past_forecast, validation_error
from .origins import gain, split
from .usefulness import NAN, Verdict, unknown_verdict

PAST = "history"
"""Name of the forecast from earlier iterations alone."""

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
    equal_share: float  # of iterations in which the target equals the first dispatch
    transposed_share: float  # or its transpose; NaN where the shapes differ
    best: str = ""  # chosen on the validation part: "first dispatch", "transposed" ...
    past: str = ""  # best history-based forecaster, chosen there too
    mse: float = NAN  # mean squared error
    history_mse: float = NAN
    skill: float = NAN  # 1 - MSE / MSE of the best history-based forecaster
    skill_low: float = NAN  # 95% confidence interval
    skill_high: float = NAN
    hot_recall: float = NAN
    history_hot_recall: float = NAN
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
    if a.shape != b.shape or not a.ndim:
        return NAN, NAN
    square = a.ndim == 3 and a.shape[1] == a.shape[2]
    return _agree(a, b), _agree(a.transpose(0, 2, 1), b) if square else NAN


def _agree(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> float:
    """Compute the share of steps known in both at which all cells are equal."""
    rows = tuple(range(1, a.ndim))
    known = np.isfinite(a).all(axis=rows) & np.isfinite(b).all(axis=rows)
    return mean_of_known((a == b).all(axis=rows)[known])


def within_iteration(
    first: npt.ArrayLike,
    later: Mapping[str, npt.ArrayLike],
    *,
    lead_s: Mapping[str, float] | None = None,
    seed: int = 0,
) -> tuple[WithinIteration, ...]:
    r"""Forecast later traffic of an iteration from its first dispatch.

    Tried are: the first dispatch itself or its transpose; and the regression
    :math:`\hat y_t = e_t + B (x_t - d_t)`, where d and e are the best history-based
    forecasts of the first dispatch and of the target, and B is fitted by ridge
    regression to principal components of earlier forecast errors.  The method and its
    ridge are chosen on the validation part, history alone being among them.

    Parameters
    ----------
    first
        ``[T, ...]`` loads, or matrices, of the first dispatch of each iteration.
    later
        By name, ``[T, ...]`` of the same iterations and unit.
    lead_s
        By name, seconds from when the first dispatch is known to the transfer.
    seed
        Of the choice of :data:`CELLS` cells where there are more.  Identities are
        compared in all cells.

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
    errors: dict[int, Float64] = {}
    for name, target in later.items():
        y = np.asarray(target)
        if not x.ndim or not y.ndim or len(y) != len(x):
            raise AnalysisError(
                f"a target is of the iterations of the first dispatch, but {name} has "
                f"shape {y.shape} and the first {x.shape}: align them"
            )
        lead = (lead_s or {}).get(name, NAN)
        found.append(_forecast(x, y, name, lead, seed, errors))
    return tuple(found)


def _forecast(
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    name: str,
    lead_s: float,
    seed: int,
    errors: dict[int, Float64],
) -> WithinIteration:
    """Forecast one target from the first dispatch and score the forecast.

    ``errors`` keeps the first dispatch's forecast errors by number of iterations.
    """
    wide = max(int(np.prod(x.shape[1:])) + int(np.prod(y.shape[1:])), 1)
    keep = min(len(x), max(VALUES // wide, 64))
    x, y = x[len(x) - keep :], y[len(y) - keep :]
    equal, transposed = identities(x, y)

    def unavailable(why: str) -> WithinIteration:
        return WithinIteration(
            target=name,
            steps=keep,
            equal_share=equal,
            transposed_share=transposed,
            verdict=unknown_verdict(of=name, horizon=0, reason=why),
            reason=why,
        )

    cut = split(keep)
    if why := cut.too_short(1):
        return unavailable(why)
    if not (y.size and x.size):
        return unavailable("there are no cells")
    # Step 1: forecasts from history alone, and from the first dispatch.
    flat = x.reshape(keep, int(np.prod(x.shape[1:])))
    rng = np.random.default_rng(seed)
    some_x = _some(rng, flat.shape[1])
    flat_y = y.reshape(keep, int(np.prod(y.shape[1:])))
    some_y = _some(rng, flat_y.shape[1])
    real = np.asarray(flat_y[:, some_y], np.float64)
    tried = candidates(cut, period=find_period(real, cut))
    past, how = past_forecast(real, cut, tried)
    made = {PAST: past}
    if x.shape == y.shape:
        made["first dispatch"] = np.asarray(flat[:, some_y], np.float64)
        if np.isfinite(transposed):
            turned = x.transpose(0, 2, 1).reshape(flat.shape)[:, some_y]
            made["transposed"] = np.asarray(turned, np.float64)
    missed = {key: validation_error(real, f, past, cut) for key, f in made.items()}
    if min(missed.values()) > 0:
        part = flat[:, some_x]
        if keep not in errors:
            # a correction needs no more than a good forecast of the first dispatch
            simple = candidates(cut)
            errors[keep] = np.asarray(part, np.float64)
            errors[keep] = errors[keep] - past_forecast(part, cut, simple)[0]
        key, made_by = correction(errors[keep], real, past, cut)
        made[key] = made_by
        missed[key] = validation_error(real, made_by, past, cut)
    # Step 2: the best on the validation part, scored on the test part.
    best = best_of(missed)
    at = cut.test(1) + 1
    target = real[at]
    known = np.isfinite(target) & np.isfinite(past[at])
    if not known.any():
        return unavailable("no value of the test part is known")
    target = np.where(known, target, 0.0)
    base = np.where(known, past[at], 0.0)
    f = np.where(known & np.isfinite(made[best][at]), made[best][at], base)
    square = ((f - target) ** 2).sum(axis=1)
    base_square = ((base - target) ** 2).sum(axis=1)
    skill = gain(square, base_square, stride=cut.stride)
    cells = target.shape[1]
    hot = max(1, round(cells / 8))
    forecaster, _, setting = best.partition(", ")
    return WithinIteration(
        target=name,
        steps=keep,
        origins=len(at),
        cells=cells,
        equal_share=equal,
        transposed_share=transposed,
        best=best,
        past=how,
        mse=float(square.sum() / known.sum()),
        history_mse=float(base_square.sum() / known.sum()),
        skill=skill.value,
        skill_low=skill.low,
        skill_high=skill.high,
        hot_recall=mean_of_known(hot_recall(f, target, hot)),
        history_hot_recall=mean_of_known(hot_recall(base, target, hot)),
        verdict=Verdict(
            of=name,
            horizon=0,
            forecaster=forecaster,
            setting=setting,
            within=share_within(f, target),
            unchanged=share_within(base, target),
            oracle_bound=(NAN,) * len(TOLERANCES),
            oracle_bound_error=(NAN,) * len(TOLERANCES),
            reduction=skill,
            lead_iterations=0.0,
            lead_s=lead_s,
            origins=len(at),
        ),
    )


def _some(rng: np.random.Generator, cells: int) -> Int64:
    """Choose the cells to forecast: all, or a random sample of many, in order."""
    if cells <= CELLS:
        return np.arange(cells)
    return np.sort(rng.choice(cells, CELLS, replace=False))
