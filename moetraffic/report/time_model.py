"""Estimated iteration times as tables, plain data and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from moetraffic.analysis.times.calibration import FromTrace
from moetraffic.patterns.time_model import Estimate, Search, Sensitivity, Sweep
from moetraffic.patterns.time_model.configuration import RECOMPUTE
from moetraffic.units import byte_size, duration

from .figures import LINE_COLORS, OTHER_COLOR

Float64 = npt.NDArray[np.float64]

TERMS = {
    "compute": "computing",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "experts",
    "pp": "pipeline",
    "dp": "data parallel",
    "bubble": "bubble",
    "overhead": "overheads",
    "optimizer": "optimizer",
}
"""Terms of an iteration's time, by the name of Estimate's attribute."""

SHARES = {
    "comm_share": "communication of T_iter (R_comm)",
    "waiting_share": "the same, bubble counted",
    "bubble_share": "bubble of T_iter",
    "bubble_of_ideal": "bubble of the ideal time, (p-1)/(v m)",
}

COLORS = {
    "compute": LINE_COLORS[0],
    "tp": LINE_COLORS[1],
    "cp": LINE_COLORS[5],
    "ep": LINE_COLORS[3],
    "pp": LINE_COLORS[4],
    "dp": LINE_COLORS[2],
    "bubble": "#D0D0D0",
    "overhead": OTHER_COLOR,
    "optimizer": "#000000",
}


def as_dict(found: Estimate) -> dict[str, Any]:
    """All terms as plain data: seconds, bytes and shares; lists where arrays."""
    needed = found.memory
    told = {
        "iteration_s": found.iteration,
        **{f"{name}_s": getattr(found, name) for name in TERMS},
        "hidden_s": found.hidden,
        **{name: getattr(found, name) for name in SHARES},
        "tokens_s": found.tokens_s,
        "model_flops_gpu": found.flops_gpu,
        "sent_bytes": dict(found.wire),
        "memory_bytes": {
            "weights": needed.weights,
            "gradients": needed.gradients,
            "optimizer": needed.optimizer,
            "activations": needed.activations,
            "total": needed.total,
        },
        "sound": found.sound,
        "fits": found.fits,
    }
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return np.asarray(value).tolist()


def table(found: Estimate, title: str) -> Table:
    """One configuration's terms."""
    out = _table(title)
    for column in ("", "time", "of T_iter", "bytes sent a rank"):
        out.add_column(column, justify="left" if not column else "right")
    whole = float(found.iteration)
    sent = {
        "tp": found.wire["tp"] + found.wire["ends"],
        "dp": found.wire["dp"] + found.wire["edp"] + found.wire["embedding"],
        **{kind: found.wire[kind] for kind in ("cp", "ep", "pp")},
    }
    for name, words in TERMS.items():
        value = float(getattr(found, name))
        if value:
            moved = byte_size(float(sent[name])) if name in sent else ""
            out.add_row(words, duration(value), f"{value / whole:.1%}", moved)
    hidden = float(found.hidden)
    if hidden:
        out.add_row("hidden under computing", f"-{duration(hidden)}", "", "")
    out.add_row("iteration", duration(whole), "100.0%", "", style="bold")
    for name, words in SHARES.items():
        out.add_row(words, "", f"{float(getattr(found, name)):.1%}", "")
    needed = found.memory
    fits = "fits" if found.fits else "does not fit"
    out.add_row(
        "memory",
        "",
        "",
        f"{byte_size(float(needed.total))}, {fits}",
    )
    for name in ("weights", "gradients", "optimizer", "activations"):
        size = byte_size(float(getattr(needed, name)))
        out.add_row(f"  {name}", "", "", size)
    out.add_row("tokens/s", "", "", f"{float(found.tokens_s):,.0f}")
    rate = float(found.flops_gpu) / 1e12
    out.add_row("model TFLOP/s a GPU", "", "", f"{rate:.1f}")
    return out


def calibration_table(found: FromTrace, title: str) -> Table:
    """A captured run beside what the model says of it."""
    out = _table(f"Calibrated on {title}")
    for column in ("", "measured", "model", "effective bandwidth"):
        out.add_column(column, justify="left" if not column else "right")
    took, told = found.measured, found.predicted
    rows = {
        "computing": (took.compute_s, float(told.compute)),
        "iteration": (took.iteration_s, float(told.iteration)),
    }
    for kind, moving in took.moving.items():
        mean = float(np.median(moving.mean(axis=1)))
        ours = told.communication.get(kind)
        speed = took.bandwidth(kind)
        out.add_row(
            f"{kind} moves",
            duration(mean),
            duration(float(ours)) if ours is not None else "",
            f"{byte_size(speed)}/s" if np.isfinite(speed) else "",
        )
    for name, (measured, modeled) in rows.items():
        out.add_row(name, duration(measured), duration(modeled), "")
    out.caption = (
        f"residual {found.residual:+.1%}: what is between are ranks that wait for each "
        "other, and what has no bytes"
    )
    out.caption_justify = "left"
    return out


def several(
    found: Estimate,
    names: Sequence[str],
    head: str,
    title: str,
    beside: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A row a configuration, ``[n]``; what cannot exist says so.

    Parameters
    ----------
    found
        Arrays ``[n]``.
    names, head
        Of the rows, and what they are.
    title
        Of the table.
    beside
        More columns, by their heads.
    """
    out = _table(title)
    more = dict(beside or {})
    out.add_column(head)
    for column in ("T_iter", "tokens/s", "R_comm", "bubble", "memory", "fits", *more):
        out.add_column(column, justify="right")
    memory = np.broadcast_to(found.memory.total, found.sound.shape)
    for at, name in enumerate(names):
        if not found.sound[at]:
            out.add_row(name, "cannot be")
            continue
        out.add_row(
            name,
            duration(float(found.iteration[at])),
            f"{found.tokens_s[at]:,.0f}",
            f"{found.comm_share[at]:.1%}",
            f"{found.bubble_share[at]:.1%}",
            byte_size(float(memory[at])),
            "yes" if found.fits[at] else "no",
            *(values[at] for values in more.values()),
        )
    return out


def sweep_table(found: Sweep, names: Sequence[str], title: str) -> Table:
    """The rows of :func:`several`, with speedup and efficiency."""
    beside = {
        "speedup": [f"{one:.2f}" for one in found.speedup],
        "efficiency": [f"{one:.1%}" for one in found.efficiency],
    }
    return several(found.estimate, names, "size", title, beside)


def search_table(found: Search, number: int, title: str) -> Table:
    """The best configurations, a row each."""
    out = _table(title)
    names = ("pp", "tp", "dp", "ep", "cp", "v", "b", "ZeRO", "recompute", "SP")
    for column in (*names, "T_iter", "tokens/s", "R_comm", "bubble", "memory"):
        out.add_column(column, justify="right")
    told = found.estimate
    for at, row in zip(found.order[:number], found.rows(number), strict=True):
        values = list(row.values())
        out.add_row(
            *(f"{value:.0f}" for value in values[:8]),
            RECOMPUTE[int(values[8])],
            "yes" if values[9] else "no",
            f"{told.iteration[at]:.4g} s",
            f"{told.tokens_s[at]:,.0f}",
            f"{told.comm_share[at]:.1%}",
            f"{told.bubble_share[at]:.1%}",
            byte_size(float(told.memory.total[at])),
        )
    out.caption = (
        f"{found.tried:,} configurations tried, {len(told.iteration):,} can exist, "
        f"{len(found.order):,} fit"
    )
    out.caption_justify = "left"
    return out


def search_names(found: Search, number: int) -> list[str]:
    """The best configurations in one line each."""
    made = []
    for row in found.rows(number):
        parts = [f"p{row['pp']:.0f} t{row['tp']:.0f} d{row['dp']:.0f}"]
        parts += [
            f"{sign}{row[name]:.0f}"
            for name, sign, usual in (
                ("ep", "e", 1),
                ("cp", "c", 1),
                ("virtual", "v", 1),
                ("zero", "Z", 0),
            )
            if row[name] != usual
        ]
        parts.append(f"b{row['micro_batch']:.0f}")
        parts.append(("", "selective", "full")[int(row["recompute"])])
        parts.append("SP" if row["sequence_parallel"] else "")
        made.append(" ".join(part for part in parts if part))
    return made


def sensitivity_table(found: Sensitivity, title: str) -> Table:
    """Elasticities by size, then what other conventions change."""
    out = _table(title)
    out.add_column("input")
    out.add_column("percent of T_iter a percent of it", justify="right")
    order = sorted(found.elasticities.items(), key=lambda pair: -abs(float(pair[1])))
    for name, value in order:
        out.add_row(name.replace("_", " "), f"{float(value):+.3f}")
    for name, value in found.conventions.items():
        out.add_row(f"with {name}", f"T_iter {float(value):+.1%}")
    return out


def _table(title: str) -> Table:
    out = Table(title=title, box=None, header_style="bold", padding=(0, 1))
    out.title_justify = "left"
    return out


def figure(
    found: Estimate,
    names: Sequence[str],
    *,
    at: npt.ArrayLike | None = None,
    shares: bool = False,
    title: str = "Where an iteration's time goes",
    source: str = "",
) -> Figure:
    """Terms of configurations as stacked bars, the first on top.

    Parameters
    ----------
    found
        Of any shape.
    names
        Of the bars.
    at
        Which of the flattened elements; all if None.
    shares
        Draw percents of each bar's sum instead of seconds.
    title, source
        Headline, and what it was computed from.
    """
    every = np.arange(found.iteration.size) if at is None else np.asarray(at)
    height = 1.9 + 0.32 * len(names)
    fig = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    places = np.arange(len(names))
    left = np.zeros(len(names))
    parts = {
        term: np.nan_to_num(
            np.broadcast_to(getattr(found, term), found.iteration.shape).ravel()[every]
        )
        for term in TERMS
    }
    total = np.asarray(sum(parts.values()))
    unit = np.where(total > 0, total, 1) / 100 if shares else np.ones(len(names))
    for term, words in TERMS.items():
        value = parts[term] / unit
        if not value.any():
            continue
        axes.barh(
            places, value, left=left, color=COLORS[term], label=words, height=0.72
        )
        left = left + value
    hidden = np.nan_to_num(
        np.broadcast_to(found.hidden, found.iteration.shape).ravel()[every]
    )
    whole = np.nan_to_num(found.iteration.ravel()[every])
    if hidden.any():
        axes.plot(
            whole / unit,
            places,
            "|",
            color="black",
            markersize=14,
            label="T_iter, overlapped",
        )
    ends = zip(places.tolist(), whole.tolist(), left.tolist(), strict=True)
    for place, one, end in ends:
        text = f" {one:.4g} s" if one else " cannot be"
        axes.text(end, place, text, va="center", fontsize="small")
    axes.set_xlim(0, 1.12 * max(float(left.max()), 1e-12))
    axes.set_yticks(places, names, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("of all terms' time [%]" if shares else "time of an iteration [s]")
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower left", ncols=6, frameon=False, fontsize="small")
    fig.suptitle(title, x=0.01, ha="left", weight="bold")
    axes.set_title(source, loc="left", fontsize="small", color="#555555", wrap=True)
    return fig
