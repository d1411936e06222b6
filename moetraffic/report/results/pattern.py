"""Report a computed traffic pattern: calls, groups, traffic by kind and heatmaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.patterns.layouts.parallelism import Parallelism
from moetraffic.patterns.megatron import megatron_pattern
from moetraffic.patterns.pattern import Pattern
from moetraffic.patterns.presets import preset
from moetraffic.patterns.traffic import (
    busiest_rank_bytes,
    refuse_large,
    sent_bytes,
    traffic_matrices,
)
from moetraffic.report.chart import Chart, Rule
from moetraffic.report.heatmaps import byte_unit, matrix_chart
from moetraffic.tables import Table
from moetraffic.units import byte_size, rank_span

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MOST_COLUMNS = 4
"""Maximum number of panels side by side."""

SHOWN_GROUPS = 4

LAYOUTS = ((4, 2, 4), (4, 4, 4), (2, 8, 4))
"""Parallel degrees (p, t, d) of heatmaps in APNet'24, or derived from its rule."""


def calls_table(pattern: Pattern) -> Table:
    """Tabulate the calls of a pattern; all layers and micro-batches share a row."""
    rows = []
    for call, held, times, when in pattern.rows():
        what = call.phase or call.label
        if call.operation == "send_recv" and not call.shift:
            what = f"stage {call.peers[0]} to {call.peers[1]}"
        about = "" if call.exact else "about "
        rows.append(
            (
                *(call.traffic, call.group, call.operation, what, when),
                "all" if len(held) == pattern.grid.pp else rank_span(held),
                *(about + byte_size(call.size), times),
                about + byte_size(call.size * times),
            )
        )
    return Table(
        columns={
            **{"traffic": "", "group": "", "collective": "", "call": "", "pass": ""},
            **{"stages": "<", "payload": ">", "count": "", "payload per rank": ">"},
        },
        rows=rows,
    )


def groups_table(pattern: Pattern) -> Table:
    """Tabulate the communication groups of a pattern by kind."""
    rows = []
    for kind in pattern.kinds:
        groups = pattern.grid.groups(kind)
        first = "; ".join(rank_span(g) for g in groups[:SHOWN_GROUPS])
        more = "; ..." if len(groups) > SHOWN_GROUPS else ""
        rows.append((kind, len(groups), len(groups[0]), first + more))
    return Table(
        columns=("group", "groups", "ranks", "world ranks of the first groups"),
        rows=rows,
    )


def traffic_table(figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """Tabulate the bytes between ranks in an iteration (:func:`traffic_figures`)."""
    return Table(
        columns={
            **{"traffic": "", "between ranks": "bytes", "share": ".1%", "pairs": ""},
            **{"largest pair": "bytes", "bottleneck rank": "bytes"},
        },
        rows=[(kind, *one.values()) for kind, one in figures.items()],
    )


def sentence(
    pattern: Pattern,
    matrices: Mapping[str, csr_array],
    figures: Mapping[str, Mapping[str, Any]],
    layout: str,
    batch: str,
) -> str:
    """State the bytes between ranks in an iteration, and the largest kind of them."""
    start = f"{pattern.name} on {pattern.grid.world} ranks ({layout}), {batch}"
    total = sum(one["bytes"] for one in figures.values())
    if not total:
        return f"{start}: no bytes between ranks."
    kind = max(figures, key=lambda kind: figures[kind]["bytes"])
    sent = np.sum([m.sum(axis=1) for m in matrices.values()], axis=0)
    return (
        f"{start}: {byte_size(total)} between ranks in an iteration, of which {kind} "
        f"{figures[kind]['share']:.1%}; bottleneck rank sends {byte_size(sent.max())}."
    )


def traffic_figures(
    pattern: Pattern, matrices: Mapping[str, csr_array]
) -> dict[str, dict[str, Any]]:
    """Compute totals of each kind's byte matrix ``[R, R]``, by kind."""
    whole = sum(int(m.sum()) for m in matrices.values())
    return {
        kind: {
            "bytes": int(m.sum()),
            "share": int(m.sum()) / whole if whole else 0.0,
            "pairs": int(np.count_nonzero(m.data)),
            "largest_pair_bytes": int(m.data.max(initial=0)),
            "busiest_rank_bytes": busiest_rank_bytes(pattern, m, kind),
        }
        for kind, m in matrices.items()
    }


def as_dict(pattern: Pattern, matrices: Mapping[str, csr_array]) -> dict[str, Any]:
    """Convert a pattern to plain data: calls, groups, traffic and its matrices."""
    refuse_large(pattern.grid.world, len(matrices), "leave out --json: see --tables")
    return {
        "model": pattern.name,
        "world": pattern.grid.world,
        "groups": {kind: pattern.grid.groups(kind) for kind in pattern.kinds},
        "calls": [
            {**asdict(call), "pass": when, "stages": stages, "times": times}
            for call, stages, times, when in pattern.rows()
        ],
        "traffic": {
            kind: {
                **one,
                "sent_bytes": sent_bytes(pattern, matrices[kind]),
                "matrix_bytes": matrices[kind].toarray().tolist(),
            }
            for kind, one in traffic_figures(pattern, matrices).items()
        },
    }


def heatmaps(
    matrices: Mapping[str, csr_array], *, title: str, source: str = "", stage: int = 0
) -> Chart:
    """Draw byte matrices ``[R, R]`` of all traffic and of each kind as heatmaps.

    Rows send, columns receive; ``stage`` is the number of consecutive ranks per
    pipeline stage, which lines separate (0: no lines).
    """
    used = {k: m for k, m in matrices.items() if k != "control" and m.nnz}
    ranks = next(iter(matrices.values())).shape[0]
    refuse_large(ranks, len(used) + 1, "leave out --plot: see --tables")
    shown = {k: m.toarray() for k, m in used.items()}
    whole = sum(shown.values(), np.zeros(next(iter(matrices.values())).shape, np.int64))
    if len(shown) != 1:
        shown = {"all": np.asarray(whole, np.int64), **shown}
    columns = len(shown)
    if columns > MOST_COLUMNS:  # two balanced rows rather than a full one and a rest
        columns = min(MOST_COLUMNS, ceil(columns / 2))
    edges = range(stage, len(whole), stage) if stage else ()
    style: dict[str, Any] = {"color": "#CCCCCC", "width": 0.6, "dash": "solid"}
    factor, unit = byte_unit(max(m.max(initial=0) for m in shown.values()))
    nbsp = "\N{NO-BREAK SPACE}"
    names = (
        f"{kind}: {byte_size(int(m.sum())).replace(' ', nbsp)}"
        for kind, m in shown.items()
    )
    return matrix_chart(
        dict(zip(names, (m / factor for m in shown.values()), strict=True)),
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


def stripes() -> dict[str, Chart]:
    """Draw traffic heatmaps of the layouts in APNet'24, by file name."""
    model = "gpt-1.3b"
    found = preset(model)
    drawn = {}
    for p, t, d in LAYOUTS:
        plan = Parallelism(
            tp=t, dp=d, pp=p, micro_batch=found.micro_batch, accumulation=p
        )
        pattern = megatron_pattern(found.model, plan, found.gating)
        drawn[f"p{p}-t{t}-d{d}"] = heatmaps(
            traffic_matrices(pattern),
            title=f"(p, t, d) = ({p}, {t}, {d}) on {p * t * d} ranks",
            source=f"Computed for {model}, Megatron's rank order, rings; stripes as in "
            "the heatmap of APNet'24 (HKUST)",
            stage=t * d,
        )
    return drawn
