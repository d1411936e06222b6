"""Report how well policies serve a run's exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isinf
from typing import Any

from moetraffic.analysis.resampling import Interval
from moetraffic.policies.scores import (
    NONE,
    Evaluation,
    PolicyScore,
    break_even_s,
    difference,
)
from moetraffic.tables import Table, plain, tables_of
from moetraffic.units import duration

CONTROLS = ("oracle", "shuffled")
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
    usable = [s for s in mine if s.forecaster not in CONTROLS]
    if not usable:
        return f"{family.capitalize()}: no policy without the oracle was evaluated."
    best = min(usable, key=lambda s: s.completion_mean_s)
    text = (
        f"{family.capitalize()} on {best.network}: {_named(best)} is the fastest, "
        f"{best.over_bound.value:.3g} times "
        + ("a balanced layer" if family == "placement" else "the lower bound")
    )
    if best.forecaster != NONE and isfinite(best.regret.value):
        plan = f"a plan {best.age} iteration{'s' * (best.age != 1)} old"
        if best.regret.low > 0:
            text += f"; {plan} takes {_percent(best.regret)} longer than the truth's"
        elif best.regret.high < 0:
            less = _percent(best.regret, less=True)
            text += f"; {plan} takes {less} less time than the truth's"
        else:
            text += f"; no evidence that {plan} differs from the truth's: "
            text += _percent(best.regret)
    others = [s for s in usable if s.forecaster == NONE and s is not best]
    if others:
        plainest = min(others, key=lambda s: s.completion_mean_s)
        gap = difference(best, plainest)
        text += (
            f"; it takes {_percent(gap, less=True)} less time than {plainest.policy}"
        )
        if gap.high >= 0:
            text += ", no evidence of a difference"
    if found.by_delay and best.forecaster != NONE:
        even = break_even_s(found, best.policy, best.forecaster)
        if isinf(even):
            text += "; planning pays at all delays evaluated"
        elif isfinite(even):
            text += f"; planning pays up to a delay of {duration(even)}"
        else:
            text += "; planning pays at none of the delays evaluated"
    return f"{text}."


def _named(score: PolicyScore) -> str:
    """Name a policy with its forecaster."""
    if score.forecaster == NONE:
        return score.policy
    return f"{score.policy} with the {score.forecaster} forecast"


def _percent(share: Interval, *, less: bool = False) -> str:
    sign = -100 if less else 100
    ends = sorted((sign * share.low, sign * share.high))
    value = f"{sign * share.value:.2g}%"
    if not all(map(isfinite, ends)):
        return value
    return f"{value} ({ends[0]:.2g} to {ends[1]:.2g}%)"


@tables_of.register
def tables(found: Evaluation) -> Sequence[Table]:
    """Tabulate the scores, and those at other ages and delays."""
    several = len({s.family for s in found.scores}) > 1
    title = (
        f"Policies on {found.run}, {found.phase}, iterations {found.iterations[0]} to "
        f"{found.iterations[1]}, {len(found.layers)} layers, {found.ranks} ranks"
    )
    made = [_table(found.scores, title, several=several, notes=found.failures)]
    if found.by_age:
        made.append(_curve((*found.scores, *found.by_age), "age", "Age of the plan"))
    if found.by_delay:
        every = [s for s in found.scores if isfinite(s.delay_s)]
        made.append(
            _curve((*every, *found.by_delay), "delay_s", "Reconfiguration delay")
        )
    return made


def _table(
    scores: Sequence[PolicyScore], title: str, *, several: bool, notes: Sequence[str]
) -> Table:
    balanced = any(isfinite(s.load_imbalance) for s in scores)
    columns = {
        **({"family": "<"} if several else {}),
        **{"policy": "<", "forecast": "<", "network": "<"},
        **{"p50": "s", "p99": "s", "over bound": ".3f", "regret": ".1%"},
        **{"95% interval": ".1%", "planned": ".1%", "reconfigurations": ".3g"},
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


def _curve(scores: Sequence[PolicyScore], field: str, title: str) -> Table:
    """Tabulate completion over the lower bound, by one quantity."""
    values = sorted({getattr(s, field) for s in scores})
    names = list(dict.fromkeys((s.policy, s.forecaster, s.network) for s in scores))
    cell = {
        (s.policy, s.forecaster, s.network, getattr(s, field)): s.over_bound.value
        for s in scores
    }
    shown = [duration(v) if field == "delay_s" else f"{v} old" for v in values]
    return Table(
        title=f"{title}: completion over the lower bound",
        columns={
            **{"policy": "<", "forecast": "<", "network": "<"},
            **dict.fromkeys(shown, ".3f"),
        },
        rows=[(*name, *(cell.get((*name, v)) for v in values)) for name in names],
    )
