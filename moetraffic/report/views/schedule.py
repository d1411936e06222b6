"""Results and charts of circuit schedules, and of time shifts of jobs on one link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from moetraffic.analysis.claims import Outcome
from moetraffic.analysis.typical import TypicalIteration
from moetraffic.fabric import Decomposition, Job, coverage, terms_for
from moetraffic.fabric.shifts import Compatibility, around
from moetraffic.policies.schedule import CircuitPlan
from moetraffic.report.chart import (
    Axis,
    Chart,
    Panel,
    Rule,
    Series,
    line_colors,
)
from moetraffic.result import Result
from moetraffic.units import bit_rate, duration, rank_span, three_digits

LINE_BOUND = "bytes of the busiest port over its capacity, no reconfiguration"


def times_of(plan: Decomposition, rate: float, delay: float) -> dict[str, Any]:
    """Compute the times of a schedule: terms of slack alone are skipped.

    ``rate`` is that of a circuit, bytes/s, and ``delay`` that of a reconfiguration, s.
    """
    held = plan.served.max(axis=1, initial=0) / rate
    number = int((held > 0).sum())
    sending, waiting = float(held.sum()), number * delay
    line = max(plan.demand.sum(axis=0).max(), plan.demand.sum(axis=1).max())
    return {
        "demand_bytes": int(plan.demand.sum()),
        "circuits": number,
        "sending_s": sending,
        "reconfiguring_s": waiting,
        "completion_s": sending + waiting,
        "sending_share": sending / (sending + waiting) if number else float("nan"),
        "bound_s": float(line) / rate,
        **{f"terms_{s}": terms_for(plan, s / 100) for s in (50, 90, 99)},
    }


def circuits_result(
    plans: Sequence[CircuitPlan],
    *,
    file: str,
    digest: str,
    capacity_bytes_s: float,
    reconfigure_s: float,
) -> Result:
    """Show circuit schedules: a row for each exchange, means of its matrices.

    ``data`` has every term: receivers, bytes and seconds, for a scheduler.
    """
    rate = capacity_bytes_s
    exchanges, rows = [], []
    for plan in plans:
        times = [times_of(one, rate, reconfigure_s) for one in plan.schedules]
        exchanges.append(
            {
                "layer": plan.layer if plan.layer >= 0 else None,
                "exchange": plan.name,
                "ranks": list(plan.ranks),
                "of": plan.about,
                "iterations": list(plan.iterations),
                "single_lower_bound_s": plan.single_bytes / rate,
                "schedules": [
                    {**time, **_terms(one, rate)}
                    for time, one in zip(times, plan.schedules, strict=True)
                ],
            }
        )
        known = [time for time in times if time["circuits"]] or times
        mean = {key: float(np.mean([t[key] for t in known])) for key in times[0]}
        keys = ("circuits", "terms_50", "terms_90", "terms_99", "sending_s", "bound_s")
        rows.append(
            {
                "layer": plan.layer,
                "exchange": plan.name,
                **{key: mean[key] for key in (*keys, "completion_s", "sending_share")},
                "demand_bytes": mean["demand_bytes"],
                "members": rank_span(plan.ranks),
                "matrix": plan.about,
            }
        )
    matching = plans[0].schedules[0].matching
    return Result(
        verb="schedule",
        head=f"{file}: circuits of {bit_rate(rate)}, {duration(reconfigure_s)} to "
        f"reconfigure, {matching} matching",
        tables={"circuits": rows},
        screen=("circuits",),
        captions={
            "circuits": f"for 50%: circuits that carry half of the bytes; "
            f"bound: {LINE_BOUND}"
        },
        verdict=tuple(_circuits_verdict(exchanges)),
        data={
            "kind": "circuit schedule (Birkhoff-von Neumann)",
            "file": file,
            "digest": digest,
            "capacity_bytes_s": rate,
            "reconfigure_s": reconfigure_s,
            "exchanges": exchanges,
        },
    )


def _terms(plan: Decomposition, rate: float) -> dict[str, Any]:
    columns = (
        plan.permutations.tolist(),
        plan.served.tolist(),
        plan.weights.tolist(),
        (plan.served.max(axis=1, initial=0) / rate).tolist(),
    )
    names = ("to", "bytes", "weight_bytes", "seconds")
    return {
        "matching": plan.matching,
        "slack_bytes": int(plan.slack.sum()),
        "coverage": coverage(plan),
        "terms": [
            dict(zip(names, term, strict=True)) for term in zip(*columns, strict=True)
        ],
    }


def _circuits_verdict(exchanges: Sequence[Mapping[str, Any]]) -> list[str]:
    """State the slowest exchange, when reconfigurations dominate, and single bounds."""
    every = [(one, made) for one in exchanges for made in one["schedules"]]
    every = [(one, made) for one, made in every if made["bound_s"]]
    if not every:
        return ["No exchange sends bytes between ranks."]
    slowest, longest = max(every, key=lambda pair: pair[1]["completion_s"])
    over = longest["completion_s"] / longest["bound_s"]
    break_even = np.mean([made["sending_s"] / made["circuits"] for _, made in every])
    sentences = [
        f"The slowest exchange, {_name(slowest)}, takes "
        f"{duration(longest['completion_s'])}, {three_digits(over)} times its bound.",
        f"Above {duration(float(break_even))} all reconfigurations of an exchange take "
        "longer than its transfer.",
    ]
    if isfinite(slowest["single_lower_bound_s"]):
        single = max((one for one, _ in every), key=lambda e: e["single_lower_bound_s"])
        sentences.append(
            f"Single matrices are less even than their mean: their bound is "
            f"{duration(single['single_lower_bound_s'])} on average in {_name(single)}."
        )
    return sentences


def _name(exchange: Mapping[str, Any]) -> str:
    layer = exchange["layer"]
    return ("" if layer is None else f"layer {layer}, ") + str(exchange["exchange"])


# ---- jobs --------------------------------------------------------------------------


def jobs_result(
    jobs: Sequence[Job],
    cadences: Sequence[TypicalIteration],
    best: Compatibility,
    *,
    capacity_bytes_s: float,
    demand: str,
) -> Result:
    """Show the time shifts of jobs on one link, and how compatible they are."""
    columns = zip(jobs, cadences, best.shifts_s, best.repeats, strict=True)
    facts = [
        {
            "file": job.name,
            "shift_s": shift,
            "period_s": job.period_s,
            "on_circle": repeats,
            "mean_load": float(job.rate_bytes_s.mean()) / capacity_bytes_s,
            "peak_load": float(job.rate_bytes_s.max()) / capacity_bytes_s,
            "acf": seen.acf,
            "jitter": seen.jitter,
            "rank": seen.rank,
            "iterations": seen.iterations,
        }
        for job, seen, shift, repeats in columns
    ]
    verdict = [
        f"Compatibility score {best.score:.3f} with these shifts, "
        f"{best.unshifted:.3f} without, {best.worst:.3f} at worst.",
        f"Periods change by at most {best.deviation:.2%} to fit a circle of "
        f"{duration(best.perimeter_s)}.",
    ]
    unclear = dict.fromkeys(
        job.name
        for job, seen in zip(jobs, cadences, strict=True)
        if seen.regular.outcome is not Outcome.STATED
    )
    notes = []
    if unclear:
        notes.append(
            "steps are not shown to be regular, which time shifts need: "
            f"{', '.join(unclear)} (moetraffic analyze --tables)"
        )
    if not best.exhaustive:
        notes.append("with three jobs or more not all shifts are tried")
    return Result(
        verb="schedule",
        head=f"{len(jobs)} jobs on one link of {bit_rate(capacity_bytes_s)}, demand: "
        f"{demand}",
        tables={"jobs": facts},
        screen=("jobs",),
        captions={"jobs": "score 1: the load never exceeds the capacity"},
        verdict=tuple(verdict),
        notes=tuple(notes),
        data={
            "kind": "time shifts on one link (CASSINI)",
            "capacity_bytes_s": capacity_bytes_s,
            "demand": demand,
            "score": best.score,
            "score_unshifted": best.unshifted,
            "score_worst": best.worst,
            "perimeter_s": best.perimeter_s,
            "period_deviation": best.deviation,
            "angles": best.angles,
            "all_shifts_tried": best.exhaustive,
            "jobs": [
                {
                    **fact,
                    "rate_bytes_s": job.rate_bytes_s,
                    "regular": seen.regular.outcome.value,
                    "of": seen.about,
                }
                for fact, job, seen in zip(facts, jobs, cadences, strict=True)
            ],
        },
    )


def jobs_chart(
    jobs: Sequence[Job], best: Compatibility, *, capacity_bytes_s: float, demand: str
) -> Chart:
    """Draw the jobs' load around the unified circle, before and after shifts."""
    scale, unit = (1e3, "ms") if best.perimeter_s < 10 else (1.0, "s")
    phase = np.arange(best.angles) / best.angles * best.perimeter_s * scale
    turns = [round(s / best.perimeter_s * best.angles) for s in best.shifts_s]
    panels = []
    for turned, name, score in (
        ([0] * len(jobs), "as captured", best.unshifted),
        (turns, "shifted", best.score),
    ):
        loads = [
            np.roll(
                around(job, repeats=repeats, angles=best.angles) / capacity_bytes_s,
                turn,
            )
            for job, repeats, turn in zip(jobs, best.repeats, turned, strict=True)
        ]
        total = np.sum(loads, axis=0)
        # the sum of rates that fill the link is not exactly 1
        above = float((total > 1 + 1e-9).mean())
        text = f"above the capacity {above:.1%} of the time, compatibility {score:.3f}"
        drawn = [Series(x=phase, y=total, name="sum", color="#8C8C8C", width=3)]
        drawn += [
            Series(x=phase, y=load, name=job.name, color=color)
            for load, job, color in zip(
                loads, jobs, line_colors(len(jobs)), strict=True
            )
        ]
        panels.append(
            Panel(
                name=(f"{name}: {text}",),
                x=Axis(label=f"phase within the common period of the jobs [{unit}]"),
                y=Axis(label="load / capacity", from_zero=True),
                series=tuple(drawn),
                rules=(Rule(y=1.0, dash="dash"),),
            )
        )
    return Chart(
        title="Jobs that share a link",
        source=f"Iterations as captured, demand: {demand}; dashed: the capacity.",
        panels=tuple(panels),
        height=260,
    )
