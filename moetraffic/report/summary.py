"""An analysis as plain data for programs and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.analysis import (
    Analysis,
    Curve,
    Exchange,
    Rhythm,
    Scores,
    Subject,
    stage_means,
)

from .units import rank_span

FIGURES = {
    "normalised_entropy": 1,
    "max_over_mean": 1,
    "cv": 0,
    "gini": 0,
}
STAGES = ("early", "middle", "late")
FORECASTERS = {
    "persistence": "persistence",
    "window_mean": "window mean",
    "ema": "EMA",
    "best_so_far": "best so far",
}


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """All statistics as plain data, with units in the names or beside them."""
    return {
        "exchanges": [_exchange(e) for e in analysis.exchanges],
        "rhythm": [
            {"rank": rank, **_rhythm(found)} for rank, found in analysis.rhythms.items()
        ],
        "rhythm_of": analysis.rhythm_of,
        "notes": list(analysis.notes),
    }


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "layer": exchange.layer,
        "group": exchange.group,
        "ranks": list(exchange.ranks),
        "iterations": exchange.iterations.tolist(),
        "iterations_left_out": exchange.left_out,
        "statistics": {s.name: _subject(s) for s in exchange.subjects},
    }


def _subject(subject: Subject) -> dict[str, Any]:
    return {
        "of": subject.about,
        "unit": subject.unit,
        "skew": {name: _curve(curve) for name, curve in subject.curves.items()},
        "one_step_forecasts_of_shares": {
            name: {
                "nmse": float(found.nmse),
                "mape": float(found.mape),
                "skill": float(found.skill),
                "values_scored": int(found.count),
            }
            for name, found in subject.scores.items()
        },
        "mape_floor": subject.mape_floor,
    }


def _curve(curve: Curve) -> dict[str, Any]:
    told: dict[str, Any] = {"mean": _mean(curve.values)}
    told |= dict(zip(STAGES, stage_means(curve.values).tolist(), strict=True))
    if curve.floor is not None:
        told["noise_floor"] = _mean(curve.floor.mean)
        told["noise_floor_std"] = _mean(curve.floor.std)
        told["z_score"] = _mean(curve.floor.z_score(curve.values))
    told["trend"] = {
        "slope_per_iteration": float(curve.trend.slope),
        "slope_low": float(curve.trend.low),
        "slope_high": float(curve.trend.high),
        "kendall_tau": float(curve.trend.tau),
        "mann_kendall_p": float(curve.trend.p),
    }
    told["settled"] = bool(curve.settling.settled)
    told["settled_at_index"] = int(curve.settling.step)
    told["values"] = curve.values.tolist()
    return told


def _rhythm(found: Rhythm) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(found).items()}


def _plain(value: Any) -> Any:
    """Arrays as lists, whatever they stand in."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return (
        np.asarray(value).tolist() if isinstance(value, (np.ndarray, tuple)) else value
    )


def _mean(values: Any) -> float:
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")


def tables(analysis: Analysis) -> Group:
    """All statistics as tables."""
    parts: list[Any] = []
    if analysis.exchanges:
        parts.append(_skew_table(analysis))
        # without forecasts there is a note that says why
        if any(subject.scores for _, subject in _subjects(analysis)):
            parts.append(_forecast_table(analysis))
    if analysis.rhythms:
        parts.append(_rhythm_table(analysis.rhythms, analysis.rhythm_of))
    parts += [Text(f"note: {note}", style="yellow") for note in analysis.notes]
    return Group(*parts)


def _subjects(analysis: Analysis) -> list[tuple[Exchange, Subject]]:
    return [(e, s) for e in analysis.exchanges for s in e.subjects]


def _skew_table(analysis: Analysis) -> Table:
    table = _table("Skew, and the noise floor of a perfectly balanced gate")
    for name in ("layer", "ranks", "of", "measure (even)"):
        table.add_column(name)
    for name in ("early", "middle", "late", "floor", "z", "slope/100 it", "trend p"):
        table.add_column(name, justify="right")
    for exchange, subject in _subjects(analysis):
        for measure, ideal in FIGURES.items():
            curve = subject.curves[measure]
            floor, z = "", ""
            if curve.floor is not None:
                floor = _figure(_mean(curve.floor.mean))
                z = _figure(_mean(curve.floor.z_score(curve.values)), ".1f")
            table.add_row(
                str(exchange.layer),
                rank_span(exchange.ranks),
                subject.name.replace("_", " "),
                f"{measure.replace('_', ' ')} ({ideal})",
                *map(_figure, stage_means(curve.values)),
                floor,
                z,
                _figure(100 * float(curve.trend.slope), "+.4f"),
                _figure(float(curve.trend.p), ".2g"),
            )
    return table


def _forecast_table(analysis: Analysis) -> Table:
    table = _table(
        "One-step forecasts of shares: NMSE (0 exact, 1 as the mean), skill over "
        "persistence"
    )
    for name in ("layer", "ranks", "of"):
        table.add_column(name)
    for name in FORECASTERS.values():
        table.add_column(name, justify="right")
    table.add_column("MAPE, best", justify="right")
    table.add_column("MAPE floor", justify="right")
    for exchange, subject in _subjects(analysis):
        if not subject.scores:
            continue
        table.add_row(
            str(exchange.layer),
            rank_span(exchange.ranks),
            subject.name.replace("_", " "),
            *(_score(subject.scores.get(name)) for name in FORECASTERS),
            _figure(min(float(s.mape) for s in subject.scores.values()), ".1%"),
            _figure(subject.mape_floor, ".1%"),
        )
    return table


def _score(found: Scores | None) -> str:
    if found is None:
        return ""
    return _with(_figure(float(found.nmse), ".3f"), float(found.skill), "+.2f")


def _rhythm_table(rhythms: Mapping[int, Rhythm], about: str) -> Table:
    table = _table("On-off rhythm of each rank: " + (about or "its all-to-alls"))
    table.add_column("rank")
    for name in (
        "duty",
        "bursts",
        "burst ms (CV)",
        "gap ms (CV)",
        "period ms",
        "ACF at it",
        "jitter",
        "peak/mean",
    ):
        table.add_column(name, justify="right")
    for rank, found in rhythms.items():
        table.add_row(
            str(rank),
            _figure(found.duty, ".1%"),
            str(found.bursts),
            _with(_figure(found.burst_ns / 1e6, ".2f"), found.burst_cv, ".2f"),
            _with(_figure(found.gap_ns / 1e6, ".2f"), found.gap_cv, ".2f"),
            _figure(found.period_ns / 1e6, ".1f"),
            _figure(found.strength, ".2f"),
            _figure(found.jitter, ".1%"),
            _figure(found.peak_to_mean, ".1f"),
        )
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1)
    )


def _figure(value: float, form: str = ".4f") -> str:
    return format(value, form) if np.isfinite(value) else ""


def _with(figure: str, spread: float, form: str) -> str:
    """A figure and, in brackets, another; what is not known is blank."""
    other = _figure(spread, form)
    return f"{figure} ({other})" if figure and other else figure


def replay_table(told: Mapping[str, Any]) -> Table:
    """What a replay measured, from its summary as plain data."""
    table = Table.grid(padding=(0, 2))
    times, rates = told["time_us"], told["busbw_gbs"]
    verified = "every size and byte verified" if told["verified"] else "not verified"
    table.add_row(
        "replay", f"{told['operations']} all-to-alls on {told['backend']}, {verified}"
    )
    table.add_row("bytes", f"{told['total_bytes']:,}, as many as the trace has")
    table.add_row("wall time", f"{told['wall_s']:.2f} s, as soon as possible")
    table.add_row(
        "an operation",
        f"p50 {times['p50']:.0f}, p90 {times['p90']:.0f}, p99 {times['p99']:.0f} us",
    )
    if rates is not None:  # on one rank nothing crosses a network
        table.add_row("busbw", f"p50 {rates['p50']:.3f}, max {rates['max']:.3f} GB/s")
    return table
