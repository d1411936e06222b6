"""Report how well policies serve a run's exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isinf
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis.resampling import Interval
from moetraffic.policies.defaults import DEFAULT_POLICIES
from moetraffic.policies.exchange_series import CHOSEN
from moetraffic.policies.scores import (
    CURVES,
    NONE,
    Evaluation,
    PolicyScore,
    break_even_s,
    difference,
)
from moetraffic.report.chart import Axis, Chart, Panel, Series, line_colors
from moetraffic.tables import Table, plain, tables_of
from moetraffic.units import duration

TITLES = {
    "age": "Age of the plan",
    "delay": "Reconfiguration delay",
    "circuits": "Circuits of a port",
    "tokens": "Tokens of a rank in an exchange",
    "progress": "Progress of training",
}
"""What changes along each of :data:`moetraffic.policies.scores.CURVES`."""

Key = tuple[str, str, str]
"""Policy, forecaster and network."""

ENDS = ("value", "low", "high")

SLOW = 20
"""Times the lower bound above which a circuit policy is compared with packets."""

CONTROLS = ("oracle", "gate", "shuffled")
"""Forecasters that no deployed policy has, or would use."""


def as_dict(found: Evaluation) -> dict[str, Any]:
    """Convert an evaluation to plain data, with the verdict."""
    return {"verdict": verdict(found), **plain(found)}


def verdict(found: Evaluation) -> str:
    """Summarize an evaluation in one sentence per family and network.

    The best deployable policy is compared with the same policy with the oracle, and
    with the best policy that uses no forecast; intervals are of 95%, paired.
    """
    places = dict.fromkeys((s.family, s.network) for s in found.scores)
    return " ".join(_sentence(found, *place) for place in places)


def _sentence(found: Evaluation, family: str, network: str) -> str:
    mine = [s for s in found.scores if (s.family, s.network) == (family, network)]
    usable = [
        s
        for s in mine
        if s.forecaster not in CONTROLS and s.policy not in found.informed
    ]
    informed = "".join(
        f" {name}: {why}: not a forecast, not ranked."
        for name, why in found.informed.items()
        if any(s.policy == name for s in mine)
    )
    if not usable and informed:
        return f"{family.capitalize()}: no other policy to rank.{informed}"
    if not usable:
        return f"{family.capitalize()}: no policy without the oracle was evaluated."
    best = min(usable, key=lambda s: s.completion_mean_s)
    if family != "placement" and not best.transfer_s > 0:
        return f"{family.capitalize()}: no exchange sends bytes between ranks."
    alone = len({(s.policy, s.forecaster) for s in usable}) == 1
    others = [s for s in usable if s.forecaster == NONE and s is not best]
    plainest = min(others, key=lambda s: s.completion_mean_s, default=None)
    gap = None if plainest is None else difference(best, plainest)
    unlike = gap is None or gap.high < 0
    fastest = "is the fastest" if unlike else "has the lowest mean completion time"
    names = {s.policy for s in mine}
    if not {*DEFAULT_POLICIES} - {"packets"} <= names:
        fastest += " of those evaluated"
    text = (
        f"{family.capitalize()} on {best.network}: {_named(best)} "
        + ("is the only one scored" if alone else fastest)
        + f", {best.over_bound.value:.3g} times "
        + ("a balanced layer" if family == "placement" else "the lower bound")
    )
    if best.forecaster != NONE and isfinite(best.regret.value):
        plan = f"a plan {best.age} iteration{'s' * (best.age != 1)} old"
        truth = "one made from the true traffic"
        if best.regret.low > 0 or not _known(best.regret):
            text += f"; {plan} takes {_percent(best.regret)} longer than {truth}"
        elif best.regret.high < 0:
            less = _percent(best.regret, less=True)
            text += f"; {plan} takes {less} less time than {truth}"
            text += ", which is not the best one for it"
        else:
            text += f"; no evidence that {plan} differs from {truth}: "
            text += _percent(best.regret)
    text += _aged(found, best)
    if plainest is not None and gap is not None:
        text += (
            f"; it takes {_percent(gap, less=True)} less time than {plainest.policy}"
        )
        if gap.high >= 0 and _known(gap):
            text += ", no evidence of a difference"
    if found.by_delay and best.forecaster != NONE:
        even = break_even_s(found, best.policy, best.forecaster)
        if isinf(even):
            text += "; planning pays at all delays evaluated"
        elif isfinite(even):
            text += f"; planning pays up to a delay of {duration(even)}"
        else:
            text += "; planning pays at none of the delays evaluated"
    if best.delay_s > best.transfer_s:
        text += (
            f"; the delay is {best.delay_s / best.transfer_s:.3g} times the transfer"
        )
    if best.delay_s >= best.pays_below_s:
        text += (
            ": no circuit policy is faster than packets alone, for any exchange "
            f"(break-even: {duration(best.pays_below_s)})"
        )
    slow = all(s.over_bound.value > SLOW for s in usable)
    if family == "circuits" and slow and "packets" not in names:
        text += (
            f"; all circuit policies evaluated take over {SLOW} times the bound: add "
            "packets, the packet switch alone, to --policy"
        )
    return f"{text}.{informed}{_controlled(mine)}{_chosen(mine)}"


def failed(found: Evaluation) -> list[str]:
    """Name the policies that failed, with the reason, in one line or none."""
    named = [sentence.split(" ", 1) for sentence in found.failures]
    every = [f"{n} ({why.removeprefix('raised ')[:-1]})" for n, why in named]
    return [f"failed: {', '.join(every)}"] if every else []


def _controlled(scores: Sequence[PolicyScore]) -> str:
    """Name the forecasts that are slower than the control, and what plans carry."""
    found = []
    for control in (s for s in scores if s.forecaster == "shuffled"):
        slower = [
            s
            for s in scores
            if s.policy == control.policy
            and s.forecaster not in CONTROLS
            and difference(control, s).high < 0
        ]
        if not slower:
            continue
        text = f"{' and '.join(s.forecaster for s in slower)} for {control.policy}"
        if all(s.served_share < control.served_share for s in slower):
            shares = " and ".join(f"{100 * s.served_share:.3g}%" for s in slower)
            text += f" (plans that carry {shares} of the bytes"
            text += f", the control's {100 * control.served_share:.3g}%)"
        found.append(text)
    return f" The control shuffled is faster than {', '.join(found)}." if found else ""


def _chosen(scores: Sequence[PolicyScore]) -> str:
    """Name the policies to which the choice of a forecaster is of no use."""
    made = {(s.policy, s.forecaster): s for s in scores}
    slower, level = [], []
    for (policy, forecaster), score in made.items():
        if forecaster != CHOSEN:
            continue
        last = made.get((policy, "persistence"))
        control = made.get((policy, "shuffled"))
        if last is not None and difference(score, last).low > 0:
            slower.append(policy)
        if control is not None and difference(score, control).low <= 0 <= (
            difference(score, control).high
        ):
            level.append(policy)
    found = ""
    if slower:
        found += f" The {CHOSEN} forecast is slower than persistence for "
        found += f"{', '.join(slower)}."
    if level:
        found += f" No evidence that the {CHOSEN} forecast differs from the control "
        found += f"shuffled for {', '.join(level)}."
    return found


def _aged(found: Evaluation, best: PolicyScore) -> str:
    """Compare the oldest plan that was evaluated with that of the main condition."""
    name = (best.policy, best.forecaster, best.network)
    older = [
        s
        for s in found.by_age
        if (s.policy, s.forecaster, s.network) == name and s.age > best.age
    ]
    if not older or best.forecaster == NONE:
        return ""
    oldest = max(older, key=lambda s: s.age)
    gap = difference(oldest, best)
    text = f"; a plan {oldest.age} iterations old costs {_percent(gap)} over that"
    return text + (", no evidence of a difference" if gap.low <= 0 <= gap.high else "")


def _named(score: PolicyScore) -> str:
    """Name a policy with its forecaster."""
    if score.forecaster == NONE:
        return score.policy
    return f"{score.policy} with the {score.forecaster} forecast"


def _percent(share: Interval, *, less: bool = False) -> str:
    sign = -100 if less else 100
    ends = sorted((sign * share.low, sign * share.high))
    value, low, high = (
        f"{end:,.0f}" if abs(end) >= 100 else f"{end:.2g}"
        for end in (sign * share.value, *ends)
    )
    if not _known(share):
        return f"{value}% (not tested: too few iterations)"
    return f"{value}% ({low} to {high}%)"


def _known(interval: Interval) -> bool:
    """Whether an interval has ends."""
    return isfinite(interval.low) and isfinite(interval.high)


@tables_of.register
def tables(found: Evaluation) -> Sequence[Table]:
    """Tabulate the scores, and those at other ages and delays."""
    several = len({s.family for s in found.scores}) > 1
    title = (
        f"Policies on {Path(found.run).name}, {found.phase}, iterations "
        f"{found.iterations[0]} to {found.iterations[1]}, {_layers(found)}, "
        f"{found.ranks} ranks"
    )
    made = [_table(found.scores, title, several=several, notes=found.failures)]
    for curve, title in TITLES.items():
        if scores := found.curve(curve):
            made.append(_curve(scores, CURVES[curve], title))
    return made


def _table(
    scores: Sequence[PolicyScore], title: str, *, several: bool, notes: Sequence[str]
) -> Table:
    balanced = any(isfinite(s.load_imbalance) for s in scores)
    columns = {
        **({"family": "<"} if several else {}),
        **{"policy": "<", "forecast": "<", "network": "<"},
        **{"p50": "s", "p99": "s", "over bound": ".3f", "regret": ".1%"},
        **{"95% interval": ".1%", "served share": ".1%", "reconfigurations": ".3g"},
        **({"max/mean load": ".3f", "moved": "bytes"} if balanced else {}),
        **{"planning": "s"},
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
                *((s.load_imbalance, s.moved_bytes) if balanced else ()),
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
            x=Axis(label="completion / lower bound", log=True),
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
        "intervals of 95%, where there are iterations enough. The regret compares a "
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
    regrets = curve in ("age", "tokens", "progress")
    field = CURVES[curve]
    chosen = [
        s
        for s in scores
        if s.forecaster not in CONTROLS and (not regrets or isfinite(s.regret.value))
    ]
    ticks = ("early", "late") if curve == "progress" else ()
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
                x=[ticks.index(v) for v in at] if ticks else at,
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
            log=curve in ("delay", "tokens"),
            names=ticks,
        ),
        y=Axis(
            label="regret of forecasts [%]" if regrets else "completion / lower bound",
            log=not regrets,
        ),
        series=tuple(series),
    )


def _curve(scores: Sequence[PolicyScore], field: str, title: str) -> Table:
    """Tabulate completion over the lower bound, by one quantity."""
    values = sorted({getattr(s, field) for s in scores})
    names = list(dict.fromkeys((s.policy, s.forecaster, s.network) for s in scores))
    cell = {
        (s.policy, s.forecaster, s.network, getattr(s, field)): s.over_bound.value
        for s in scores
    }
    texts = {"delay_s": duration, "age": "{} old".format, "tokens": "{:.4g}".format}
    shown = list(map(texts.get(field, str), values))
    return Table(
        title=f"{title}: completion over the lower bound",
        columns={
            **{"policy": "<", "forecast": "<", "network": "<"},
            **dict.fromkeys(shown, ".3f"),
        },
        rows=[(*name, *(cell.get((*name, v)) for v in values)) for name in names],
    )
