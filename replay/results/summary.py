"""First screen of a replay: headline, a table by operation, at most five sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

from moetraffic.analysis.intervals import WIDEST
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.units import byte_size, duration, three_digits

from .comparison import LATE_S
from .load import busy
from .ports import port_sentence

Row = Mapping[str, Any]

ALWAYS = 0.6
"""Share of operations from which one rank is said to be the last to call."""

ADVISED = 1.5
"""Ratio to the lower bound above which a measurement of the ports is advised."""

CAPTION = "sent: between ranks; p50, p99: of transfers, from the last rank's call"

PACES = {
    "asap": "as fast as possible",
    "captured": "at the captured pace",
    "open-loop": "at the captured times",
}

VERIFIED = {"full": "every size and byte", "none": "every size, no bytes"}


def kind_rows(operations: Sequence[Row]) -> list[dict[str, Any]]:
    """List calls, bytes, times and busbw of each operation, for the first screen."""
    rows = []
    for row in operations:
        if row["by"] != "operation":
            continue
        rows.append(
            {
                "call": name_of(row["label"]),
                "calls": row["calls"],
                "sent": row["bytes_between_ranks"],
                "p50": row["transfer_p50"],
                "p99": row["transfer_p99"],
                "busbw_gbs": row["busbw"] / 1e9,
                "busbw_interval": (row["busbw_low"] / 1e9, row["busbw_high"] / 1e9),
                "waits": row["waiting_in_calls"],
                "busbw_gbit_s": row["busbw"] * 8 / 1e9,
            }
        )
    return rows


def headline(data: Row) -> str:
    """State what was replayed, how, and on what."""
    hosts = len(set(data["nodes"]))
    pace = PACES.get(data["pace"], f"pace {data['pace']}")
    ranks = f"{data['ranks']} rank{'s' * (data['ranks'] > 1)}"
    return (
        f"{data['source']}, {pace}, {ranks} on {hosts} host{'s' * (hosts > 1)}, "
        f"{data['backend']}"
    )


def sentences(data: Row, tables: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    """State at most five sentences: rate, fidelity, ports, schedule, background."""
    texts = [_rate(data, tables), _moved(data, tables)]
    if tables["ports"]:
        texts.append(port_sentence(tables["ports"]))
    elif data["network_stated"] and (row := _main(tables["ratios"], "bound")):
        texts.append(
            f"A ratio above {ADVISED:g} may be due to a slow port: --ports measures "
            "each rank's."
            if row["ratio"] > ADVISED
            else ""
        )
    texts += [
        _background(tables["background"]),
        _schedule(tables["schedule"]),
        _captured(tables["ratios"]),
    ]
    return tuple([text for text in texts if text][:5])


def notes(data: Row, tables: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    """List the reservations: clocks, other load, what was left out, wide intervals."""
    texts = list(data["notes"])
    if data["clock_error"]:
        main = _main(tables["operations"])
        below = main["undetermined"] if main else 0.0
        texts.append(
            f"the clocks of the hosts agree within {duration(data['clock_error'])}: "
            f"{below:.0%} of the transfers are shorter, and not determined"
        )
    texts += [
        f"on {row['host']}, other processes used {row['others']:.2g} of "
        f"{row['cores']} cores during the replay"
        for row in tables["load"]
        if busy(row)
    ]
    if data["left_out"]:
        texts.append(f"not replayed: {counted(data['left_out'])}")
    main = _main(tables["operations"])
    if main and not _narrow(main["busbw_low"], main["busbw_high"]):
        runs = max(5, 4 * data["runs"])
        texts.append(
            f"an interval whose ends differ by more than a factor of {WIDEST:g} "
            f"determines no value: --repeat {runs} on idle hosts narrows it"
        )
    return tuple(dict.fromkeys(texts))


def name_of(operation: str) -> str:
    """Return an operation's name in texts: "all-to-all"."""
    return operation.replace("_", "-")


def counted(kinds: Mapping[str, int]) -> str:
    """Format numbers of operations: "240 all-to-alls, 1 all-reduce"."""
    return ", ".join(
        f"{count:,} {name_of(name)}{'s' * (count > 1)}" for name, count in kinds.items()
    )


def value_of(value: float, low: float, high: float, unit: str = "") -> str:
    """Format a value with its interval, or its interval alone if that is wide."""
    if not isfinite(low):
        return f"{three_digits(value)}{unit}"
    ends = f"{three_digits(low)} to {three_digits(high)}"
    if not _narrow(low, high):
        return f"{ends}{unit} (95% CI; not determined)"
    return f"{three_digits(value)}{unit} (95% CI {ends})"


def _narrow(low: float, high: float) -> bool:
    return not high > WIDEST * low


def _main(rows: Sequence[Row], baseline: str = "") -> Row | None:
    """Return the row of the all-to-alls, or that of all operations."""
    for by, label in (("operation", ALL_TO_ALL), ("all", "")):
        if found := _ratio(rows, by, label, baseline):
            return found
    return None


def _ratio(rows: Sequence[Row], by: str, label: str, baseline: str) -> Row | None:
    wanted = by, label, baseline
    return next(
        (r for r in rows if (r["by"], r["label"], r.get("baseline", "")) == wanted),
        None,
    )


def _over(row: Row) -> str:
    return value_of(row["ratio"], row["ratio_low"], row["ratio_high"])


def _rate(data: Row, tables: Mapping[str, Sequence[Row]]) -> str:
    """State the busbw of the all-to-alls, or of all operations, and its bound."""
    main = _main(tables["operations"])
    if main is None or isnan(main["busbw"]):
        if main and main["bytes_between_ranks"]:
            return "The busbw is not determined: transfers are below the clock error."
        return "No byte crossed the network: no operation has bytes between ranks."
    value, low, high = (main[f"busbw{end}"] / 1e9 for end in ("", "_low", "_high"))
    name = "All-to-all" if main["by"] == "operation" else "Overall"
    text = f"{name} busbw {value_of(value, low, high, ' GB/s')}"
    if _narrow(low, high):
        text += f" = {three_digits(value * 8)} Gbit/s"
    runs = data["runs"]
    text += f", over {runs} runs" if runs > 1 else ", of one run"
    row = _main(tables["ratios"], "bound")
    if row and data["network_stated"]:
        text += f"; transfers took {_over(row)} times the bound of {data['network']}"
    elif ports := _main(tables["ratios"], "ports"):
        text += f"; transfers took {_over(ports)} times the bound of the ports"
    return f"{text}."


def _moved(data: Row, tables: Mapping[str, Sequence[Row]]) -> str:
    """State verification, duration, ratio to the pass's bound, and the last rank."""
    number, checked = data["iterations"], VERIFIED[data["verified"]]
    text = (
        f"Verified: {checked}; {number:,} iteration{'s' * (number > 1)}, "
        f"{byte_size(data['bytes_between_ranks'])} between ranks, in "
        f"{duration(data['pass_s'])}"
    )
    row = _ratio(tables["ratios"], "pass", "", "bound")
    if row and data["network_stated"]:
        text += f", {_over(row)} times the bound of a pass"
    main = _ratio(tables["operations"], "all", "", "")
    if main and main["last_share"] >= ALWAYS:
        share = f"{main['last_share']:.0%} of calls"
        text += f"; rank {main['last_rank']} called last in {share}"
    return f"{text}."


def _captured(ratios: Sequence[Row]) -> str:
    row = _main(ratios, "captured")
    if row is None:
        return ""
    whose = "All-to-all transfers" if row["by"] == "operation" else "Transfers"
    return f"{whose} took {_over(row)} times as long as captured."


def _background(rows: Sequence[Row]) -> str:
    """State how background traffic slows all-to-alls, and whether its bytes do."""
    if not rows:
        return ""
    by = {row["background"]: row for row in rows}
    text = (
        f"Beside background traffic all-to-alls took {_over(by['with'])} times as long"
    )
    row = by["bytes"]
    if isnan(row["ratio_low"]):
        return f"{text}."
    shown = "no effect of its bytes is shown"
    if row["ratio_low"] > 1:
        shown = "its bytes slow them"
    elif row["ratio_high"] < 1:
        shown = "the effect of its bytes is not determined"
    return f"{text}, {_over(row)} times its smallest sizes: {shown}."


def _schedule(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    (row,) = rows
    return (
        f"Calls were issued {duration(row['error_p50'])} off their due times (median; "
        f"p99 {duration(row['error_p99'])}), {row['late_calls']:,} of {row['calls']:,} "
        f"more than {duration(LATE_S)} late."
    )
