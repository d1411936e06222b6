"""Contents of a trace: run, layout, traffic of an iteration, layers and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.patterns.collectives import KNOWN, collective_matrix
from moetraffic.result import Result
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Trace
from moetraffic.trace.clock import error_ns
from moetraffic.trace.merge.merging import Merged
from moetraffic.trace.model import REPEATED, Meta, Site
from moetraffic.trace.provenance import source_counts
from moetraffic.trace.totals import dropped_share
from moetraffic.units import rank_span, three_digits

MATRICES = "again with --experts E --k K"
SEND_RECV = "send_recv"

READ_CELLS = 1 << 22
"""Maximum cells of matrices that are in memory at once."""

MOST_LAYERS = 16
"""Number of layers above which their table is not on the first screen."""

LAYOUT_UNKNOWN = "layout unknown"


def info(
    trace: Trace,
    path: Path | None = None,
    *,
    merged: Merged | None = None,
    **more: Any,
) -> Result:
    """Describe the contents of a trace.

    Parameters
    ----------
    trace
        Any.
    path
        Its file; None: a trace in memory.
    merged
        Merge that made it, whose gaps and contradictions become notes.
    **more
        Further facts for ``data``.
    """
    meta, training = trace.meta, trace.iterations
    chosen = trace.find(kind="train" if len(training) else None)
    given, between, known = site_bytes(trace, chosen)
    layers = layer_rows(trace)
    square = np.flatnonzero(trace.square)
    loss, dropped = _loss(trace), dropped_share(trace)
    missing = {
        name: list(getattr(merged, name, ()))
        for name in ("missing", "remarks", "contradictions")
    }
    named = any(row["module"] or row["stage"] is not None for row in layers)
    return Result(
        verb="info",
        head=f"{path or trace.name}: {_run(trace, loss)}; {_model(trace)}",
        tables={
            "traffic": _traffic(trace, chosen, given, between, known),
            "layers": layers,
            "sources": [
                {"of": what, **counts} for what, counts in source_counts(trace).items()
            ],
            "calls": call_rows(trace),
            "groups": [
                {"group": number, "kind": group.kind, "members": rank_span(group.ranks)}
                for number, group in enumerate(trace.groups)
            ],
            "metadata": [
                {"field": name, "recorded": value}
                for name, value in metadata(trace).items()
            ],
        },
        screen=("traffic",) + ("layers",) * (named and len(layers) <= MOST_LAYERS),
        captions={
            "traffic": ("Per training iteration" if len(training) else "In all")
            + ", of all ranks; between ranks: without rank-local bytes, all-reduces as "
            "rings; annotated: the program names layer and phase."
        },
        verdict=tuple(_verdict(trace, dropped)),
        notes=tuple(_notes(trace, missing)),
        data={
            **more,
            "file": str(path or trace.name),
            "file_bytes": path.stat().st_size if path else None,
            "meta": meta.as_dict(),
            "steps": len(trace.steps.iteration),
            "training_iterations": len(training),
            "loss": loss,
            "moe_layers": list(trace.layers),
            "calls": len(trace.occurrences),
            "all_to_all_bytes": int(given[square].sum()),
            "all_to_all_bytes_between_ranks": int(between[square].sum()),
            "dropped_share": dropped,
            "clock_error_ns": error_ns(trace.clocks),
            **(missing if merged else {}),
        },
    )


# ---- tables --------------------------------------------------------------------------


def site_bytes(trace: Trace, calls: Int64) -> tuple[Int64, Int64, Int64]:
    """Sum the bytes of calls by site: those that members give, those between ranks.

    Only calls that all members recorded count.  Other collectives than all-to-alls are
    taken as rings, broadcasts as binomial trees.

    Returns
    -------
    tuple of ndarray
        Bytes given, bytes between ranks and number of counted calls, ``[S]`` int64
        each, in the order of ``trace.sites``.
    """
    given, between = np.zeros((2, len(trace.sites)), np.int64)
    calls = trace.complete(calls[trace.occurrences.matrix[calls] >= 0])
    site, row = trace.occurrences.site[calls], trace.occurrences.matrix[calls]
    # calls of all phases of a layer share a row of the file
    key = np.where(trace.square[site], row, row * len(trace.sites) + site)
    for width, square in np.unique([trace.width[site], trace.square[site]], axis=1).T:
        mine = (trace.width[site] == width) & (trace.square[site] == square)
        _, first, at = np.unique(key[mine], return_index=True, return_inverse=True)
        step = max(1, READ_CELLS // int(width) ** 2)
        read = [
            _bytes(trace, calls[mine][first[n : n + step]], square)
            for n in range(0, len(first), step)
        ]
        for total, values in zip((given, between), np.hstack(read), strict=True):
            np.add.at(total, site[mine], values[at])
    return given, between, np.bincount(site, minlength=len(trace.sites))


def _bytes(trace: Trace, calls: Int64, square: bool) -> Int64:
    """Read the bytes of calls, ``[2, n]``: those given, and those between ranks."""
    if square:
        wire = trace.wire(calls)
        total = wire.sum(axis=(1, 2), dtype=np.int64)
        return np.stack([total, total - np.trace(wire, axis1=1, axis2=2)])
    volume = trace.volume(calls)
    between = np.zeros(len(calls), np.int64)
    for at, number in enumerate(trace.occurrences.site[calls].tolist()):
        site = trace.sites[number]
        if site.operation == SEND_RECV:
            between[at] = volume[at, site.peers[0]]
        elif site.operation in KNOWN:
            moved = collective_matrix(site.operation, volume[at], "ring")
            between[at] = moved.sum() - np.trace(moved)
    return np.stack([volume.sum(axis=1, dtype=np.int64), between])


def _call(site: Site) -> str:
    return site.phase or site.label or site.operation


def _grouped(sites: Iterable[tuple[int, Site]], *names: str) -> dict[Any, list[int]]:
    """Number the sites that have equal attributes and call names."""
    found: dict[Any, list[int]] = {}
    for number, site in sites:
        key = (*(getattr(site, name) for name in names), _call(site))
        found.setdefault(key, []).append(number)
    return found


def _source(sites: Iterable[Site]) -> str:
    """Name the weakest source of what names some calls; "" where nothing does."""
    named = [s.source for s in sites if s.phase or s.label or s.operation == ALL_TO_ALL]
    return min(named).name.lower() if named else ""


def _traffic(
    trace: Trace, chosen: Int64, given: Int64, between: Int64, known: Int64
) -> list[dict[str, Any]]:
    """Tabulate calls and bytes of an iteration by what is called, phases first."""
    iterations = len(trace.iterations)
    per = "_per_iteration" if iterations else ""
    calls = np.bincount(trace.occurrences.site[chosen], minlength=len(trace.sites))
    sending = [(n, s) for n, s in enumerate(trace.sites) if s.operation != ROUTING]
    rows = []
    for (operation, call), numbers in _grouped(sending, "operation").items():
        understood = operation in (ALL_TO_ALL, SEND_RECV, "barrier", *KNOWN)
        sums: dict[str, int | None] = {
            name: int(values[numbers].sum()) if holds else None
            for name, values, holds in (
                ("calls", calls, True),
                ("bytes", given, known[numbers].any()),
                ("bytes_between_ranks", between, known[numbers].any() and understood),
            )
        }
        row: dict[str, Any] = {"call": call.replace("_", " ")}
        for name, total in sums.items():
            row[name + per] = total if not (total and per) else total / iterations
        rows.append(row | {"named_by": _source(trace.sites[n] for n in numbers)})
    return sorted(rows, key=lambda row: row["call"].replace(" ", "_") not in PHASES)


def layer_rows(trace: Trace) -> list[dict[str, Any]]:
    """Tabulate the MoE layers: module, pipeline stage, experts and ranks."""
    rows = []
    for layer in trace.layers:
        sites = [s for s in trace.sites if s.layer == layer]
        groups = {s.group for s in sites if s.phase or s.operation == ROUTING}
        modules = dict.fromkeys(s.module for s in sites if s.module)
        stages = sorted({s.stage for s in sites if s.stage >= 0})
        ranks = [trace.groups[g].ranks for g in sorted(groups)]
        rows.append(
            {
                "layer": layer,
                "module": ", ".join(modules),
                "stage": stages[0] if len(stages) == 1 else None,
                "experts": max((s.experts for s in sites), default=0) or None,
                "members": rank_span(ranks[0])
                if len(ranks) == 1
                else f"{len(ranks)} groups of {len(ranks[0])}",
            }
        )
    return rows


def call_rows(trace: Trace) -> list[dict[str, Any]]:
    """Tabulate the call sites; those of other groups and micro-batches share a row."""
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites))
    known = trace.has_bytes
    names = ("layer", "module", "operation", "direction", "row_bytes", "dtype")
    rows = []
    for key, numbers in _grouped(enumerate(trace.sites), *names).items():
        told = dict(zip((*names, "call"), key, strict=True))
        groups = {trace.sites[n].group for n in numbers}
        rows.append(
            {
                "layer": told["layer"] if told["layer"] >= 0 else None,
                "module": told["module"],
                "call": told["call"].replace("_", " "),
                **{name: told[name] for name in ("operation", "direction")},
                "groups": len(groups),
                "group_ranks": max(len(trace.groups[g].ranks) for g in groups),
                "micro_batches": len({trace.sites[n].slot for n in numbers}),
                "row_bytes": told["row_bytes"] or None,
                "dtype": told["dtype"],
                "calls": int(counts[numbers].sum()),
                "bytes_known": None
                if told["operation"] == ROUTING
                else bool(known[numbers].all()),
                "token_sample": max(trace.sites[n].token_sample for n in numbers)
                or None,
                "named_by": _source(trace.sites[n] for n in numbers),
            }
        )
    return rows


def metadata(trace: Trace) -> dict[str, str]:
    """Return file name and recorded metadata of a trace, as text."""
    unknown = Meta().as_dict()
    return {"file": Path(trace.name).name} | {
        name: str(value)
        for name, value in trace.meta.as_dict().items()
        if str(value) != str(unknown[name]) and name not in ("workload", "nodes")
    }


# ---- text ----------------------------------------------------------------------------


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
    return ", ".join(filter(None, parts))


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
        degrees = {"dp": meta.dp, "tp": meta.tp, "pp": meta.pp, "cp": meta.cp}
        words = [f"{name} {n}" for name, n in degrees.items() if n > 1 or name == "dp"]
        return ", ".join([*words, f"ep {meta.ep}"])
    if meta.origin == "replayed":
        return LAYOUT_UNKNOWN
    known = any(s.phase or s.operation == ROUTING for s in trace.sites)
    return f"ep {meta.ep}, dp unknown" if known else LAYOUT_UNKNOWN


def _run(trace: Trace, loss: Mapping[str, float | None]) -> str:
    meta, number = trace.meta, len(trace.iterations)
    first, last = loss["first"], loss["last"]
    parts = (
        meta.origin,
        f"{meta.world} ranks ({layout(trace)})",
        "virtual" if meta.virtual else meta.backend,
        f"{number:,} iteration{'s' * (number != 1)}"
        + (f" (one of {meta.every} recorded)" if meta.every > 1 else ""),
        f"loss {three_digits(first)} to {three_digits(last)}" if first and last else "",
    )
    return ", ".join(filter(None, parts))


def _model(trace: Trace) -> str:
    meta = trace.meta
    moe = rank_span(trace.layers) if trace.layers else "unknown"
    plural = "s" * (len(trace.layers) != 1)
    parts = (
        f"{meta.layers} layers (MoE {moe})"
        if meta.layers
        else f"MoE layer{plural} {moe}",
        f"hidden {meta.hidden}" if meta.hidden else "",
        f"{meta.experts} experts" if meta.experts else "experts unknown",
        f"{meta.router or 'router'} " + (f"k={meta.k}" if meta.k else "of unknown k"),
        meta.dispatch,
    )
    return f"{meta.model or 'model unknown'}: {', '.join(filter(None, parts))}"


def _loss(trace: Trace) -> dict[str, float | None]:
    """Return the mean loss of all ranks in the first and last step that have one."""
    train = np.array([kind == "train" for kind in trace.steps.kind], bool)
    known = ~np.isnan(trace.steps.loss).all(axis=1) & train
    if not known.any():
        return {"first": None, "last": None}
    means = np.nanmean(trace.steps.loss[known], axis=1)
    return {"first": float(means[0]), "last": float(means[-1])}


def _verdict(trace: Trace, dropped: float | None) -> Iterable[str]:
    meta = trace.meta
    yield (
        "Complete: every call of every rank is recorded."
        if meta.complete
        else "Incomplete: records are missing."
    )
    called = np.unique(trace.occurrences.site).tolist()
    sites = [trace.sites[number] for number in called]
    routed = {site.layer for site in sites if site.operation == ROUTING}
    if routed:
        share = (
            "the share of dropped token copies is unknown"
            if dropped is None or np.isnan(dropped)
            else f"{dropped:.1%} of token copies were dropped"
            if dropped
            else "no token copy was dropped"
        )
        number = len(trace.layers)
        layers = f"{len(routed)} of {number} MoE layer{'s' * (number != 1)}"
        yield f"Routing is recorded of {layers}; {share}."
    elif trace.square.any():
        how = ": register the router with capture.router"
        if meta.origin == "replayed":
            how = ", as a replay has no router"
        elif meta.origin == "imported":
            # only matrices have no direction
            matrices = {s.direction for s in trace.sites} == {""}
            how = f": import {MATRICES if matrices else 'a table of tokens'}"
        yield f"No routing is recorded{how}."
    if not trace.square.any() and trace.layers and meta.ep <= 1:
        yield "With ep 1 each rank holds all experts, so no all-to-all sends tokens."
    if meta.contradiction:
        yield "Rows sent contradict the routing."
    other = sorted(set(trace.steps.kind) - {"train"})
    if other:
        number = len(trace.steps.iteration) - len(trace.iterations)
        yield f"{number:,} {' and '.join(other)} steps are recorded, too."


def _notes(trace: Trace, missing: Mapping[str, list[str]]) -> Iterable[str]:
    meta = trace.meta
    separate = [*missing["remarks"], *missing["missing"]]
    for text in separate or [meta.missing]:
        if text:
            yield f"missing: {text}"
    yield from (f"contradiction: {text}" for text in missing["contradictions"])
    for name, text in (
        ("layers and phases", meta.schedule),
        ("inferred", meta.inferred),
        ("rows sent", meta.contradiction),
    ):
        if text:
            yield f"{name}: {text}"
    if meta.virtual:
        yield "virtual: nothing was sent; bytes follow from the routing"
    if meta.repeats_from >= 0:
        yield f"synthetic: from iteration {meta.repeats_from} on, iterations {REPEATED}"
    error = error_ns(trace.clocks)
    if error >= 1000:
        yield f"clocks of ranks agree to within {error / 1e3:,.0f} us"
