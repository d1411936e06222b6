"""Claims of forecasts: predictable, of loads and matrices; better than persistence."""

from __future__ import annotations

from moetraffic.analysis.claim import Claim

from .forecasting import Forecasts
from .judging import HorizonScores
from .origins import Ratio, steps_needed
from .usefulness import decided, improvement


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
        and "better than persistence" (the figure is the reduction of the MSE), for
        each horizon in its order.

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
        found += [
            _predictable(horizon, subject, forecasts.steps),
            improvement(horizon.verdict, about=subject, steps=forecasts.steps),
        ]
    return tuple(found)


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
        statement=f"{name}: MSE {100 * found.value:.2g}% below the mean of the "
        f"past (95% CI {100 * found.low:.2g} to {100 * found.high:.2g}%)",
        null="an MSE of the test part no lower than that of the mean of the past",
        p=found.p,
        figure=found.value,
        low=found.low,
        high=found.high,
        used=steps,
        needs=steps_needed(horizon.horizon),
    )
