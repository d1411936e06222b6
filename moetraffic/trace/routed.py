"""Build a trace from routing decisions and a placement, without running all-to-alls.

The matrices of an expert-parallel run follow from the routing of each rank's tokens and
the ranks of the experts.  Used for virtual expert parallelism, for relocation, and for
traces of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.arrays import Int32, Int64, Integer, UInt8
from moetraffic.errors import TraceError

from .model import (
    ALL_TO_ALL,
    PHASES,
    ROUTING,
    TRANSPOSED_PHASES,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Program,
    Site,
    Source,
    Steps,
    WireForm,
)
from .panel import ArrayPanel
from .placement import contiguous_placement
from .reading import T
from .rows import recorded_panels

SHAPES = "[iterations, layers, ranks, experts], or with micro-batches after the layers"
ASSUMED_ROWS = "1 byte per token copy assumed"
COUNT_BYTES = 8  # bytes of an entry (int64) in the exchange of counts


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedLayer:
    """Routing decisions of all ranks for one layer and micro-batch."""

    layer: int  # global layer
    slot: int  # micro-batch of a step
    iteration: Int64  # [n], strictly increasing
    demand: Int32  # [n, R, E] token copies that rank r routes to expert e
    dropped: Int32 | None  # [n, R, E] of these, dropped ones; None: see unreported
    row_bytes: int  # bytes of a token copy on the wire
    dtype: str  # element type on the wire
    padded: int = 0  # fixed rows from each rank to each expert; 0: not padded
    choices: UInt8 | None = None  # [n, R, S, B] experts of sampled tokens, bit sets
    unreported: DroppedForm = DroppedForm.NONE  # what dropped=None means
    phases: tuple[str, ...] = PHASES  # the exchanges that the layer has
    source: Source = Source.ANNOTATED  # of its layer, phases and directions

    @property
    def kept(self) -> Int64:
        """Token copies that are sent, padding excluded, ``[n, R, E]``."""
        kept = self.demand.astype(np.int64)
        return kept if self.dropped is None else kept - self.dropped


def trace_of_routing(
    layers: Sequence[RoutedLayer],
    *,
    groups: Sequence[Group],
    placements: npt.NDArray[Any],
    meta: Meta,
    steps: Steps,
    kind: type[T],
) -> T:
    """Build the trace of an expert-parallel run from its routing decisions.

    Times are unknown.  Each layer also has the exchange of counts that precedes an
    all-to-all with uneven splits.  Wire bytes are derived from demand where each expert
    has one replica.

    ``layers`` are in the order of the forward pass, slot by slot; the groups together
    hold ranks 0 to R-1 once each; ``placements`` have one row per expert and replica of
    each group and layer.  A rank's copies for an expert with m replicas are spread
    evenly over them; the remainder goes round-robin to the replicas, starting at the
    group rank modulo m.  The result is of class ``kind``,
    :class:`~moetraffic.trace.Trace`.
    """
    sites: list[Site] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    when: list[Int64] = []
    order: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for number, group in enumerate(groups):
        order[number] = []
        for at, layer in enumerate(layers):
            for step, site in _sites_of(
                layer, number, group, placements, len(sites), parts
            ):
                place = _place_in_program(step, at, layer, layers)
                order[number].append((place, len(sites)))
                sites.append(site)
                when.append(layer.iteration)
    position = np.full(len(sites), -1, np.int64)  # index among its group's collectives
    for called_here in order.values():
        called = [n for _, n in sorted(called_here) if sites[n].operation != ROUTING]
        position[called] = np.arange(len(called))
    site_of = np.repeat(np.arange(len(sites)), [len(w) for w in when])
    iteration = np.concatenate(when) if when else np.zeros(0, np.int64)
    index = np.searchsorted(steps.iteration, iteration)
    sequence = index * (position.max(initial=0) + 1) + position[site_of]
    sequence[position[site_of] < 0] = -1
    stored = {name: ArrayPanel(np.concatenate(p)) for name, p in parts.items()}
    return kind(
        meta=meta,
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=iteration, site=site_of.astype(np.int32), sequence=sequence
        ),
        panels={**recorded_panels(groups, sites, site_of), **stored},
        steps=steps,
        programs=[
            Program(
                rank=rank,
                kind="train",
                sites=tuple(s for _, s in sorted(order[number])),
            )
            for number, group in enumerate(groups)
            for rank in group.ranks
        ],
        placements=placements,
    )


def spread(
    kept: Int64,
    placements: npt.NDArray[Any],
    group: Group,
    iterations: Int64,
    padded: int = 0,
) -> Int64:
    """Compute token copies between the ranks of a group, given replicated experts.

    ``kept`` are ``[n, W, E]`` token copies in ``iterations`` ``[n]``; ``placements``
    are rows of one group and layer, of type PLACEMENT, in several versions by
    iteration.  ``padded`` rows are sent to every replica instead, if it is not 0.  The
    result is ``[n, W, W]`` int64; row sends, column receives.
    """
    count, width, _ = kept.shape
    member = {rank: at for at, rank in enumerate(group.ranks)}
    out = np.zeros((count, width, width), np.int64)
    starts = np.unique(placements["valid_from"])
    version = np.searchsorted(starts, iterations, side="right") - 1
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        rows = placements[placements["valid_from"] == starts[number]]
        replicas = np.bincount(rows["expert"])
        for row in rows:
            m = int(replicas[row["expert"]])
            copies = kept[these][:, :, row["expert"]]  # [t, W]
            base, rest = np.divmod(copies, m)
            turn = (int(row["replica"]) - np.arange(width)) % m
            sent = padded or base + (turn < rest)
            out[these, :, member[int(row["rank"])]] += sent
    return out


def _sites_of(
    layer: RoutedLayer,
    number: int,
    group: Group,
    placements: npt.NDArray[Any],
    first: int,
    parts: dict[str, list[npt.NDArray[Any]]],
) -> list[tuple[str, Site]]:
    """Build a layer's call sites in one group, and the panels that must be stored."""
    ranks = list(group.ranks)
    width, experts = len(ranks), layer.demand.shape[2]
    routing = Site(
        group=number,
        operation=ROUTING,
        layer=layer.layer,
        slot=layer.slot,
        experts=experts,
        dropped=layer.unreported,
    ).with_sources(layer.source, layer.source, layer.source)
    parts.setdefault(f"demand_{width}x{experts}", []).append(layer.demand[:, ranks])
    if layer.dropped is not None and layer.dropped[:, ranks].any():
        routing = replace(routing, dropped=DroppedForm.STORED)
        name = f"dropped_{width}x{experts}"
        parts.setdefault(name, []).append(layer.dropped[:, ranks])
    if layer.choices is not None and layer.choices[:, ranks].any():
        routing = replace(routing, choices=layer.choices.shape[2])
        name = f"choices_{width}x{experts}x{routing.choices}"
        parts.setdefault(name, []).append(layer.choices[:, ranks])
    of = (placements["group"] == number) & (placements["layer"] == layer.layer)
    rows = placements[of]
    exchange = replace(
        routing,
        operation=ALL_TO_ALL,
        experts=0,
        choices=0,
        dtype=layer.dtype,
        row_bytes=layer.row_bytes,
        dropped=DroppedForm.UNKNOWN,
    )
    made = [("routing", routing)]
    if not layer.padded:
        made.append(("counts", _counts(exchange, rows, group)))
    single = not (rows["replica"] > 0).any()
    sent = None  # rows between ranks, where they do not follow from the demand alone
    if layer.padded or not single:
        kept = layer.kept[:, ranks]
        sent = spread(kept, rows, group, layer.iteration, layer.padded)
        sent *= layer.row_bytes
    for phase in layer.phases:
        direction = "backward" if phase.endswith("_grad") else "forward"
        site = replace(exchange, phase=phase, direction=direction)
        if sent is None:
            site = replace(site, wire=WireForm.DEMAND, routing=first)
        else:
            turned = sent.transpose(0, 2, 1) if phase in TRANSPOSED_PHASES else sent
            site = _stated(site, turned, parts)
        made.append((phase, site))
    return made


def _counts(exchange: Site, rows: npt.NDArray[Any], group: Group) -> Site:
    """Build the site of the exchange of counts: one int64 per rank and expert."""
    first = rows[rows["valid_from"] == rows["valid_from"].min()]
    held = [int((first["rank"] == rank).sum()) for rank in group.ranks]
    width = len(group.ranks)
    return replace(
        exchange,
        dtype="int64",
        row_bytes=COUNT_BYTES,
        label="count_exchange",
        wire=WireForm.CONSTANT,
        constant=tuple(COUNT_BYTES * n for _ in range(width) for n in held),
    )


def _stated(site: Site, sent: Int64, parts: dict[str, list[npt.NDArray[Any]]]) -> Site:
    """Store the bytes of a site once if they are constant, else in a panel."""
    if len(sent) and (sent == sent[0]).all():
        constant = tuple(sent[0].ravel().tolist())
        return replace(site, wire=WireForm.CONSTANT, constant=constant)
    parts.setdefault(f"wire_{sent.shape[1]}", []).append(sent)
    return replace(site, wire=WireForm.STORED)


FORWARD = ("routing", "counts", "dispatch", "combine")


def _place_in_program(
    step: str, at: int, layer: RoutedLayer, layers: Sequence[RoutedLayer]
) -> tuple[int, ...]:
    """Build the sort key of a site in a step: slot, pass, layer, exchange."""
    if step in FORWARD:
        return (layer.slot, 0, at, FORWARD.index(step))
    return (layer.slot, 1, len(layers) - at, PHASES.index(step))


def arrays_as_trace(
    kind: type[T],
    demand: npt.ArrayLike,
    *,
    placement: npt.ArrayLike | None,
    k: int | None,
    row_bytes: int | None,
    dropped: npt.ArrayLike | None,
    iterations: npt.ArrayLike | None,
    layers: npt.ArrayLike | None,
) -> T:
    """Build a trace from an array of token counts; see :meth:`Trace.from_arrays`."""
    counts = _integers("demand", demand)
    if counts.ndim in (4, 5) and not len(counts):
        raise TraceError("demand holds no iteration: give one or more")
    if counts.ndim not in (4, 5) or 0 in counts.shape:
        raise TraceError(
            f"demand has the shape {SHAPES}, but this one has {counts.shape}: reshape "
            "it"
        )
    if not counts.any():
        raise TraceError(
            "demand holds no token copy: give counts, of which some are positive"
        )
    lost = np.zeros_like(counts) if dropped is None else _integers("dropped", dropped)
    if lost.shape != counts.shape or (lost > counts).any():
        raise TraceError(
            "dropped has the shape of demand and at most its values: give the dropped "
            "part of each value"
        )
    if counts.ndim == 4:
        counts, lost = counts[:, :, None], lost[:, :, None]
    steps, depth, batches, ranks, experts = counts.shape
    for name, given in (("k", k), ("row_bytes", row_bytes)):
        if given is not None and given < 1:
            raise TraceError(
                f"{name} is at least 1, but it is {given}: give its value, or leave it "
                "out (unknown)"
            )
    if experts < ranks and placement is None:
        raise TraceError(
            f"each rank holds an expert or more, but there are {experts} experts for "
            f"{ranks} ranks: check the order of the axes, {SHAPES}, or give placement"
        )
    if k is not None and (wrong := contradiction_of_k(counts, k)):
        raise TraceError(f"{wrong}: give the model's k, or leave it out (unknown)")
    when = _numbers("iterations", iterations, steps)
    numbers = _numbers("layers", layers, depth)
    return trace_of_routing(
        [
            RoutedLayer(
                layer=int(numbers[at]),
                slot=slot,
                iteration=when,
                demand=counts[:, at, slot].astype(np.int32),
                dropped=lost[:, at, slot].astype(np.int32) if lost.any() else None,
                row_bytes=row_bytes or 1,
                dtype="",
            )
            for slot in range(batches)
            for at in range(depth)
        ],
        groups=[Group(kind="ep", ranks=tuple(range(ranks)))],
        placements=_placement_rows(placement, numbers, ranks, experts),
        meta=Meta(
            origin="imported",
            world=ranks,
            ep=ranks,
            layers=depth,
            experts=experts,
            k=k or 0,
            inferred=ASSUMED_ROWS if row_bytes is None else "",
            moetraffic=__version__,
        ),
        steps=Steps.of_training(when, ranks),
        kind=kind,
    )


def contradiction_of_k(demand: Integer, k: int) -> str:
    """Describe where a rank's token copies ``[..., E]`` contradict k; "" if none do.

    A token has k distinct experts, so a rank's copies are a multiple of k, and those of
    one expert are at most the tokens.
    """
    experts = demand.shape[-1]
    if k > experts:
        return f"a token has k distinct experts, but k is {k} of {experts} experts"
    copies, most = demand.sum(axis=-1), demand.max(axis=-1)
    uneven = copies % max(1, k) > 0
    wrong = uneven | (most.astype(np.int64) * k > copies)
    if not wrong.any():
        return ""
    at = np.unravel_index(np.argmax(wrong), wrong.shape)
    what = f"which is no multiple of {k}"
    if not uneven[at]:
        tokens = int(most[at])
        what = (
            f"{tokens:,} of them to one expert, which takes {tokens:,} tokens and so "
            f"{tokens * k:,} copies"
        )
    return (
        f"a token has k distinct experts, and k is {k}, but a rank routes "
        f"{int(copies[at]):,} token copies in a layer, {what}"
    )


def _integers(name: str, values: npt.ArrayLike) -> Int64:
    """Convert values to int64 after checking that they are counts within int32."""
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.inexact) and (lacks := np.isnan(array).sum()):
        raise TraceError(
            f"{name} holds integers, but {lacks:,} of its {array.size:,} values are "
            "NaN: give a count for each, 0 where no token copy was routed"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TraceError(
            f"{name} holds integers, but this one is of type {array.dtype}: convert it"
        )
    if array.size and not 0 <= array.min() <= array.max() < 1 << 31:
        raise TraceError(
            f"{name} holds counts from 0 to 2^31 - 1, but this one has values from "
            f"{array.min()} to {array.max()}: check its order of axes and its type"
        )
    return array.astype(np.int64)


def _numbers(name: str, values: npt.ArrayLike | None, count: int) -> Int64:
    if values is None:
        return np.arange(count)
    numbers = _integers(name, values)
    if numbers.shape != (count,) or (np.diff(numbers) <= 0).any():
        raise TraceError(f"{name} are {count} increasing numbers: give one per entry")
    return numbers


def _placement_rows(
    placement: npt.ArrayLike | None, layers: Int64, ranks: int, experts: int
) -> npt.NDArray[Any]:
    """Build rows of type PLACEMENT; experts are contiguous unless ranks are given."""
    group = Group(kind="ep", ranks=tuple(range(ranks)))
    rows = contiguous_placement([group], layers.tolist(), experts)
    if placement is not None:
        holders = _integers("placement", placement)
        shapes = ((experts,), (len(layers), experts))
        if holders.shape not in shapes or holders.max() >= ranks:
            raise TraceError(
                f"placement is the rank, below {ranks}, of each expert in the shape "
                f"{shapes[0]} or {shapes[1]}: check its shape and values"
            )
        rows["rank"] = np.broadcast_to(holders, shapes[1]).reshape(-1)
    return rows
