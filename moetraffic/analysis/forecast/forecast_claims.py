"""Claims of forecasts: predictable, of loads and matrices; better than persistence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.analysis.claim import Claim

from .forecasting import Forecasts
from .judging import HorizonScores
from .origins import Ratio, steps_needed
from .usefulness import compared, decided, improvement

PAST = "the mean of the past"


def forecast_claims(forecasts: Forecasts, *, about: str) -> tuple[Claim, ...]:
    """Test what the best forecaster improves on, at each horizon.

    The forecaster is chosen on the validation part, and tested on the test part: paired
    squared errors of its forecasts and of the baseline's, a block jackknife, and a
    one-sided t-test.

    Parameters
    ----------
    forecasts
        Scores of :func:`~.forecasting.forecast`.
    about
        What was forecast: "expert load of layer 0".

    Returns
    -------
    tuple of Claim
        "predictable" (a lower MSE than the mean of the past; the figure is the skill)
        and "better than persistence" (a lower MSE than persistence as well; the figure
        is the reduction of the MSE), for each horizon in its order.  Of noise the mean
        has half of the MSE of persistence, which is not worth a forecast.

    Examples
    --------
    >>> import numpy as np
    >>> from moetraffic.analysis.forecast.forecasting import forecast
    >>> rng = np.random.default_rng(0)
    >>> walk = 1e4 + 100 * rng.normal(size=(400, 4)).cumsum(axis=0)
    >>> found = forecast_claims(forecast(walk, horizons=[1]), about="expert load")
    >>> [(claim.name, claim.stated) for claim in found]
    [('predictable', True), ('better than persistence', False)]
    """
    found: list[Claim] = []
    for horizon in forecasts.horizons:
        subject = f"{about}, {_ahead(horizon)}"
        first = _predictable(horizon, subject, forecasts.steps)
        second = improvement(horizon.verdict, about=subject, steps=forecasts.steps)
        found += [first, _of_both(first, second)]
    return tuple(found)


def _of_both(predictable: Claim, improved: Claim) -> Claim:
    """Claim an improvement on persistence only beside one on the mean of the past.

    A test of both rejects each of two null hypotheses at its level.
    """
    flags = improved.flags
    if improved.stated and not predictable.stated:
        improved = replace(improved, outcome=predictable.outcome)
    if improved.p < predictable.p and not predictable.stated:
        flags = (*flags, f"the p-value is that for {PAST}")
    return replace(
        improved,
        null=f"{improved.null}, or than that of {PAST}",
        # NaN where either lacks data
        p=float(np.maximum(predictable.p, improved.p)),
        flags=flags,
    )


def matrix_claim(forecasts: Forecasts, *, about: str) -> Claim:
    """Test at the shortest horizon whether recent history helps to forecast a matrix.

    Parameters
    ----------
    forecasts
        Scores of the cells between ranks.
    about
        What was forecast: "matrix of layer 0".

    Returns
    -------
    Claim
        "matrix predictable"; the figure is the skill.
    """
    first = min(forecasts.horizons, key=lambda scores: scores.horizon)
    about = f"{about}, {_ahead(first)}"
    return _predictable(first, about, forecasts.steps, name="matrix predictable")


def _ahead(horizon: HorizonScores) -> str:
    """Name a horizon."""
    return f"{horizon.horizon} iteration{'s' * (horizon.horizon != 1)} ahead"


def _predictable(
    horizon: HorizonScores, about: str, steps: int, name: str = "predictable"
) -> Claim:
    """Test whether recent history helps: against the mean of the past."""
    score = horizon.score()
    found = score.skill if score else Ratio()
    return Claim(
        name=name,
        about=about,
        outcome=decided(found, horizon.verdict),
        statement=f"{name}: {compared(found, PAST)}"
        if found.value > 0
        else compared(found, PAST),
        null=f"an MSE of the test part no lower than that of {PAST}",
        p=found.p,
        figure=found.value,
        low=found.low,
        high=found.high,
        measure=f"share below the MSE of {PAST}",
        used=steps,
        needs=steps_needed(horizon.horizon),
        horizon=horizon.horizon,
        flags=(f"the forecaster that was chosen is {PAST} itself",)
        if score and score.skill.p == 1 and np.isnan(score.skill.low)
        else (),
    )
