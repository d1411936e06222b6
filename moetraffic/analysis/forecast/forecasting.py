"""Forecast loads or matrices, and evaluate the forecasts on a test part.

:func:`forecast` tunes forecasters on a validation part, selects the best there, and
evaluates it on a later test part at several horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.noise.oracle import oracle_bounds
from moetraffic.errors import AnalysisError

from .accuracy import TOLERANCES
from .candidates import SeriesBlock, candidates, find_period, tune
from .judging import HorizonScores, judge, nothing_known
from .origins import Split, split, steps_needed
from .usefulness import Verdict

HORIZONS = (1, 2, 5, 10, 20, 50, 100)
"""Default forecast horizons (ages of a plan), iterations, where a run can test them."""

JUDGED = 1 << 21
"""Maximum forecasts evaluated per forecaster and horizon."""


def default_horizons(steps: int) -> tuple[int, ...]:
    """Return the default horizons that a run of T steps is long enough for.

    Examples
    --------
    >>> default_horizons(60)
    (1, 2)
    >>> default_horizons(300)
    (1, 2, 5, 10)
    """
    return tuple(h for h in HORIZONS if h == 1 or steps_needed(h) <= steps)


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """Scores of tuned forecasters at each horizon, from :func:`forecast`."""

    of: str
    steps: int  # T
    cells: int  # C
    split: Split  # training, validation and test; stride of origins; steps to a refit
    period: int | None  # of the seasonal forecaster, given or found in training
    hot: int  # K of the hot cells
    random_recall: float  # K/C, what guessing has
    horizons: tuple[HorizonScores, ...]

    def lowest_nmse(self, horizon: int) -> float:
        """Return the lowest NMSE of the forecasters at a horizon; inf without any."""
        at = (h.scores for h in self.horizons if h.horizon == horizon)
        found = (score.nmse for scores in at for score in scores)
        return min(filter(np.isfinite, found), default=float("inf"))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts, one per horizon."""
        return tuple(h.verdict for h in self.horizons)


def forecast(
    series: npt.ArrayLike,
    *,
    horizons: Sequence[int] | None = None,
    tokens: npt.ArrayLike | None = None,
    k: int = 1,
    experts: int | None = None,
    held: int = 1,
    weights: npt.ArrayLike | None = None,
    of: str = "load",
    period: int | None = None,
    spacing: int = 1,
    iteration_s: float = float("nan"),
    known_s: float = 0.0,
    transfer_s: float = 0.0,
) -> Forecasts:
    """Tune forecasters on series and score the best ones on a test part.

    Step 1: every forecaster with every setting forecasts the validation part; at each
    horizon the setting of least squared error of bytes is kept of each forecaster, and
    the best of these is named.  Step 2: these are scored on the test part, at rolling
    origins, refitted every eighth of it.  Nothing of the test part is used to choose.

    Parameters
    ----------
    series
        ``[T, C]`` (further axes are flattened): loads of experts or ranks, or the cells
        of matrices, 0 and above.  A value that is not finite is not known; until the
        next one the last before it is taken to hold.
    horizons
        Iterations ahead, each >= 1; None: :func:`default_horizons`.
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
    spacing
        Iterations from a row to the next; horizons and the period found are multiples.
    iteration_s, known_s, transfer_s
        Seconds: length of an iteration; when in it the series are known, and when the
        transfer starts.

    Raises
    ------
    AnalysisError
        If a horizon is below 1 or a shape does not fit.

    Examples
    --------
    >>> wave = 100 + 50 * np.sin(2 * np.pi * np.arange(96)[:, None] / 8 + np.arange(4))
    >>> found = forecast(wave, horizons=[1], period=8)
    >>> found.horizons[0].best, round(found.verdicts[0].within[0], 6)
    ('seasonal', 1.0)
    """
    x = np.asarray(series)
    x = x.reshape(len(x), int(np.prod(x.shape[1:]))) if x.ndim else x
    if x.ndim != 2:
        raise AnalysisError(
            f"a series has time for its first axis, but its shape is {x.shape}: give "
            f"[T, C]"
        )
    rows_ahead = default_horizons(len(x))
    if horizons is not None:
        if any(h < 1 or h % spacing for h in horizons):
            raise AnalysisError(
                f"horizons are {spacing} iteration{'s' * (spacing > 1)} or a multiple, "
                f"but they are {list(horizons)}: correct them"
            )
        rows_ahead = tuple(h // spacing for h in horizons)
    steps, cells = x.shape
    scale = np.broadcast_to(
        np.asarray(1.0 if weights is None else weights, np.float64), (cells,)
    )
    counted = None
    if tokens is not None:
        counted = np.asarray(tokens)
        if counted.shape not in ((), (steps,), (steps, cells)):
            raise AnalysisError(
                f"tokens are one number, [T] or [T, C], but their shape is "
                f"{counted.shape} of series {x.shape}: give one for each step"
            )
        counted = counted[:, None] if counted.ndim == 1 else counted
        counted = np.broadcast_to(counted, x.shape)
    cut = split(steps, max_origins=min(2048, max(64, JUDGED // max(cells, 1))))
    if period is None:
        period = find_period(x, cut)
    tried = candidates(cut, period=period)
    hot = max(1, round(cells / 8))
    usable = [h for h in rows_ahead if cells and not cut.too_short(h)]
    block = SeriesBlock(x if usable else x[:0], cut)
    chosen = tune(block, tried, usable, scale=scale)
    bounds = partial(
        oracle_bounds, k=k, experts=experts, held=held, tolerances=TOLERANCES
    )
    done = [
        judge(
            block,
            h,
            chosen[h],
            of=of,
            scale=scale,
            hot=hot,
            lead_s=h * spacing * iteration_s + (transfer_s - known_s),
            tokens=counted,
            bounds=bounds,
        )
        if h in chosen
        else nothing_known(of, h, cut.too_short(h) if cells else "there are no cells")
        for h in rows_ahead
    ]
    return Forecasts(
        of=of,
        steps=steps,
        cells=cells,
        split=cut,
        period=None if period is None else period * spacing,
        hot=hot,
        random_recall=min(hot / cells, 1.0) if cells else float("nan"),
        horizons=tuple(_in_iterations(each, spacing) for each in done),
    )


def _in_iterations(scores: HorizonScores, spacing: int) -> HorizonScores:
    """Convert a horizon in rows to iterations."""
    verdict = replace(
        scores.verdict,
        horizon=scores.verdict.horizon * spacing,
        lead_iterations=scores.verdict.lead_iterations * spacing,
    )
    return replace(scores, horizon=scores.horizon * spacing, verdict=verdict)
