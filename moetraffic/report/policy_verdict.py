"""State which scheduling policies serve a run's exchanges best, in a few lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import isfinite, isinf

from moetraffic.analysis.intervals import Interval
from moetraffic.policies.defaults import DEFAULT_POLICIES
from moetraffic.policies.exchange_series import CHOSEN
from moetraffic.policies.scores import (
    NONE,
    Evaluation,
    PolicyScore,
    break_even_s,
    difference,
)
from moetraffic.text import LOG_WIDTH
from moetraffic.units import duration

SLOW = 20
"""Times the lower bound above which a circuit policy is compared with packets."""

TAIL = 0.9
"""Ratio of 99th percentiles below which a policy has a clearly shorter tail."""

CONTROLS = ("oracle", "shuffled")
"""Forecasters that no deployed policy has, or would use."""

MOST = 8
"""Lines of a summary."""

TABLES = "More: moetraffic evaluate with --tables, or --json."
"""Last line of a summary that is longer."""


def verdict(found: Evaluation) -> str:
    """Summarize an evaluation in sentences, in one line."""
    return " ".join(part for _, parts in _places(found) for part in parts)


def sentences(found: Evaluation, own: Sequence[str] = ()) -> list[str]:
    """Summarize an evaluation in at most :data:`MOST` lines.

    The best policy of each family and network comes first, then the policies named
    ``own``, then what limits the evaluation, then rates and delays of the networks,
    then figures of each best policy, as many as there is room for.
    """
    places = _places(found)
    lines = [first for _, (first, *_) in places]
    mine = [s for s in found.scores if s.policy in own and s.family != "placement"]
    best: dict[tuple[str, str], PolicyScore] = {}  # by its best deployable forecast
    for s in sorted(mine, key=lambda s: s.completion_mean_s):
        if s.forecaster not in CONTROLS:
            best.setdefault((s.policy, s.network), s)
    lines += _packed(
        [
            f"{_named(s)} on {s.network}: {s.over_bound.value:.3g} times the bound."
            for s in best.values()
        ]
    )
    served = "iterations {:,} to {:,}".format(*found.iterations)
    lines += [f"Served: {served}; {note}." for note in found.notes]
    lines += failed(found)
    lines += _packed([f"Network {n}: {of}." for n, of in found.networks.items()])
    for name, (_, *rest) in places:
        whose = f"{name}: " if len(places) > 1 else ""
        lines += _packed([f"{whose}{part}" for part in rest])
    if _height(lines) <= MOST:
        return lines
    while _height(lines) >= MOST:
        lines.pop()
    return [*lines, TABLES]


def _height(lines: Sequence[str]) -> int:
    """Count the lines of a log, whose continuations are indented."""
    return sum(len(textwrap.wrap(line, LOG_WIDTH - 2)) for line in lines)


def _packed(parts: Sequence[str]) -> list[str]:
    """Join sentences to lines, of which none is too long."""
    lines = list[str]()
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= LOG_WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _places(found: Evaluation) -> list[tuple[str, list[str]]]:
    """Describe the best policy of each family and network: name, then sentences.

    The best deployable policy is compared with the same policy with the oracle, and
    with the best policy that uses no forecast; intervals are of 95%, paired.
    """
    places = dict.fromkeys((s.family, s.network) for s in found.scores)
    return [
        (f"{family.capitalize()} on {network}", _sentences(found, family, network))
        for family, network in places
    ]


def _sentences(found: Evaluation, family: str, network: str) -> list[str]:
    mine = [s for s in found.scores if (s.family, s.network) == (family, network)]
    usable = [
        s
        for s in mine
        if s.forecaster not in CONTROLS and s.policy not in found.informed
    ]
    informed = [
        f"{name}: {why}: not a forecast, not ranked."
        for name, why in found.informed.items()
        if any(s.policy == name for s in mine)
    ]
    of = family.capitalize()
    if not usable and informed:
        return [f"{of}: no other policy to rank.", *informed]
    if not usable:
        return [f"{of}: no policy without the oracle was evaluated."]
    best = min(usable, key=lambda s: s.completion_mean_s)
    sent = best.transfer_s != 0 and isfinite(best.over_bound.value)
    if family != "placement" and not sent:  # the transfer is NaN without circuits
        return [f"{of}: no exchange sends bytes between ranks."]
    alone = len({(s.policy, s.forecaster) for s in usable}) == 1
    others = [s for s in usable if s.forecaster == NONE and s is not best]
    plainest = min(others, key=lambda s: s.completion_mean_s, default=None)
    gap = None if plainest is None else difference(best, plainest)
    lowest = "has the lowest mean completion time"
    names = {s.policy for s in mine}
    if not {*DEFAULT_POLICIES} - {"packets"} <= names:
        lowest += " of those evaluated"
    text = (
        f"{of} on {best.network}: {_named(best)} "
        + ("is the only one scored" if alone else lowest)
        + f", {best.over_bound.value:.3g} times "
        + found.bounds.get(network, "the lower bound")
    )
    if plainest is not None and gap is not None:
        text += (
            f"; it takes {_percent(gap, less=True)} less time than {plainest.policy}"
        )
        if gap.high >= 0 and _known(gap):
            text += ", no evidence of a difference"
    if any(s.moved_experts and not s.moved_bytes for s in mine):
        text += "; moving experts is free here (--expert-bytes 0)"
    slow = all(s.over_bound.value > SLOW for s in usable)
    if family == "circuits" and slow and "packets" not in names:
        informed.append(
            f"All circuit policies evaluated take over {SLOW} times the bound: add "
            "packets, the packet switch alone, to --policy."
        )
    rest = [_tail(best, usable), _planned(found, best), _delayed(best), *informed]
    rest += [_controlled(mine), *_chosen(mine)]
    return [f"{text}.", *filter(None, rest)]


def _tail(best: PolicyScore, usable: Sequence[PolicyScore]) -> str:
    """Name the policy with the shortest tail, if the best one's is clearly longer."""
    short = min(usable, key=lambda s: s.completion_p99_s)
    if not short.completion_p99_s < TAIL * best.completion_p99_s:
        return ""
    lower, higher = (
        f"{_named(s)} ({duration(s.completion_p99_s)})" for s in (short, best)
    )
    return f"99th percentile of completion times: lower with {lower} than {higher}."


def _planned(found: Evaluation, best: PolicyScore) -> str:
    """Compare the best policy's plans with those from the truth, by age and delay."""
    if best.forecaster == NONE:
        return ""
    parts = []
    plan = f"a plan {best.age} iteration{'s' * (best.age != 1)} old"
    truth = "one made from the true traffic"
    if not isfinite(best.regret.value):
        pass
    elif best.regret.low > 0 or not _known(best.regret):
        parts.append(f"{plan} takes {_percent(best.regret)} longer than {truth}")
    elif best.regret.high < 0:
        less = _percent(best.regret, less=True)
        parts.append(
            f"{plan} takes {less} less time than {truth}: {best.policy} is a "
            "heuristic whose plan for the true traffic is not optimal, so this is no "
            "gain of forecasting"
        )
    else:
        parts.append(
            f"no evidence that {plan} differs from {truth}: {_percent(best.regret)}"
        )
    parts.append(_aged(found, best))
    if found.by_delay:
        even = break_even_s(found, best.policy, best.forecaster)
        if isinf(even):
            parts.append("planning pays at all delays evaluated")
        elif isfinite(even):
            parts.append(f"planning pays up to a delay of {duration(even)}")
        else:
            parts.append("planning pays at none of the delays evaluated")
    return _sentence([f"with {best.policy}, {parts[0]}", *parts[1:]] if parts else [])


def _delayed(best: PolicyScore) -> str:
    """Compare one reconfiguration with an exchange's transfer, and packets alone."""
    parts = []
    if best.delay_s > best.transfer_s:
        parts.append(
            f"one reconfiguration ({duration(best.delay_s)}) takes "
            f"{best.delay_s / best.transfer_s:.3g} times as long as the whole transfer "
            f"of an exchange ({duration(best.transfer_s)}, mean)"
        )
    if best.delay_s >= best.pays_below_s:
        parts.append(
            "no circuit policy is faster than packets alone, for any exchange "
            f"(break-even: {duration(best.pays_below_s)})"
        )
    return _sentence(parts)


def _sentence(parts: Sequence[str]) -> str:
    """Join clauses to a sentence; "" of none."""
    text = "; ".join(filter(None, parts))
    return text and f"{text[0].upper()}{text[1:]}."


def failed(found: Evaluation) -> list[str]:
    """Name the policies that failed, with the reason, in one line or none."""
    named = [sentence.split(" ", 1) for sentence in found.failures]
    every = [f"{n} ({why.removeprefix('raised ')[:-1]})" for n, why in named]
    return [f"Failed: {', '.join(every)}."] if every else []


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
    return f"The control shuffled is faster than {', '.join(found)}." if found else ""


def _chosen(scores: Sequence[PolicyScore]) -> list[str]:
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
    found = []
    if slower:
        found.append(
            f"The {CHOSEN} forecast (lowest error on the second quarter) "
            f"is slower than persistence for {', '.join(slower)}."
        )
    if level:
        found.append(
            f"No evidence that the {CHOSEN} forecast differs from the control shuffled "
            f"for {', '.join(level)}."
        )
    return found


def _aged(found: Evaluation, best: PolicyScore) -> str:
    """Compare the oldest plan that was evaluated with that of the main condition."""
    name = (best.policy, best.forecaster, best.network)
    older = [
        s
        for s in found.by_age
        if (s.policy, s.forecaster, s.network) == name and s.age > best.age
    ]
    if not older:
        return ""
    oldest = max(older, key=lambda s: s.age)
    gap = difference(oldest, best)
    text = f"a plan {oldest.age} iterations old costs {_percent(gap)} over one that is "
    text += f"{best.age} iteration{'s' * (best.age != 1)} old"
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
    return f"{value}% (95% CI {low} to {high}%)"


def _known(interval: Interval) -> bool:
    """Whether an interval has ends."""
    return isfinite(interval.low) and isfinite(interval.high)
