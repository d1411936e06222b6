"""The first screen of a comparison: settings, two tables, and at most five sentences.

Sentences are made from the rows of tables, in the past tense: they are about the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

from moetraffic.trace import Trace
from moetraffic.units import duration, three_digits

from .claims import SIGNIFICANT, Outcome
from .intervals import WIDEST
from .verdict import counted, listed, span

Row = Mapping[str, Any]

MOST_SHOWN = 4
"""Exchanges of the first screen: those whose entropy differs most."""

BYTES = "bytes_between_ranks_per_iteration"

OPERATIONS = {"all_to_all": "all-to-all", "all_reduce": "all-reduce"}
"""Operations of the first screen, by their names in a trace."""

NO_SETTINGS = (
    *("workload", "schedule", "contradiction", "complete", "missing", "omitted"),
    *("inferred", "repeats_from", "created", "origin"),
)
"""Metadata that are of the file, not of the run."""

UNKNOWN = ("", "nan", "-1", "None")
"""Settings that are not recorded."""


def settings(first: Trace, second: Trace) -> list[dict[str, str]]:
    """List the settings that differ: of workload, layout, software and replay."""
    both = []
    for trace in (first, second):
        parts = json.loads(trace.meta.workload or "{}").values()
        own: dict[str, Any] = {}
        for part in parts:
            own |= part if isinstance(part, dict) else {}
        own |= trace.meta.as_dict()
        own["nodes"] = ", ".join(dict.fromkeys(trace.meta.nodes))
        both.append({name: str(value) for name, value in own.items()})
    one, other = both
    return [
        {"field": name, "first": value, "second": other[name]}
        for name, value in one.items()
        if name not in NO_SETTINGS
        and value != other.get(name, value)
        and not {value, other[name]} & set(UNKNOWN)
    ]


def overview(differences: Sequence[Row]) -> list[dict[str, Any]]:
    """List the differences of some layers, and those of the whole run."""
    apart = {
        _place(row): abs(row["difference"])
        for row in differences
        if row["measure"] == "entropy"
    }
    places = dict.fromkeys(_place(row) for row in differences if row["layer"] >= 0)
    several = len({group for _, group in places}) > 1
    most = sorted(places, key=lambda place: -apart.get(place, 0.0))[:MOST_SHOWN]
    named = {
        (layer, group): f"{layer}" + f", group {group}" * several
        for layer, group in sorted(most)
    }
    return [
        {
            "place": name,
            **{key: row[key] for key in ("measure", "first", "second")},
            "interval": (row["difference_low"], row["difference_high"]),
            "noise": row["noise"],
        }
        for place, name in (named | {(-1, -1): "all"}).items()
        for row in differences
        if _place(row) == place
    ]


def caption(rows: Sequence[Row]) -> str:
    """Explain the columns of the overview that have values."""
    texts = []
    if not all(isnan(row["interval"][0]) for row in rows):
        texts.append("difference: second minus first")
    if not all(isnan(row["noise"]) for row in rows):
        texts.append("noise: difference of two halves of one run")
    return "; ".join([*texts, "busiest: over the mean"])


def times(time_ratios: Sequence[Row]) -> list[dict[str, Any]]:
    """List the times of all-to-alls, all-reduces and iterations, and their ratios."""
    table = []
    for row in time_ratios:
        operation = OPERATIONS.get(row["label"], "")
        transfer = operation and row["measure"] == "transfer"
        if not transfer and row["measure"] != "wall":
            continue
        for column, measure in (
            ("total", f"{row['measure']}_total"),
            ("p50", f"{row['measure']}_p50"),
            ("waiting", "waiting_in_calls"),
        ):
            first, second = row[f"first_{column}"], row[f"second_{column}"]
            if isnan(first) and isnan(second):
                continue
            totals = column == "total"
            interval = (row["ratio_low"], row["ratio_high"])
            table.append(
                {
                    "call": (operation or "iteration") if totals else "",
                    "measure": measure,
                    "first": first,
                    "second": second,
                    "ratio": row["ratio"] if totals else None,
                    "ratio_interval": interval if totals else None,
                }
            )
    return table


def sentences(
    facts: Mapping[str, Any], tables: Mapping[str, Sequence[Row]]
) -> tuple[str, ...]:
    """State at most five sentences about two runs."""
    differences, distances = tables["differences"], tables["distances"]
    took = _took(tables["time_ratios"])
    replays = facts["origins"].count("replayed")
    if facts["identical"]:
        texts = [_identical(facts, distances), took]
    elif replays:
        texts = [took, *_traffic(facts, differences, distances)]
    else:
        texts = [
            *_traffic(facts, differences, distances),
            _step_time(differences) or took,
            _reruns(differences),
        ]
    if replays == 2:
        texts.insert(texts.index(took) + 1, _over_runs(tables["time_ratios"]))
    return tuple([text[0].upper() + text[1:] for text in texts if text][:5])


def _place(row: Row) -> tuple[int, int]:
    return row["layer"], row["group"]


def _stated(rows: Sequence[Row], measure: str = "") -> list[Row]:
    return [
        row
        for row in rows
        if row["outcome"] == Outcome.STATED.value and measure in ("", row["measure"])
    ]


def _layers(rows: Sequence[Row]) -> str:
    """Name the layers of some rows, or count them."""
    layers = sorted({row["layer"] for row in rows})
    if len(layers) > 3:
        return f"{len(layers)} layers"
    return f"layer{'s' * (len(layers) > 1)} {listed(map(str, layers))}"


def _identical(facts: Mapping[str, Any], distances: Sequence[Row]) -> str:
    """State that the traffic is the same."""
    sent = any(row["subject"] == "wire" for row in distances)
    what = "traffic, byte for byte" if sent else "routing"
    return f"Same {what}, in {counted(facts['iterations'], 'iteration')}."


def _traffic(
    facts: Mapping[str, Any], differences: Sequence[Row], distances: Sequence[Row]
) -> list[str]:
    """State in which layers load and bytes differed by more than within the runs."""
    tested = [row for row in differences if row["layer"] >= 0]
    if not tested:
        return []
    if all(row["outcome"] == Outcome.TOO_SHORT.value for row in tested):
        return [
            "Too short for tests of differences: "
            f"{counted(facts['iterations'], 'iteration')}, {facts['needs']} are needed."
        ]
    texts = []
    for sign, name in ((1, "more"), (-1, "less")):
        rows = [r for r in _stated(tested, "entropy") if sign * r["difference"] > 0]
        if rows:
            texts.append(
                f"the load of the second run was {name} even in {_layers(rows)}: "
                f"entropy {_instead(rows, '.3f')}."
            )
    if rows := _stated(tested, "busiest_receiver"):
        texts.append(
            f"the busiest receiver of {_layers(rows)} had {_instead(rows, '.2f')} "
            "times the mean bytes."
        )
    rows = [
        row
        for row in distances
        if (row["subject"], row["measure"]) == ("wire", "share")
        and row["distance"] > row["noise"]
    ]
    if rows:
        most = max(rows, key=lambda row: row["distance"])
        texts.append(
            f"in layer {most['layer']}, {most['distance']:.0%} of the bytes went "
            "between other ranks than in the first run; two halves of one run differ "
            f"by {most['noise']:.0%}."
        )
    if rows := [row for row in _stated(tested, BYTES) if row["first"] > 0]:
        changes = span((row["difference"] / row["first"] for row in rows), "+.1%")
        texts.append(f"bytes between ranks differed by {changes} in {_layers(rows)}.")
    if not texts:
        most = max(abs(r["difference"]) for r in tested if r["measure"] == "entropy")
        texts.append(
            "load and bytes between ranks were not shown to differ: entropy differed "
            f"by at most {most:.3f}."
        )
    return texts


def _instead(rows: Sequence[Row], form: str) -> str:
    """Format the values of the second run, and those of the first."""
    second, first = (span((r[run] for r in rows), form) for run in ("second", "first"))
    return f"{second} instead of {first}"


def _step_time(differences: Sequence[Row]) -> str:
    """State how long steps took, or that no difference was shown."""
    rows = [row for row in differences if row["measure"] == "step_time"]
    if not rows or rows[0]["outcome"] == Outcome.TOO_SHORT.value:
        return ""
    first, second = (duration(rows[0][run]) for run in ("first", "second"))
    if not _stated(rows):
        return f"step time was not shown to differ: {first} and {second}."
    change = rows[0]["difference"] / rows[0]["first"]
    return f"a step took {second} instead of {first} ({change:+.0%})."


def _all_to_alls(time_ratios: Sequence[Row]) -> Row | None:
    """Find the transfer times of all all-to-alls."""
    wanted = ("all_to_all", "transfer")
    rows = (row for row in time_ratios if (row["label"], row["measure"]) == wanted)
    return next(rows, None)


def _took(time_ratios: Sequence[Row]) -> str:
    """State how long the all-to-alls of the second run took, with an interval."""
    row = _all_to_alls(time_ratios)
    if row is None or not isfinite(row["ratio"]):
        return ""
    value, low, high, level = row["ratio"], row["ratio_low"], row["ratio_high"], "95%"
    if isfinite(row["p"]):  # its interval excludes 1 where the test rejects it
        low, high, level = row["tested_low"], row["tested_high"], "99%"
    if high > WIDEST * low:
        return (
            f"all-to-alls took {low:.2g} to {high:.2g} times as long ({level} CI), too "
            "wide an interval for a ratio."
        )
    faster = value < 1 and not low <= 1 <= high
    if faster:
        value, low, high = 1 / value, 1 / high, 1 / low
    text = f"{three_digits(value)} times as {'fast' if faster else 'long'}" + (
        f" ({level} CI {three_digits(low)} to {three_digits(high)})." * isfinite(low)
        or "."
    )
    if low <= 1 <= high:
        return f"all-to-alls were not shown to take longer or shorter: {text}"
    return f"all-to-alls {'were' if faster else 'took'} {text}"


def _over_runs(time_ratios: Sequence[Row]) -> str:
    """State over how many runs of two replays the networks were compared."""
    row = _all_to_alls(time_ratios)
    if row is None:
        return ""
    one, other, p = row["first_runs"], row["second_runs"], row["p"]
    if min(one, other) < 2:
        return (
            "replays of one trace differ, too: for an interval, replay each with "
            "--repeat 5."
        )
    if isnan(p):
        return ""
    shown = "shown" if p <= SIGNIFICANT else "not shown"
    busy = "; other processes used the hosts" * bool(row["busy"])
    return f"a difference was {shown} over {one} and {other} runs (p = {p:.2g}){busy}."


def _reruns(differences: Sequence[Row]) -> str:
    """State that reruns differ, where a difference of two trainings is stated."""
    if not _stated(differences):
        return ""
    return (
        "Reruns of one configuration differ, too: compare the first run with a rerun "
        "before naming a cause."
    )
