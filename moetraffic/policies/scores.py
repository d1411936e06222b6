"""Tables and verdict of the scores of policies, on one trace or over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from moetraffic.analysis.intervals import LEVEL, UNKNOWN, Interval
from moetraffic.arrays import Float64
from moetraffic.result import Result
from moetraffic.units import duration

from .bench import NONE, SERVED, Row, longer

CONTROLS = ("oracle", "shuffled", SERVED)
"""Forecasters that no deployed policy has, or would use: never ranked."""


class Place(NamedTuple):
    """What policies are compared on."""

    family: str
    network: str
    age: int


class Scored(NamedTuple):
    """A policy with a forecaster, and its rows by trace."""

    policy: str
    forecaster: str
    runs: Mapping[str, Row]

    def mean(self, name: str) -> float:
        """Compute the geometric mean over traces."""
        with np.errstate(divide="ignore"):  # nothing is sent
            logs = np.log([row[name] for row in self.runs.values()])
        return float(np.exp(logs.mean()))

    def interval(self, name: str) -> Interval:
        """Return value and ends of one trace, else mean and interval over traces."""
        rows = list(self.runs.values())
        if len(rows) == 1:
            value, low, high = (rows[0][name + end] for end in ("", "_low", "_high"))
            return Interval(value=value, low=low, high=high)
        less = int(name == "regret")  # which is a ratio minus 1
        return over_traces(np.log([row[name] + less for row in rows]), less)


def over_traces(logs: Float64, less: int = 0) -> Interval:
    """Compute exp(mean) - less of logarithms ``[n]`` with Student's interval."""
    half = stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * logs.std(ddof=1)
    ends = logs.mean() + np.array([-1, 0, 1]) * half / np.sqrt(len(logs))
    low, value, high = (np.exp(ends) - less).tolist()
    return Interval(value=value, low=low, high=high)


def more_time(scored: Scored, other: Scored, span: int) -> Interval:
    """Compute how much longer a policy takes than another, as a share of the other.

    Paired: by iteration on one trace, by trace on several.
    """
    pairs = [(row, other.runs[f]) for f, row in scored.runs.items() if f in other.runs]
    if len(pairs) == 1:
        ((row, beside),) = pairs
        return longer(row["by_iteration_s"], beside["by_iteration_s"], span=span)
    if not pairs:
        return UNKNOWN
    name = "completion_mean_s"
    return over_traces(np.log([row[name] / beside[name] for row, beside in pairs]), 1)


def answer(
    rows: Sequence[Row],
    about: Mapping[str, Mapping[str, str]],
    *,
    data: Mapping[str, Any],
    span: int,
    notes: Sequence[str] = (),
) -> Result:
    """Make tables and verdict of the scores of policies.

    Parameters
    ----------
    rows
        Of :meth:`.bench.Bench.scores`, with the file of the trace.
    about
        Rates, and what the bound counts ("reference"), by the name of a network.
    data
        Phase, completion and runs.
    span
        Iterations over which the errors of plans are correlated.
    """
    places: dict[Place, dict[tuple[str, str], dict[str, Row]]] = {}
    for row in rows:
        place = Place(row["family"], row["network"], row["age"])
        by_policy = places.setdefault(place, {})
        by_policy.setdefault((row["policy"], row["forecaster"]), {})[row["file"]] = row
    shown, verdict = list[dict[str, Any]](), list[str]()
    honest = list[str]()
    for place, by_policy in places.items():
        scored = [Scored(*key, runs) for key, runs in by_policy.items()]
        ranked = [s for s in scored if s.forecaster not in CONTROLS]
        ranked.sort(key=lambda s: s.mean("completion_mean_s"))
        best: dict[str, Scored] = {}  # of each policy, the best forecast
        for one in (*ranked, *(s for s in scored if s.forecaster == SERVED)):
            best.setdefault(one.policy, one)
        shown += [_line(place, one, ranked[:1], span) for one in best.values()]
        if ranked and place.age == rows[0]["age"]:
            verdict += _verdict(place, ranked, span)
    if not any(row["over_bound"] > 0 for row in rows):
        verdict = ["No exchange sends bytes between ranks."]
    free = [r["moved_experts"] for r in rows if not r["moved_bytes"]]
    if moved := max(free, default=0.0):
        honest.append(
            f"Moving experts, up to {moved:.3g} a plan, is free here (--expert-bytes "
            "0)."
        )
    for policy in dict.fromkeys(r["policy"] for r in rows if r["forecaster"] == SERVED):
        honest.append(
            f"{policy} was planned from iterations that it serves: not a forecast, not "
            "ranked."
        )
    runs = data["runs"]
    if len(runs) > 1:
        head = f"{len(runs)} traces: {data['phase']}"
    else:
        first, last = runs[0]["iterations"]
        head = f"{runs[0]['file']}: {data['phase']}, iterations {first} to {last}"
    if data["completion"] != "exchange":
        head += f", times of {data['completion']}s"
    single = len(about) == 1
    if single:
        head += "; " + "".join(facts["rates"] for facts in about.values())
    over = [
        facts["reference"] + f" ({name})" * (not single)
        for name, facts in about.items()
    ]
    networks = [{"network": name, **facts} for name, facts in about.items()]
    varied = ("network", "age", "over_bound_interval", "load_imbalance", "moved_bytes")
    for name in (*varied, "traces"):  # columns that are alike in all rows
        if len({str(line[name]) for line in shown}) == 1 and name != "load_imbalance":
            shown = [{k: v for k, v in line.items() if k != name} for line in shown]
    return Result(
        verb="evaluate",
        head=head,
        tables={
            "policies": shown,
            "scores": [
                {k: row[k] for k in row if k != "by_iteration_s"} for row in rows
            ],
            "networks": networks,
        },
        screen=("policies",) if single else ("policies", "networks"),
        captions={
            "policies": f"over bound: {'; '.join(dict.fromkeys(over))}; cost of "
            "forecast: over the same policy with the true traffic"
        },
        verdict=(*verdict[: max(1, 5 - len(honest))], *honest[:4]),
        notes=tuple(notes),
        data={**data, "by_iteration_s": [row["by_iteration_s"] for row in rows]},
    )


def _line(
    place: Place, scored: Scored, fastest: Sequence[Scored], span: int
) -> dict[str, Any]:
    """Make the row of a policy with its best forecast."""
    rows = list(scored.runs.values())
    over, regret = scored.interval("over_bound"), scored.interval("regret")
    gaps = [more_time(scored, first, span) for first in fastest if first is not scored]
    placed = place.family == "placement"
    line: dict[str, Any] = {
        "policy": scored.policy,
        "forecaster": "" if scored.forecaster == NONE else scored.forecaster,
        "network": place.network,
        "age": place.age,
        "completion_p50_s": scored.mean("completion_p50_s"),
        "completion_p99_s": scored.mean("completion_p99_s"),
        "over_bound": over.value,
        "over_bound_interval": (over.low, over.high) if len(rows) > 1 else None,
        "regret": regret.value,
        "regret_interval": (regret.low, regret.high),
        "over_fastest": gaps[0].value if gaps else None,
        "over_fastest_interval": (gaps[0].low, gaps[0].high) if gaps else None,
        "load_imbalance": scored.mean("load_imbalance") if placed else None,
        "moved_bytes": None,
        "traces": len(rows) if len(rows) > 1 else None,
    }
    if placed:
        line["moved_bytes"] = float(np.mean([row["moved_bytes"] for row in rows]))
    return line


def _verdict(place: Place, ranked: Sequence[Scored], span: int) -> list[str]:
    """State the fastest policy of a family on a network, and what limits circuits."""
    first, *others = ranked
    name = first.policy
    if first.forecaster != NONE:
        name += f" with {first.forecaster} forecasts"
    ranking = "Fastest" if others else "Only ranked"
    family = "circuit" if place.family == "circuits" else place.family
    text = f"{ranking} {family} policy on the network {place.network}: {name}"
    plain = next((s for s in others if s.forecaster == NONE), None)
    if plain is not None:
        gap = more_time(plain, first, span)
        less, low, high = (
            100 * (1 - 1 / (1 + v)) for v in (gap.value, gap.low, gap.high)
        )
        than = f"{less:.2g}% below" if less else "as fast as"
        text += f", {than} {plain.policy}"
        if less and isfinite(low):
            text += f" (95% CI {low:.2g} to {high:.2g}%)"
            text += ", no evidence of a difference" * (low <= 0)
    sentences = [f"{text}."]
    row = next(iter(first.runs.values()))
    if row["delay_s"] > row["transfer_s"]:
        text = (
            f"One reconfiguration ({duration(row['delay_s'])}) outlasts the transfer "
            f"of an exchange ({duration(row['transfer_s'])}, mean)"
        )
        if row["delay_s"] >= row["pays_below_s"]:
            text += "; packets alone are never slower than circuits"
        sentences.append(f"{text}.")
    return sentences
