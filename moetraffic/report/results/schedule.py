"""Report circuit schedules, and time shifts of jobs that share a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from moetraffic.analysis.claims import Outcome
from moetraffic.analysis.measures import means_of_known
from moetraffic.analysis.typical import TypicalIteration
from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import decompose
from moetraffic.fabric.compatibility import Compatibility, Job, around
from moetraffic.fabric.decomposition import Decomposition, coverage, terms_for
from moetraffic.policies.circuits.birkhoff import configurations
from moetraffic.policies.circuits.run_schedule import CircuitPlan
from moetraffic.policies.exchange_series import FEWEST_ITERATIONS, served_points
from moetraffic.policies.service.networks import LINE_BOUND
from moetraffic.policies.service.optical import (
    OpticalSwitch,
    crossing,
    line_bytes,
    serve_circuits,
)
from moetraffic.report.chart import (
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
    line_colors,
)
from moetraffic.tables import Table
from moetraffic.units import bit_rate, duration, rank_span, three_digits

SHARES = (0.5, 0.9, 0.99)
"""Shares of the demand for which the required circuits are counted."""

SMALL = 32
"""Maximum number of ranks for the slowest matching, with the fewest circuits."""

MOST_TERMS = 400

FEW = 8
"""Up to this number, each permutation has a marker."""

RECONFIGURE_S = 10e-6


def _mean(values: Sequence[float]) -> float:
    """Average the finite values; NaN without any."""
    return float(means_of_known(values))


def circuits_as_dict(
    served: Sequence[CircuitPlan], *, capacity_bytes_s: float, reconfigure_s: float
) -> dict[str, Any]:
    """Convert circuit schedules to plain data: terms with bytes and times."""
    rate = capacity_bytes_s
    switch = OpticalSwitch(rate_bytes_s=rate, delay_s=reconfigure_s)
    return {
        "kind": "circuit schedule (Birkhoff-von Neumann)",
        "capacity_bytes_s": rate,
        "reconfigure_s": reconfigure_s,
        "exchanges": [
            {
                "layer": one.layer if one.layer >= 0 else None,
                "exchange": one.name,
                "ranks": list(one.ranks),
                "of": one.about,
                "iterations": list(one.iterations),
                "single_lower_bound_s": one.single_bytes / rate,
                "schedules": [_schedule(found, switch) for found in one.schedules],
            }
            for one in served
        ],
    }


def _schedule(found: Decomposition, switch: OpticalSwitch) -> dict[str, Any]:
    """Serve the decomposed bytes by the plan for them, and describe it."""
    service = serve_circuits(found.demand, configurations(found), switch)
    waiting, took = service.reconfigurations * switch.delay_s, service.completion_s
    return {
        "matching": found.matching,
        "demand_bytes": int(found.demand.sum()),
        "slack_bytes": int(found.slack.sum()),
        "circuits": service.reconfigurations,
        "sending_s": took - waiting,
        "reconfiguring_s": waiting,
        "duty": 1 - waiting / took if took else float("nan"),
        "lower_bound_s": line_bytes(crossing(found.demand)) / switch.rate_bytes_s,
        "terms_for": {f"{s:g}": terms_for(found, s) for s in SHARES},
        "coverage": coverage(found),
        "terms": [
            {"to": to, "bytes": sent, "weight_bytes": weight, "seconds": seconds}
            for to, sent, weight, seconds in zip(
                found.permutations.tolist(),
                found.served.tolist(),
                found.weights.tolist(),
                (found.served.max(axis=1, initial=0) / switch.rate_bytes_s).tolist(),
                strict=True,
            )
        ],
    }


def circuits_table(told: Mapping[str, Any]) -> Table:
    """Tabulate circuit schedules (:func:`circuits_as_dict`), means by exchange."""
    rows = []
    for one in told["exchanges"]:
        every = one["schedules"]
        keys = ("demand_bytes", "circuits", "sending_s", "lower_bound_s", "duty")
        of = {key: _mean([f[key] for f in every]) for key in keys}
        rows.append(
            (
                *(one["layer"], one["exchange"], rank_span(one["ranks"]), one["of"]),
                *(of["demand_bytes"], of["circuits"]),
                *(_mean([f["terms_for"][f"{s:g}"] for f in every]) for s in SHARES),
                *(of["sending_s"], of["lower_bound_s"]),
                _mean([f["sending_s"] + f["reconfiguring_s"] for f in every]),
                of["duty"],
            )
        )
    first = told["exchanges"][:1]
    matching = first[0]["schedules"][0]["matching"] if first else ""
    return Table(
        title=f"Circuits of {bit_rate(told['capacity_bytes_s'])}, reconfiguration "
        f"{duration(told['reconfigure_s'])}: {matching} matching",
        columns={
            **{"layer": "<", "exchange": "", "ranks": "", "matrix": ""},
            **{"bytes": "bytes", "circuits": ".4g"},
            **{f"circuits for {share:.0%}": ".4g" for share in SHARES},
            **{"transfer": "s", "lower bound": "s"},
            **{"including reconfiguration": "s", "duty cycle": ".1%"},
        },
        rows=rows,
    )


def circuits_sentences(told: Mapping[str, Any]) -> list[str]:
    """Summarize circuit schedules: times over their bound, circuits, duty cycle."""
    every = [(one, f) for one in told["exchanges"] for f in one["schedules"]]
    every = [(one, made) for one, made in every if made["lower_bound_s"]]
    if not every:
        return ["Circuits: no exchange sends bytes between ranks."]
    took = [made["sending_s"] + made["reconfiguring_s"] for _, made in every]
    ratios = np.divide(took, [made["lower_bound_s"] for _, made in every])
    at = int(np.argmax(took))
    slowest, longest = every[at]
    circuits = [made["circuits"] for _, made in every]
    shares = ", ".join(
        f"{_mean([made['terms_for'][f'{share:g}'] for _, made in every]):.3g} for "
        f"{share:.0%}"
        for share in SHARES
    )
    even = _mean([made["sending_s"] / made["circuits"] for _, made in every])
    fewest, most = min(circuits), max(circuits)
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    of, median, single = "exchange", "", ""
    if len(every) > 1:
        of = f"slowest of {len(every)} exchanges"
        times = three_digits(float(np.median(ratios)))
        median = f"; the median exchange takes {times} times its bound"
    if isfinite(slowest["single_lower_bound_s"]):
        of = f"mean matrix of the {of}"
        by = {one["single_lower_bound_s"]: _name(one) for one, _ in every}
        single = (
            f" The lower bound of a single matrix is {duration(max(by))} on average in "
            f"{by[max(by)]}."
        )
    return [
        f"Circuits of {bit_rate(told['capacity_bytes_s'])}, {longest['matching']} "
        f"matching: {duration(took[at])} for the {of} ({_name(slowest)}, "
        f"{slowest['of']}), {three_digits(ratios[at])} times its lower bound "
        f"({LINE_BOUND}){median}.{single}",
        f"Reconfiguration of {duration(told['reconfigure_s'])}: {number} "
        f"circuit{'s' * (most != 1)} per exchange, mean duty cycle "
        f"{_mean([made['duty'] for _, made in every]):.1%}; at a delay above "
        f"{duration(even)} all reconfigurations of an exchange together take longer "
        "than its transfer.",
        f"Circuits needed for a share of the bytes, mean: {shares}.",
    ]


def _name(exchange: Mapping[str, Any]) -> str:
    layer = exchange["layer"]
    return ("" if layer is None else f"layer {layer}, ") + str(exchange["exchange"])


def planned_sentence(served: Sequence[CircuitPlan], iterations: Int64) -> list[str]:
    """Name the iterations to plan from, if these include some that evaluate serves.

    ``iterations``: all of the run, ``[T]``.
    """
    if len(iterations) < FEWEST_ITERATIONS or not served:
        return []
    first = int(iterations[served_points(len(iterations))[0]])
    a = min(one.iterations[0] for one in served)
    b = max(one.iterations[1] for one in served)
    if b <= first:
        return []
    return [
        f"Planned from iterations {a}:{b}. To score such a plan with evaluate --plan, "
        f"which serves the iterations from {first} on, plan from earlier ones: give "
        f"--iterations 0:{first}."
    ]


def jobs_sentences(told: Mapping[str, Any]) -> list[str]:
    """Summarize what time shifts gain, and how regular jobs are (jobs_as_dict)."""
    tried = told["all_shifts_tried"]
    best = "best of all shifts" if tried else "best of a local search"
    shifts = (
        f"{job['file']} by {duration(job['time_shift_s'])} of "
        f"{duration(job['period_s'])}"
        for job in told["jobs"]
    )
    regular = (
        f"{job['file']}: autocorrelation at the period {job['autocorrelation']:.2f}, "
        f"jitter {job['period_jitter']:.1%}"
        for job in told["jobs"]
    )
    unclear = {
        job["file"]: None
        for job in told["jobs"]
        if job["regular"] != Outcome.STATED.value
    }
    irregular = (
        "Steps are not shown to be regular, which time shifts need: "
        f"{', '.join(unclear)} (moetraffic analyze --only rhythm)."
    )
    return [
        *([irregular] if unclear else []),
        f"Compatibility score: {told['score']:.3f} with time shifts ({best}), "
        f"{told['score_unshifted']:.3f} without, {told['score_worst']:.3f} at worst; "
        "1: the load never exceeds the capacity.",
        f"Time shifts: {'; '.join(shifts)}; periods change by at most "
        f"{told['period_deviation']:.2%}.",
        f"Regularity: {'; '.join(regular)}.",
    ]


def jobs_as_dict(
    jobs: Sequence[Job],
    cadences: Sequence[TypicalIteration],
    found: Compatibility,
    *,
    capacity_bytes_s: float,
    demand: str,
) -> dict[str, Any]:
    """Convert compatibility score and time shifts of jobs to plain data."""
    return {
        "kind": "time shifts on one link (CASSINI)",
        "capacity_bytes_s": capacity_bytes_s,
        "demand": demand,
        "score": found.score,
        "score_unshifted": found.unshifted,
        "score_worst": found.worst,
        "perimeter_s": found.circle.perimeter_s,
        "period_deviation": found.circle.deviation,
        "angles": found.angles,
        "all_shifts_tried": found.exhaustive,
        "jobs": [
            {
                "file": job.name,
                "time_shift_s": shift,
                "period_s": job.period_s,
                "times_on_the_circle": repeats,
                "rank": seen.rank,
                "duty": float((job.rate_bytes_s > 0).mean()),
                "mean_rate_bytes_s": float(job.rate_bytes_s.mean()),
                "captured_rate_bytes_s": float(seen.bytes_s.mean()),
                "regular": seen.regular.outcome.value,
                "autocorrelation": seen.acf,
                "period_jitter": seen.jitter,
                "iterations": seen.iterations,
                "of": seen.about,
                "rate_bytes_s": job.rate_bytes_s,
            }
            for job, seen, shift, repeats in zip(
                jobs, cadences, found.shifts_s, found.circle.repeats, strict=True
            )
        ],
    }


def jobs_table(told: Mapping[str, Any]) -> Table:
    """Tabulate jobs on one link, with their compatibility score in the notes."""
    rate = told["capacity_bytes_s"]
    local = "too many jobs to try all shifts: these are of a local search"
    return Table(
        title=f"Jobs on one link of {bit_rate(rate)}",
        columns={
            **{"job": "", "rank": "", "period": "s", "periods on circle": ""},
            **{"mean load": ".1%", "peak load": ".1%"},
            **{"autocorrelation at the period": ".2f", "jitter": ".1%"},
            "time shift": "s",
        },
        rows=[
            (
                *(job["file"], job["rank"], job["period_s"]),
                *(job["times_on_the_circle"], job["mean_rate_bytes_s"] / rate),
                job["rate_bytes_s"].max() / rate,
                *(job["autocorrelation"], job["period_jitter"], job["time_shift_s"]),
            )
            for job in told["jobs"]
        ],
        notes=[
            f"compatibility score {told['score']:.3f} with these shifts, "
            f"{told['score_unshifted']:.3f} without, {told['score_worst']:.3f} at "
            "worst (1: the load never exceeds the capacity)",
            f"circle of {duration(told['perimeter_s'])}, {told['angles']} angles; "
            f"periods change by at most {told['period_deviation']:.2%} to fit it",
            *([] if told["all_shifts_tried"] else [local]),
        ],
    )


def jobs_figure(
    jobs: Sequence[Job], found: Compatibility, *, capacity_bytes_s: float, source: str
) -> Chart:
    """Draw the jobs' load around the unified circle, before and after shifts."""
    scale, unit = (1e3, "ms") if found.circle.perimeter_s < 10 else (1.0, "s")
    angles = np.arange(found.angles)
    at = angles / found.angles * found.circle.perimeter_s * scale
    turns = [round(s / found.circle.perimeter_s * found.angles) for s in found.shifts_s]
    panels = []
    for turned, name, score in (
        ([0] * len(jobs), "as captured", found.unshifted),
        (turns, "shifted", found.score),
    ):
        total = np.zeros(found.angles)
        series = []
        for job, repeats, turn, color in zip(
            jobs, found.circle.repeats, turned, line_colors(len(jobs)), strict=True
        ):
            rate = around(job, repeats=repeats, angles=found.angles)
            load = np.roll(rate / capacity_bytes_s, turn)
            total = total + load
            series.append(Series(x=at, y=load, name=job.name, color=color))
        sum_of_all = Series(x=at, y=total, name="sum", color="#8C8C8C", width=3)
        panels.append(
            Panel(
                name=(f"{name}: {_above(total)}, compatibility score {score:.3f}",),
                x=Axis(label=f"phase within the common period of the jobs [{unit}]"),
                y=Axis(label="load / capacity", from_zero=True),
                series=(sum_of_all, *series),
                rules=(Rule(y=1.0, dash="dash"),),
            )
        )
    return Chart(
        title="Jobs that share a link",
        source=source,
        panels=tuple(panels),
        height=260,
    )


def _above(load: Float64) -> str:
    """Describe for how long a load exceeds the capacity, and by how much at most."""
    # the sum of rates that fill the link is not exactly 1
    excess = load > 1 + 1e-9
    if not excess.any():
        return "never above the capacity"
    return (
        f"above the capacity {excess.mean():.1%} of the time, at most "
        f"{load.max():.2f} times"
    )


def circuits_chart(wires: Mapping[str, Int64], rate: float) -> Chart | Missing:
    """Draw the share of demand that the first n circuit permutations serve.

    ``wires`` has the bytes ``[n, W, W]`` of some iterations by the name of a layer;
    ``rate`` is in bytes per second of a circuit.
    """
    title = "Circuits: coverage by Birkhoff-von-Neumann permutations"
    panels = []
    for name, sent in wires.items():
        whole = np.rint(sent.mean(axis=0)).astype(np.int64)
        np.fill_diagonal(whole, 0)  # rank-local traffic takes no circuit
        if whole.any():
            panels.append(_coverage(whole, rate, (name,)))
    if not panels:
        why = "no bytes between different ranks were observed"
        return Missing(title=title, reason=why)
    return Chart(
        key="circuits",
        title=title,
        source="Mean matrix of the iterations whose matrices are in this page, without "
        "rank-local traffic, decomposed into permutations by each matching; circuits "
        f"of {bit_rate(rate)}, reconfiguration {duration(RECONFIGURE_S)}; lower bound: "
        f"{LINE_BOUND}.",
        columns=("permutations", "demand served [%]"),
        choices=("layer",),
        panels=tuple(panels),
    )


def _coverage(demand: Int64, rate: float, name: tuple[str, ...]) -> Panel:
    fewest = ("max-min",) if len(demand) <= SMALL else ()
    matchings = (*fewest, "max-weight", "halving")
    switch = OpticalSwitch(rate_bytes_s=rate, delay_s=RECONFIGURE_S)
    series, notes, most = [], [], 0
    # decreasing widths keep coinciding lines visible
    for matching, color, width in zip(
        matchings, line_colors(len(matchings)), (5.0, 3.0, 1.4), strict=False
    ):
        found = decompose(demand, matching=matching)
        share = 100 * coverage(found)
        at = np.unique(
            np.rint(np.geomspace(1, len(share), min(MOST_TERMS, len(share))))
        ).astype(np.int64)
        most = max(most, len(share))
        series.append(
            Series(
                x=at,
                y=share[at - 1],
                name=matching,
                color=color,
                width=width,
                marked=len(at) <= FEW,  # a line of one point is invisible
                size=5 + 2 * width,
            )
        )
        made = _schedule(found, switch)
        notes.append(
            f"{matching}: {terms_for(found, 0.9)} of {found.terms} permutations serve "
            f"90% of the bytes, duty "
            f"cycle {100 * made['duty']:.2g}%, "
            f"{duration(made['sending_s'] + made['reconfiguring_s'])} (lower bound "
            f"{duration(made['lower_bound_s'])})"
        )
    few = most <= FEW
    return Panel(
        name=name,
        x=Axis(
            label="permutations, in the order found",
            log=not few,
            limits=(0, most + 1) if few else None,
        ),
        y=Axis(label="demand served [%]", limits=(0, 104)),
        series=tuple(series),
        note="; ".join(notes) + ".",
    )
