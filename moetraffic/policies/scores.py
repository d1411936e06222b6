"""Tables and verdict of the scores of policies, on one trace or over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from moetraffic.analysis.forecast import gain
from moetraffic.analysis.intervals import LEVEL, UNKNOWN, Interval
from moetraffic.arrays import Float64
from moetraffic.result import Result
from moetraffic.units import duration

NONE, SERVED = "none", "what it serves"
"""Forecasters of policies that use none, and of plans made from what they serve."""

CONTROLS = ("oracle", "shuffled", SERVED)
"""Forecasters that no deployed policy has, or would use: never ranked."""

TIME = "completion_mean_s"


def longer(times: Float64, others: Float64, *, span: int) -> Interval:
    """Compute how much longer times ``[n]`` are than others, as a share of these.

    Paired by iteration (block jackknife, Student).  ``span`` is the number of
    iterations over which the errors of plans are correlated.  A moving-block bootstrap
    of 32 iterations states more than twice as many differences where there are none.
    """
    less = gain(times, others, span=span)
    return Interval(value=-less.value, low=-less.high, high=-less.low)


def geometric_mean(values: pd.Series[float]) -> float:
    """Compute the geometric mean, 0 where nothing is sent."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(values).mean()))


def over_traces(logs: pd.Series[float], less: int = 0) -> Interval:
    """Compute exp(mean) - less of logarithms ``[n]`` with Student's interval."""
    half = stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * logs.std() / np.sqrt(len(logs))
    low, value, high = (
        np.exp(logs.mean() + np.array([-half, 0, half])) - less
    ).tolist()
    return Interval(value=value, low=low, high=high)


def interval(runs: pd.DataFrame, name: str) -> Interval:
    """Return value and ends of one trace, else mean and interval over traces."""
    if len(runs) == 1:
        value, low, high = (
            float(runs[name + end].iloc[0]) for end in ("", "_low", "_high")
        )
        return Interval(value=value, low=low, high=high)
    less = int(name == "regret")  # which is a ratio minus 1
    return over_traces(np.log(runs[name] + less), less)


def more_time(runs: pd.DataFrame, others: pd.DataFrame, span: int) -> Interval:
    """Compute how much longer a policy takes than another, as a share of the other.

    Paired: by iteration on one trace, by trace on several.
    """
    pairs = runs.merge(others, on="file")
    if len(pairs) == 1:
        (pair,) = pairs.to_dict("records")
        return longer(pair["by_iteration_s_x"], pair["by_iteration_s_y"], span=span)
    if pairs.empty:
        return UNKNOWN
    return over_traces(np.log(pairs[f"{TIME}_x"] / pairs[f"{TIME}_y"]), 1)


def answer(
    rows: Sequence[dict[str, Any]],
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
        Scores, by file, policy, network, age and forecaster.
    about
        Rates, and what the bound counts ("reference"), by the name of a network.
    data
        Phase and runs.
    span
        Iterations over which the errors of plans are correlated.
    """
    frame = pd.DataFrame(rows)
    shown, verdict = list[dict[str, Any]](), list[str]()
    for place, scores in frame.groupby(["family", "network", "age"], sort=False):
        scored = [s for _, s in scores.groupby(["policy", "forecaster"], sort=False)]
        own = [s for s in scored if s.forecaster.iloc[0] not in CONTROLS]
        ranked = sorted(own, key=lambda runs: geometric_mean(runs[TIME]))
        best: dict[str, pd.DataFrame] = {}  # of each policy, the best forecast
        for runs in (*ranked, *scored):
            if runs.forecaster.iloc[0] not in CONTROLS[:2]:
                best.setdefault(runs.policy.iloc[0], runs)
        shown += [_line(runs, ranked[:1], span) for runs in best.values()]
        if ranked and place[2] == rows[0]["age"]:
            verdict += _verdict(ranked, span)
    if not (frame.over_bound > 0).any():
        verdict = ["No exchange sends bytes between ranks."]
    honest = list[str]()
    free = frame.moved_experts[frame.moved_bytes == 0]
    if (free > 0).any():
        honest.append(
            f"Moving experts, up to {free.max():.3g} a plan, is free here "
            "(--expert-bytes 0)."
        )
    for policy in frame.policy[frame.forecaster == SERVED].unique():
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
    single = len(about) == 1
    if single:
        head += "; " + "".join(facts["rates"] for facts in about.values())
    over = [
        facts["reference"] + f" ({name})" * (not single)
        for name, facts in about.items()
    ]
    varied = ("network", "age", "over_bound_interval", "moved_bytes", "traces")
    for name in varied:  # columns that are alike in all rows
        if len({str(line[name]) for line in shown}) == 1:
            for line in shown:
                del line[name]
    return Result(
        verb="evaluate",
        head=head,
        tables={
            "policies": shown,
            "scores": frame.drop(columns="by_iteration_s").to_dict("records"),
            "networks": [{"network": name, **facts} for name, facts in about.items()],
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
    runs: pd.DataFrame, fastest: Sequence[pd.DataFrame], span: int
) -> dict[str, Any]:
    """Make the row of a policy with its best forecast."""
    row, several = runs.iloc[0], len(runs) > 1
    over, regret = interval(runs, "over_bound"), interval(runs, "regret")
    gaps = [more_time(runs, first, span) for first in fastest if first is not runs]
    placed = row.family == "placement"
    return {
        "policy": row.policy,
        "forecaster": "" if row.forecaster == NONE else row.forecaster,
        "network": row.network,
        "age": row.age,
        "completion_p50_s": geometric_mean(runs.completion_p50_s),
        "completion_p99_s": geometric_mean(runs.completion_p99_s),
        "over_bound": over.value,
        "over_bound_interval": (over.low, over.high) if several else None,
        "regret": regret.value,
        "regret_interval": (regret.low, regret.high),
        "over_fastest": gaps[0].value if gaps else None,
        "over_fastest_interval": (gaps[0].low, gaps[0].high) if gaps else None,
        "load_imbalance": geometric_mean(runs.load_imbalance) if placed else None,
        "moved_bytes": float(runs.moved_bytes.mean()) if placed else None,
        "traces": len(runs) if several else None,
    }


def _verdict(ranked: Sequence[pd.DataFrame], span: int) -> list[str]:
    """State the fastest policy of a family on a network, and what limits circuits."""
    first, *others = ranked
    row = first.iloc[0]
    name = row.policy
    if row.forecaster != NONE:
        name += f" with {row.forecaster} forecasts"
    ranking = "Fastest" if others else "Only ranked"
    family = "circuit" if row.family == "circuits" else row.family
    text = f"{ranking} {family} policy on the network {row.network}: {name}"
    plain = next((s for s in others if s.forecaster.iloc[0] == NONE), None)
    if plain is not None:
        gap = more_time(plain, first, span)
        less, low, high = (
            100 * (1 - 1 / (1 + v)) for v in (gap.value, gap.low, gap.high)
        )
        than = f"{less:.2g}% below" if less else "as fast as"
        text += f", {than} {plain.policy.iloc[0]}"
        if less and isfinite(low):
            text += f" (95% CI {low:.2g} to {high:.2g}%)"
            text += ", no evidence of a difference" * (low <= 0)
    sentences = [f"{text}."]
    if row.delay_s > row.transfer_s:
        text = (
            f"One reconfiguration ({duration(row.delay_s)}) outlasts the transfer "
            f"of an exchange ({duration(row.transfer_s)}, mean)"
        )
        if row.delay_s >= row.pays_below_s:
            text += "; packets alone are never slower than circuits"
        sentences.append(f"{text}.")
    return sentences
