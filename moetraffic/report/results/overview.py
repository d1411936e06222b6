"""Summarize a trace: run, layout and call sites, as tables and plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.report.summary.layer_lists import dropped_copies
from moetraffic.tables import Table, tables_of
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.clock import error_ns
from moetraffic.trace.model import REPEATED, Meta
from moetraffic.trace.provenance import SOURCES, source_counts
from moetraffic.trace.totals import all_to_all_bytes, dropped_share
from moetraffic.units import byte_size, rank_span


def overview(trace: Trace, path: Path) -> dict[str, Any]:
    """Summarize a trace as plain data: metadata, steps, loss, bytes and call sites."""
    sent, kept = all_to_all_bytes(trace)
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
        "sources": source_counts(trace),
        "sites": _sites(trace),
    }


def _sites(trace: Trace) -> list[dict[str, Any]]:
    """List the call sites with the number of their calls."""
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites))
    fields = ("operation", "phase", "label", "direction", "slot", "dtype")
    return [
        {
            **{name: getattr(site, name) for name in fields},
            "source": site.source.name.lower(),
            "layer": site.layer if site.layer >= 0 else None,
            "group": f"{group.kind} {rank_span(group.ranks)}",
            "row_bytes": site.row_bytes,
            "sampled_tokens": site.token_sample,
            "occurrences": count,
            "wire": ""
            if site.operation == ROUTING
            else ("known" if known else "not seen"),
        }
        for site, count, known in zip(
            trace.sites, counts.tolist(), trace.has_bytes.tolist(), strict=True
        )
        for group in (trace.groups[site.group],)
    ]


def _losses(trace: Trace) -> dict[str, float | None]:
    train = np.array([kind == "train" for kind in trace.steps.kind], bool)
    known = ~np.isnan(trace.steps.loss).all(axis=1) & train
    if not known.any():
        return {"first": None, "last": None}
    means = np.nanmean(trace.steps.loss[known], axis=1)
    return {"first": float(means[0]), "last": float(means[-1])}


def sentence(trace: Trace, path: Path) -> str:
    """Summarize the trace of a file: completeness, iterations, layers and bytes."""
    layers, iterations = len(trace.layers), len(trace.iterations)
    whole, kept = all_to_all_bytes(trace, trace.iterations)
    other = np.setdiff1d(trace.steps.iteration, trace.iterations)
    beside, _ = all_to_all_bytes(trace, other)
    kinds = " and ".join(sorted(set(trace.steps.kind) - {"train"}))
    dropped = dropped_share(trace)
    known = trace.has_bytes[trace.square]
    sent = (
        f"no all-to-alls{_no_exchange(trace)}"
        if not len(known)
        else "bytes of its all-to-alls unknown"
        if not known.all() and not whole + beside
        else f"{byte_size(whole)} sent by all-to-alls in training, of which rank-local "
        f"(self) traffic: {byte_size(kept)}"
    )
    return (
        f"{path}: {'complete' if trace.meta.complete else 'incomplete'}, "
        f"{iterations:,} training iteration{'s' * (iterations != 1)}, "
        + (f"{layers} MoE layer{'s' * (layers > 1)}, " if layers else "")
        + f"{trace.meta.world} ranks; {sent}"
        + (f"; {byte_size(beside)} more in {kinds} steps" if beside else "")
        + ("" if dropped is None else f"; {dropped_copies([dropped])}")
        + ("; rows sent contradict the routing" if trace.meta.contradiction else "")
        + "."
    )


@tables_of.register
def tables(trace: Trace, path: Path | None = None) -> list[Table]:
    """Tabulate the metadata and call sites of a trace.

    Sites that differ only in call index and group share a row. With the path of its
    file, :func:`sentence` names it.
    """
    meta = trace.meta
    file = [] if path is None else [byte_size(path.stat().st_size)]
    error_us = error_ns(trace.clocks) / 1e3
    file += [
        "complete" if meta.complete else "incomplete, see below",
        *([f"clock error {error_us:.1f} us"] if len(trace.clocks) else []),
        ", ".join(
            word + value
            for word, value in (
                ("made by moetraffic ", meta.moetraffic),
                ("torch ", meta.torch),
                ("", meta.created),
            )
            if value
        )
        or "made by unknown software",
    ]
    layers = [
        ", ".join(map(str, trace.layers)) or "unknown",
        f"token sample: {sample}" if (sample := _sample(trace)) else "",
    ]
    facts = {
        "run": ", ".join(
            word
            for word in (
                f"{meta.origin}, {meta.world} ranks ({layout(trace)})",
                "virtual" if meta.virtual else meta.backend,
                "" if meta.origin == "captured" else meta.source,
            )
            if word
        ),
        "model": _model(meta),
        "steps": f"{len(trace.steps.iteration)}, of which training: "
        f"{len(trace.iterations)}{_loss_words(_losses(trace))}"
        + (f"; one of {meta.every} iterations is recorded" if meta.every > 1 else "")
        + (
            f"; seeds: initialization {meta.seed}, data {meta.data_seed}"
            if meta.data_seed >= 0
            else ""
        )
        + (
            f"; from iteration {meta.repeats_from} on they {REPEATED}"
            if meta.repeats_from >= 0
            else ""
        ),
        f"MoE layer{'s' * (len(trace.layers) != 1)}": "; ".join(filter(None, layers)),
        "inference": meta.schedule,
        "rows sent": meta.contradiction,
        "file": "; ".join(file),
    }
    notes = [f"inferred: {meta.inferred}"] if meta.inferred else []
    notes += [f"missing: {part}" for part in meta.missing.split("; ") if part]
    by_source = Table(
        title="Sources of layers, phases and steps",
        columns=dict.fromkeys(["of", *SOURCES], "") | {"of": "<"},
        rows=[(what, *n.values()) for what, n in source_counts(trace).items()],
    )
    names = ("layer", "call", "call index", "group", "row bytes", "count")
    return [
        Table(
            title=trace.name if path is None else "",
            rows=[pair for pair in facts.items() if pair[1]],
            notes=notes,
        ),
        by_source,
        Table(
            columns=dict.fromkeys(names, "") | {"layer": "<"},
            rows=_site_rows(trace),
        ),
    ]


def _site_rows(trace: Trace) -> list[tuple[object, ...]]:
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for site in _sites(trace):
        call, operation = site["phase"] or site["label"], site["operation"]
        name = f"{call} ({operation})" if call not in ("", operation) else operation
        kind = site["group"].split(" ", 1)[0]
        name += ", bytes unknown" * (site["wire"] == "not seen")
        key = (site["layer"], name, kind, site["row_bytes"])
        together.setdefault(key, []).append(site)
    rows: list[tuple[object, ...]] = []
    for (layer, name, kind, row_bytes), sites in together.items():
        groups = {s["group"] for s in sites}
        slots = [s["slot"] for s in sites]
        first, last = min(slots), max(slots)
        rows.append(
            (
                *(layer, name, str(first) if first == last else (first, last)),
                groups.pop() if len(groups) == 1 else f"{kind}, {len(groups)} groups",
                row_bytes or None,
                sum(s["occurrences"] for s in sites),
            )
        )
    return rows


def _sample(trace: Trace) -> str:
    """Describe the tokens whose experts are recorded; "" if there are none."""
    numbers = {site.token_sample for site in trace.sites} - {0}
    if not numbers:
        return ""
    most = max(numbers)
    return f"experts of up to {most} tokens of each rank, layer and micro-batch"


def _model(meta: Meta) -> str:
    """Describe model, experts and router in one line."""
    parts = (
        meta.model or "model name unknown",
        f"{meta.layers} layers, hidden {meta.hidden}" if meta.layers else "",
        f"{meta.experts} experts" if meta.experts else "experts unknown",
        meta.router or "router name unknown",
        f"k={meta.k}" if meta.k else "k unknown",
        meta.dispatch,
    )
    return ", ".join(part for part in parts if part)


LAYOUT_UNKNOWN = "layout unknown"


def about(trace: Trace) -> str:
    """Describe origin, model, ranks and router of a run in a few words."""
    meta = trace.meta
    router = f"{meta.router} k={meta.k} {meta.dispatch}".strip() if meta.router else ""
    parts = [
        f"{meta.origin.capitalize()} run",
        meta.model,
        f"{meta.world} ranks",
        "" if layout(trace) == LAYOUT_UNKNOWN else f"EP {meta.ep}",
        f"{meta.experts} experts" if meta.experts else "",
        router,
    ]
    return ", ".join(part for part in parts if part)


def layout_known(meta: Meta) -> bool:
    """Return whether the trace records its parallel layout.

    User loops and most imports do not, nor replays on other ranks than those of the
    layout.
    """
    if meta.origin in ("replayed", "imported"):
        return meta.dp * meta.tp * meta.pp * meta.cp == meta.world
    return bool(meta.workload or meta.origin != "captured" or meta.dp > 1)


def layout(trace: Trace) -> str:
    """Describe the degrees of parallelism, as far as known."""
    meta = trace.meta
    if layout_known(meta):
        of = {"dp": meta.dp, "tp": meta.tp, "pp": meta.pp, "cp": meta.cp}
        words = [f"{name} {n}" for name, n in of.items() if n > 1 or name == "dp"]
        among = " among the same ranks" * (meta.ep > 1)
        return f"{', '.join(words)}; ep {meta.ep}{among}"
    if meta.origin == "replayed":
        return LAYOUT_UNKNOWN
    known = any(s.phase or s.operation == ROUTING for s in trace.sites)
    by = ", inferred from exchanges" if meta.origin == "captured" else ""
    ep = f"ep {meta.ep}{by}" if known else "ep unknown"
    return f"{ep}, dp unknown"


def _loss_words(loss: dict[str, float | None]) -> str:
    first, last = loss["first"], loss["last"]
    if first is None or last is None:
        return ""
    return f"; mean loss of all ranks from {first:.3f} to {last:.3f}"


def _no_exchange(trace: Trace) -> str:
    """Explain why a trace has no all-to-all, where known."""
    if trace.meta.ep > 1 or not trace.layers:
        return ""
    return ": with ep 1 each rank holds all experts and sends no tokens"
