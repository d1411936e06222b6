"""Estimated iteration times: one with its terms, several in a table, the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.patterns import Layout
from moetraffic.report.chart import LINE_COLORS, OTHER_COLOR, Axis, Chart, Panel, Series
from moetraffic.result import Result
from moetraffic.timemodel import MODEL_ERROR, Estimate, Search
from moetraffic.units import byte_size, duration

if TYPE_CHECKING:
    from moetraffic.analysis.times.calibration import Calibration, StepTimes

TERMS = {
    "compute": ("compute", LINE_COLORS[0], ()),
    "tp": ("tensor parallel", LINE_COLORS[1], ("tp", "ends")),
    "cp": ("context parallel", LINE_COLORS[5], ("cp",)),
    "ep": ("expert parallel", LINE_COLORS[3], ("ep",)),
    "pp": ("pipeline", LINE_COLORS[4], ("pp",)),
    "dp": ("data parallel", LINE_COLORS[2], ("dp", "edp", "embedding")),
    "bubble": ("bubble", "#D0D0D0", ()),
    "overhead": ("overheads", OTHER_COLOR, ()),
    "optimizer": ("optimizer", "#000000", ()),
}
"""Words, color and kinds of traffic of the terms, by attribute of Estimate."""

MEMORY = ("weights", "gradients", "optimizer", "activations")
DEGREES = ("pp", "tp", "cp", "dp", "ep")
BESIDE = ("virtual", "zero_stage", "micro_batch", "recompute", "sequence_parallel")
OF_TRAFFIC = ("bytes_per_rank", "calls_per_iteration", "rate", "hidden_time")
LEAST = 0.01
"""Share of an iteration from which a wait is stated."""

SHOWN, DRAWN = 12, 6
"""Best layouts in the table and in the chart."""


def head(layout: Layout, name: str) -> str:
    """Name a model, and the ranks, parallel degrees above 1 and batch of a layout."""

    def number(value: Any) -> int:
        return int(np.ravel(value)[0])

    world = number(layout.world)
    sizes = {axis: number(getattr(layout, axis)) for axis in DEGREES}
    words = named({axis: n for axis, n in sizes.items() if n > 1})
    batch, tokens = number(layout.sequences), number(layout.sizes.source)
    return (
        f"{name}, {world:,} GPU{'s' * (world > 1)}{f' ({words})' * bool(words)}, "
        f"{batch:,} sequence{'s' * (batch != 1)} of {tokens:,} tokens"
    )


def named(values: Mapping[str, Any]) -> str:
    """Name values of options: "dp 8, zero stage 1, sequence parallel"."""
    words = (f"{name} {value}" for name, value in values.items() if value is not False)
    return ", ".join(words).replace("_", " ").replace(" True", "")


def term_rows(found: Estimate) -> list[dict[str, Any]]:
    """List the terms of one estimate, with bytes, calls and rate of communication."""
    whole, rows = float(found.iteration), []
    for name, (words, _, kinds) in TERMS.items():
        if not (time := float(getattr(found, name))):
            continue
        row: dict[str, Any] = {"term": words, "time": time, "time_share": time / whole}
        row |= dict.fromkeys(OF_TRAFFIC)
        if kinds:
            under = sum(
                float(t) for (k, _), t in found.overlapped.items() if k in kinds
            )
            sent = sum(float(found.wire[kind]) for kind in kinds)
            calls = sum(float(found.calls(kind)) for kind in kinds)
            cells = sent, calls, float(found.bandwidth(kinds)), under or None
            row |= zip(OF_TRAFFIC, cells, strict=True)
        rows.append(row)
    total = {"term": "iteration", "time": whole, "time_share": 1.0}
    rest = {**dict.fromkeys(OF_TRAFFIC), "hidden_time": float(found.hidden) or None}
    return [*rows, {**total, **rest}]


def facts(found: Estimate) -> dict[str, Any]:
    """Return the numbers of an estimate that are no term."""
    names = "tokens_s flops_gpu comm_share waiting_share bubble_share bubble_of_ideal"
    return {
        "iteration_s": found.iteration,
        **{name: getattr(found, name) for name in names.split()},
        **{"launches_s": found.launches, "hidden_s": found.hidden},
        "memory_bytes": {n: getattr(found.memory, n) for n in (*MEMORY, "total")},
        **{"sound": found.sound, "fits": found.fits},
        **{"sent_bytes": found.sent, "busiest_rank_bytes": found.wire},
    }


def one(
    found: Estimate,
    name: str,
    *,
    notes: Sequence[str] = (),
    sensitivity: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
) -> Result:
    """Show one estimate: a table of its terms.

    ``name`` is that of the model and what it runs on.
    """
    whole, room = float(found.iteration), float(found.memory_room)
    limit = f" of {byte_size(room)}" * bool(np.isfinite(room))
    verdict = [
        f"An iteration takes {duration(whole)}: {float(found.tokens_s):,.0f} tokens/s, "
        f"{float(found.flops_gpu) / 1e12:.0f} model TFLOP/s a GPU; communication "
        f"{float(found.comm_share):.0%}, bubble {float(found.bubble_share):.0%}.",
        f"It needs {byte_size(float(found.memory.total))}{limit} a GPU: "
        f"{'fits' if found.fits else 'does not fit'}.",
    ]
    if (waits := float(found.launches) / whole) >= LEAST:
        verdict.append(
            f"The GPU waits {waits:.0%} of the time for kernel launches: a larger "
            "micro-batch, or CUDA graphs, would use it."
        )
    if (waits := float(found.head_share)) >= LEAST:
        verdict.append(f"Waiting for the output layer takes {waits:.0%} of the time.")
    tables: dict[str, Any] = {
        "terms": term_rows(found),
        "memory": [
            {"memory_of": part, "bytes_per_rank": float(getattr(found.memory, part))}
            for part in MEMORY
        ],
        "hidden": [
            {"traffic": kind, "hidden_behind": window, "time": float(time)}
            for (kind, window), time in found.overlapped.items()
        ],
    }
    if calibration is not None:
        tables["terms"] = _measured(tables["terms"], calibration)
        model = float(calibration.predicted.iteration)
        verdict.insert(
            1,
            f"The model explains {model / calibration.measured.iteration_s:.0%} of the "
            "measured iteration; the rest is waiting and calls without bytes.",
        )
    if sensitivity is not None:
        tables["sensitivity"] = [
            {"input": input_.replace("_", " "), "elasticity": float(value)}
            for input_, value in sorted(sensitivity.items(), key=lambda p: -abs(p[1]))
        ]
    return Result(
        verb="estimate",
        head=head(found.config, name),
        tables=tables,
        screen=("terms", *(("sensitivity",) if sensitivity is not None else ())),
        captions={
            "terms": "bytes: sent by the rank that sends most; rate: with latency",
            "sensitivity": "% of the iteration time for 1% of an input",
        },
        verdict=tuple(verdict),
        notes=tuple(notes),
        data=facts(found),
    )


def _measured(rows: list[dict[str, Any]], fit: Calibration) -> list[dict[str, Any]]:
    """Put modeled and measured terms of a captured run beside rows of any layout."""
    took, kinds_of = fit.measured, {words: kinds for words, _, kinds in TERMS.values()}
    moving = {k: float(np.median(m.mean(axis=1))) for k, m in took.moving.items()}
    captured = {row["term"]: row["time"] for row in term_rows(fit.predicted)}
    stated = {"compute": took.compute_s, "iteration": took.iteration_s}
    for row in rows:
        own = [moving[k] for k in kinds_of.get(row["term"], ()) if k in moving]
        row["of_captured"] = captured.get(row["term"])
        row["measured"] = sum(own) if own else stated.get(row["term"])
    return rows


def several(
    founds: Sequence[Estimate | None],
    varied: Sequence[Mapping[str, Any]],
    name: str,
    notes: Sequence[str] = (),
) -> Result:
    """Show estimates of several values of options, a row each.

    ``founds`` are None where a combination is impossible; ``varied`` are the values by
    option.
    """
    pairs = [(v, f) for v, f in zip(varied, founds, strict=True) if f is not None]
    first, rows = pairs[0][1], []
    for found, values in zip(founds, varied, strict=True):
        row = {**values, **figures(found), "speedup": None, "efficiency": None}
        if found is not None:
            row["speedup"] = float(found.tokens_s / first.tokens_s)
            each = float(first.config.world / found.config.world)
            row["efficiency"] = row["speedup"] * each
        rows.append(row)
    order = sorted(pairs, key=lambda pair: float(pair[1].iteration))
    low, high = (
        f"{duration(float(f.iteration))} with {named(values)} (communication "
        f"{float(f.comm_share):.0%})"
        for values, f in (order[0], order[-1])
    )
    left = len(founds) - len(pairs)
    return Result(
        verb="estimate",
        head=name,
        tables={"estimates": rows},
        screen=("estimates",),
        captions={"estimates": "speedup: tokens/s over those of the first row"},
        verdict=(
            f"An iteration takes {low} to {high}.",
            f"{sum(bool(f.fits) for _, f in pairs)} of {len(founds)} fit into memory"
            f"{f', {left} impossible' * bool(left)}.",
        ),
        notes=tuple(notes),
        data={"estimates": [None if f is None else facts(f) for f in founds]},
    )


def figures(found: Estimate | None) -> dict[str, Any]:
    """Return the figures of an estimate that stand in a row; None: impossible."""
    names = "iteration_time tokens_per_s comm_share bubble_share memory_needed fits"
    if found is None:
        return dict.fromkeys(names.split())
    e = found
    cells = e.iteration, e.tokens_s, e.comm_share, e.bubble_share, e.memory.total
    return dict(zip(names.split(), (*map(float, cells), bool(e.fits)), strict=True))


def best(found: Search, name: str, notes: Sequence[str] = ()) -> Result:
    """Show the fastest layouts that fit."""
    rows = []
    for number, layout in enumerate(found.rows(SHOWN)):
        row = figures(found.at(number)) | layout | {"zero_stage": layout["zero"]}
        order = ("iteration_time", "tokens_per_s", "memory_needed", *DEGREES, *BESIDE)
        rows.append({n: row[n] for n in (*order, "comm_share", "bubble_share")})
    return Result(
        verb="estimate",
        head=name,
        tables={"best": rows},
        screen=("best",),
        verdict=(
            f"The fastest takes {duration(rows[0]['iteration_time'])} with "
            f"{named(layout_row(rows[0]))}; {len(found.order):,} of {found.tried:,} "
            "layouts fit into memory.",
            f"{found.unranked:,} layouts are within {MODEL_ERROR:.0%} of it, the "
            "model's error: they cannot be ranked.",
        ),
        notes=tuple(notes),
        data={"tried": found.tried, "within_error": found.unranked},
    )


def layout_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a row of the best layouts that are not the usual ones."""
    usual: dict[str, Any] = {"ep": 1, "cp": 1, "virtual": 1, "zero_stage": 0}
    usual |= {"recompute": "none", "sequence_parallel": False}
    return {n: row[n] for n in (*DEGREES, *BESIDE) if row[n] != usual.get(n)}


def projection(
    measured: StepTimes, ranks: Sequence[int], efficiency: Any, speedup: Any, name: str
) -> Result:
    """Show a captured run on other numbers of ranks, each with its own batch."""
    whole = measured.iteration_s
    rows = [
        {
            "gpus": number,
            "network_efficiency": reached,
            "iteration_time": whole / faster,
            "speedup": faster,
            "throughput": number / measured.ranks * faster,
        }
        for number, reached, faster in zip(
            ranks, efficiency.tolist(), speedup.tolist(), strict=True
        )
    ]
    last = rows[-1]
    return Result(
        verb="estimate",
        head=f"{name}: {measured.ranks} ranks, iteration {duration(whole)}",
        tables={"projection": rows},
        screen=("projection",),
        captions={
            "projection": "compute as captured, collectives and waiting longer by "
            "1/efficiency (SIGMETRICS'24); throughput over the captured run's"
        },
        verdict=(
            f"Collectives and waiting take {measured.communication_s / whole:.0%} of "
            f"the captured iteration.",
            f"On {last['gpus']} ranks an iteration takes "
            f"{duration(last['iteration_time'])}, with {last['throughput']:.3g} times "
            "the throughput.",
        ),
    )


def terms_chart(
    founds: Sequence[Estimate], names: Sequence[str], title: str, source: str
) -> Chart:
    """Draw the terms of estimates as stacked bars, one bar per name."""
    terms = {
        words: (np.nan_to_num([float(getattr(f, term)) for f in founds]), color)
        for term, (words, color, _) in TERMS.items()
    }
    whole = np.array([float(found.iteration) for found in founds])
    labels = [f"{name}: {duration(t)}" for name, t in zip(names, whole, strict=True)]
    return bars_chart(terms, labels, title, source, "iteration time [s]", ends=whole)


def bars_chart(
    parts: Mapping[str, tuple[Any, str]],
    names: Sequence[str],
    title: str,
    source: str,
    label: str,
    *,
    ends: Any = None,
) -> Chart:
    """Draw stacked bars, one for each name: ``parts`` are values ``[n]`` and colors.

    ``ends`` ``[n]`` are marked where they differ from the sums.
    """
    places, left, series = np.arange(len(names)), np.zeros(len(names)), []
    for part, (value, color) in parts.items():
        if np.any(value):
            more: dict[str, Any] = {"base": left, "name": part, "color": color}
            series.append(Series(kind="bars", x=value, y=places, width=0.72, **more))
            left = left + value
    if ends is not None and not np.allclose(ends, left):
        more = {"name": "with overlap", "color": "#000000", "symbol": "tick"}
        series.append(Series(kind="points", x=ends, y=places, size=18, **more))
    x, y = Axis(label=label, from_zero=True), Axis(names=tuple(names), reverse=True)
    panel = Panel(x=x, y=y, series=tuple(series))
    return Chart(
        title=title, source=source, panels=(panel,), height=190 + 32 * len(names)
    )
