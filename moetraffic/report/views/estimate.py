"""Estimated iteration times: one with its terms, several in a table, the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.patterns import Layout
from moetraffic.report.chart import LINE_COLORS, OTHER_COLOR, Axis, Chart, Panel, Series
from moetraffic.result import Result
from moetraffic.timemodel import MODEL_ERROR, Estimate, Search, Sensitivity
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
BESIDE = ("virtual", "zero_stage", "micro_batch")
LEAST = 0.01
"""Share of an iteration from which a wait is stated."""

SHOWN, DRAWN = 12, 6
"""Best layouts in the table and in the chart."""


def layout_words(layout: Layout) -> str:
    """Name the parallel degrees of a layout that are not 1: "dp 8, ep 8"."""
    sizes = {name: int(np.ravel(getattr(layout, name))[0]) for name in DEGREES}
    return ", ".join(f"{name} {n}" for name, n in sizes.items() if n > 1)


def batch_words(layout: Layout, tokens: float) -> str:
    """State what an iteration trains on.

    ``tokens`` of a sequence.
    """
    number = float(np.ravel(layout.sequences)[0])
    several = "s" * (number != 1)
    return f"{number:,.0f} sequence{several} of {tokens:,.0f} tokens"


def head(layout: Layout, name: str) -> str:
    """Name model, ranks, layout and batch."""
    world, words = int(np.ravel(layout.world)[0]), layout_words(layout)
    batch = batch_words(layout, float(np.ravel(layout.sizes.source)[0]))
    ranks = f"{world:,} GPU{'s' * (world > 1)}{f' ({words})' * bool(words)}"
    return f"{name}, {ranks}, {batch}"


def term_rows(found: Estimate) -> list[dict[str, Any]]:
    """List the terms of one estimate, with bytes, calls and rate of communication."""
    whole = float(found.iteration)
    hidden: dict[str, float] = {}
    for (kind, _), time in found.overlapped.items():
        hidden[kind] = hidden.get(kind, 0.0) + float(time)
    rows = []
    for name, (words, _, kinds) in TERMS.items():
        time = float(getattr(found, name))
        if not time:
            continue
        row: dict[str, Any] = {"term": words, "time": time, "time_share": time / whole}
        row |= dict.fromkeys(
            ("bytes_per_rank", "calls_per_iteration", "rate", "hidden_time")
        )
        if kinds:
            row["bytes_per_rank"] = sum(float(found.wire[kind]) for kind in kinds)
            row["calls_per_iteration"] = sum(float(found.calls(kind)) for kind in kinds)
            row["rate"] = float(found.bandwidth(kinds))
            row["hidden_time"] = sum(hidden.get(kind, 0.0) for kind in kinds) or None
        rows.append(row)
    rest = dict.fromkeys(("bytes_per_rank", "calls_per_iteration", "rate"))
    under = float(found.hidden)
    total = {"term": "iteration", "time": whole, "time_share": 1.0}
    return [*rows, {**total, **rest, "hidden_time": under or None}]


def memory_words(found: Estimate) -> str:
    """State the memory that an estimate needs, and whether it fits."""
    room, needed = float(found.memory_room), float(found.memory.total)
    limit = f" of {byte_size(room)}" * bool(np.isfinite(room))
    fits = "fits" if found.fits else "does not fit"
    return f"It needs {byte_size(needed)}{limit} a GPU: {fits}."


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
    sensitivity: Sensitivity | None = None,
    calibration: Calibration | None = None,
) -> Result:
    """Show one estimate: a table of its terms.

    ``name`` is that of the model and what it runs on.
    """
    whole = float(found.iteration)
    rows = term_rows(found)
    verdict = [
        f"An iteration takes {duration(whole)}: {float(found.tokens_s):,.0f} tokens/s, "
        f"{float(found.flops_gpu) / 1e12:.0f} model TFLOP/s a GPU; communication "
        f"{float(found.comm_share):.0%}, bubble {float(found.bubble_share):.0%}.",
        memory_words(found),
    ]
    if (waits := float(found.launches) / whole) >= LEAST:
        verdict.append(
            f"The GPU waits {waits:.0%} of the time for kernel launches: a larger "
            "micro-batch, or CUDA graphs, would use it."
        )
    if (waits := float(found.head_share)) >= LEAST:
        verdict.append(f"Waiting for the output layer takes {waits:.0%} of the time.")
    tables: dict[str, Any] = {
        "terms": rows,
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
        tables["terms"] = _measured(rows, calibration)
        share = (
            float(calibration.predicted.iteration) / calibration.measured.iteration_s
        )
        verdict.insert(
            1,
            f"The model explains {share:.0%} of the measured iteration; the rest is "
            "waiting and calls without bytes.",
        )
    if sensitivity is not None:
        tables |= sensitivity_tables(sensitivity)
    screen = [t for t in ("terms", "sensitivity") if t in tables]
    return Result(
        verb="estimate",
        head=head(found.config, name),
        tables=tables,
        screen=tuple(screen),
        captions={
            "terms": "bytes: sent by the rank that sends most; rate: with latency",
            "sensitivity": "% of the iteration time for 1% of an input",
        },
        verdict=tuple(verdict),
        notes=tuple(notes),
        data=facts(found),
    )


def _measured(rows: list[dict[str, Any]], fit: Calibration) -> list[dict[str, Any]]:
    """Put the terms of a captured run, modeled and measured, beside those of ``rows``.

    ``rows`` may be of another layout.
    """
    took = fit.measured
    of_term = {words: kinds for words, _, kinds in TERMS.values()}
    moving = {k: float(np.median(m.mean(axis=1))) for k, m in took.moving.items()}
    captured = {row["term"]: row["time"] for row in term_rows(fit.predicted)}
    stated = {"compute": took.compute_s, "iteration": took.iteration_s}
    for row in rows:
        kinds = [k for k in of_term.get(row["term"], ()) if k in moving]
        measured = sum(moving[k] for k in kinds) if kinds else stated.get(row["term"])
        row["of_captured"] = captured.get(row["term"])
        row["measured"] = measured
    return rows


def sensitivity_tables(found: Sensitivity) -> dict[str, Any]:
    """Tabulate elasticities by magnitude, and what conventions change."""
    order = sorted(found.elasticities.items(), key=lambda pair: -abs(float(pair[1])))
    return {
        "sensitivity": [
            {"input": name.replace("_", " "), "elasticity": float(value)}
            for name, value in order
        ],
        "conventions": [
            {"convention": name, "change": float(value)}
            for name, value in found.conventions.items()
        ],
    }


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
    sound = [f for f in founds if f is not None]
    first, rows = sound[0], []
    for found, values in zip(founds, varied, strict=True):
        row = dict(values)
        row |= figures(found)
        speedup = None if found is None else float(found.tokens_s / first.tokens_s)
        each = None
        if found is not None and speedup is not None:
            each = speedup * float(first.config.world / found.config.world)
        rows.append(row | {"speedup": speedup, "efficiency": each})
    possible = [
        (row, f) for row, f in zip(varied, founds, strict=True) if f is not None
    ]
    ends = (min(possible, key=_time), max(possible, key=_time))
    low, high = (
        f"{duration(float(f.iteration))} with {named(row)} (communication "
        f"{float(f.comm_share):.0%})"
        for row, f in ends
    )
    fit = sum(bool(f.fits) for f in sound)
    return Result(
        verb="estimate",
        head=name,
        tables={"estimates": rows},
        screen=("estimates",),
        captions={"estimates": "speedup: tokens/s over those of the first row"},
        verdict=(
            f"An iteration takes {low} to {high}.",
            f"{fit} of {len(founds)} fit into memory"
            f"{f', {len(founds) - len(sound)} impossible' * (None in founds)}.",
        ),
        notes=tuple(notes),
        data={"estimates": [None if f is None else facts(f) for f in founds]},
    )


def _time(pair: tuple[Any, Estimate]) -> float:
    return float(pair[1].iteration)


def named(values: Mapping[str, Any]) -> str:
    """Name values of options: "dp 8, zero 1"."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in values.items()
    )


def figures(found: Estimate | None) -> dict[str, Any]:
    """Return the figures of an estimate that stand in a row; None: impossible."""
    names = ("iteration_time", "tokens_per_s", "comm_share", "bubble_share")
    if found is None:
        return dict.fromkeys((*names, "memory_needed", "fits"))
    values = (found.iteration, found.tokens_s, found.comm_share, found.bubble_share)
    row: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
    return row | {"memory_needed": float(found.memory.total), "fits": bool(found.fits)}


def best(found: Search, name: str, notes: Sequence[str] = ()) -> Result:
    """Show the fastest layouts that fit."""
    times = found.estimate.iteration[found.order]
    rows = [
        {"zero_stage" if field == "zero" else field: v for field, v in layout.items()}
        | figures(found.at(number))
        for number, layout in enumerate(found.rows(SHOWN))
    ]
    for row in rows:  # which fit, times first
        row.pop("fits")
    first = ("iteration_time", "tokens_per_s", "memory_needed")
    rows = [{name: row[name] for name in (*first, *row)} for row in rows]
    return Result(
        verb="estimate",
        head=name,
        tables={"best": rows},
        screen=("best",),
        verdict=(
            f"The fastest takes {duration(float(times[0]))} with "
            f"{named(layout_row(rows[0]))}; {len(found.order):,} of {found.tried:,} "
            f"layouts fit into memory.",
            f"{found.unranked:,} layouts are within {MODEL_ERROR:.0%} of it, the "
            f"model's error: they cannot be ranked.",
        ),
        notes=tuple(notes),
        data={"tried": found.tried, "within_error": found.unranked},
    )


def layout_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a row of the best layouts that are not the usual ones."""
    usual: dict[str, Any] = {"ep": 1, "cp": 1, "virtual": 1, "zero_stage": 0}
    usual |= {"recompute": "none", "sequence_parallel": False}
    names = (*DEGREES, *BESIDE, "recompute", "sequence_parallel")
    return {n: row[n] for n in names if n in row and row[n] != usual.get(n)}


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
    founds: Sequence[Estimate], names: Sequence[str], *, title: str, source: str
) -> Chart:
    """Draw the terms of estimates as stacked bars, one bar per name."""
    places, left = np.arange(len(names)), np.zeros(len(names))
    series = []
    for term, (words, color, _) in TERMS.items():
        value = np.nan_to_num([float(getattr(found, term)) for found in founds])
        if value.any():
            more = {"base": left, "name": words, "color": color, "width": 0.72}
            series.append(Series(kind="bars", x=value, y=places, **more))
            left = left + value
    whole = np.array([float(found.iteration) for found in founds])
    if (whole < left * (1 - 1e-9)).any():
        series.append(
            Series(
                kind="points",
                x=whole,
                y=places,
                name="T_iter with overlap",
                color="#000000",
                symbol="tick",
                size=18,
            )
        )
    labels = [f"{name}: {duration(t)}" for name, t in zip(names, whole, strict=True)]
    x = Axis(label="iteration time [s]", from_zero=True)
    y = Axis(names=tuple(labels), reverse=True)
    return Chart(
        title=title,
        source=source,
        panels=(Panel(x=x, y=y, series=tuple(series)),),
        height=190 + 32 * len(names),
    )
