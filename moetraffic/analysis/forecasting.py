"""Forecasting: how well loads or matrices can be told ahead, and what that is worth.

One call, :func:`forecast`, tunes forecasters on a validation part, picks the best there,
and judges it on a later part that nothing was tuned on, at several horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

from .accuracy import cosine, hot_recall, total_variation
from .candidates import FAMILIES, Block, Candidate, candidates, find_period
from .counting import count_floors
from .origins import Split, gain, split
from .verdict import TOLERANCES, Verdict, lead_s, unknown_verdict

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

HORIZONS = (1, 10, 100, 1000)
"""Iterations ahead."""

AT_ONCE = 1 << 22
"""Values of series, and of moments, that are in memory at a time."""

JUDGED = 1 << 21
"""Forecasts that are kept of each forecaster and horizon, at most."""


@dataclass(frozen=True, kw_only=True)
class ForecastScore:
    """How good one forecaster was at one horizon, over the test part; NaN if unknown.

    Errors are of bytes (the series times its weights).  ``nmse`` is relative to each
    cell's variance about its own mean in the test part: 0 exact, 1 as good as knowing
    that mean.
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
    """All forecasters at one horizon, and the verdict on the best."""

    horizon: int  # iterations ahead
    origins: int  # forecasts of all cells that were judged
    values: int  # cells times origins that were known
    scores: tuple[ForecastScore, ...]  # persistence first; empty where it is too short
    best: str  # chosen on the validation part
    nmse_floor: float  # of who knows the gate, from counting noise; NaN: not known
    mape_floor: float
    verdict: Verdict
    reason: str = ""  # why there are no scores
    made: Float64 | None = field(default=None, repr=False)  # [n, C] by the best
    targets: Int64 | None = field(default=None, repr=False)  # [n] steps forecast

    def score(self, forecaster: str | None = None) -> ForecastScore | None:
        """The score of a forecaster, of the best if None; None where there is none."""
        wanted = self.best if forecaster is None else forecaster
        return next((s for s in self.scores if s.forecaster == wanted), None)


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """What :func:`forecast` found."""

    of: str
    steps: int  # T
    cells: int  # C
    split: Split  # training, validation and test; stride of origins; steps to a refit
    period: int | None  # of the seasonal forecaster, given or found in training
    hot: int  # K of the hot cells
    random_recall: float  # K/C, what guessing has
    horizons: tuple[HorizonScores, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One a horizon."""
        return tuple(h.verdict for h in self.horizons)


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """What the cells count, for the floors."""

    tokens: npt.NDArray[np.generic]  # scalar, [T] or [T, C]
    k: int
    experts: int | None
    held: int

    def mean(self, steps: Int64, cells: slice, known: npt.NDArray[np.bool_]) -> Float64:
        """Mean tokens of each cell ``[c]`` over the steps that are known ``[c, n]``."""
        if self.tokens.ndim == 0:
            return np.full(len(known), float(self.tokens))
        part = np.asarray(self.tokens[steps], np.float64)
        part = part[:, cells].T if part.ndim == 2 else part[None]
        return _mean(np.where(known, part, 0.0).sum(axis=1), known.sum(axis=1))


def forecast(
    series: npt.ArrayLike,
    *,
    horizons: Sequence[int] = HORIZONS,
    tokens: npt.ArrayLike | None = None,
    k: int = 1,
    experts: int | None = None,
    held: int = 1,
    weights: npt.ArrayLike | None = None,
    of: str = "load",
    period: int | None = None,
    hot: int | None = None,
    tolerances: Sequence[float] = TOLERANCES,
    families: Sequence[str] = FAMILIES,
    max_order: int = 8,
    parts: tuple[float, float, float] = (0.5, 0.25, 0.25),
    refit_every: int | None = None,
    max_origins: int = 2048,
    iteration_s: float = float("nan"),
    known_s: float = 0.0,
    transfer_s: float = 0.0,
    keep: bool = False,
) -> Forecasts:
    """Judge how well series can be forecast, and by what.

    Step 1: every forecaster with every setting forecasts the validation part; at each
    horizon the setting of least squared error of bytes is kept of each forecaster, and
    the best of these is named.  Step 2: these are judged on the test part, at rolling
    origins, refitted as the split says.  Nothing of the test part is used to choose.

    Parameters
    ----------
    series
        ``[T, C]`` (further axes are flattened): loads of experts or ranks, or the cells
        of matrices, 0 and above.  A value that is not finite is not known; until the
        next one the last before it is taken to hold.
    horizons
        Iterations ahead, each >= 1.
    tokens
        Tokens that can choose a cell, one number, ``[T]`` or ``[T, C]``, if the series
        counts token copies: gives the floors.  See :func:`count_variance`.
    k, experts, held
        Experts of a token, all experts, and experts a cell holds, as there.
    weights
        Bytes that one unit of the series stands for, one number or ``[C]``; None: 1.
    of
        What the cells are, in words.
    period
        Of the seasonal forecaster, in iterations; None: sought in the training part.
    hot
        K of the hot cells; None: an eighth of them.
    tolerances
        Relative errors, in (0, 1), for the shares within.
    families
        Which of :data:`FAMILIES`; persistence is always there.
    max_order
        Of the autoregressions.
    parts, refit_every, max_origins
        As in :func:`split`; wide series are thinned further, to two million forecasts.
    iteration_s, known_s, transfer_s
        As in :func:`lead_s`.
    keep
        True returns the forecasts of the best too.

    Returns
    -------
    Forecasts

    Raises
    ------
    AnalysisError
        If a horizon, a family, a tolerance or a shape is none.

    Examples
    --------
    >>> wave = 100 + 50 * np.sin(2 * np.pi * np.arange(96)[:, None] / 8 + np.arange(4))
    >>> found = forecast(wave, horizons=[1], period=8)
    >>> found.horizons[0].best, round(found.verdicts[0].within[0], 6)
    ('seasonal', 1.0)
    """
    x = np.asarray(series)
    x = x.reshape(len(x), -1) if x.ndim > 1 else x[:, None] if x.ndim else x
    _check(x, horizons, tolerances, families, hot)
    steps, cells = x.shape
    scale = np.broadcast_to(
        np.asarray(1.0 if weights is None else weights, np.float64), (cells,)
    )
    counts = None
    if tokens is not None:
        counts = _Counts(
            tokens=np.asarray(tokens), k=k, experts=experts, held=held
        )
        if counts.tokens.shape not in ((), (steps,), (steps, cells)):
            raise AnalysisError(
                f"tokens are one number, [T] or [T, C], but their shape is "
                f"{counts.tokens.shape} of series {x.shape}: give one for each step"
            )
    cut = split(
        steps,
        parts=parts,
        refit_every=refit_every,
        max_origins=min(max_origins, max(64, JUDGED // max(cells, 1))),
    )
    if period is None and "seasonal" in families:
        period = find_period(x, cut)
    tried = [
        c
        for c in candidates(cut, period=period, max_order=max_order)
        if c.family in (*families, FAMILIES[0])
    ]
    usable = [h for h in horizons if cells and not cut.too_short(h)]
    blocks = _slices(steps, cells, len(cut.refits()), max_order)
    chosen = _choose(x, scale, cut, tried, usable, blocks, max_order)
    judged = {
        h: _Judge(h, cut, chosen[h], cells, tuple(tolerances), keep) for h in usable
    }
    for part in blocks if usable else ():
        block = _block(x, part, cut, max_order)
        for judge in judged.values():
            judge.add(block, part, scale[part], counts)
    amount = hot if hot is not None else max(1, round(cells / 8))
    done = []
    for h in horizons:
        if h in judged:
            seconds = lead_s(
                h, iteration_s=iteration_s, known_s=known_s, transfer_s=transfer_s
            )
            done.append(judged[h].finish(of, amount, seconds))
        else:
            why = cut.too_short(h) if cells else "there are no cells"
            done.append(_nothing(of, h, why, tuple(tolerances)))
    return Forecasts(
        of=of,
        steps=steps,
        cells=cells,
        split=cut,
        period=period,
        hot=amount,
        random_recall=min(amount / cells, 1.0) if cells else float("nan"),
        horizons=tuple(done),
    )


def _check(
    x: npt.NDArray[np.generic],
    horizons: Sequence[int],
    tolerances: Sequence[float],
    families: Sequence[str],
    hot: int | None,
) -> None:
    if x.ndim != 2:
        raise AnalysisError(
            f"a series has time for its first axis, but its shape is {x.shape}: give "
            f"[T, C]"
        )
    if any(h < 1 for h in horizons) or not all(0 < t < 1 for t in tolerances):
        raise AnalysisError(
            f"horizons are 1 or more and tolerances between 0 and 1, but they are "
            f"{list(horizons)} and {list(tolerances)}: 0.1 is a tolerance of 10 percent"
        )
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise AnalysisError(
            f"forecasters are {', '.join(FAMILIES)}, but {', '.join(unknown)} was "
            f"asked for: choose among these"
        )
    if hot is not None and not 1 <= hot <= max(x.shape[1], 1):
        raise AnalysisError(
            f"hot cells are 1 to {x.shape[1]} of all, but hot is {hot}: choose among "
            f"these"
        )


def _slices(steps: int, cells: int, refits: int, order: int) -> list[slice]:
    """Blocks of cells that fit into memory."""
    moments = (3 * refits + 8) * (order + 2) ** 2
    width = max(1, min(AT_ONCE // max(steps, 1), AT_ONCE // moments))
    return [slice(a, min(a + width, cells)) for a in range(0, cells, width)]


def _block(
    x: npt.NDArray[np.generic], part: slice, cut: Split, max_order: int
) -> Block:
    values = np.ascontiguousarray(np.asarray(x[:, part]).T, np.float64)
    return Block(values, cut, max_order=max_order)


def _choose(
    x: npt.NDArray[np.generic],
    scale: Float64,
    cut: Split,
    tried: Sequence[Candidate],
    horizons: Sequence[int],
    blocks: Sequence[slice],
    max_order: int,
) -> dict[int, list[tuple[Candidate, float]]]:
    """The best setting of each family on the validation part, and its error, best first.

    Persistence is the first of those that are as good.
    """
    errors = np.zeros((len(tried), len(horizons)))
    values = np.zeros(len(horizons))
    for part in blocks if horizons else ():
        block = _block(x, part, cut, max_order)
        for row, candidate in enumerate(tried):
            for column, h in enumerate(horizons):
                origins = cut.validation(h)
                made = block.forecast(candidate, origins, h)
                miss = (made - block.series[:, origins + h]) * scale[part, None]
                errors[row, column] += np.nansum(miss**2)
                if not row:
                    values[column] += np.isfinite(miss).sum()
    chosen: dict[int, list[tuple[Candidate, float]]] = {}
    for column, h in enumerate(horizons):
        best: dict[str, tuple[Candidate, float]] = {}
        for candidate, error in zip(tried, errors[:, column], strict=True):
            mse = float(error / values[column]) if values[column] else float("nan")
            held = best.get(candidate.family)
            # what is better by rounding alone is not better
            if held is None or mse < held[1] * (1 - 1e-9):
                best[candidate.family] = (candidate, mse)
        first = next(iter(best.values()))
        for entry in best.values():
            if entry[1] < first[1] * (1 - 1e-9):
                first = entry
        chosen[h] = [first, *(e for e in best.values() if e is not first)]
    return chosen


class _Judge:
    """Adds up, block by block, how the chosen forecasters do at one horizon."""

    def __init__(
        self,
        horizon: int,
        cut: Split,
        chosen: list[tuple[Candidate, float]],
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
        self, block: Block, part: slice, scale: Float64, counts: _Counts | None
    ) -> None:
        """Count a block of cells ``part`` in."""
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
            floors = count_floors(
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
        """The scores, once all blocks are counted in."""
        scores = tuple(
            self._score(row, hot) for row in range(len(self.chosen) if self.values else 0)
        )
        nothing = float("nan")
        if not scores:
            why = "no value of the test part is known"
            return _nothing(of, self.horizon, why, self.tolerances)
        best = next(s for s in scores if s.forecaster == self.best)
        ceiling = self.ceiling / self.bytes if self.bytes > 0 else self.ceiling * nothing
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
            cosine=_mean_of(cosine(f, x)),
            total_variation=_mean_of(total_variation(f, x)),
            hot_recall=_mean_of(hot_recall(f, x, hot)),
            skill=skill.value,
            skill_error=skill.error,
            skill_low=skill.low,
            skill_high=skill.high,
            within=tuple(shares.tolist())
            if shares is not None
            else (nothing,) * len(self.tolerances),
        )


def _nothing(
    of: str, horizon: int, why: str, tolerances: tuple[float, ...]
) -> HorizonScores:
    nothing = float("nan")
    return HorizonScores(
        horizon=horizon,
        origins=0,
        values=0,
        scores=(),
        best="",
        nmse_floor=nothing,
        mape_floor=nothing,
        verdict=unknown_verdict(
            of=of, horizon=horizon, reason=why, tolerances=tolerances
        ),
        reason=why,
    )


def _mean(total: npt.ArrayLike, count: npt.ArrayLike) -> Float64:
    """Quotients, NaN where nothing is divided by."""
    above, below = np.asarray(total, np.float64), np.asarray(count, np.float64)
    out: Float64 = np.full(above.shape, np.nan)
    np.divide(above, below, out=out, where=below > 0)
    return out


def _mean_of(values: Float64) -> float:
    """The mean of what is known."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
