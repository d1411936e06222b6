"""Forecast loads or matrices, and evaluate the forecasts on a test part.

:func:`forecast` tunes forecasters on a validation part, selects the best there, and
evaluates it on a later test part at several horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

from .candidates import FAMILIES, candidates, find_period
from .judging import Counts, HorizonScores, Judge, nothing_known
from .origins import Split, split
from .tuning import block_of, slices, tune
from .usefulness import TOLERANCES, Verdict, lead_s

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

HORIZONS = (1, 10, 100, 1000)
"""Default forecast horizons, iterations."""

JUDGED = 1 << 21
"""Maximum forecasts evaluated per forecaster and horizon."""


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

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts, one per horizon."""
        return tuple(h.verdict for h in self.horizons)


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
    """Tune forecasters on series and score the best ones on a test part.

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
    x = x.reshape(len(x), int(np.prod(x.shape[1:]))) if x.ndim else x
    _check(x, horizons, tolerances, families, hot)
    steps, cells = x.shape
    scale = np.broadcast_to(
        np.asarray(1.0 if weights is None else weights, np.float64), (cells,)
    )
    counts = None
    if tokens is not None:
        counts = Counts(tokens=np.asarray(tokens), k=k, experts=experts, held=held)
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
    blocks = slices(cut, cells, max_order)
    single = len(blocks) == 1 and bool(usable)
    whole = block_of(x, blocks[0], cut, max_order) if single else None
    chosen = tune(x, scale, cut, tried, usable, max_order=max_order, whole=whole)
    judged = {
        h: Judge(h, cut, chosen[h], cells, tuple(tolerances), keep) for h in usable
    }
    for part in blocks if usable else ():
        block = whole or block_of(x, part, cut, max_order)
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
            done.append(nothing_known(of, h, why, tuple(tolerances)))
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
