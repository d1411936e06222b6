"""Verdicts: forecast quality at a horizon and its lead time, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .accuracy import TOLERANCES

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Forecast quality at one horizon; NaN and a reason where it is unavailable.

    Shares are of bytes, 0 ... 1, over the test part.
    A cell whose forecast and true values are 0 has no bytes and does not count.
    """

    of: str  # what was forecast: "expert load", "cells of the matrix"
    horizon: int  # iterations ahead; 0: later in the same iteration
    forecaster: str = ""  # the best on the validation part
    setting: str = ""  # its settings; empty where there are none
    tolerances: tuple[float, ...] = TOLERANCES  # relative errors |x - f|/x
    within: tuple[float, ...]  # share of bytes in cells forecast to within each
    unchanged: tuple[float, ...]  # the same of the persistence baseline
    ceiling: tuple[float, ...]  # the same of the oracle (true gate probabilities)
    misplaced: float = NAN  # mean total variation distance of forecast and truth
    skill: float = NAN  # 1 - MSE / MSE of persistence (horizon 0: best from history)
    skill_low: float = NAN  # 95% confidence interval
    skill_high: float = NAN
    lead_iterations: float = NAN  # from when the forecast can be made to the transfer
    lead_s: float = NAN  # the same in seconds; NaN without times
    origins: int = 0  # number of forecasts
    reason: str = ""  # why it is unavailable


def unknown_verdict(*, of: str, horizon: int, reason: str) -> Verdict:
    """Build a verdict that is unavailable, with the reason without a full stop."""
    none = (NAN,) * len(TOLERANCES)
    return Verdict(
        of=of, horizon=horizon, within=none, unchanged=none, ceiling=none, reason=reason
    )


def sentence(verdict: Verdict, *, tolerance: float = 0.2) -> str:
    """Summarize a verdict in one sentence.

    Parameters
    ----------
    verdict
        Verdict at one horizon.
    tolerance
        Relative error to report; the nearest of the verdict's tolerances is taken.

    Returns
    -------
    str

    Examples
    --------
    >>> sentence(unknown_verdict(of="expert load", horizon=10, reason="run too short"))
    'Expert load 10 iterations ahead: unavailable: run too short.'
    """
    subject = verdict.of[:1].upper() + verdict.of[1:]
    if verdict.horizon == 0:
        when = "later in the same iteration"
    else:
        many = "iteration" if verdict.horizon == 1 else "iterations"
        when = f"{verdict.horizon} {many} ahead"
    if verdict.reason:
        return f"{subject} {when}: unavailable: {verdict.reason}."
    at = int(np.argmin([abs(t - tolerance) for t in verdict.tolerances]))
    how = f" ({verdict.setting})" if verdict.setting else ""
    baseline = "persistence" if verdict.horizon else "best history-based forecaster"
    share = verdict.within[at]
    forecast = "no bytes to forecast"
    if not np.isnan(share):
        forecast = (
            f"{_percent(share)} of the bytes forecast to within "
            f"±{_percent(verdict.tolerances[at])} by {verdict.forecaster}{how}, "
            f"{baseline} {_percent(verdict.unchanged[at])}"
        )
    if np.isfinite(verdict.ceiling[at]):
        forecast += f", oracle bound {_percent(verdict.ceiling[at])}"
    return (
        f"{subject} {when}{_lead(verdict.lead_s)}: {forecast}; "
        f"{_improvement(verdict, baseline)}."
    )


def _percent(share: float) -> str:
    """Format a share in percent, with a decimal if needed; never rounded to 100%."""
    percent = 100 * share
    if percent in (0, 100) or abs(percent - round(percent)) < 1e-9:
        return f"{percent:.0f}%"
    if percent < 0.05:
        return "<0.1%"
    if percent >= 99.95:
        return ">99.9%"
    return f"{percent:.1f}%"


def _lead(seconds: float) -> str:
    """Format the lead time with a suitable unit; empty if unknown."""
    if not np.isfinite(seconds):
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size or unit == "us":
            return f", {seconds / size:.3g} {unit} before the transfer"
    return ""


def _improvement(verdict: Verdict, baseline: str) -> str:
    """Format the error relative to the baseline's, with its confidence interval."""
    if np.isnan(verdict.skill):
        return f"{baseline} has no error to improve on"
    if verdict.forecaster in ("persistence", "history"):
        return f"no forecaster was better than {baseline}"
    way = "below" if verdict.skill >= 0 else "above"
    error = f"MSE {_percent(abs(verdict.skill))} {way} {baseline}"
    if np.isnan(verdict.skill_low):
        return f"{error} (too few forecasts for a confidence interval)"
    low, high = verdict.skill_low, verdict.skill_high
    unsure = ", not significant" if low <= 0 <= high else ""
    interval = f"95% CI of the reduction {100 * low:.2g} to {100 * high:.2g}%"
    return f"{error} ({interval}{unsure})"
