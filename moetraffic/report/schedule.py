"""Schedules as tables, plain data and a picture: circuits, and jobs on one link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.analysis.network.circuit_plan import CircuitPlan
from moetraffic.analysis.rhythm.typical_iteration import TypicalIteration
from moetraffic.fabric.circuits import coverage, duty, term_seconds, terms_for
from moetraffic.fabric.compatibility import Compatibility, Job, around
from moetraffic.fabric.decomposition import Decomposition
from moetraffic.units import bit_rate, byte_size, duration, rank_span

from .figures import LINE_COLORS

Int64 = npt.NDArray[np.int64]

SHARES = (0.5, 0.9, 0.99)
"""Of the demand, whose terms are counted."""


def circuits_as_dict(
    served: Sequence[CircuitPlan], *, capacity_bytes_s: float, reconfigure_s: float
) -> dict[str, Any]:
    """Every schedule as plain data: terms in their order, with bytes and times."""
    rate = capacity_bytes_s
    return {
        "kind": "circuit schedule (Birkhoff-von Neumann)",
        "capacity_bytes_s": rate,
        "reconfigure_s": reconfigure_s,
        "exchanges": [
            {
                "layer": one.layer if one.layer >= 0 else None,
                "exchange": one.name,
                "ranks": list(one.ranks),
                "of": one.about,
                "schedules": [
                    _schedule(found, rate, reconfigure_s) for found in one.schedules
                ],
            }
            for one in served
        ],
    }


def _schedule(found: Decomposition, rate: float, delay: float) -> dict[str, Any]:
    told = duty(found, capacity_bytes_s=rate, reconfigure_s=delay)
    return {
        "matching": found.matching,
        "demand_bytes": int(found.demand.sum()),
        "slack_bytes": int(found.slack.sum()),
        "circuits": told.terms,
        "sending_s": told.sending_s,
        "reconfiguring_s": told.reconfiguring_s,
        "duty": told.duty,
        "lower_bound_s": told.bound_s,
        "terms_for": {f"{s:g}": terms_for(found, s) for s in SHARES},
        "coverage": coverage(found),
        "terms": [
            {"to": to, "bytes": sent, "weight_bytes": weight, "seconds": seconds}
            for to, sent, weight, seconds in zip(
                found.permutations.tolist(),
                found.served.tolist(),
                found.weights.tolist(),
                term_seconds(found, capacity_bytes_s=rate).tolist(),
                strict=True,
            )
        ],
    }


def circuits_table(
    served: Sequence[CircuitPlan], *, capacity_bytes_s: float, reconfigure_s: float
) -> Table:
    """A row an exchange; means over its matrices."""
    table = _table(
        f"Circuits of {bit_rate(capacity_bytes_s)}, set anew in "
        f"{duration(reconfigure_s)}: "
        + (served[0].schedules[0].matching if served else "")
        + " matching"
    )
    for name in ("layer", "exchange", "ranks", "of"):
        table.add_column(name)
    names = ["bytes", "circuits", *(f"for {s:.0%}" for s in SHARES)]
    names += ["sending", "bound", "with setting", "duty"]
    for name in names:
        table.add_column(name, justify="right")
    for one in served:
        told = [
            duty(f, capacity_bytes_s=capacity_bytes_s, reconfigure_s=reconfigure_s)
            for f in one.schedules
        ]
        counts = [float(np.mean([t.terms for t in told]))]
        counts += [
            float(np.mean([terms_for(f, s) for f in one.schedules])) for s in SHARES
        ]
        table.add_row(
            str(one.layer) if one.layer >= 0 else "",
            one.name,
            rank_span(one.ranks),
            one.about,
            byte_size(float(np.mean([f.demand.sum() for f in one.schedules]))),
            *(f"{count:.4g}" for count in counts),
            duration(float(np.mean([t.sending_s for t in told]))),
            duration(float(np.mean([t.bound_s for t in told]))),
            duration(float(np.mean([t.total_s for t in told]))),
            _share(np.array([t.duty for t in told])),
        )
    return table


def jobs_as_dict(
    jobs: Sequence[Job],
    cadences: Sequence[TypicalIteration],
    found: Compatibility,
    *,
    capacity_bytes_s: float,
    demand: str,
) -> dict[str, Any]:
    """Score and time shifts as plain data."""
    return {
        "kind": "time shifts on one link (CASSINI)",
        "capacity_bytes_s": capacity_bytes_s,
        "demand": demand,
        "score": found.score,
        "score_unshifted": found.unshifted,
        "score_worst": found.worst,
        "perimeter_s": found.circle.perimeter_s,
        "period_deviation": found.circle.deviation,
        "angles": found.angles,
        "all_shifts_tried": found.exhaustive,
        "jobs": [
            {
                "file": job.name,
                "time_shift_s": shift,
                "period_s": job.period_s,
                "times_on_the_circle": repeats,
                "rank": seen.rank,
                "duty": float((job.rate_bytes_s > 0).mean()),
                "mean_rate_bytes_s": float(job.rate_bytes_s.mean()),
                "captured_rate_bytes_s": float(seen.bytes_s.mean()),
                "period_strength": seen.rhythm.strength,
                "period_jitter": seen.rhythm.jitter,
                "iterations": seen.iterations,
                "of": seen.about,
                "rate_bytes_s": job.rate_bytes_s,
            }
            for job, seen, shift, repeats in zip(
                jobs, cadences, found.shifts_s, found.circle.repeats, strict=True
            )
        ],
    }


def jobs_tables(
    jobs: Sequence[Job],
    cadences: Sequence[TypicalIteration],
    found: Compatibility,
    *,
    capacity_bytes_s: float,
) -> Group:
    """A row a job, and the score."""
    table = _table(f"Jobs on one link of {bit_rate(capacity_bytes_s)}")
    table.add_column("job")
    for name in (
        "rank",
        "period",
        "on circle",
        "mean load",
        "peak load",
        "ACF",
        "jitter",
        "time shift",
    ):
        table.add_column(name, justify="right")
    for job, seen, shift, repeats in zip(
        jobs, cadences, found.shifts_s, found.circle.repeats, strict=True
    ):
        table.add_row(
            job.name,
            str(seen.rank),
            duration(job.period_s),
            f"{repeats} x",
            f"{float(job.rate_bytes_s.mean()) / capacity_bytes_s:.1%}",
            f"{float(job.rate_bytes_s.max()) / capacity_bytes_s:.1%}",
            _figure(seen.rhythm.strength, ".2f"),
            _figure(seen.rhythm.jitter, ".1%"),
            duration(shift) if shift else "0",
        )
    lines = [
        f"compatibility {found.score:.3f} with these shifts, {found.unshifted:.3f} "
        f"without, {found.worst:.3f} at worst (1: never more than the link carries)",
        f"circle of {duration(found.circle.perimeter_s)}, {found.angles} angles; "
        f"periods are changed by {found.circle.deviation:.2%} to fit it",
    ]
    if not found.exhaustive:
        lines.append("too many jobs to try all shifts: these are of a local search")
    return Group(table, *map(Text, lines))


def jobs_figure(
    jobs: Sequence[Job], found: Compatibility, *, capacity_bytes_s: float, source: str
) -> Figure:
    """What the jobs ask for around the circle, before and after the shifts."""
    fig = Figure(figsize=(9.0, 5.0), layout="constrained")
    FigureCanvasAgg(fig)
    panels = fig.subplots(2, 1, sharex=True, sharey=True)
    scale, unit = (1e3, "ms") if found.circle.perimeter_s < 10 else (1.0, "s")
    at = np.arange(found.angles + 1) / found.angles * found.circle.perimeter_s * scale
    rates = [
        around(job, repeats=r, angles=found.angles) / capacity_bytes_s
        for job, r in zip(jobs, found.circle.repeats, strict=True)
    ]
    turns = [round(s / found.circle.perimeter_s * found.angles) for s in found.shifts_s]
    for panel, turned, name, score in (
        (panels[0], [0] * len(jobs), "as captured", found.unshifted),
        (panels[1], turns, "shifted", found.score),
    ):
        below = np.zeros(found.angles)
        for number, (rate, turn) in enumerate(zip(rates, turned, strict=True)):
            above = below + np.roll(rate, turn)
            panel.fill_between(
                at,
                np.append(below, below[-1]),
                np.append(above, above[-1]),
                step="post",
                color=LINE_COLORS[number % len(LINE_COLORS)],
                alpha=0.75,
                linewidth=0,
                label=jobs[number].name,
            )
            below = above
        panel.axhline(1.0, color="black", linewidth=1.0, linestyle="--")
        panel.set_ylabel("load / capacity")
        panel.set_title(f"{name}: score {score:.3f}", loc="left", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.01)
    panels[1].set_xlabel(f"time around the circle [{unit}]")
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
    fig.suptitle(
        f"Jobs that share a link\n{source}", x=0.01, ha="left", fontsize="medium"
    )
    return fig


def _share(values: npt.NDArray[np.float64]) -> str:
    known = values[np.isfinite(values)]
    return f"{float(known.mean()):.1%}" if len(known) else ""


def _figure(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else ""


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1)
    )
