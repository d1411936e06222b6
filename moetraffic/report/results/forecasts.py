"""Tabulate forecast errors, their bounds, skill by age of a plan, and lead times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from moetraffic.analysis import Analysis, Subject
from moetraffic.analysis.forecast.judging import ForecastScore, HorizonScores
from moetraffic.analysis.forecast.lead_time import RECONFIGURATION_S
from moetraffic.analysis.forecast.origins import Ratio, lacking
from moetraffic.tables import Table
from moetraffic.units import duration

TOLERANCE = 0.2
"""Relative error for which the share of bytes is shown."""

WHERE = {"layer": "<", "ranks": "", "quantity": ""}
"""First columns of a row: layer, ranks and quantity."""

AHEAD = {**WHERE, "it. ahead": "<"}
"""The same of tables by horizon: a key, and so aligned as text."""

Row = tuple[object, ...]
Scored = tuple[Row, int, Subject, HorizonScores, ForecastScore]


def forecast_tables(subjects: Iterable[tuple[Row, Subject]]) -> list[Table]:
    """Tabulate the errors of the chosen forecasts, their bounds, and skill by age.

    Parameters
    ----------
    subjects
        Each with the layer, ranks and quantity of its rows.
    """
    subjects = list(subjects)
    scored = list(_scored(subjects))
    made = [_errors(scored), _bounds(scored), _by_age(scored)] if scored else []
    short = [
        lacking(horizon.horizon, subject.forecasts.steps)
        for _, subject in subjects
        if subject.forecasts
        for horizon in subject.forecasts.horizons
        if horizon.score() is None
    ]
    return made + [Table(rows=[], notes=list(dict.fromkeys(short)))] * bool(short)


PERSISTENCE = "fitted persistence (AR(1) coefficient)"


def bound_table(subjects: Iterable[tuple[Row, Subject]]) -> Table:
    """Tabulate the lower bound of each subject, and the persistence of its shares."""
    rows, reasons = [], []
    for where, subject in subjects:
        if (bound := subject.limits) and (memory := subject.memory):
            reach = (memory.phi_low, memory.phi_high)
            rows.append(
                (*where, bound.nmse, (bound.low, bound.high), memory.phi, reach)
            )
            if bound.reason:
                reasons.append(f"lower bound unavailable: {bound.reason}")
            if memory.reason:
                reasons.append(f"fitted persistence unavailable: {memory.reason}")
    return Table(
        title="Bounds of linear one-step forecasts, and persistence of the shares",
        columns={
            **{**WHERE, "estimated lower bound (NMSE)": ".3f", "95% interval": ".3f"},
            **{PERSISTENCE: ".3f", "95% interval of the coefficient": ".3f"},
        },
        rows=rows,
        notes=[
            f"{PERSISTENCE}: of the shares without sampling noise, not the lag-1 "
            "autocorrelation of the measured ones; near 1 with a trend, too",
            *dict.fromkeys(reasons),
        ],
    )


def _scored(
    subjects: Iterable[tuple[Row, Subject]],
) -> Iterator[Scored]:
    """Yield each horizon with the first cells of its row and the chosen score."""
    for where, subject in subjects:
        for horizon in subject.forecasts.horizons if subject.forecasts else ():
            if (chosen := horizon.score()) is not None:
                yield where, horizon.horizon, subject, horizon, chosen


def _errors(scored: Sequence[Scored]) -> Table:
    rows = []
    for where, ahead, _, horizon, chosen in scored:
        at = _tolerance(horizon)
        rows.append(
            (
                *(*where, ahead, chosen.forecaster, chosen.mse, chosen.mape),
                *(chosen.within[at], horizon.verdict.unchanged[at], chosen.nmse),
                (1 - chosen.skill.high, 1 - chosen.skill.low),
                _with_interval(chosen.reduction),
            )
        )
    return Table(
        title="Forecast errors on the last quarter of the run",
        columns={
            **{**AHEAD, "chosen": ""},
            **{"MSE": ".4g", "MAPE": ".1%", "bytes within 20%": ".1%"},
            **{"persistence within 20%": ".1%", "NMSE": ".3f", "95% interval": ".3f"},
            **{"MSE below persistence (95% interval)": "<"},
        },
        rows=rows,
        notes=[
            "chosen: the forecaster with the smallest MSE on the validation part",
            "MSE: token copies² of expert load and demand, bytes² of wire and received",
            "NMSE: MSE / MSE of the mean of the past, at the same origins",
            "bytes within 20%: share of bytes in cells forecast to within ±20%",
        ],
    )


def _with_interval(found: Ratio) -> str:
    """Format a ratio with its interval, which stands beside it in any width."""
    reach = f" ({found.low:+.2f} to {found.high:+.2f})"
    return f"{found.value:+.2f}{reach if np.isfinite(found.low) else ''}"


def _tolerance(horizon: HorizonScores) -> int:
    return int(np.argmin([abs(t - TOLERANCE) for t in horizon.verdict.tolerances]))


def _bounds(scored: Sequence[Scored]) -> Table:
    linear = any(subject.limits for _, _, subject, _, _ in scored)
    lower = ("estimated lower bound", "95% interval") if linear else ()
    rows = []
    notes: list[str] = []
    for where, ahead, subject, horizon, chosen in scored:
        at, verdict = _tolerance(horizon), horizon.verdict
        bound = subject.limits if horizon.horizon == 1 else None
        if bound is not None and bound.reason:
            notes.append(f"lower bound unavailable: {bound.reason}")
        if np.isnan(horizon.nmse_floor) and (bound is None or np.isnan(bound.nmse)):
            continue
        lowest = (bound.nmse, (bound.low, bound.high)) if bound else (None, None)
        rows.append(
            (
                *(*where, ahead, chosen.nmse, *lowest[: len(lower)]),
                *(horizon.nmse_floor, horizon.nmse_floor_error),
                *(chosen.mape, horizon.mape_floor, horizon.mape_floor_error),
                *(
                    chosen.within[at],
                    verdict.oracle_bound[at],
                    verdict.oracle_bound_error[at],
                ),
            )
        )
    return Table(
        title="Bounds on the forecast errors, on the last quarter of the run",
        columns={
            **AHEAD,
            **dict.fromkeys(("NMSE", *lower, "oracle NMSE", "± (NMSE)"), ".3f"),
            **{"MAPE": ".1%", "oracle MAPE": ".1%", "± (MAPE)": ".1%"},
            **{"bytes within 20%": ".1%", "oracle": ".1%", "± (oracle)": ".1%"},
        },
        rows=rows,
        notes=[
            *(
                "estimated lower bound: of linear forecasts one iteration ahead, from "
                "the spectrum",
            )[:linear],
            *(
                "oracle: true gate probabilities, sampling noise only; expected value "
                "± standard error over the test part",
            )[: len(rows)],
            *dict.fromkeys(notes),
        ],
    )


def _by_age(scored: Sequence[Scored]) -> Table:
    """Tabulate how much of its value a plan keeps as it ages."""
    ages: list[int] = []
    skills: dict[Row, dict[int, str]] = {}
    for where, age, _, horizon, chosen in scored:
        ages.append(age)
        unchanged = horizon.score("persistence")
        for name, score in (("chosen forecast", chosen), ("last values", unchanged)):
            if score is not None and np.isfinite(score.skill.value):
                of = skills.setdefault((*where, name), {})
                of[age] = _with_interval(score.skill)
    columns = sorted(dict.fromkeys(ages))
    return Table(
        title="Forecast skill by age of the plan, iterations (95% interval)",
        columns={
            **{**WHERE, "plan from": "<"},
            **dict.fromkeys(map(str, columns), ">"),
        },
        rows=[(*where, *map(by.get, columns)) for where, by in skills.items()],
        notes=["skill: 1 - NMSE; 0: no better than the mean of the past"],
    )


def lead_time_table(analysis: Analysis) -> Table:
    """Tabulate which reconfiguration delays the lead times are long enough for."""
    return Table(
        title="Lead time of the first dispatch over later transfers, and the "
        "reconfiguration delays that fit before them",
        columns={
            **{"transfer": "<", "lead time, ms": ".3f"},
            **dict.fromkeys(map(duration, RECONFIGURATION_S), "<"),
        },
        rows=[
            (
                sight.target,
                1e3 * sight.verdict.lead_s,
                *(
                    "yes" if sight.verdict.lead_s >= d else "no"
                    for d in RECONFIGURATION_S
                ),
            )
            for sight in analysis.sights
            if np.isfinite(sight.verdict.lead_s)
        ],
    )
