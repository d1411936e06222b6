"""Verdict: what a scheduler can count on, and how long before the transfer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCES = (0.05, 0.1, 0.2, 0.5)
"""Relative errors that are asked about."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known at one distance before a transfer; NaN and a reason where nothing.

    Shares are of bytes, 0 ... 1, over the steps that no forecaster was tuned on.  A
    cell that is forecast 0 and stays 0 has no bytes and counts nowhere.
    """

    of: str  # what was forecast, in words: "expert load", "cells of the matrix"
    horizon: int  # iterations ahead; 0: later in the same iteration
    forecaster: str  # the best on the validation part
    setting: str  # its settings, in words; empty where there are none
    tolerances: tuple[float, ...]  # relative errors |x - f|/x
    within: tuple[float, ...]  # share of bytes in cells forecast within each
    unchanged: tuple[float, ...]  # the same, if the last value known is taken
    ceiling: tuple[float, ...]  # the same by who knows the gate; NaN: not known
    misplaced: float  # share of bytes in another cell than forecast, mean of steps
    skill: float  # 1 - MSE/MSE of the last value (of the best from the past, horizon 0)
    skill_low: float  # 95 % interval
    skill_high: float
    lead_iterations: float  # from when it is known to the transfer
    lead_s: float  # the same in seconds; NaN where times are not known
    origins: int  # forecasts that this is from
    reason: str = ""  # why nothing is known


def lead_s(
    horizon: int,
    *,
    iteration_s: float = float("nan"),
    known_s: float = 0.0,
    transfer_s: float = 0.0,
) -> float:
    """Seconds from when a forecast can be made to when its transfer starts.

    Parameters
    ----------
    horizon
        Iterations ahead; 0: the same iteration.
    iteration_s
        Length of an iteration.
    known_s
        When, after the start of an iteration, what is forecast from is known.
    transfer_s
        When, after the start of an iteration, the transfer starts.

    Returns
    -------
    float
        Negative where the transfer starts before; NaN where a time is not known.

    Examples
    --------
    >>> round(lead_s(10, iteration_s=0.5, known_s=0.1, transfer_s=0.3), 6)
    5.2
    """
    between = transfer_s - known_s
    return between if horizon == 0 else horizon * iteration_s + between


def unknown_verdict(
    *, of: str, horizon: int, reason: str, tolerances: tuple[float, ...] = TOLERANCES
) -> Verdict:
    """A verdict that says why there is none.

    Parameters
    ----------
    of, horizon, tolerances
        As in :class:`Verdict`.
    reason
        In words, without a full stop.

    Returns
    -------
    Verdict
    """
    nothing = float("nan")
    none = (nothing,) * len(tolerances)
    return Verdict(
        of=of,
        horizon=horizon,
        forecaster="",
        setting="",
        tolerances=tolerances,
        within=none,
        unchanged=none,
        ceiling=none,
        misplaced=nothing,
        skill=nothing,
        skill_low=nothing,
        skill_high=nothing,
        lead_iterations=nothing,
        lead_s=nothing,
        origins=0,
        reason=reason,
    )


def sentence(verdict: Verdict, *, tolerance: float = 0.2) -> str:
    """Say a verdict in one plain sentence.

    Parameters
    ----------
    verdict
        Of one horizon.
    tolerance
        Which of its tolerances is told; the nearest is taken.

    Returns
    -------
    str

    Examples
    --------
    >>> sentence(unknown_verdict(of="expert load", horizon=10, reason="too short"))
    'Expert load 10 iterations ahead: not known, for too short.'
    """
    subject = verdict.of[:1].upper() + verdict.of[1:]
    if verdict.horizon == 0:
        when = "later in the same iteration"
    else:
        many = "iteration" if verdict.horizon == 1 else "iterations"
        when = f"{verdict.horizon} {many} ahead"
    if verdict.reason:
        return f"{subject} {when}: not known, for {verdict.reason}."
    lead = _lead(verdict.lead_s)
    at = int(np.argmin([abs(t - tolerance) for t in verdict.tolerances]))
    how = f" ({verdict.setting})" if verdict.setting else ""
    against = "the best from the past" if verdict.horizon == 0 else "the last value"
    share, before = verdict.within[at], verdict.unchanged[at]
    placed = (
        "there are no bytes to place"
        if np.isnan(share)
        else f"{_percent(share)} of the bytes are placed within "
        f"{_percent(verdict.tolerances[at])} by {verdict.forecaster}{how}, "
        f"{_percent(before)} by {against}"
    )
    if np.isfinite(verdict.ceiling[at]):
        placed += f" and {_percent(verdict.ceiling[at])} by who knows the gate"
    return f"{subject} {when}{lead}: {placed}; {_worth(verdict, against)}."


def _percent(share: float) -> str:
    """A share in percent, with a digit where it is needed; never rounded to all."""
    percent = 100 * share
    if percent in (0, 100) or abs(percent - round(percent)) < 1e-9:
        return f"{percent:.0f}%"
    if percent < 0.05:
        return "<0.1%"
    if percent >= 99.95:
        return ">99.9%"
    return f"{percent:.1f}%"


def _lead(seconds: float) -> str:
    """The lead time in a unit that suits it; empty where it is not known."""
    if not np.isfinite(seconds):
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size or unit == "us":
            return f", {seconds / size:.3g} {unit} before the transfer"
    return ""


def _worth(verdict: Verdict, against: str) -> str:
    """Whether it is better than what costs nothing, as far as the interval says."""
    if np.isnan(verdict.skill):
        return f"{against} misses nothing, so that there is no skill to have"
    if verdict.forecaster in ("persistence", "the past"):
        return f"nothing was better than {against}"
    told = f"squared error {_percent(abs(verdict.skill))} "
    told += ("less" if verdict.skill >= 0 else "more") + f" than of {against}"
    if np.isnan(verdict.skill_low):
        return f"{told}, from too few forecasts to be sure"
    interval = f"skill {verdict.skill_low:.2g} to {verdict.skill_high:.2g}"
    if verdict.skill_low <= 0 <= verdict.skill_high:
        return f"{told}, which may be chance ({interval})"
    return f"{told} ({interval})"
