"""The fidelity of a replay as tables for people."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moetraffic.units import duration

from .fidelity import LATE_S, LEVEL, Fidelity, PartFidelity, Punctuality, Ratio


def tables(found: Fidelity) -> Group:
    """Completion times, ratios, punctuality; what there is of them."""
    shown: list[RenderableType] = [_times(found.parts)]
    ratios = _ratios(found)
    if ratios.row_count:
        shown += ["", ratios]
    if found.punctuality is not None:
        shown += ["", _punctuality(found.punctuality)]
    if found.slowdown is not None:
        shown += [
            "",
            Text(
                f"slowdown of all-to-alls beside dense traffic: "
                f"{_interval(found.slowdown)}, from {found.pairs} "
                f"pair{'s' if found.pairs > 1 else ''} of passes"
            ),
        ]
    shown += [Text(f"note: {note}", style="yellow") for note in found.notes]
    return Group(*shown)


def _named(part: PartFidelity) -> str:
    return f"{part.by} {part.label}".strip()


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, header_style="bold")


def _times(parts: tuple[PartFidelity, ...]) -> Table:
    table = _table("completion times: call to end, of the slowest member")
    table.add_column("of")
    for name in ("number", "p50", "p90", "p99", "max", "transfer p50"):
        table.add_column(name, justify="right")
    table.add_column("busbw, GB/s", justify="right")
    table.add_column("straggler")
    for part in parts:
        t, moved = part.time_s, part.transfer_s
        table.add_row(
            _named(part),
            str(part.number),
            *(duration(value) for value in (t.p50, t.p90, t.p99, t.max)),
            duration(moved.p50) if moved is not None else "",
            "" if math.isnan(part.busbw_gbs) else f"{part.busbw_gbs:.3g}",
            f"rank {part.straggler}, {part.straggler_share:.0%}"
            if part.straggler >= 0
            else "",
        )
    return table


def _ratios(found: Fidelity) -> Table:
    columns = {
        "over captured, call": "over_captured",
        "transfer": "transfer_over_captured",
        f"over bound: {found.bound_of}": "over_bound",
        f"over model: {found.model_of}": "over_model",
    }
    used = {
        title: name
        for title, name in columns.items()
        if any(not math.isnan(getattr(part, name).value) for part in found.parts)
    }
    table = _table(f"ratios of total times, with intervals of {LEVEL:.0%}")
    if not used:
        return table
    table.add_column("of")
    for title in used:
        table.add_column(title, justify="right")
    for part in found.parts:
        cells = [_interval(getattr(part, name)) for name in used.values()]
        if any(cells):
            table.add_row(_named(part), *cells)
    return table


def _punctuality(p: Punctuality) -> Table:
    table = Table(title="against the schedule", title_justify="left", box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    errors = (p.error_p50_s, p.error_p90_s, p.error_p99_s, p.error_max_s)
    p50, p90, p99, most = (duration(e) for e in errors)
    table.add_row(
        "issue-time error",
        f"p50 {p50}, p90 {p90}, p99 {p99}, max {most}, mean "
        f"{'-' if p.mean_s < 0 else '+'}{duration(abs(p.mean_s))}, of {p.scheduled}",
    )
    table.add_row(
        "late", f"{p.late} by more than {duration(LATE_S)} ({p.late / p.scheduled:.1%})"
    )
    table.add_row(
        "behind at the end", f"{p.behind_s * 1e3:.3g} ms, rank {p.worst_rank}"
    )
    if not math.isnan(p.schedule_s):
        table.add_row(
            "total",
            f"{duration(p.took_s)} for a schedule of {duration(p.schedule_s)}: "
            f"{p.off:+.2%}",
        )
    return table


def _interval(of: Ratio) -> str:
    if math.isnan(of.value):
        return ""
    if math.isnan(of.low):
        return f"{of.value:.4g}"
    return f"{of.value:.4g} ({of.low:.4g} to {of.high:.4g})"
