"""Claims about how expert loads, or the cells of a matrix, move over a run."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import (
    LEVEL,
    NAN,
    NO_TRANSIENT,
    NOT_TESTED,
    Claim,
    Outcome,
)
from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.rhythm.spectral_lines import AFTER, ALTERNATION
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace.iterations import regular_stretch

from .level_changes import Levels, levels_of
from .mean_load import WALKS, skewed
from .motion import Motion
from .movement import DRIFT, HALF_LIVES, SHORTEST, Movement, movement

Part = dict[str, Any]

NULLS = {
    "moves": "a constant router with white sampling noise",
    "converged": "a random walk of the shares under sampling noise; a transient of one "
    "standard deviation",
    "level change": "stationary increments, as of a random walk or autoregression",
    "trend": "a random walk of the shares under sampling noise, or no slope",
    "periodic": "a smooth spectrum, or a damped oscillation",
    "mean-reverting": "a random walk of the shares, or a periodic function or none "
    "under sampling noise",
}
"""Names of the claims, with the hypothesis that each must reject."""

KNOWN = 0.8
"""Smallest share of iterations from which the others are interpolated, for periods."""

_NOTHING: Part = {"outcome": Outcome.NO_EVIDENCE, "statement": ""}


def level_claims(
    counts: npt.ArrayLike,
    *,
    tokens: npt.ArrayLike | None,
    k: int = 1,
    at: npt.ArrayLike | None = None,
    elapsed: npt.ArrayLike | None = None,
    about: str,
    item: str = "expert",
    levels: Levels | None = None,
    seed: int = 0,
) -> tuple[Claim, ...]:
    """Decide how the shares of expert loads, or of a matrix' cells, move over a run.

    All claims of a run are decided together (:func:`.movement.movement`).

    Parameters
    ----------
    counts
        ``[T, C]`` token copies, or bytes in units of a row; step first.
    tokens
        Tokens of a step, one number or ``[T]``; None: unknown.  Only the figure of
        "moves" needs them: to the tests, noise is what does not last from one step to
        the next.
    at
        ``[T]`` strictly increasing iteration numbers; None: 0, 1, 2 ...
    elapsed
        ``[T]`` training steps until each row; None: ``at``.  Periods and half-lives
        are of the longest part without a gap.
    about
        Subject of the claims: "expert load of layer 0".
    item
        What a column is of, for "skewed".
    levels
        Of these counts, as of :func:`.level_changes.levels_of`; None: computed.

    Returns
    -------
    tuple of Claim
        "skewed", of the stable level alone if one level change or a transient comes
        before it, and one of each name of :data:`NULLS`, in this order; times in
        iterations.

    Raises
    ------
    AnalysisError
        If the counts are not ``[T, C]``, or the iteration numbers do not increase.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = np.where(np.arange(200)[:, None] < 90, [0.4, 0.3, 0.3], [0.2, 0.3, 0.5])
    >>> counts = np.array([rng.multinomial(2000, row) for row in p])
    >>> found = level_claims(counts, tokens=2000, about="expert load")
    >>> [claim.name for claim in found if claim.stated]
    ['skewed', 'moves', 'converged', 'level change']
    >>> found[2].statement
    'its level is stable from iteration 97 on at the latest'
    """
    found, claims = decided(
        counts,
        tokens=tokens,
        k=k,
        at=at,
        elapsed=elapsed,
        about=about,
        levels=levels,
        seed=seed,
    )
    begin = 0
    if found is not None and found.converged:
        # several level changes are motion, as between regimes
        once = len(found.changes) == 1 or (not found.changes and found.before >= 0)
        begin = found.begin if once else 0
    return skewed(counts, k=k, at=at, begin=begin, about=about, item=item), *claims


def decided(
    counts: npt.ArrayLike,
    *,
    tokens: npt.ArrayLike | None,
    k: int,
    at: npt.ArrayLike | None,
    elapsed: npt.ArrayLike | None = None,
    about: str,
    levels: Levels | None = None,
    seed: int,
) -> tuple[Movement | None, tuple[Claim, ...]]:
    """Return the movement behind the claims, too; None where there are too few steps.

    Parameters as of :func:`level_claims`; indices of the movement are of the steps with
    traffic.
    """
    x = np.asarray(counts, np.float64)
    if x.ndim != 2:
        raise AnalysisError(
            f"claims are of counts [T, C], but their shape is {x.shape}: give one row "
            "an iteration"
        )
    steps = np.arange(len(x)) if at is None else np.asarray(at)
    if steps.shape != (len(x),) or (np.diff(steps) <= 0).any():
        raise AnalysisError(
            f"each row has an iteration number, and they increase, but {len(x)} rows "
            f"came with numbers of shape {steps.shape}: sort the rows and give one "
            "number each"
        )
    levels = levels_of(x) if levels is None else levels
    time = steps if elapsed is None else np.asarray(elapsed)
    found = _moved(levels, seed=seed)
    claims = _claims(found, x, levels.rows, steps, tokens=tokens, k=k, about=about)
    if found is None:
        return found, claims
    stretch, spacing = regular_stretch(time)
    within = (levels.rows >= stretch.start) & (levels.rows < stretch.stop)
    rows = levels.rows[within]
    periodic: Movement | None = found
    reverting: Movement | None = found
    count = {"periodic": len(rows), "mean-reverting": len(rows)}
    if len(rows) < len(levels.rows):
        reverting = _moved(levels_of(x[rows]), seed=seed)
        periodic = reverting
        known = time[levels.rows]
        grid = np.arange(known[0], known[-1] + 1, spacing)
        if len(known) >= KNOWN * len(grid):
            # a line is tested against a smooth spectrum, and interpolation smooths
            filled = [np.interp(grid, known, column) for column in x[levels.rows].T]
            periodic = _moved(levels_of(np.stack(filled, axis=1)), seed=seed)
            count["periodic"] = len(known)
    lacking: Part = {"outcome": Outcome.NOT_ENOUGH_DATA, "needs": SHORTEST}
    lacking |= {"statement": "", "flags": ("iterations are missing in between",)}
    parts = {
        "periodic": _periodic(periodic, float(spacing)) if periodic else lacking,
        "mean-reverting": _mean_reverting(reverting, float(spacing))
        if reverting
        else lacking,
    }
    return found, tuple(
        Claim(
            name=c.name,
            null=NULLS[c.name],
            about=about,
            used=count[c.name],
            left_out=len(x) - count[c.name],
            **parts[c.name],
        )
        if c.name in parts
        else c
        for c in claims
    )


def _moved(levels: Levels, *, seed: int) -> Movement | None:
    """Decide how levels move; None where there are too few."""
    if len(levels.rows) < SHORTEST or levels.values.shape[1] < 2:
        return None
    return movement(levels, seed=seed)


def _claims(
    found: Movement | None,
    x: Float64,
    rows: Int64,
    steps: npt.NDArray[np.generic],
    *,
    tokens: npt.ArrayLike | None,
    k: int,
    about: str,
) -> tuple[Claim, ...]:
    """State what was found in counts ``[T, C]``, whose steps ``rows`` were used."""
    common: Part = {"about": about, "used": len(rows), "left_out": len(x) - len(rows)}
    if found is None and len(rows) >= SHORTEST and _constant(x[rows]):
        held = {"converged": _HELD}
        return tuple(
            Claim(name=name, null=null, **common, **held.get(name, _NOTHING))
            for name, null in NULLS.items()
        )
    if found is None:
        return tuple(
            Claim(
                name=name,
                outcome=Outcome.NOT_ENOUGH_DATA,
                statement="",
                null=null,
                needs=SHORTEST,
                **common,
            )
            for name, null in NULLS.items()
        )
    when = np.asarray(steps)[rows].astype(np.int64)
    parts = {
        "moves": _moves(found, x[rows], tokens, rows, k),
        "converged": _converged(found, when),
        "level change": _level_change(found, when),
        "trend": _trend(found, x[rows]),
        **dict.fromkeys(("periodic", "mean-reverting"), _NOTHING),
    }
    return tuple(
        Claim(name=name, null=NULLS[name], **common, **part)
        for name, part in parts.items()
    )


_SHORT = f"fewer than {HALF_LIVES} half-lives of its motion"


def _lacking(found: Movement) -> int:
    """Return the steps with which a return to a level is decided; 0: none are known.

    No number is enough of what may be a random walk, nor of what drifts or fades.
    """
    fit = found.stable
    if fit is None or _unstable(found, fit) or max(fit.p_still, fit.p_walk) >= LEVEL:
        return 0
    needs = fit.half_life * HALF_LIVES
    return found.begin + ceil(needs) if fit.steps < needs < np.inf else 0


def _constant(x: Float64) -> bool:
    """Return whether shares never vary, which leaves no motion to be tested."""
    shares = x / x.sum(axis=1, keepdims=True)
    return bool(np.allclose(shares, shares[0], rtol=1e-9, atol=0))


_HELD: Part = {
    "outcome": Outcome.STATED,
    "statement": "its level is stable over the whole run",
    "flags": ("its shares never vary",),
}
"""Convergence of shares that never vary."""


def _decided(stated: bool) -> Outcome:
    return Outcome.STATED if stated else Outcome.NO_EVIDENCE


def _moves(
    found: Movement, x: Float64, tokens: npt.ArrayLike | None, rows: Int64, k: int
) -> Part:
    period = found.period.p if found.period else 1.0
    p = [found.whole.p_still, found.p_change, found.p_start, period]
    figure, over = NAN, ""
    if tokens is not None:
        sent = np.broadcast_to(np.asarray(tokens, np.float64), (rows.max() + 1,))[rows]
        figure = _over_noise(x, sent, k)
        over = f": their variance is {figure:.3g} times that of sampling noise"
    if found.moves and figure < 1:
        # routers that differ from rank to rank have less noise than one of their mean
        figure, over = NAN, ""
    return {
        "outcome": _decided(found.moves),
        "statement": f"its shares move over the run{over}" if found.moves else "",
        "p": min(p),
        "figure": figure,
        "measure": "variance over that of sampling noise",
    }


def _over_noise(x: Float64, tokens: Float64, k: int) -> float:
    """Compute the variance of shares over that of Binomial(N, kp) copies."""
    x, tokens = x[tokens > 0], tokens[tokens > 0]
    if len(tokens) < 2:
        return NAN
    probability = np.minimum(x.mean(axis=0) / tokens.mean(), 1.0)
    noise = (probability * (1 - probability)).sum() * (1 / tokens).mean()
    variance = (x / tokens[:, None]).var(axis=0, ddof=1).sum()
    return float(variance / noise) if noise > 0 else NAN


def _converged(found: Movement, when: Int64) -> Part:
    fit, flags, part = found.stable, list[str](), _NOTHING
    begin = int(when[found.begin])
    if found.converged:
        part = _level(found, when)
        if found.still and fit is not None:
            flags.append(
                f"a random walk may have moved it by up to {fit.walk:.2g} times the "
                "sampling noise of an iteration"
            )
    elif fit is None:
        flags.append(f"it changes its level at iteration {begin}")
    elif why := _unstable(found, fit):
        flags.append(why)
    elif needs := _lacking(found):
        part = {**_NOTHING, "outcome": Outcome.NOT_ENOUGH_DATA, "needs": needs}
        flags.append(_SHORT)
    else:
        flags.append("it moves like a random walk")
    return {
        **part,
        # of a walk; without motion, of a transient, rejected at this iteration
        "p": NAN if fit is None else LEVEL if found.still else fit.p_walk,
        "unit": "iterations",
        "flags": (*part.get("flags", ()), *flags),
    }


def _unstable(found: Movement, fit: Motion) -> str:
    """Name what a stable level does not do; "" if nothing is seen."""
    if found.uneven:
        return "its swings become larger or smaller to the end"
    if found.lasting:
        return "a transient may last beyond two thirds of the run"
    drifts = found.trend or fit.p_drift < DRIFT
    return "it drifts in one direction" if drifts else ""


def _level(found: Movement, when: Int64) -> Part:
    """State a level, and the iteration at which it begins at the latest."""
    begin = int(when[found.begin])
    part: Part = {
        "outcome": Outcome.STATED,
        "statement": "its level is stable over the whole run",
    }
    if found.begin:
        part |= {
            "statement": f"its level is stable from iteration {begin} on at the latest",
            "figure": float(begin),
            "high": float(begin),
        }
    if found.before >= 0:
        first = int(when[found.before])
        part["low"] = float(first)
        part["flags"] = (f"a transient is seen that begins at iteration {first}",)
    elif found.changes:
        part["low"] = float(when[found.changes[-1].low])
    else:
        part["flags"] = (NO_TRANSIENT,)
    return part


def _level_change(found: Movement, when: Int64) -> Part:
    part: Part = {
        "outcome": _decided(bool(found.changes)),
        "statement": "",
        "p": found.p_change,
        "unit": "iterations",
    }
    if found.changes:
        largest = min(found.changes, key=lambda change: change.p)
        listed = ", ".join(str(when[change.index]) for change in found.changes)
        part |= {
            "statement": f"its level changes at iteration {listed}",
            "figure": float(when[largest.index]),
            "low": float(when[largest.low]),
            "high": float(when[largest.high]),
        }
        if len(found.changes) > 1:
            part["flags"] = (
                f"{len(found.changes)} changes, the figure is the largest",
            )
    return part


def _trend(found: Movement, x: Float64) -> Part:
    figure, fit, flags = NAN, found.slope, list[str]()
    if fit is not None and not found.trend and fit.p_trend < LEVEL:
        flags.append(
            f"needs p < {DRIFT:g}: a slope is tested in several parts of the run"
            if fit.p_trend >= DRIFT
            else "it is at no level about the slope"
        )
    if found.trend:
        # shares at the ends of the straight lines of the logs
        logs = np.log(x / x.sum(axis=1, keepdims=True) + 0.5 / x.sum(axis=1).mean())
        time = np.linspace(-1, 1, len(x))
        ends = np.outer([-1, 1], time @ logs / (time @ time)) + logs.mean(axis=0)
        shares = np.exp(ends)
        shares /= shares.sum(axis=1, keepdims=True)
        figure = float(total_variation(shares[0], shares[1]))
    return {
        "outcome": _decided(found.trend),
        "statement": f"it drifts in one direction, by {figure:.1%} of its traffic over "
        "the run"
        if found.trend
        else "",
        "p": NAN if fit is None else fit.p_trend,
        "figure": figure,
        "unit": "share",
        "measure": "total variation distance of the ends",
        "flags": tuple(flags),
    }


def _periodic(found: Movement, every: float) -> Part:
    period, phase = found.period, found.phase
    if period is None:
        return {"outcome": Outcome.NOT_ENOUGH_DATA, "statement": "", "needs": SHORTEST}
    if phase is None:
        return {"outcome": Outcome.NO_EVIDENCE, "statement": "", "p": period.p}
    part: Part = {
        "statement": "",
        "p": max(period.p, phase.p),
        "figure": period.period * every,
        "low": period.low * every,
        "high": period.high * every,
        "unit": "iterations",
    }
    if found.periodic:
        return part | {
            "outcome": Outcome.STATED,
            "statement": f"it repeats every {period.period * every:.3g} iterations"
            + (", alternating" if period.period == ALTERNATION else ""),
        }
    swing = f"an oscillation of about {period.period * every:.3g} iterations"
    if found.oscillates:
        few: Part = {"outcome": Outcome.NOT_ENOUGH_DATA, "needs": phase.needs}
        return part | few | {"flags": (f"{swing} may lose its phase",)}
    flag = f"{swing} has a coherence of {phase.coherence:.2f} after {AFTER} cycles"
    return part | {"outcome": Outcome.NO_EVIDENCE, "flags": (flag,)}


def _mean_reverting(found: Movement, every: float) -> Part:
    if found.oscillates:  # what repeats returns, too, and its deviations never decay
        return {
            **_NOTHING,
            "flags": (NOT_TESTED + "a period may explain the return to the level",),
        }
    fit = found.stable
    part: Part = {
        "outcome": _decided(found.reverts),
        "statement": "",
        "p": NAN
        if fit is None
        else float(np.nanmax([fit.p_walk, fit.p_still, found.p_cycle])),
        "unit": "iterations",
    }
    if found.reverts and fit is not None:
        part |= {
            "statement": "it returns to its level with a half-life of "
            f"{fit.half_life * every:.3g} iterations",
            "figure": fit.half_life * every,
            "low": fit.low * every,
            "high": fit.high * every,
        }
    elif found.returns:
        part["flags"] = ("a periodic function fits as well",)
    elif fit is not None and fit.p_still < LEVEL <= fit.p_walk:
        part["flags"] = (WALKS,)
    elif needs := _lacking(found):
        part |= {
            "outcome": Outcome.NOT_ENOUGH_DATA,
            "needs": needs,
            "flags": (_SHORT,),
        }
    elif fit is not None and part["p"] < LEVEL:
        part["flags"] = (_unstable(found, fit),)
    return part
