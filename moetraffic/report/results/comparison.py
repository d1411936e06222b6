"""Summarize and tabulate the comparison of two traces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from moetraffic.analysis.claim import LEVEL as CLAIMED
from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.comparison import FEWEST, SCALES, Comparison, Distance
from moetraffic.analysis.resampling import LEVEL
from moetraffic.analysis.times.time_ratios import TimeRatio
from moetraffic.report.summary.claim_words import REDUCED, TOPICS
from moetraffic.tables import Table, tables_of
from moetraffic.units import amount, three_digits

STATED = Outcome.STATED

MEASURES = {
    "transfer": "from the last rank's call to the end",
    "call": "waiting for late ranks included",
}
"""Which part of a call a ratio of times is of."""


RERUNS = (
    "Reruns of one program often do, too: from two runs it is unknown whether these "
    "differ by more (compare the first with a rerun of its settings as well; "
    "moetraffic validate takes several)."
)
"""What distances above within-run noise do not show."""


def sentences(
    comparison: Comparison,
    above: Sequence[Distance] = (),
    *,
    times_first: bool = False,
) -> list[str]:
    """Summarize a comparison: how many distances exceed noise, and the largest.

    Parameters
    ----------
    comparison
        Comparison of two traces.
    above
        Distances above a threshold.
    times_first
        Whether the times precede the distances, as of two replays of one trace.

    Returns
    -------
    list of str
        A line for all distances, one for each metric, one for the times of common calls
        and one for each threshold exceeded or note.  A metric none of whose distances
        exceeds within-run noise has no line, nor has any of byte-identical traffic.
    """
    every = comparison.distances
    if comparison.identical:
        lines, every = [f"Byte-identical: {comparison.identical}."], ()
    else:
        number = sum(d.beyond_noise for d in every)
        few = [d.observations for d in every if d.observations < FEWEST]
        known = [
            f"{number} of {len(every) - len(few)} exceed within-run noise "
            f"({LEVEL:.0%} quantile)"
        ] * (len(few) < len(every))
        if few:
            known.append(
                f"within-run noise{f' of {len(few)} others' * len(known)} unknown: too "
                f"few iterations or calls (needs {FEWEST}, has {min(few)})"
            )
        text = f"Distances: {'; '.join(known)}."
        lines = [text + f" {RERUNS}" * bool(number)]
    for measure, scale in SCALES.items():
        mine = [d for d in every if d.measure == measure]
        beyond = [d for d in mine if d.beyond_noise]
        if mine and all(d.observations < FEWEST for d in mine):
            d = max(mine, key=lambda d: d.value)
            lines.append(
                f"{measure[:1].upper()}{measure[1:]} ({scale}), largest: "
                f"{_described(d)}."
            )
        if beyond:
            # the farthest from its noise, which differs by statistic
            d = max(beyond, key=lambda d: d.value - d.floor)
            lines.append(
                f"{measure[:1].upper()}{measure[1:]} ({scale}), farthest above noise: "
                f"{_described(d)}; within-run noise {d.floor:.3g}."
            )
    took: list[str] = []
    for ratio in comparison.times:
        exchanges = ratio.by == "operation" and ratio.label == "all_to_all"
        if exchanges and ratio.measure == "transfer":
            waits = " and ".join(f"{s:.0%}" for s in ratio.waiting or ())
            waits = f"{waits} of the time in calls" if waits else "unknown"
            took.insert(
                0,
                f"All-to-alls, {ratio.number:,} common calls: busbw {_busbw(ratio)}; "
                f"transfer time {_ratio(ratio)}; waiting for late ranks "
                f"{waits}{_over_runs(ratio)}.",
            )
        if ratio.by == "all":
            part = MEASURES.get(ratio.measure, ratio.measure)
            took.append(
                f"Time of the {ratio.number:,} calls with times in both runs, {part}: "
                f"{_ratio(ratio)}."
            )
    lines = [*took, *lines] if times_first else [*lines, *took]
    lines += [f"above threshold: {d.measure}: {_described(d)}." for d in above]
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


def _ratio(ratio: TimeRatio) -> str:
    """Format a ratio of times with its interval, if it has one."""
    found = ratio.ratio
    if np.isnan(found.value):
        return "unknown"
    # beside a test, the interval that excludes 1 where the test rejects equal means
    tested = ratio.ratio_tested
    ends, level = (found, LEVEL) if tested is None else (tested, 1 - CLAIMED)
    within = f"{level:.0%} CI {ends.low:.3g} to {ends.high:.3g}"
    if ratio.runs is not None and not ends.determined:
        return f"{within} times the first's (not determined)"
    return f"{found.value:.3g} times the first's" + f" ({within})" * bool(
        ends.low <= ends.high
    )


def _busbw(ratio: TimeRatio) -> str:
    """Format the busbw of two runs, or the means over those of two replays."""
    if ratio.busbw_gbs is None:
        return "unknown"
    if ratio.busbw_runs is None:
        one, other = map(three_digits, ratio.busbw_gbs)
        return f"{one} and {other} GB/s (median runs)"
    each = [
        three_digits(rate.value)
        if rate.determined
        else f"{three_digits(rate.low)} to {three_digits(rate.high)} (not determined)"
        for rate in ratio.busbw_runs
    ]
    text = f"{' and '.join(each)} GB/s"
    n, m = ratio.runs or (1, 1)
    return text + f" (geometric means of {n} and {m} runs)" * (max(n, m) > 1)


def _over_runs(ratio: TimeRatio) -> str:
    """State the runs of two replays, and whether their networks are shown to differ."""
    if ratio.runs is None:
        return ""
    n, m = ratio.runs
    if min(ratio.runs) < 2:
        if not np.isnan(ratio.ratio.low):  # a replay beside the captured run
            return ""
        return (
            f"; {n} and {m} run{'s' * (n + m > 2)} of these calls: no interval, as two "
            "runs of one command differ too (replay each with --repeat 5, the same "
            "iterations)"
        )
    p = float("nan") if ratio.p is None else ratio.p
    shown = "a" if p < CLAIMED else "no"
    tested = "no test" if np.isnan(p) else f"p = {p:.2g}, level {CLAIMED:g}"
    text = (
        f"; {shown} difference of transfer times is shown over {n} and {m} runs "
        f"({tested})"
    )
    if not ratio.busy:
        return text
    return (
        f"{text}; the interval is wider because other processes used the hosts: "
        "replays then differ more than the runs of one replay"
    )


def _described(distance: Distance) -> str:
    where = "" if distance.layer < 0 else f", layer {distance.layer}"
    interval = f" ({LEVEL:.0%} interval {distance.low:.3g} to {distance.high:.3g})"
    within = interval * bool(distance.low <= distance.high)
    return f"{distance.value:.3g}{within} of {distance.of}{where}"


@tables_of.register
def tables(comparison: Comparison, above: Sequence[Distance] = ()) -> list[Table]:
    """Tabulate the distances between two traces, and the times of common calls.

    Parameters
    ----------
    comparison
        Comparison of two traces.
    above
        Distances above a threshold, which the table marks.
    """
    scales = {d.measure: SCALES[d.measure] for d in comparison.distances}
    distances = Table(
        title="Distances between the two runs",
        columns={
            "layer": "<",
            "quantity": "",
            "metric": "",
            "first": ">",
            "second": ">",
            "distance": ".4g",
            f"{LEVEL:.0%} interval": ".4g",
            "within-run noise (95th percentile)": ".4g",
            "": ">",
        },
        rows=[
            (
                "all" if d.layer < 0 else d.layer,
                *(d.of, d.measure, amount(d.a, d.unit), amount(d.b, d.unit)),
                *(d.value, _interval(d, comparison), d.floor),
                "above threshold"
                if d in above
                else "exceeds noise"
                if d.beyond_noise
                else "",
            )
            for d in comparison.distances
        ],
        notes=[
            *(f"{measure}: {scale}" for measure, scale in scales.items()),
            *(f"note: {note}" for note in comparison.notes),
        ],
        styles={"above threshold": "bold red", "exceeds noise": "yellow"},
    )
    return [distances, *([times(comparison.times)] if comparison.times else [])]


def _interval(d: Distance, comparison: Comparison) -> tuple[float, float] | str:
    """Return the interval; of traffic that is equal byte by byte, "identical"."""
    if comparison.identical and not d.of.startswith("duration"):
        return "identical"
    return d.low, d.high


def claims(first: Sequence[Claim], second: Sequence[Claim]) -> list[Table]:
    """Tabulate the outcomes of the same claims about two traces, side by side.

    A table for each subject, which fits into 80 columns.
    """
    runs = _by_subject(first, second)
    rows: dict[str, list[tuple[object, ...]]] = {}
    for about, name in dict.fromkeys([*runs[0], *runs[1]]):
        found = [run.get((about, name)) for run in runs]
        subject, _, end = about.rpartition(", ")
        ahead = end.removesuffix("ahead").split()[0] if end.endswith(" ahead") else ""
        in_s = any(c.unit == "s" for c in found if c)
        outcomes = (_outcome(c) if c else None for c in found)
        rows.setdefault(subject if ahead else about, []).append(
            (name, ahead, *outcomes, _FIGURES.get(name, "") + ", s" * in_s)
        )
    return [
        Table(
            title=subject,
            columns=dict.fromkeys(("claim", "ahead", "first", "second", "figure"), "<")
            | {"ahead": ">"},
            rows=each,
            notes=[]
            if subject != list(rows)[-1]
            else [
                f"a claim is stated if p < {CLAIMED:g}; times in iterations unless "
                "stated; needs N: not enough data, N observations are needed"
            ],
        )
        for subject, each in rows.items()
    ]


def claim_sentence(first: Sequence[Claim], second: Sequence[Claim]) -> str:
    """Summarize how many claims have the same outcome, and which are of one run."""
    runs = [
        {key: c.outcome for key, c in run.items()} for run in _by_subject(first, second)
    ]
    both = [key for key in runs[0] if key in runs[1]]
    if not both:
        return "Claims: none is of the same layer, ranks and horizon in both runs."
    differing = [key for key in both if runs[0][key] is not runs[1][key]]
    text = (
        f"Claims, by layer and horizon: {len(both) - len(differing)} of {len(both)} "
        "have the same outcome in both"
    )
    for run, where in zip(runs, ("first", "second"), strict=True):
        counts = Counter(
            name for about, name in differing if run[about, name] is STATED
        )
        each = ", ".join(f'"{name}" {n}x' for name, n in counts.items())
        text += f"; stated in the {where} only: {each}" if each else ""
    if lone := len(runs[0]) + len(runs[1]) - 2 * len(both):
        text += (
            f"; {lone} more are of layers, ranks, horizons or routers that one run "
            "lacks"
        )
    return f"{text}."


def _by_subject(
    first: Sequence[Claim], second: Sequence[Claim]
) -> list[dict[tuple[str, str], Claim]]:
    """Key claims by subject and name, those of expert load by layer if ranks differ.

    Of a layer that has several groups of ranks, loads are those of a group.
    """
    runs = [{(c.about, c.name): c for c in found} for found in (first, second)]
    subjects = [{c.about for c in found} for found in (first, second)]
    layers = [Counter(map(_without_ranks, of)) for of in subjects]
    alone = {layer for layer, n in layers[0].items() if n == layers[1][layer] == 1}
    common = {
        about: _without_ranks(about)
        for about in subjects[0] ^ subjects[1]
        if _without_ranks(about) in alone
    }
    return [
        {(common.get(about, about), name): c for (about, name), c in run.items()}
        for run in runs
    ]


def _without_ranks(about: str) -> str:
    """Name the expert load of a layer on any ranks; other subjects as they are."""
    known = about.startswith("expert load of ")
    return re.sub(", ranks [^,]*", "", about) if known else about


_FIGURES = {
    "imbalanced": "RMS CV",
    "skewed": "CV of the mean load",
    "hot set retained": "share",
    "collapsed": "share",
    "co-activated": "lift",
    "moves": "variance/noise",
    "converged": "by iteration",
    "level change": "at iteration",
    "trend": "traffic moved",
    "periodic": "period",
    "mean-reverting": "half-life",
    **dict.fromkeys(TOPICS["Forecasts"], REDUCED),
}
"""Names of the figures of claims, short enough for a column."""


def _outcome(claim: Claim) -> str:
    """Format the outcome of a claim, with its figure or what it needs."""
    if claim.outcome is Outcome.NOT_ENOUGH_DATA:
        return f"needs {claim.needs:,}"
    form = {name: form for of in TOPICS.values() for name, (_, form) in of.items()}
    known = claim.stated and np.isfinite(claim.figure)
    figure = f": {claim.figure:{form.get(claim.name, '.3g')}}" if known else ""
    return f"{claim.result}{figure}"


def times(ratios: Sequence[TimeRatio], title: str = "Times of common calls") -> Table:
    """Tabulate the durations of common calls in both runs, by category of call."""
    quantiles = ("p50, first", "p50, second", "p99, first", "p99, second")
    return Table(
        title=title,
        columns={
            **{"part": "", "time": "", "calls": ""},
            **dict.fromkeys(quantiles, ",.3f"),
            **{"ratio of totals": ".3f", f"{LEVEL:.0%} interval": ".3f"},
            **dict.fromkeys(("waiting, first", "waiting, second"), ".0%"),
            **dict.fromkeys(("busbw, first", "busbw, second"), "three digits"),
        },
        rows=[
            (
                "all calls" if r.by == "all" else f"{r.by} {r.label}".strip(),
                *(r.measure, r.number),
                *(1e3 * s for s in (r.a.p50, r.b.p50, r.a.p99, r.b.p99)),
                *(r.ratio.value, (r.ratio.low, r.ratio.high)),
                *(*(r.waiting or (None, None)), *(r.busbw_gbs or (None, None))),
            )
            for r in ratios
        ],
        notes=[
            "p50 and p99 in ms; "
            "intervals over the timed runs of replays, else over iterations; "
            "busbw of calls with bytes between ranks, GB/s, by transfer time (bytes as "
            "nccl-tests counts them); waiting for late ranks: share of the time in "
            "calls; start-up: sites that the first iteration alone "
            "has, in no other row; wall: from an iteration's "
            "first call to the end of its last, without the compute around them"
        ],
    )
