"""Build a trace from routing decisions and a placement, without running all-to-alls.

The matrices of an expert-parallel run follow from the routing of each rank's tokens and
the ranks of the experts.  Used for virtual expert parallelism, synthetic traces,
relocation, and traces of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.arrays import Int64, Integer
from moetraffic.errors import TraceError

from .choices import ExpertIds, padded
from .matrix import contiguous_placement, in_bytes, summed_by_rank
from .model import (
    ALL_TO_ALL,
    PHASES,
    ROUTING,
    TRANSPOSED_PHASES,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Presence,
    Site,
    Source,
    Steps,
)
from .panel import (
    ArrayPanel,
    ComputedPanel,
    Panel,
    constant_panel,
    count_equal,
    stacked,
)
from .storage import table_of
from .trace import TIMES, Trace

SHAPES = "[iterations, layers, ranks, experts], or with micro-batches after the layers"
ASSUMED_ROWS = "1 byte per token copy assumed"
COUNT_BYTES = 8  # bytes of an entry (int64) in the exchange of counts


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedLayer:
    """Routing decisions of all ranks for one layer and micro-batch."""

    layer: int  # global layer
    slot: int  # micro-batch of a step
    iteration: Int64  # [n], strictly increasing
    demand: Panel  # [n, R, E] int32 token copies that rank r routes to expert e
    dropped: Panel | None  # [n, R, E] of these, dropped ones; None: see unreported
    row_bytes: int  # bytes of a token copy on the wire
    dtype: str  # element type on the wire
    padded: int = 0  # fixed rows from each rank to each expert; 0: not padded
    chosen: ExpertIds | None = None  # [n, R, S, k] experts of sampled tokens, -1: none
    unreported: DroppedForm = DroppedForm.NONE  # what dropped=None means
    phases: tuple[str, ...] = PHASES  # the exchanges that the layer has
    source: Source = Source.ANNOTATED  # of its layer, phases and directions

    def kept(self, start: int, stop: int) -> Int64:
        """Read the token copies that are sent, padding excluded, ``[n, R, E]``."""
        kept = self.demand.read(start, stop).astype(np.int64)
        if self.dropped is not None:
            kept -= self.dropped.read(start, stop)
        return kept


_Call = tuple[Site, RoutedLayer, Panel | None]
"""A call site, its layer, and its bytes ``[n or 1, W, W]`` as dispatched (None: none).

Exchanges that share their matrices have the same panel object."""


def trace_of_routing(
    layers: Sequence[RoutedLayer],
    *,
    groups: Sequence[Group],
    placements: npt.NDArray[Any],
    meta: Meta,
    steps: Steps,
) -> Trace:
    """Build the trace of an expert-parallel run from its routing decisions.

    Times are unknown.  Each layer also has the exchange of counts that precedes an
    all-to-all with uneven splits.  Bytes are computed when they are read.

    ``layers`` are in the order of the forward pass, slot by slot; the groups together
    hold ranks 0 to R-1 once each; ``placements`` have one row per expert and replica of
    each group and layer.  A rank's copies for an expert with m replicas are spread
    evenly over them; the remainder goes round-robin to the replicas, starting at the
    group rank modulo m.
    """
    calls: list[_Call] = []
    for number, group in enumerate(groups):
        for slot in sorted({layer.slot for layer in layers}):
            own = [
                _calls_of(layer, number, group, placements)
                for layer in layers
                if layer.slot == slot
            ]
            calls += [c for made in own for c in made if c[0].direction == "forward"]
            calls += [
                c for made in own[::-1] for c in made if c[0].direction == "backward"
            ]
    sites = [site for site, _, _ in calls]
    when = [layer.iteration for _, layer, _ in calls]
    count = np.array([len(each) for each in when], np.int64)
    site_of = np.repeat(np.arange(len(sites), dtype=np.int32), count)
    iteration = np.concatenate(when) if when else np.zeros(0, np.int64)
    transposed = np.array([s.phase in TRANSPOSED_PHASES for s in sites], bool)
    matrix, bytes_panels = _bytes(calls, groups)
    return Trace(
        meta=meta,
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=iteration,
            site=site_of,
            sequence=_sequence(sites, site_of, steps, iteration),
            matrix=matrix,
            transposed=transposed[site_of],
        ),
        panels={
            **blank_panels(groups, sites, site_of),
            **_routing_panels(calls, groups),
            **bytes_panels,
        },
        steps=steps,
        placements=placements,
    )


def blank_panels(
    groups: Sequence[Group], sites: Sequence[Site], site: Integer
) -> dict[str, Panel]:
    """Build the panels of calls that each member recorded, with unknown times.

    ``site`` is the site of each occurrence, ``[O]``.  A message has two members,
    whatever its group.
    """
    names = np.array([table_of(s, groups) for s in sites])
    panels: dict[str, Panel] = {}
    for name in np.unique(names).tolist():
        here = site[(names == name)[site]]
        kind, _, shape = name.partition("_")
        width = int(shape.partition("x")[0])
        present = constant_panel((len(here), width), np.uint8, Presence.RECORDED)
        messages = [n for n in np.unique(here).tolist() if sites[n].peers[0] >= 0]
        if messages:
            rows = present.read(0, len(here)).copy()
            for number in messages:
                mine = np.flatnonzero(here == number)
                rows[mine] = Presence.ABSENT
                rows[mine[:, None], list(sites[number].peers)] = Presence.RECORDED
            present = ArrayPanel(rows)
        panels[f"{name}/present"] = present
        for column in TIMES if kind == "call" else TIMES[:1]:
            panels[f"{name}/{column}"] = constant_panel(
                (len(here), width), np.int64, UNKNOWN_TIME
            )
    return panels


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
    member = {rank: number for number, rank in enumerate(group.ranks)}
    out = np.zeros((count, width, width), np.int64)
    starts = np.unique(placements["valid_from"])
    version = np.searchsorted(starts, iterations, side="right") - 1
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        rows = placements[placements["valid_from"] == starts[number]]
        replicas = np.bincount(rows["expert"]).tolist()
        columns = (rows[name].tolist() for name in ("expert", "replica", "rank"))
        for expert, replica, rank in zip(*columns, strict=True):
            base, rest = np.divmod(kept[these, :, expert], replicas[expert])
            turn = (replica - np.arange(width)) % replicas[expert]
            out[these, :, member[rank]] += padded or base + (turn < rest)
    return out


def _calls_of(
    layer: RoutedLayer, number: int, group: Group, placements: npt.NDArray[Any]
) -> list[_Call]:
    """Build a layer's calls in one group, in the order of a program."""
    ranks = list(group.ranks)
    routing = Site(
        group=number,
        operation=ROUTING,
        layer=layer.layer,
        slot=layer.slot,
        experts=layer.demand.shape[2],
        dropped=layer.unreported if layer.dropped is None else DroppedForm.STORED,
        token_sample=0 if layer.chosen is None else layer.chosen.shape[2],
        source=layer.source,
    )
    exchange = Site(
        group=number,
        operation=ALL_TO_ALL,
        layer=layer.layer,
        slot=layer.slot,
        dtype=layer.dtype,
        row_bytes=layer.row_bytes,
        source=layer.source,
    )
    calls: list[_Call] = [(routing, layer, None)]
    of = (placements["group"] == number) & (placements["layer"] == layer.layer)
    rows = placements[of]
    if not layer.padded:  # an int64 for each rank and expert
        first = rows["rank"][rows["valid_from"] == rows["valid_from"].min()].tolist()
        held = [COUNT_BYTES * first.count(rank) for rank in ranks]
        counts = replace(
            exchange, dtype="int64", row_bytes=COUNT_BYTES, label="count_exchange"
        )
        calls.append((counts, layer, ArrayPanel(np.tile(held, (1, len(held), 1)))))

    def sent(start: int, stop: int) -> Int64:
        kept, when = layer.kept(start, stop)[:, ranks], layer.iteration[start:stop]
        if layer.padded or (rows["replica"] > 0).any():
            copies = spread(kept, rows, group, when, layer.padded)
        else:
            copies = summed_by_rank(rows, group, layer.layer, when, kept)
        return in_bytes(copies, layer.row_bytes)

    shape = (len(layer.iteration), len(ranks), len(ranks))
    matrices: Panel | None = ComputedPanel(shape, np.int64, sent)
    if layer.padded and len(np.unique(rows["valid_from"])) == 1 and shape[0]:
        matrices = ArrayPanel(sent(0, 1))
    elif not layer.padded and routing.dropped == DroppedForm.UNKNOWN:
        matrices = None
    for phase in layer.phases:
        direction = "backward" if phase.endswith("_grad") else "forward"
        site = replace(exchange, phase=phase, direction=direction)
        calls.append((site, layer, matrices))
    return calls


def _bytes(
    calls: Sequence[_Call], groups: Sequence[Group]
) -> tuple[Int64, dict[str, Panel]]:
    """Number the matrices of all calls, and build the panels that hold them."""
    matrix = [np.zeros(0, np.int64)]
    parts: dict[str, list[Panel]] = {}
    first: dict[int, int] = {}  # of each panel, by identity
    for site, layer, panel in calls:
        count = len(layer.iteration)
        if panel is None:
            matrix.append(np.full(count, -1))
            continue
        own = parts.setdefault(f"{table_of(site, groups)}/wire", [])
        if id(panel) not in first:
            first[id(panel)] = sum(part.shape[0] for part in own)
            own.append(panel)
        once = panel.shape[0] < count  # the same bytes in all calls
        matrix.append(first[id(panel)] + np.arange(count) * (not once))
    return np.concatenate(matrix), {name: stacked(own) for name, own in parts.items()}


def _routing_panels(
    calls: Sequence[_Call], groups: Sequence[Group]
) -> dict[str, Panel]:
    """Build the panels of demand, dropped copies and sampled tokens."""
    routed: dict[str, list[tuple[RoutedLayer, Group]]] = {}
    for site, layer, _ in calls:
        if site.operation == ROUTING:
            own = routed.setdefault(table_of(site, groups), [])
            own.append((layer, groups[site.group]))
    panels: dict[str, Panel] = {}
    for table, own in routed.items():
        demand = [_of_group(layer.demand, group) for layer, group in own]
        panels[f"{table}/demand"] = stacked(demand)
        if any(layer.dropped is not None for layer, _ in own):
            panels[f"{table}/dropped"] = stacked(
                [
                    constant_panel(whole.shape, np.int32, 0)
                    if layer.dropped is None
                    else _of_group(layer.dropped, group)
                    for (layer, group), whole in zip(own, demand, strict=True)
                ]
            )
        sizes = [la.chosen.shape[2:] for la, _ in own if la.chosen is not None]
        if sizes:
            tokens, k = np.max(sizes, axis=0).tolist()
            ids = [
                np.full((*whole.shape[:2], tokens, k), -1, np.int16)
                if layer.chosen is None
                else padded(layer.chosen[:, list(group.ranks)], tokens, k)
                for (layer, group), whole in zip(own, demand, strict=True)
            ]
            panels[f"{table}/chosen"] = ArrayPanel(np.concatenate(ids))
    return panels


def _of_group(panel: Panel, group: Group) -> Panel:
    """Select the rows of a group's ranks from a panel ``[n, R, E]``."""
    ranks = list(group.ranks)
    if ranks == list(range(panel.shape[1])):
        return panel
    shape = (panel.shape[0], len(ranks), panel.shape[2])
    return ComputedPanel(shape, panel.dtype, lambda a, b: panel.read(a, b)[:, ranks])


def _sequence(
    sites: Sequence[Site], site_of: Integer, steps: Steps, iteration: Int64
) -> Int64:
    """Number each call among the collectives of its group; -1 for routings."""
    sent = np.array([s.operation != ROUTING for s in sites], bool)
    group = np.array([s.group for s in sites], np.int64)
    position = np.full(len(sites), -1, np.int64)
    position[sent] = count_equal(group[sent])
    step = np.searchsorted(steps.iteration, iteration)
    sequence = step * (int(position.max(initial=0)) + 1) + position[site_of]
    return np.where(sent[site_of], sequence, -1)


def arrays_as_trace(
    demand: npt.ArrayLike,
    placement: npt.ArrayLike | None,
    k: int | None,
    row_bytes: int | None,
    dropped: npt.ArrayLike | None,
    iterations: npt.ArrayLike | None,
    layers: npt.ArrayLike | None,
) -> Trace:
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
    group = Group(kind="ep", ranks=tuple(range(ranks)))
    placements = contiguous_placement([group], numbers.tolist(), experts)
    if placement is not None:
        holders = _integers("placement", placement)
        shapes = ((experts,), (depth, experts))
        if holders.shape not in shapes or holders.max() >= ranks:
            raise TraceError(
                f"placement is the rank, below {ranks}, of each expert in the shape "
                f"{shapes[0]} or {shapes[1]}: check its shape and values"
            )
        placements["rank"] = np.broadcast_to(holders, shapes[1]).reshape(-1)
    return trace_of_routing(
        [
            RoutedLayer(
                layer=int(numbers[at]),
                slot=slot,
                iteration=when,
                demand=ArrayPanel(counts[:, at, slot].astype(np.int32)),
                dropped=ArrayPanel(lost[:, at, slot].astype(np.int32))
                if lost[:, at, slot].any()
                else None,
                row_bytes=row_bytes or 1,
                dtype="",
            )
            for slot in range(batches)
            for at in range(depth)
        ],
        groups=[group],
        placements=placements,
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
    )


def contradiction_of_k(demand: Integer, k: int) -> str:
    """Describe where a rank's token copies ``[..., E]`` contradict k; "" if none do.

    A token has k distinct experts, so a rank's copies are a multiple of k, and those of
    one expert are at most the tokens.
    """
    experts = demand.shape[-1]
    if k > experts:
        return f"a token has k distinct experts, but k is {k} of {experts} experts"
    copies, most = demand.sum(axis=-1), demand.max(axis=-1).astype(np.int64)
    wrong = (copies % max(1, k) > 0) | (most * k > copies)
    if not wrong.any():
        return ""
    worst = np.unravel_index(np.argmax(wrong), wrong.shape)
    return (
        f"a token has k distinct experts, and k is {k}, but a rank routes "
        f"{int(copies[worst]):,} token copies in a layer, {int(most[worst]):,} of them "
        "to one expert: all are a multiple of k, and one expert has at most 1/k of them"
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
