"""Report how well policies serve a run's exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.policies.scores import CURVES, NONE, Evaluation, PolicyScore
from moetraffic.report.chart import Axis, Chart, Panel, Series, line_colors
from moetraffic.tables import Table, plain, tables_of
from moetraffic.units import duration

from .policy_verdict import CONTROLS, verdict

TITLES = {
    "age": "Age of the plan",
    "delay": "Reconfiguration delay",
    "circuits": "Circuits of a port",
}
"""What changes along each of :data:`moetraffic.policies.scores.CURVES`."""

Key = tuple[str, str, str]
"""Policy, forecaster and network."""

ENDS = ("value", "low", "high")


def as_dict(found: Evaluation) -> dict[str, Any]:
    """Convert an evaluation to plain data, with the verdict."""
    return {"verdict": verdict(found), **plain(found)}


@tables_of.register
def tables(found: Evaluation) -> Sequence[Table]:
    """Tabulate the scores, and those at other ages and delays."""
    several = len({s.family for s in found.scores}) > 1
    title = (
        f"Policies on {Path(found.run).name}, {found.phase}, iterations "
        f"{found.iterations[0]} to {found.iterations[1]}, {_layers(found)}, "
        f"{found.ranks} ranks"
    )
    made = [_table(found.scores, title, several=several, notes=_notes(found))]
    for curve, title in TITLES.items():
        if scores := found.curve(curve):
            made.append(_curve(scores, CURVES[curve], title))
    return made


def _notes(found: Evaluation) -> list[str]:
    """Explain columns, and name the policies that failed."""
    notes = [f"over bound: completion time relative to {_bounds(found)}"]
    notes.append("served share: share of the bytes that the plan itself carries")
    if any(s.policy == "rotation" for s in found.scores):
        notes.append(
            "rotation repeats its matchings until all bytes are sent, without packets "
            "or replan; its served share is that of the first cycle"
        )
    return [*notes, *found.failures]


def _bounds(found: Evaluation) -> str:
    """Name what "over bound" is relative to on each network."""
    every = set(found.bounds.values())
    if len(every) == 1:
        return every.pop()
    return "; ".join(f"{of} on {name}" for name, of in found.bounds.items())


def _table(
    scores: Sequence[PolicyScore], title: str, *, several: bool, notes: Sequence[str]
) -> Table:
    balanced = any(isfinite(s.load_imbalance) for s in scores)
    columns = {
        **({"family": "<"} if several else {}),
        **{"policy": "<", "forecast": "<", "network": "<"},
        **{"completion p50": "s", "p99": "s", "over bound": ".3f", "regret": ".1%"},
        **{"95% interval": ".1%", "served share": ".1%", "reconfigurations": ".3g"},
        **({"max/mean load": ".3f", "moved experts": ".3g"} if balanced else {}),
        **{"planning p50": "s"},
    }
    rows = []
    for s in scores:
        ends = (s.regret.low, s.regret.high)
        rows.append(
            (
                *((s.family,) if several else ()),
                *(s.policy, s.forecaster, s.network),
                *(s.completion_p50_s, s.completion_p99_s, s.over_bound.value),
                s.regret.value,
                " to ".join(f"{end:.1%}" for end in ends) if isfinite(ends[0]) else "",
                *(s.served_share, s.reconfigurations),
                *((s.load_imbalance, s.moved_experts) if balanced else ()),
                s.planning_p50_s,
            )
        )
    return Table(title=title, columns=columns, rows=rows, notes=notes)


def chart(found: Evaluation) -> Chart:
    """Draw the ratio to the lower bound of each policy, and along each curve."""
    usable = [s for s in found.scores if s.forecaster != "shuffled"]
    named = _names(found)
    names = [named[_key(s)] for s in usable]
    row = np.arange(len(usable))
    panels = [
        Panel(
            name=("all policies",),
            x=Axis(label="over bound", log=True),
            y=Axis(names=tuple(names), reverse=True),
            series=(
                Series(
                    kind="points",
                    x=[s.over_bound.value for s in usable],
                    y=row,
                    x_interval=(
                        np.array([s.over_bound.low for s in usable]),
                        np.array([s.over_bound.high for s in usable]),
                    ),
                ),
            ),
        )
    ]
    every = [_key(s) for s in usable if s.forecaster != "oracle"]
    colors = dict(zip(every, line_colors(len(every)), strict=True))
    panels += [
        _panel(found.curve(curve), curve, title, colors, named)
        for curve, title in TITLES.items()
        if found.curve(curve)
    ]
    return Chart(
        key="policies",
        title=f"Scheduling policies on {Path(found.run).name}",
        source=f"{found.phase}, iterations {found.iterations[0]} to "
        f"{found.iterations[1]}, {_layers(found)}, {found.ranks} ranks; "
        f"over bound: completion time relative to {_bounds(found)}, with 95% intervals "
        "where there are enough iterations. The regret compares a "
        "forecast with the true traffic: policies without forecast have none",
        panels=tuple(panels),
        columns=("x", "y"),
        choices=("quantity",),
        height=max(380, 26 * len(usable)),
        shared=False,
    )


def _layers(found: Evaluation) -> str:
    number = len(found.layers)
    return f"{number} layer{'s' * (number != 1)}"


def _key(score: PolicyScore) -> Key:
    return (score.policy, score.forecaster, score.network)


def _names(found: Evaluation) -> dict[Key, str]:
    """Name policies in a chart: with forecast, and network if there are several."""
    keys = list(dict.fromkeys(map(_key, found.scores)))
    several = len({network for _, _, network in keys}) > 1
    return {
        key: ", ".join(
            part
            for part, wanted in zip(key, (True, key[1] != NONE, several), strict=True)
            if wanted
        )
        for key in keys
    }


def _panel(
    scores: Sequence[PolicyScore],
    curve: str,
    title: str,
    colors: Mapping[Key, str],
    names: Mapping[Key, str],
) -> Panel:
    """Draw regrets along a curve; where there is none, the ratio to the bound."""
    regrets = curve == "age"
    field = CURVES[curve]
    chosen = [
        s
        for s in scores
        if s.forecaster not in CONTROLS and (not regrets or isfinite(s.regret.value))
    ]
    series = []
    for key in dict.fromkeys(map(_key, chosen)):
        mine = [s for s in chosen if _key(s) == key]
        mine.sort(key=lambda s: getattr(s, field))
        at = [getattr(s, field) for s in mine]
        values = [s.regret if regrets else s.over_bound for s in mine]
        scale = 100 if regrets else 1
        ends = [scale * np.array([getattr(v, e) for v in values]) for e in ENDS]
        series.append(
            Series(
                x=at,
                y=ends[0],
                y_interval=(ends[1], ends[2]),
                name=names[key],
                color=colors[key],
                marked=True,
            )
        )
    units = {"age": " [iterations]", "delay": " [s]"}
    return Panel(
        name=(title.lower(),),
        x=Axis(
            label=f"{title.lower()}{units.get(curve, '')}",
            log=curve == "delay",
        ),
        y=Axis(
            label="regret of forecasts [%]" if regrets else "over bound",
            log=not regrets,
        ),
        series=tuple(series),
    )


def _curve(scores: Sequence[PolicyScore], field: str, title: str) -> Table:
    """Tabulate the ratio to the lower bound, by one quantity."""
    values = sorted({getattr(s, field) for s in scores})
    names = list(dict.fromkeys((s.policy, s.forecaster, s.network) for s in scores))
    cell = {
        (s.policy, s.forecaster, s.network, getattr(s, field)): s.over_bound.value
        for s in scores
    }
    texts = {"delay_s": duration, "age": "{} old".format}
    shown = list(map(texts.get(field, str), values))
    return Table(
        title=f"{title}: over bound",
        columns={
            **{"policy": "<", "forecast": "<", "network": "<"},
            **dict.fromkeys(shown, ".3f"),
        },
        rows=[(*name, *(cell.get((*name, v)) for v in values)) for name in names],
    )
