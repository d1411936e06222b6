"""What a trace holds, as plain data and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace, WireForm
from moetraffic.trace.clock import error_ns
from moetraffic.trace.model import Meta
from moetraffic.trace.totals import all_to_all_bytes
from moetraffic.units import byte_size, rank_span

FORMS = {
    WireForm.UNKNOWN: "not seen",
    WireForm.CONSTANT: "constant",
    WireForm.DEMAND: "= (demand - dropped) x row bytes",
    WireForm.STORED: "stored",
}


def overview(trace: Trace, path: Path) -> dict[str, Any]:
    """What a trace holds, as plain data."""
    sent, kept = all_to_all_bytes(trace)
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites))
    sites = []
    for site, count in zip(trace.sites, counts.tolist(), strict=True):
        group = trace.groups[site.group]
        sites.append(
            {
                "operation": site.operation,
                "phase": site.phase,
                "label": site.label,
                "layer": site.layer if site.layer >= 0 else None,
                "direction": site.direction,
                "slot": site.slot,
                "group": f"{group.kind} {rank_span(group.ranks)}",
                "dtype": site.dtype,
                "row_bytes": site.row_bytes,
                "occurrences": count,
                "wire": FORMS[site.wire] if site.operation != ROUTING else "",
                "wire_checked": site.wire_checked,
            }
        )
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "meta": trace.meta.as_dict(),
        "steps": len(trace.steps.iteration),
        "training_iterations": len(trace.iterations),
        "loss": _losses(trace),
        "moe_layers": list(trace.layers),
        "occurrences": len(trace.occurrences),
        "all_to_all_bytes": sent,
        "all_to_all_bytes_to_itself": kept,
        "clock_error_ns": error_ns(trace.clocks),
        "sites": sites,
    }


def _losses(trace: Trace) -> dict[str, float | None]:
    train = np.array([kind == "train" for kind in trace.steps.kind], bool)
    known = ~np.isnan(trace.steps.loss).all(axis=1) & train
    if not known.any():
        return {"first": None, "last": None}
    means = np.nanmean(trace.steps.loss[known], axis=1)
    return {"first": float(means[0]), "last": float(means[-1])}


def _alike(
    sites: Sequence[dict[str, Any]],
) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Sites that differ in slot and group alone, together, in the program's order."""
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for s in sites:
        kind = s["group"].split(" ", 1)[0]
        call = s["phase"] or s["label"] or s["operation"]
        key = (s["layer"], call, s["operation"], kind, s["row_bytes"], s["wire"])
        together.setdefault(key, []).append(s)
    return list(together.items())


def show(trace: Trace, path: Path, paper: Console) -> None:
    """Print what a trace holds as tables."""
    told = overview(trace, path)
    meta = trace.meta
    paper.print(
        f"[bold]{escape(str(path))}[/bold]: {byte_size(told['bytes'])}, {meta.origin}"
    )
    facts = Table.grid(padding=(0, 2))
    rows = {
        "model": _model(meta),
        "ranks": _layout(trace),
        "steps": f"{told['steps']}, of these training {told['training_iterations']}"
        + _loss_words(told["loss"]),
        "MoE layers": ", ".join(map(str, trace.layers)) or "not told",
        "all-to-all": f"{byte_size(told['all_to_all_bytes'])} sent, of it to the "
        f"rank itself {byte_size(told['all_to_all_bytes_to_itself'])}"
        + _silence(trace),
        "schedule": meta.schedule or "told by the program",
        "clock error": f"{told['clock_error_ns'] / 1e3:.1f} us",
        "complete": "yes" if meta.complete else "no, see below",
        "made by": f"moetraffic {meta.moetraffic}, torch {meta.torch}, {meta.created}",
    }
    for name, value in rows.items():
        facts.add_row(name, Text(value))  # a name may look like markup
    paper.print(facts)
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for column in ("layer", "call", "slot", "group", "row bytes"):
        table.add_column(column)
    table.add_column("times", justify="right")
    table.add_column("bytes on the wire")
    for (layer, call, operation, kind, row, wire), sites in _alike(told["sites"]):
        groups = sorted({s["group"] for s in sites})
        slots = sorted({s["slot"] for s in sites})
        table.add_row(
            "" if layer is None else str(layer),
            call if call == operation else f"{call} ({operation})",
            str(slots[0]) if len(slots) == 1 else f"{slots[0]} to {slots[-1]}",
            groups[0] if len(groups) == 1 else f"{kind}, {len(groups)} groups",
            str(row or ""),
            str(sum(s["occurrences"] for s in sites)),
            wire,
        )
    paper.print(table)
    for sentence in _sentences(meta.missing):
        paper.print(Text(f"missing: {sentence}", style="yellow"), soft_wrap=True)


def _sentences(missing: str) -> list[str]:
    """What is missing of a trace, a sentence each."""
    return [part for part in missing.split("; ") if part]


def _model(meta: Meta) -> str:
    """The model in words; what an own loop did not say is "not told"."""
    parts = (
        meta.model or "name not told",
        f"{meta.layers} layers, hidden {meta.hidden}" if meta.layers else "",
        f"{meta.experts} experts" if meta.experts else "experts not told",
        meta.router or "router not told",
        f"k={meta.k}" if meta.k else "k not told",
        meta.dispatch,
    )
    return ", ".join(part for part in parts if part)


def _layout(trace: Trace) -> str:
    """Ranks and what they are to each other, as far as it is known."""
    meta = trace.meta
    over = "virtual" if meta.virtual else meta.backend
    if layout_told(meta):
        return f"{meta.world} (ep {meta.ep}, dp {meta.dp}), {over}"
    return f"{meta.world} ({ep_words(trace)}, dp not told), {over}"


def layout_told(meta: Meta) -> bool:
    """Whether the parallel axes are known: nobody tells those of an own loop."""
    return bool(meta.workload or meta.origin != "captured" or meta.dp > 1)


def ep_words(trace: Trace) -> str:
    """What the groups of an own loop's exchanges tell of expert parallelism."""
    told = any(s.phase or s.operation == ROUTING for s in trace.sites)
    return f"ep {trace.meta.ep} by its exchanges" if told else "ep not told"


def _loss_words(loss: dict[str, float | None]) -> str:
    first, last = loss["first"], loss["last"]
    if first is None or last is None:
        return ""
    return f", mean loss of all ranks {first:.3f} to {last:.3f}"


def _silence(trace: Trace) -> str:
    """Why a trace with experts has no all-to-all, where it is known."""
    exchanges = any(s.operation == ALL_TO_ALL for s in trace.sites)
    if exchanges or trace.meta.ep > 1 or not trace.layers:
        return ""
    return ": with ep 1 each rank holds all experts, and sends its tokens to nobody"
