"""The collectives of a configuration: bytes by kind of traffic, calls, heatmaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.patterns import Layout
from moetraffic.patterns.calls import Pattern
from moetraffic.patterns.matrices import (
    busiest_rank_bytes,
    refuse_large,
    sent_bytes,
    traffic_table,
)
from moetraffic.report.chart import Chart, Rule, line_colors
from moetraffic.report.heatmaps import byte_unit, matrix_chart
from moetraffic.result import Result
from moetraffic.units import byte_size, rank_span

from .estimate import bars_chart, named

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Matrices = Mapping[str, csr_array]

MOST_COLUMNS = 4
"""Maximum number of panels side by side."""

SHOWN_GROUPS = 4


def pattern_result(
    pattern: Pattern,
    matrices: Matrices,
    head: str,
    *,
    algorithm: str,
    times: Mapping[str, float] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Result:
    """Show the traffic of an iteration by kind.

    ``times`` are seconds by kind of traffic on a system, where one is given.
    """
    whole = sum(int(m.sum()) for m in matrices.values())
    rows = []
    for row in traffic_table(pattern, matrices).to_dict("records"):
        total = int(matrices[row["kind"]].sum())
        rows.append(
            {
                **{"traffic": row["kind"], "bytes_per_rank": row["bytes"]},
                **{"group_ranks": row["group_size"], "groups": row["groups"]},
                **{
                    "calls_per_iteration": row["calls"],
                    "time": (times or {}).get(row["kind"]),
                },
                **{"bytes_between_ranks": total, "byte_share": total / max(whole, 1)},
            }
        )
    largest = max(rows, key=lambda row: row["bytes_between_ranks"])
    sent = np.sum([m.sum(axis=1) for m in matrices.values()], axis=0)
    return Result(
        verb="pattern",
        head=head,
        tables={
            "traffic": rows,
            "groups": partial(group_rows, pattern),
            "calls": partial(call_rows, pattern),
            "sent": partial(sent_rows, pattern, matrices),
            "matrix": partial(matrix_rows, pattern, matrices),
        },
        screen=("traffic",),
        captions={
            "traffic": "of an iteration; bytes a rank: sent by a rank that sends most, "
            f"with {algorithm} collectives",
            "calls": "payload: input bytes of a group member",
        },
        verdict=(
            f"{byte_size(whole)} travel between ranks in an iteration, "
            f"{largest['byte_share']:.0%} of it {largest['traffic']}.",
            f"The busiest rank sends {byte_size(sent.max())}.",
        ),
        data={
            "algorithm": algorithm,
            "ranks": int(pattern.layout.world),
            **(data or {}),
        },
    )


def joined(results: Sequence[Result], varied: Sequence[Mapping[str, Any]]) -> Result:
    """Show the tables of several patterns as one, behind the values that differ."""
    rows = [
        {**values, **row}
        for result, values in zip(results, varied, strict=True)
        for row in result.rows("traffic")
    ]
    totals = [sum(r["bytes_between_ranks"] for r in x.rows("traffic")) for x in results]
    least, most = int(np.argmin(totals)), int(np.argmax(totals))
    return replace(
        results[0],
        head=f"{len(results)} configurations: {', '.join(varied[0])} vary",
        tables={"traffic": rows},
        verdict=(
            f"Least travels with {named(varied[least])}: {byte_size(totals[least])} "
            f"between ranks in an iteration; most with {named(varied[most])}: "
            f"{byte_size(totals[most])}.",
        ),
    )


def kinds_chart(result: Result) -> Chart:
    """Draw bytes between ranks by kind as stacked bars, one for each configuration."""
    frame = result.frame("traffic")
    keys = list(frame.columns[: list(frame.columns).index("traffic")])
    cells = frame.pivot_table(
        "bytes_between_ranks", keys, "traffic", fill_value=0, sort=False
    )
    colors = line_colors(len(cells.columns))
    parts = {
        kind: (cells[kind].to_numpy() / 1e9, color)
        for kind, color in zip(cells, colors, strict=True)
    }
    names = [named(row) for row in cells.reset_index()[keys].to_dict("records")]
    title, label = "Bytes between ranks by kind of traffic", "GB in an iteration"
    return bars_chart(parts, names, title, result.head, label)


def stage_ranks(layout: Layout) -> int:
    """Return the number of consecutive ranks of a pipeline stage; 0: none."""
    return (
        layout.world // layout.pp
        if layout.pp > 1 and layout.order.endswith("pp")
        else 0
    )


def group_rows(pattern: Pattern) -> list[dict[str, Any]]:
    """List the communication groups by kind, with the first ones' ranks."""
    rows = []
    for kind in pattern.kinds:
        groups = pattern.layout.groups(kind)
        first = "; ".join(rank_span(group) for group in groups[:SHOWN_GROUPS])
        first += "; ..." * (len(groups) > SHOWN_GROUPS)
        row = {"kind": kind, "groups": len(groups), "group_ranks": len(groups[0])}
        rows.append(row | {"members": first})
    return rows


def call_rows(pattern: Pattern) -> list[dict[str, Any]]:
    """List the calls; all layers and micro-batches share a row."""
    rows = []
    for call, stages, times, when in pattern.rows():
        what = call.phase or call.label
        if call.operation == "send_recv" and not call.shift:
            what = f"stage {call.peers[0]} to {call.peers[1]}"
        rows.append(
            {
                **{"traffic": call.traffic, "kind": call.group},
                **{"operation": call.operation, "call": what, "pass": when},
                "stages": "all"
                if len(stages) == pattern.layout.pp
                else rank_span(stages),
                **{"payload": call.size, "calls_per_iteration": times},
                **{"payload_per_rank": call.size * times, "exact": call.exact},
            }
        )
    return rows


def sent_rows(pattern: Pattern, matrices: Matrices) -> list[dict[str, Any]]:
    """List bytes of the mean rank, the busiest one and the largest pair, by kind."""
    return [
        {
            "traffic": kind,
            "bytes_between_ranks": int(matrix.sum()),
            "mean_rank_bytes": sent_bytes(pattern, matrix),
            "busiest_rank_bytes": busiest_rank_bytes(pattern, matrix, kind),
            "pairs": int(np.count_nonzero(matrix.data)),
            "largest_pair_bytes": int(matrix.data.max(initial=0)),
        }
        for kind, matrix in matrices.items()
    ]


def matrix_rows(pattern: Pattern, matrices: Matrices) -> dict[str, Any]:
    """List the bytes of each pair of ranks that is not 0, by kind."""
    refuse_large(
        pattern.layout.world, len(matrices), "leave out --json: see --only traffic"
    )
    cells = {kind: matrix.tocoo() for kind, matrix in matrices.items()}
    return {
        "traffic": np.repeat(list(cells), [m.nnz for m in cells.values()]),
        "from_rank": np.concatenate([m.row for m in cells.values()]),
        "to_rank": np.concatenate([m.col for m in cells.values()]),
        "bytes_between_ranks": np.concatenate([m.data for m in cells.values()]),
    }


def heatmaps(
    matrices: Matrices, *, title: str, source: str = "", stage: int = 0
) -> Chart:
    """Draw byte matrices ``[R, R]`` of all traffic and of each kind as heatmaps.

    Rows send, columns receive; ``stage`` is the number of consecutive ranks per
    pipeline stage, which lines separate (0: no lines).
    """
    used = {k: m for k, m in matrices.items() if k != "control" and m.nnz}
    ranks = next(iter(matrices.values())).shape[0]
    refuse_large(ranks, len(used) + 1, "leave out --plot: see --tables")
    shown = {k: m.toarray() for k, m in used.items()}
    if len(shown) != 1:
        zero = np.zeros((ranks, ranks), np.int64)
        shown = {"all": np.sum([*shown.values(), zero], axis=0), **shown}
    columns = len(shown)
    if columns > MOST_COLUMNS:  # two balanced rows rather than a full one and a rest
        columns = min(MOST_COLUMNS, ceil(columns / 2))
    edges = range(stage, ranks, stage) if stage else ()
    style: dict[str, Any] = {"color": "#CCCCCC", "width": 0.6, "dash": "solid"}
    factor, unit = byte_unit(max(m.max(initial=0) for m in shown.values()))
    nbsp = "\N{NO-BREAK SPACE}"
    return matrix_chart(
        {
            f"{kind}: {byte_size(int(m.sum())).replace(' ', nbsp)}": m / factor
            for kind, m in shown.items()
        },
        title=title,
        source=source,
        unit=f"{unit} in an iteration",
        column="receiving rank",
        rules=tuple(
            rule
            for edge in edges
            for rule in (Rule(x=edge - 0.5, **style), Rule(y=edge - 0.5, **style))
        ),
        across=columns,
        log_color=True,
    )
