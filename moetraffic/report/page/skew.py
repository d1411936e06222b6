"""How even: entropy and imbalance beside their floors, loads through time."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis, Subject, shares
from moetraffic.units import rank_span

from .chart import (
    SCALE,
    Chart,
    Missing,
    View,
    axes,
    band,
    bar_title,
    colors,
    every,
    line,
    names_shown,
    packed,
    thinned,
)
from .matrices import Kept

MEASURED = {
    "normalized_entropy": "normalized entropy (1 = even)",
    "max_over_mean": "max / mean (1 = even)",
    "cv": "coefficient of variation (0 = even)",
    "gini": "Gini index (0 = even)",
    "sparsity": "share of cells that are zero",
}
"""Measures that are drawn, and what their axis is called."""

SMOOTHED = 40
"""A moving mean is over one so-many-eth of the run."""

LOAD_CELLS = 400_000
"""Of all loads that are drawn."""


def named(exchange: ExchangeAnalysis, analysis: Analysis) -> str:
    """An exchange in words: its ranks too, where a layer has several groups."""
    several = len({e.group for e in analysis.exchanges}) > 1
    ranks = f", ranks {rank_span(exchange.ranks)}" if several else ""
    return f"layer {exchange.layer}{ranks}"


def subject_of(exchange: ExchangeAnalysis, name: str) -> Subject | None:
    """What an exchange tells of "expert_load", "demand", "wire" or "received"."""
    return next((s for s in exchange.subjects if s.name == name), None)


def curves(analysis: Analysis) -> Chart | Missing:
    """Entropy and imbalance in every iteration, beside a balanced gate's."""
    kinds = list(
        dict.fromkeys(
            s.name for e in analysis.exchanges for s in e.subjects if s.curves
        )
    )
    title = "How even the traffic is, and what chance alone would make of it"
    if not kinds:
        return Missing(title=title, reason=_why(analysis))
    drawn = len(analysis.exchanges) * len(kinds) * len(MEASURED)
    views = []
    worst = 1
    for kind in kinds:
        for measure, words in MEASURED.items():
            told = [
                (e, s)
                for e in analysis.exchanges
                if (s := subject_of(e, kind)) and measure in s.curves
            ]
            if not told or (
                measure == "sparsity"
                and not any(s.curves[measure].values.any() for _, s in told)
            ):
                continue
            step = every(max(len(e.iterations) for e, _ in told), 2 * drawn)
            worst = max(worst, step)
            views.append(_curves(analysis, told, kind, measure, words, step))
    about = {s.name: s.about for e in analysis.exchanges for s in e.subjects}
    return Chart(
        key="evenness",
        title=title,
        source="Of "
        + "; ".join(f"{k.replace('_', ' ')}: {about[k]}" for k in kinds)
        + ". Faint: each iteration; thick: moving mean. Gray: mean ± 2 standard "
        "deviations of a perfectly balanced gate." + thinned(worst),
        columns=("iteration", "value (dimensionless)"),
        choices=("of", "measure"),
        views=tuple(views),
    )


def _curves(
    analysis: Analysis,
    told: list[tuple[ExchangeAnalysis, Subject]],
    kind: str,
    measure: str,
    words: str,
    step: int,
) -> View:
    traces = []
    floored = next((t for t in told if t[1].curves[measure].floor is not None), None)
    if floored is not None:
        floor = floored[1].curves[measure].floor
        assert floor is not None
        rows = slice(None, None, step)
        mean, spread = np.atleast_1d(floor.mean)[rows], np.atleast_1d(floor.std)[rows]
        traces += band(
            packed(floored[0].iterations[rows]),
            packed(mean - 2 * spread),
            packed(mean + 2 * spread),
            "balanced gate",
        )
    shown = names_shown(len(told))
    for (exchange, subject), color, name in zip(
        told, colors(len(told)), shown, strict=True
    ):
        traces.append(
            line(
                packed(exchange.iterations[::step]),
                packed(subject.curves[measure].values[::step]),
                named(exchange, analysis),
                color,
                named=name,
            )
        )
    length = len(told[0][0].iterations[::step])
    aside = ""
    if floored is None:
        aside = "No floor: the tokens behind these bytes are not known."
    elif len(told) > 1:
        aside = f"The floor is that of {named(floored[0], analysis)}."
    return View(
        name=(kind.replace("_", " "), measure.replace("_", " ")),
        traces=tuple(traces),
        layout=axes("iteration", words),
        smooth=length // SMOOTHED,
        aside=aside,
    )


def loads(analysis: Analysis, kept: Kept) -> Chart | Missing:
    """The share of every expert, or rank, through the run."""
    title = "Load over experts through time"
    known = {key: found for key, s in kept.seen.items() if (found := s.load())}
    if not known:
        return Missing(title=title, reason=_why(analysis))
    cells = sum(load.size for _, load in known.values())
    step = max(1, -(-cells // LOAD_CELLS))
    views = []
    for exchange in analysis.exchanges:
        if (exchange.layer, exchange.group) not in known:
            continue
        what, load = known[exchange.layer, exchange.group]
        part = 100 * shares(load[::step])
        views.append(
            View(
                name=(named(exchange, analysis),),
                traces=(
                    {
                        "type": "heatmap",
                        "x": packed(exchange.iterations[::step]),
                        "y": list(range(part.shape[1]))
                        if what == "expert"
                        else [f"rank {r}" for r in exchange.ranks],
                        "z": packed(part.T),
                        "zmin": 0,
                        "zmax": float(np.nanmax(part, initial=0.0)) or 1.0,
                        "colorscale": SCALE,
                        "colorbar": bar_title("share [%]"),
                        "hovertemplate": f"iteration %{{x}}<br>{what} %{{y}}"
                        "<br>%{z:.2f} %<extra></extra>",
                    },
                ),
                layout=axes("iteration", what, y_autorange="reversed"),
                aside=f"Even would be {100 / part.shape[1]:.3g} %.",
            )
        )
    of = {what for what, _ in known.values()}
    return Chart(
        key="loads",
        title=title if of == {"expert"} else "Load over ranks through time",
        source=(
            "Token copies that each expert was given by all ranks, dropped ones too"
            if of == {"expert"}
            else "Bytes that each rank received from others"
        )
        + ", as its share of the layer's in the iteration."
        + thinned(step),
        columns=("iteration", "expert" if of == {"expert"} else "rank", "share [%]"),
        choices=("layer",),
        views=tuple(views),
    )


def _why(analysis: Analysis) -> str:
    """What the notes say of it."""
    told = [
        n
        for n in analysis.notes
        if "no skew" in n or "no demand" in n or "no wire" in n
    ]
    return "; ".join(told) or "the trace shows no routing and no expert exchange"
