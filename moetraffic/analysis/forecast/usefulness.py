"""Verdicts: forecast quality at a horizon and its lead time, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moetraffic.analysis.claim import LEVEL, Claim, Outcome

from .accuracy import TOLERANCES
from .origins import FEWEST, Ratio, steps_needed

WORSE = "worse than persistence"
"""Beginning of a flag: the opposite of the claim is significant at the same level."""

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
    oracle_bound: tuple[float, ...]  # the same of the oracle (true gate probabilities)
    oracle_bound_error: tuple[float, ...]  # its standard error over the test part
    # 1 - MSE / MSE of persistence (horizon 0: of the best history-based forecaster)
    reduction: Ratio = field(default_factory=Ratio)
    lead_iterations: float = NAN  # from when the forecast can be made to the transfer
    lead_s: float = NAN  # the same in seconds; NaN without times
    origins: int = 0  # number of forecasts
    reason: str = ""  # why it is unavailable


def unknown_verdict(*, of: str, horizon: int, reason: str) -> Verdict:
    """Build a verdict that is unavailable, with the reason without a full stop."""
    none = (NAN,) * len(TOLERANCES)
    return Verdict(
        of=of,
        horizon=horizon,
        within=none,
        unchanged=none,
        oracle_bound=none,
        oracle_bound_error=none,
        reason=reason,
    )


def baseline(verdict: Verdict) -> str:
    """Name the forecaster that a verdict compares with."""
    return "persistence" if verdict.horizon else "the best history-based forecaster"


def improvement(verdict: Verdict, *, about: str, steps: int) -> Claim:
    """Claim that the best forecaster has a lower MSE than the baseline.

    ``verdict``: Verdict at one horizon: the forecaster was chosen on the validation
    part.

    Returns
    -------
    Claim
        "better than persistence"; at horizon 0 "better than history".
    """
    found, other = verdict.reduction, baseline(verdict)
    return Claim(
        name="better than persistence" if verdict.horizon else "better than history",
        about=about,
        outcome=decided(found, verdict),
        statement=compared(found, other),
        null=f"an MSE of the test part no lower than that of {other}",
        p=found.p,
        figure=found.value,
        low=found.low,
        high=found.high,
        measure=f"share below the MSE of {other}",
        used=steps,
        needs=steps_needed(verdict.horizon),
        horizon=verdict.horizon,
        flags=_limits(found, verdict),
    )


def _limits(found: Ratio, verdict: Verdict) -> tuple[str, ...]:
    """Name the opposite where it is significant, and what cannot be compared."""
    other = baseline(verdict)
    if verdict.horizon and found.value < 0 and found.p >= 1 - LEVEL:
        return (f"{WORSE}: {compared(found, other)}",)
    if verdict.forecaster in ("persistence", "history"):
        return (f"the forecaster that was chosen is {other} itself",)
    return ()


def compared(found: Ratio, other: str) -> str:
    """State an MSE relative to that of a baseline, with its interval.

    Examples
    --------
    >>> compared(Ratio(value=-0.486, low=-0.67, high=-0.32), "persistence")
    'MSE 49% above persistence (95% CI 32 to 67%)'
    """
    way, sign = ("below", 1) if not found.value < 0 else ("above", -1)
    if found.value == 0 and found.p == 1:
        return f"MSE equal to that of {other}"
    text = f"MSE {_plain(100 * sign * found.value)}% {way} {other}"
    if np.isnan(found.low):
        return text
    low, high = sorted((100 * sign * found.low, 100 * sign * found.high))
    return f"{text} (95% CI {_plain(low)} to {_plain(high)}%)"


def _plain(percent: float) -> str:
    """Format a percentage: two significant digits below 10, 0 below 0.01."""
    if abs(percent) < 0.01:
        return "0"
    return f"{percent:.0f}" if abs(percent) >= 9.95 else f"{percent:.2g}"


def decided(found: Ratio, verdict: Verdict) -> Outcome:
    """Decide a one-sided test of equal accuracy; where there is no error, none is."""
    if verdict.reason or (found.blocks < FEWEST and not np.isnan(found.value)):
        return Outcome.NOT_ENOUGH_DATA
    return Outcome.STATED if found.p <= LEVEL else Outcome.NO_EVIDENCE


def sentence(verdict: Verdict, *, tolerance: float = 0.2) -> str:
    """Summarize a verdict in one sentence.

    Parameters
    ----------
    verdict
        Verdict at one horizon.
    tolerance
        Relative error to report; the nearest of the verdict's tolerances is taken.

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
    share = verdict.within[at]
    forecast = "no bytes to forecast"
    if not np.isnan(share):
        forecast = (
            f"{_percent(share)} of the bytes forecast to within "
            f"±{_percent(verdict.tolerances[at])} by {verdict.forecaster}{how}, "
            f"{baseline(verdict)} {_percent(verdict.unchanged[at])}"
        )
    if np.isfinite(verdict.oracle_bound[at]):
        forecast += f", oracle bound {_percent(verdict.oracle_bound[at])}"
        if verdict.oracle_bound_error[at] >= 5e-4:
            forecast += f" ± {100 * verdict.oracle_bound_error[at]:.1f}%"
    return (
        f"{subject} {when}{_lead(verdict.lead_s)}: {forecast}; {_improvement(verdict)}."
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


def _improvement(verdict: Verdict) -> str:
    """Format the error relative to the baseline's, if the claim is stated."""
    other, found = baseline(verdict), verdict.reduction
    if np.isnan(found.value):
        return f"{other} has no error to improve on"
    if verdict.forecaster in ("persistence", "history"):
        return f"{other} was the best on the validation part"
    claim = improvement(verdict, about=verdict.of, steps=verdict.origins)
    if claim.stated:
        return claim.statement
    way = "below" if found.value >= 0 else "above"
    error = f"MSE {_percent(abs(found.value))} {way}"
    if claim.outcome is Outcome.NOT_ENOUGH_DATA:
        return f"too few forecasts to compare with {other} ({error})"
    return f"no evidence of a lower error than {other} ({error}, p = {found.p:.2g})"
