"""How far ahead: forecasts by horizon beside baselines, ceilings and limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.analysis import Analysis, Subject
from moetraffic.analysis.forecast.judging import ForecastScore

from .chart import FAINT, Chart, Drawn, Missing, View, axes, colors, packed
from .skew import named

TOLERANCE = 0.2
"""Relative error of the share of bytes that is drawn."""

MEASURES = {
    "bytes placed": f"share of bytes placed within {TOLERANCE:.0%} [%]",
    "skill": "skill: 1 − squared error / that of the last value",
    "NMSE": "squared error / variance (1 = knowing the mean)",
}


def horizons(analysis: Analysis) -> Chart | Missing:
    """Every forecaster at every horizon, of every subject."""
    title = "How well the traffic is forecast, by iterations ahead"
    views, reasons = [], []
    for exchange in analysis.exchanges:
        for subject in exchange.subjects:
            if subject.forecasts is None:
                continue
            reasons += [
                f"{v.horizon} ahead: {v.reason}"
                for v in subject.forecasts.verdicts
                if v.reason
            ]
            if all(v.reason for v in subject.forecasts.verdicts):
                continue
            untold = [
                f"{v.horizon} iterations ahead is not known, for {v.reason}."
                for v in subject.forecasts.verdicts
                if v.reason
            ]
            for measure, words in MEASURES.items():
                view = _view(subject, measure, words)
                where = named(exchange, analysis)
                views.append(
                    replace(
                        view,
                        name=(where, subject.name.replace("_", " "), measure),
                        aside=" ".join([view.aside, *untold]).strip(),
                    )
                )
    if not views:
        why = "; ".join(dict.fromkeys(reasons)) or "the trace shows no expert exchange"
        return Missing(title=title, reason=why)
    return Chart(
        key="forecasts",
        title=title,
        source="Forecasters are tuned on the middle of the run and judged on its last "
        "quarter, which they never saw. Baseline: persistence, the last value. "
        "Ceiling and floor: of who knows the gate, with counting noise alone; limit: "
        "of any linear forecast one iteration ahead, from the spectrum (Kolmogorov). "
        "Bars: 95% intervals.",
        columns=("iterations ahead", "value (unit as on the axis)"),
        choices=("layer", "of", "measure"),
        views=tuple(views),
        height=420,
    )


def _view(subject: Subject, measure: str, words: str) -> View:
    assert subject.forecasts is not None
    told = [h for h in subject.forecasts.horizons if h.scores]
    names = list(dict.fromkeys(s.forecaster for h in told for s in h.scores))
    at = 0
    if told:
        given = told[0].verdict.tolerances
        at = int(np.argmin([abs(t - TOLERANCE) for t in given]))
    traces: list[Drawn] = []
    for name, color in zip(names, colors(len(names)), strict=True):
        rows = [(h.horizon, s) for h in told if (s := h.score(name)) is not None]
        chosen = [str(h.horizon) for h in told if h.best == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "persistence (last value)" if name == "persistence" else name,
                "x": [str(horizon) for horizon, _ in rows],
                "y": packed([_of(s, measure, at) for _, s in rows]),
                "line": {
                    "color": color,
                    "dash": "dash" if name == "persistence" else "solid",
                },
                "marker": {
                    "size": [11 if str(h) in chosen else 6 for h, _ in rows],
                    "color": color,
                },
                **_bars(rows, measure),
            }
        )
    x = [str(h.horizon) for h in told]
    bound = {
        "bytes placed": [100 * h.verdict.ceiling[at] for h in told],
        "NMSE": [h.nmse_floor for h in told],
        "skill": [],
    }[measure]
    if np.isfinite(bound).any():
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "who knows the gate",
                "x": x,
                "y": packed(bound),
                "line": {"color": FAINT, "dash": "dot"},
                "marker": {"symbol": "line-ew-open", "size": 14, "color": FAINT},
            }
        )
    if measure == "NMSE" and subject.limits is not None and "1" in x:
        pooled, error = subject.limits.pooled_nmse, subject.limits.pooled_error
        if np.isfinite(pooled):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": "linear limit",
                    "x": ["1"],
                    "y": [pooled],
                    "marker": {"symbol": "star", "size": 12, "color": "#000000"},
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": [pooled * (np.exp(1.96 * error) - 1)],
                        "arrayminus": [pooled * (1 - np.exp(-1.96 * error))],
                    },
                }
            )
    more: dict[str, object] = {"y_range": [0, 101]} if measure == "bytes placed" else {}
    lowest = min((_of(s, measure, at) for h in told for s in h.scores), default=0.0)
    if measure == "skill" and lowest < -1:
        more = {"y_range": [-1.05, 1.05]}
    return View(
        traces=tuple(traces),
        layout=axes("iterations ahead", words, x_type="category", **more),
        aside="Large markers: chosen without the last quarter."
        + (" Skill below −1 is cut off." if lowest < -1 and measure == "skill" else ""),
    )


def _of(score: ForecastScore, measure: str, at: int) -> float:
    if measure == "bytes placed":
        return 100 * score.within[at]
    return score.skill if measure == "skill" else score.nmse


def _bars(rows: list[tuple[int, ForecastScore]], measure: str) -> Drawn:
    if measure != "skill":
        return {}
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": packed([s.skill_high - s.skill for _, s in rows]),
            "arrayminus": packed([s.skill - s.skill_low for _, s in rows]),
            "thickness": 1,
        }
    }


def within(analysis: Analysis) -> Chart | Missing:
    """What an iteration's first dispatch tells of the later layers."""
    title = "What the first dispatch tells of later layers in the same iteration"
    told = [s for s in analysis.sights if np.isfinite(s.skill)]
    if not told:
        why = "; ".join(dict.fromkeys(s.reason for s in analysis.sights if s.reason))
        return Missing(
            title=title, reason=why or "there is one MoE layer alone, or none"
        )
    traces = (
        {
            "type": "scatter",
            "mode": "markers",
            "name": "skill, 95% interval",
            "x": [s.skill for s in told],
            "y": [s.target for s in told],
            "text": [f"by {s.best}" for s in told],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": packed([s.skill_high - s.skill for s in told]),
                "arrayminus": packed([s.skill - s.skill_low for s in told]),
            },
            "marker": {"size": 10, "color": colors(1)[0]},
        },
    )
    return Chart(
        key="within",
        title=title,
        source="Expert loads of the first MoE layer against those of later ones, "
        f"{told[0].origins} iterations of the run's last quarter. Skill: 1 − squared "
        "error / that of the best forecast from past iterations.",
        columns=("skill (dimensionless)", "target"),
        views=(
            View(
                traces=traces,
                layout=axes(
                    "skill over the best from the past",
                    "",
                    x_zeroline=True,
                    y_autorange="reversed",
                ),
            ),
        ),
        height=max(220, 110 + 28 * len(told)),
    )
