"""Summarize a trace: run, layout and call sites, as tables and plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.tables import Table
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
    """Summarize a trace as plain data: metadata, steps, loss, bytes and call sites."""
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


WIRE_WORDS = {"not seen": "not observed", "stored": "varies, recorded per call"}
"""Names of wire forms in tables, where they differ from the plain data."""


def tables(trace: Trace, path: Path) -> list[Table]:
    """Tabulate the metadata and call sites of a trace.

    Sites that differ only in call index and group share a row.
    """
    found = overview(trace, path)
    meta = trace.meta
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for site in found["sites"]:
        call, operation = site["phase"] or site["label"], site["operation"]
        name = f"{call} ({operation})" if call not in ("", operation) else operation
        kind = site["group"].split(" ", 1)[0]
        key = (site["layer"], name, kind, site["row_bytes"], site["wire"])
        together.setdefault(key, []).append(site)
    rows = []
    for (layer, name, kind, row_bytes, wire), sites in together.items():
        groups = {s["group"] for s in sites}
        slots = [s["slot"] for s in sites]
        first, last = min(slots), max(slots)
        rows.append(
            (
                *(layer, name, str(first) if first == last else (first, last)),
                groups.pop() if len(groups) == 1 else f"{kind}, {len(groups)} groups",
                row_bytes or None,
                sum(s["occurrences"] for s in sites),
                WIRE_WORDS.get(wire, wire),
            )
        )
    sent = byte_size(found["all_to_all_bytes"])
    kept = byte_size(found["all_to_all_bytes_to_itself"])
    facts = {
        "size": f"{byte_size(found['bytes'])}, {meta.origin}",
        "model": _model(meta),
        "ranks": f"{meta.world} ({layout(trace)}), "
        + ("virtual" if meta.virtual else meta.backend),
        "steps": f"{found['steps']}, of which training: {found['training_iterations']}"
        + _loss_words(found["loss"]),
        "MoE layers": ", ".join(map(str, trace.layers)) or "unknown",
        "all-to-all": f"{sent} sent, of which rank-local (self) traffic: {kept}"
        + _no_exchange(trace),
        "layers and phases": meta.schedule or "annotated",
        "clock error": f"{found['clock_error_ns'] / 1e3:.1f} us",
        "complete": "yes" if meta.complete else "no, see below",
        "made by": f"moetraffic {meta.moetraffic}, torch {meta.torch}, {meta.created}",
    }
    names = ("layer", "call", "call index", "group", "row bytes", "count", "wire bytes")
    missing = [f"missing: {part}" for part in meta.missing.split("; ") if part]
    return [
        Table(title=str(path), rows=list(facts.items())),
        Table(
            columns=dict.fromkeys(names, "") | {"layer": "<"}, rows=rows, notes=missing
        ),
    ]


def _model(meta: Meta) -> str:
    """Describe model, experts and router in one line."""
    parts = (
        meta.model or "model name unknown",
        f"{meta.layers} layers, hidden {meta.hidden}" if meta.layers else "",
        f"{meta.experts} experts" if meta.experts else "experts unknown",
        meta.router or "router unknown",
        f"k={meta.k}" if meta.k else "k unknown",
        meta.dispatch,
    )
    return ", ".join(part for part in parts if part)


def layout_known(meta: Meta) -> bool:
    """Return whether the trace records its parallel layout; user loops do not."""
    return bool(meta.workload or meta.origin != "captured" or meta.dp > 1)


def layout(trace: Trace) -> str:
    """Describe the degrees of expert and data parallelism, as far as known."""
    meta = trace.meta
    if layout_known(meta):
        return f"ep {meta.ep}, dp {meta.dp}"
    known = any(s.phase or s.operation == ROUTING for s in trace.sites)
    ep = f"ep {meta.ep}, inferred from exchanges" if known else "ep unknown"
    return f"{ep}, dp unknown"


def _loss_words(loss: dict[str, float | None]) -> str:
    first, last = loss["first"], loss["last"]
    if first is None or last is None:
        return ""
    return f"; mean loss of all ranks from {first:.3f} to {last:.3f}"


def _no_exchange(trace: Trace) -> str:
    """Explain why a trace with experts has no all-to-all, where known."""
    exchanges = any(s.operation == ALL_TO_ALL for s in trace.sites)
    if exchanges or trace.meta.ep > 1 or not trace.layers:
        return ""
    return ": with ep 1 each rank holds all experts and sends no tokens"
