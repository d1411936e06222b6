"""Movement of levels over a run: jumps, period, stable part and trend, in one order.

Jumps come first; then the period, whose frequencies are left out of
what follows; then the part after the last jump and the transient, which is stable if it
does not move or returns to a level, with swings of one size; then a trend, if no part
is stable.  So no two findings contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from moetraffic.analysis.claim import LEVEL
from moetraffic.analysis.rhythm.periodic_fit import without_period
from moetraffic.analysis.rhythm.spectral_lines import (
    Period,
    Phase,
    phase,
    strongest_period,
)
from moetraffic.arrays import Float64

from .level_changes import LevelChange, Levels
from .motion import Motion, motion
from .onset import onset

SHORTEST = 32
"""Steps that the tests need."""

STABLE = 1 / 3
"""Least part of the run that is stable, of a run that has converged."""

HALF_LIVES = 20
"""Least number of half-lives of a return to a level in the stable part."""

DRIFT = LEVEL / 5
"""Significance of a slope, which is tested in several parts of a run."""

BLOCKS = 16
"""Blocks of a part whose swings are compared; each is longer than a half-life."""


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How levels move over a run; indices of steps."""

    changes: tuple[LevelChange, ...]  # jumps, in their order
    p_change: float  # of the largest jump, or change
    period: Period | None  # the strongest line; None: run too short
    line: bool  # whether it is a line
    phase: Phase | None  # of a line; None: there is none
    whole: Motion  # of all steps
    moves: bool  # whether there is any motion beyond white noise, or a transient
    p_start: float  # of no transient; 1: none is seen
    begin: int  # first step of the stable part, or of what was tested as such
    before: int  # first step of a transient that is seen before it; -1: none
    lasting: bool  # a transient may last so long that no part is stable
    stable: Motion | None  # of the part that was tested; None: too short
    returns: bool  # it moves, and returns to a level
    p_cycle: float  # of a periodic function under white noise, if it returns; else NaN
    still: bool  # it is not seen to move, and could have moved little
    uneven: bool  # to the end, its swings become larger or smaller
    slope: Motion | None  # about lines through the run; None: not tested
    trend: bool  # the run follows these lines

    @property
    def periodic(self) -> bool:
        """Whether the line is a period: its phase is kept."""
        return self.phase is not None and self.phase.p < LEVEL

    @property
    def oscillates(self) -> bool:
        """Whether the line is a period, or more steps would decide whether it is."""
        line = self.phase
        return line is not None and (self.periodic or self.whole.steps < line.needs)

    @property
    def reverts(self) -> bool:
        """Whether it returns to a level as no periodic function does."""
        return self.returns and self.p_cycle < LEVEL

    @property
    def converged(self) -> bool:
        """Whether there is a stable part, to the end of the run."""
        return self.returns or self.still


def movement(levels: Levels, *, seed: int = 0) -> Movement:
    """Decide how levels move, of at least :data:`SHORTEST` steps.

    A motion must be seen without the oddest step, too: one step is no motion, also at
    an end of the run, where it looks like a transient or like half of a wave.
    """
    found = _movement(levels, seed=seed)
    if not found.moves or found.changes or found.line:
        return found
    values = _without_odd(levels.values)
    if motion(values, seed=seed).p_still < LEVEL:  # nearly always, and sooner
        return found
    others = _movement(replace(levels, values=values), seed=seed)
    return found if others.moves else others


def _without_odd(levels: Float64) -> Float64:
    """Replace the step that differs most from its neighbors by their mean."""
    beside = np.pad(levels, ((1, 1), (0, 0)), mode="reflect")
    mean = (beside[:-2] + beside[2:]) / 2
    off = ((levels - mean) ** 2).sum(axis=1)
    off[[0, -1]] *= 3 / 4  # of white noise: 1 + 1/2 times its variance, here 1 + 1
    odd = np.arange(len(levels)) == off.argmax()
    return np.where(odd[:, None], mean, levels)


def _movement(levels: Levels, *, seed: int) -> Movement:
    values, changes = levels.values, levels.changes
    steps = len(values)
    # Step 1: the period.
    period = strongest_period(values)
    bands, kept = None, None
    if period is not None and period.p < LEVEL:
        bands = period.bands
        kept = phase(values, period.period, line=period.line, seed=seed)
    line = kept is not None
    whole = motion(values, without=bands, seed=seed)
    # Step 2: the part after the last jump and the transient.
    moves = bool(changes) or line or whole.p_still < LEVEL
    begin, before = changes[-1].index if changes else 0, -1
    level, lasting = begin, False
    stable, returns, still, p_start = None, False, False, 1.0
    enough = max(SHORTEST, STABLE * steps)
    if steps - begin >= enough:
        start = onset(values[begin:], without=bands, seed=seed)
        lasting = steps - begin - max(start.begin, start.faded) < enough
        level = begin + start.begin
        if start.seen:
            moves, p_start = True, start.p
        if start.seen and not lasting:
            # what is left of a transient may still be seen where it is small
            before, begin = begin, begin + start.faded
        elif not lasting and not np.ptp(values[level:], axis=0).any():
            begin = level  # a level without noise; before it are odd rows
        stable = motion(values[begin:], without=bands, seed=seed) if begin else whole
        returns, still = (False, False) if lasting else _outcome(stable)
    # Step 3: of this part, the one from which its swings are of one size.
    uneven = False
    if returns:
        later = begin
        while steps - later >= enough and _swings(values[later:]) < LEVEL:
            later += (steps - later) // (BLOCKS // 2)
        uneven = steps - later < enough
        if uneven:
            returns = False
        elif later > begin:
            begin, level = later, max(level, later)
            stable = motion(values[later:], without=bands, seed=seed)
            returns, still = _outcome(stable)
    # a periodic function returns, too: what its best fits leave moves all the same
    p_cycle = float("nan")
    if returns:
        fits = without_period(values[begin:])
        p_cycle = max(motion(x, without=gone, seed=seed).p_still for x, gone in fits)
    # Step 4: a trend of the whole run.
    slope, trend = None, False
    if moves and not changes and not (returns or still or uneven):
        slope = motion(values, without=bands, line=True, seed=seed)
        trend = slope.p_trend < DRIFT and any(_outcome(slope, drift=False))
    return Movement(
        changes=changes,
        p_change=levels.p_change,
        period=period,
        line=line,
        phase=kept,
        whole=whole,
        moves=moves,
        p_start=p_start,
        begin=level if returns or still else begin,
        before=before,
        lasting=lasting,
        stable=stable,
        returns=returns,
        p_cycle=p_cycle,
        still=still,
        uneven=uneven,
        slope=slope,
        trend=trend,
    )


def _outcome(fit: Motion, *, drift: bool = True) -> tuple[bool, bool]:
    """Decide whether a part returns to a level, and whether it is still."""
    if drift and fit.p_drift < DRIFT:
        return False, False
    returns = (
        fit.p_still < LEVEL
        and fit.p_walk < LEVEL
        and fit.half_life * HALF_LIVES <= fit.steps
    )
    return returns, not returns and fit.p_still >= LEVEL and fit.walk <= 1


def _swings(levels: Float64) -> float:
    """Compute the p-value of swings of one size, by a line through those of blocks.

    The logarithms of their mean squares are nearly normal and independent, as a block
    is longer than a half-life.
    """
    square = ((levels - levels.mean(axis=0)) ** 2).mean(axis=1)
    blocks = np.array([part.mean() for part in np.array_split(square, BLOCKS)])
    size = np.log(np.maximum(blocks, 1e-300))
    size -= size.mean()
    time = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float(time @ size) / float(time @ time)
    rest = float(((size - slope * time) ** 2).sum()) / (BLOCKS - 2)
    ratio = abs(slope) * np.sqrt(float(time @ time) / max(rest, 1e-24))
    return 2 * float(stdtr(BLOCKS - 2, -ratio))
