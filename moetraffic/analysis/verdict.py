"""The first screen of an analysis: a table of some layers, and at most five sentences.

Sentences are made from the rows of tables, in the past tense: they are about the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from moetraffic.columns import cell_text

from .claims import Outcome
from .evenness import STAGES

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

MOST_SHOWN = 4
"""Exchanges up to which all are on the first screen; of more, three are chosen."""


def headline(facts: Mapping[str, Any], tables: Tables) -> str:
    """State file, length, layers, experts, ranks and drops of the analyzed run."""
    layers = len(facts["layers"])
    texts = [counted(facts["iterations"], "iteration")]
    if layers:
        texts.append(counted(layers, "MoE layer"))
    if facts["experts"]:
        texts.append(counted(facts["experts"], "expert"))
    if facts["k"]:
        texts.append(f"top-{facts['k']}")
    texts.append(counted(facts["ranks"], "rank"))
    dropped = [row["dropped"] for row in tables.get("experts", ())]
    if dropped and all(map(isfinite, dropped)):
        most = max(dropped)
        most_of = "up to " * (min(dropped) < most)
        texts.append(
            f"{most_of}{most:.1%} of copies dropped" if most else "nothing dropped"
        )
    if facts["left_out"]:
        texts.append(f"{facts['left_out']:,} incomplete iterations left out")
    return f"{facts['file']}: {', '.join(texts)}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def overview(tables: Tables) -> list[dict[str, Any]]:
    """List the rows of the first screen: stages of up to four layers, then of times."""
    stages = tables.get("stages", ())
    places = list(dict.fromkeys(_place(row) for row in stages if row["layer"] >= 0))
    groups = len({group for _, group in places}) > 1
    named = {
        (layer, group): f"{layer}" + f", group {group}" * groups
        for layer, group in places
    }
    if len(places) > MOST_SHOWN:
        late = {_place(r): r["late"] for r in stages if r["measure"] == "entropy"}
        ordered = sorted(late, key=lambda place: late[place])
        chosen = {
            ordered[0]: "least",
            ordered[len(ordered) // 2]: "median",
            ordered[-1]: "most",
        }
        named = {place: f"{named[place]} ({how})" for place, how in chosen.items()}
    named[-1, -1] = "all"
    columns = ("early", "middle", "late", "balanced", "worst", "worst_at")
    return [
        {
            "place": name,
            "measure": row["measure"],
            **{column: row[column] for column in columns},
        }
        for place, name in named.items()
        for row in stages
        if _place(row) == place
    ]


def caption(tables: Tables) -> str:
    """Explain what of the first screen is no word of everyday language."""
    stages = tables.get("stages", ())
    places = {_place(row) for row in stages if row["layer"] >= 0}
    if not places:
        return ""
    text = (
        "early, middle, late: thirds of the run; busiest: over the mean; balanced: a "
        "router that draws experts evenly"
    )
    if any(isfinite(row["worst"]) for row in stages):
        text += "; worst 10, from: worst mean of ten iterations, the first of them"
    if len(places) > MOST_SHOWN:
        text += "; least, median, most: late evenness of all layers"
    return text


def sentences(facts: Mapping[str, Any], tables: Tables) -> tuple[str, ...]:
    """State at most five sentences about the run."""
    claims = tables.get("claims", ())
    texts = [
        _collapse(tables.get("experts", ())) or _movement(claims, facts["iterations"]),
        _settling(claims),
        _imbalance(claims, tables.get("stages", ())),
        _unchanging(facts["unchanging"])
        or _forecasts(claims, tables.get("forecasts", ())),
        _communication(tables.get("stages", ())),
    ]
    return tuple(text for text in texts if text)


def _place(row: Row) -> tuple[int, int]:
    return row["layer"], row["group"]


def _where(rows: Sequence[Row], total: int) -> str:
    """Name the layers of some rows, unless they are all there are."""
    layers = sorted({row["layer"] for row in rows})
    if len(rows) == total:
        return ""
    if len(layers) > 3:
        return f" in {len(rows)} of {total} layers"
    return f" in layer{'s' * (len(layers) > 1)} {listed(map(str, layers))}"


def listed(texts: Any) -> str:
    """Join texts with commas and a last "and"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def span(values: Any, form: str) -> str:
    """Format numbers as one, or as the least and the greatest."""
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return "unknown"
    ends = dict.fromkeys(cell_text(end, form) for end in (min(finite), max(finite)))
    first, *last = ends
    return f"{first.rstrip('%')} to {last[0]}" if last else first


def _collapse(experts: Sequence[Row]) -> str:
    """State in which layers the load collapsed onto few experts, a measured fact."""
    collapsed = [row for row in experts if row["collapsed_at"] >= 0]
    if not collapsed:
        return ""
    first = min(collapsed, key=lambda row: row["collapsed_at"])
    layers = sorted({row["layer"] for row in collapsed})
    return (
        f"Layer{'s' * (len(layers) > 1)} {listed(map(str, layers))} collapsed from "
        f"iteration {first['collapsed_at']} on: finally {first['starved_at_end']} of "
        f"{first['experts']} experts got less than a tenth of the mean load."
    )


def _movement(claims: Sequence[Row], iterations: int) -> str:
    """State whether the load became more or less even, by how much."""
    tested = [row for row in claims if row["claim"] in ("more even", "less even")]
    if not tested:
        return ""
    if all(row["outcome"] == Outcome.TOO_SHORT.value for row in tested):
        need = max(row["needs"] for row in tested)
        return f"Too short for a trend: {iterations} iterations, {need} are needed."
    texts = []
    for name in ("more even", "less even"):
        stated = [
            row
            for row in tested
            if row["claim"] == name and row["outcome"] == Outcome.STATED.value
        ]
        if not stated:
            continue
        where = _where(stated, len(tested))
        if len(stated) <= 2:
            changes = listed(
                f"{row['figure']:+.2f} ("
                + "95% CI " * (number == 0)
                + f"{row['low']:+.2f} to {row['high']:+.2f})"
                for number, row in enumerate(stated)
            )
        else:
            low = min(row["low"] for row in stated)
            high = max(row["high"] for row in stated)
            changes = (
                f"{span((row['figure'] for row in stated), '+.2f')} (95% CIs from "
                f"{low:+.2f} to {high:+.2f})"
            )
        texts.append(f"became {name}{where}: entropy {changes}")
    if not texts:
        changes = span((row["figure"] for row in tested), "+.3f")
        return (
            "No layer was shown to become more or less even: entropy changed by "
            f"{changes} from the first to the last third."
        )
    return f"Load {'; it '.join(texts)}."


def _settling(claims: Sequence[Row]) -> str:
    """State by when most of the change was over, and which layers were steady."""
    moved = [
        row
        for row in claims
        if row["claim"] in ("more even", "less even")
        and row["outcome"] == Outcome.STATED.value
        and row["since"] >= 0
    ]
    tested = [row for row in claims if row["claim"] == "steady"]
    steady = [row for row in tested if row["outcome"] == Outcome.STATED.value]
    texts = []
    if moved:
        when = (
            listed(str(row["since"]) for row in moved)
            if len(moved) <= 2
            else span((row["since"] for row in moved), "d")
        )
        texts.append(f"90% of the change was over by iteration {when}")
    if steady:
        where = _where(steady, len(tested)).removeprefix(" in ") or "the load"
        if where[0].isdigit():
            where = f"the load of {where}"
        verb = "were" if where.startswith("layers") else "was"
        text = f"{where} {verb} steady in the last third"
        texts.append(text if texts else text[0].upper() + text[1:])
    elif tested and moved:
        texts.append("in the last third, further drift above 1% is not excluded")
    return f"{'; '.join(texts)}." if texts else ""


def _imbalance(claims: Sequence[Row], stages: Sequence[Row]) -> str:
    """State whether the load was uneven, by the busiest expert of the last third."""
    tested = [row for row in claims if row["claim"] == "uneven"]
    stated = [row for row in tested if row["outcome"] == Outcome.STATED.value]
    name = "expert"
    busiest = [row for row in stages if row["measure"] == "busiest_expert"]
    if not busiest:
        name = "receiver"
        busiest = [row for row in stages if row["measure"] == "busiest_receiver"]
    if not busiest:
        return ""
    load = span((row["late"] for row in busiest), ".2f")
    chance = span((row["balanced"] for row in busiest), ".2f")
    text = f"late, the busiest {name} had {load} times the mean"
    text += f", by chance {chance}" * (chance != "unknown")
    if stated:
        evened = any(
            row["claim"] == "more even" and row["outcome"] == Outcome.STATED.value
            for row in claims
        )
        still = "still " * evened
        return f"Load was {still}uneven{_where(stated, len(tested))}: {text}."
    if any(row["outcome"] == Outcome.NOT_SHOWN.value for row in tested):
        return f"Load was not shown to be uneven: {text}."
    return f"{text[0].upper()}{text[1:]}."


def _unchanging(names: Sequence[str]) -> str:
    """State which matrices were the same in all iterations."""
    words = {"demand": "the demand", "wire": "the bytes between ranks"}
    if not names:
        return ""
    text = listed([words[name] for name in names])
    verb = "were" if names[-1] == "wire" else "was"
    return f"{text[0].upper()}{text[1:]} {verb} the same in every iteration."


def _forecasts(claims: Sequence[Row], forecasts: Sequence[Row]) -> str:
    """State how well the traffic was forecast, and whether last values did as well."""
    subjects = [row["subject"] for row in forecasts if isfinite(row["within_20"])]
    subject = "wire" if "wire" in subjects else "expert_load"
    rows = [row for row in forecasts if row["subject"] == subject]
    if not rows or subject not in subjects:
        return ""
    ahead = min(row["horizon"] for row in rows)
    rows = [row for row in rows if row["horizon"] == ahead]
    chosen = span((r["within_20"] for r in rows if r["chosen"]), ".0%")
    last = span((r["within_20"] for r in rows if r["method"] == "persistence"), ".0%")
    what = "bytes" if subject == "wire" else "copies"
    tested = [
        row
        for row in claims
        if row["claim"] == "forecast helps"
        and row["subject"] == subject
        and row["horizon"] == ahead
    ]
    helps = [row for row in tested if row["outcome"] == Outcome.STATED.value]
    iterations = "iteration" if ahead == 1 else "iterations"
    share = f"{ahead} {iterations} ahead, {chosen} of {what} were forecast within 20%"
    if helps:
        where = _where(helps, len(tested))
        return f"Forecasts helped{where}: {share} (last iteration repeated: {last})."
    methods = {row["method"] for row in rows if row["chosen"]}
    if methods == {"persistence"}:
        return f"Repeating the last iteration was the best forecast: {share}."
    if methods == {"mean"}:
        return (
            f"The mean of the past was best: {share} (last iteration repeated: {last})."
        )
    return (
        f"Forecasts were not shown to help: {share} (last iteration repeated: {last})."
    )


def _communication(stages: Sequence[Row]) -> str:
    """State the share of a step that communication took, from the whole run."""
    means = {}
    for row in stages:
        known = [row[stage] for stage in STAGES if isfinite(row[stage])]
        if row["layer"] < 0 and known:
            means[row["measure"]] = sum(known) / len(known)
    transfer, waiting = means.get("transfer"), means.get("waiting")
    if transfer is None or waiting is None:
        return ""
    return (
        f"Communication took {transfer + waiting:.0%} of a step: {transfer:.0%} "
        f"transfer, {waiting:.0%} waiting for other ranks."
    )
