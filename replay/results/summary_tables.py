"""Tables of a replay: times of operations, ratios to baselines, schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from moetraffic.analysis.intervals import LEVEL, Interval
from moetraffic.tables import Table
from moetraffic.units import duration, three_digits

from .result import LATE_S, Fidelity, Punctuality, Replay

_QUANTILES = ("min", "p50", "mean", "p90", "p99", "max")


PARTS = ("operations", "times", "ratios", "ranks", "ports", "schedule")
"""Parts of the tables of a replay."""


def replay_tables(replay: Replay) -> dict[str, list[Table]]:
    """Build the tables of a replay's result by part; empty ones are left out."""
    tables = {name: list[Table]() for name in PARTS}
    tables["operations"] = [_spreads(replay), _slowest(replay)]
    tables["ranks"] = [_ranks(replay)]
    if replay.ports is not None:
        tables["ports"] = [replay.ports.table()]
    if replay.fidelity is not None:
        tables["times"] = [_times(replay.fidelity)]
        tables["ratios"] = [_ratios(replay.fidelity)]
        if replay.fidelity.punctuality is not None:
            tables["schedule"] = [_schedule(replay.fidelity.punctuality)]
    return {name: [t for t in made if t.rows] for name, made in tables.items()}


def counts(kinds: Mapping[str, int]) -> str:
    """Format the number of operations of each kind."""
    return ", ".join(
        f"{count} {name.replace('_', '-')}{'s' if count > 1 else ''}"
        for name, count in kinds.items()
    )


def verification(verified: str) -> str:
    """Describe which sizes and bytes of a replay were verified."""
    return {
        "full": "every size and byte verified",
        "none": "every size verified, no bytes",
    }.get(verified, f"every size verified, bytes of a {verified}")


def _spreads(r: Replay) -> Table:
    spreads = {
        "call, us": r.time_us,
        "transfer, us": r.transfer_us,
        "algbw, GB/s": r.algbw_gbs,
        "busbw, GB/s": r.busbw_gbs,
    }
    return Table(
        title="operations (bandwidths by transfer time)",
        columns=["", *_QUANTILES],
        rows=[
            [name, *(getattr(spread, q) for q in _QUANTILES)]
            for name, spread in spreads.items()
            if spread is not None
        ],
        notes=[
            "call: of the slowest rank, with its wait for late ranks; transfer: from "
            "the last rank's call to the last end"
        ],
    )


def _slowest(r: Replay) -> Table:
    return Table(
        title="slowest operations",
        columns={"call, us": ",.0f", "bytes": "bytes", "rank": "d", "operation": "<"},
        rows=[(s.time_us, s.bytes, s.rank, s.operation) for s in r.slowest],
    )


def _ranks(r: Replay) -> Table:
    rows = zip(range(r.ranks), r.nodes, r.rank_bytes, r.rank_waiting, strict=False)
    return Table(
        title="ranks",
        columns={"rank": "d", "host": "<", "sent": "bytes", "waiting": ".1%"},
        rows=list(rows),
        notes=[
            "sent: rank-local bytes included; waiting: share of a rank's time in calls "
            "before the last rank's call"
        ],
    )


def _times(fidelity: Fidelity) -> Table:
    run = f": all of the median run, {fidelity.shown_run + 1} of {fidelity.runs}"
    return Table(
        title="times of operations" + (run if fidelity.runs > 1 else ""),
        columns={
            **{"operations": "<", "number": "d"},
            **{"call p50": "s", "p90": "s", "p99": "s", "max": "s"},
            **{"transfer p50": "s", "total": "s", "waiting": ".0%"},
            **{"busbw, GB/s": "three digits", "straggler": "<"},
        },
        rows=[
            (
                part.name,
                part.number,
                *(part.time_s.p50, part.time_s.p90, part.time_s.p99, part.time_s.max),
                *(
                    (part.transfer_s.p50, part.transfer_s.total)
                    if part.transfer_s is not None
                    else (None, None)
                ),
                part.shown_waiting,
                part.shown_busbw_gbs,
                f"rank {part.straggler}, {part.straggler_share:.0%}"
                if part.straggler >= 0
                else "",
            )
            for part in fidelity.parts
        ],
        notes=fidelity.notes,
    )


def _ratios(fidelity: Fidelity) -> Table:
    columns = {
        "call time / captured": "over_captured",
        "transfer time / captured": "transfer_over_captured",
        f"transfer time / lower bound ({fidelity.bound_of})": "over_bound",
        "transfer time / bound of measured ports": "over_ports",
        f"transfer time / measurements ({fidelity.model_of})": "over_model",
    }
    used = {
        title: name
        for title, name in columns.items()
        if any(not math.isnan(getattr(p, name).value) for p in fidelity.parts)
    }
    rows = [
        [part.name, *(interval(getattr(part, name)) for name in used.values())]
        for part in fidelity.parts
    ]
    over = f"{fidelity.runs} runs" if fidelity.runs > 1 else "the iterations of one run"
    return Table(
        title=f"ratios of total times ({LEVEL:.0%} intervals over {over})",
        columns=["operations", *used],
        rows=[row for row in rows if any(row[1:])],
        notes=[
            "iteration: wall times over those captured; the time of the pass over the "
            "lower bound of all its bytes",
            *filter(None, [fidelity.model_beyond]),
        ],
    )


def _schedule(p: Punctuality) -> Table:
    errors = {"p50": p.error_p50_s, "p90": p.error_p90_s}
    errors |= {"p99": p.error_p99_s, "max": p.error_max_s}
    rows = [
        (
            "issue-time error",
            ", ".join(f"{name} {duration(e)}" for name, e in errors.items())
            + f", mean {'-' if p.mean_s < 0 else '+'}{duration(abs(p.mean_s))}, of "
            f"{p.scheduled} operations",
        ),
        (
            "late",
            f"{p.late} by more than {duration(LATE_S)} ({p.late / p.scheduled:.1%})",
        ),
        ("behind at the end", f"{p.behind_s * 1e3:.3g} ms, rank {p.worst_rank}"),
    ]
    if not math.isnan(p.schedule_s):
        rows.append(
            (
                "total",
                f"{duration(p.took_s)} for a schedule of {duration(p.schedule_s)}: "
                f"{p.off:+.2%}",
            )
        )
    return Table(title="deviation from the schedule", rows=rows)


def interval(ratio: Interval, unit: str = "", *, over: str = "") -> str:
    """Format a ratio with its interval, in parentheses ``over``; "" if unknown.

    Examples
    --------
    >>> interval(Interval(value=1.2341, low=1.1, high=1.3), "x")
    '1.23x (1.10 to 1.30x)'
    >>> interval(Interval(value=2.0, low=0.1, high=40.0), "x")
    '0.100 to 40.0x (not determined)'
    >>> interval(Interval(value=2.0, low=0.1, high=40.0), "x", over="; over runs")
    '0.100 to 40.0x (not determined; over runs)'
    """
    if math.isnan(ratio.value):
        return ""
    value, low, high = map(three_digits, (ratio.value, ratio.low, ratio.high))
    if math.isnan(ratio.low):
        return f"{value}{unit}"
    if not ratio.determined:
        return f"{low} to {high}{unit} (not determined{over})"
    return f"{value}{unit} ({low} to {high}{unit}{over})"
