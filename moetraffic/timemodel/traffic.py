"""Bytes that a rank sends in an iteration by kind of traffic, for arrays of layouts.

Calls of layers and ends are those of :mod:`moetraffic.patterns.layer`, summed over a
stage's layers; those that keep copies equal of :mod:`moetraffic.patterns.copies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.collectives import steps, wire_bytes
from moetraffic.patterns.copies import UNIT_POINTS, ZERO, fully_sharded
from moetraffic.patterns.layer import LayerCalls, Part
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.schedules import LAYERS
from moetraffic.workload.rules import Values

KINDS = ("tp", "cp", "pp", "ep", "dp", "edp", "embedding", "ends")
"""Of traffic; "edp" are gradients of experts, "ends" vocabulary-parallel ends."""

ENDS = ("embedding", "head", "cross_entropy", "norm_gradient_sync")
"""Labels of calls at a model's ends."""

TOGETHER = {"ends": "tp", "edp": "dp"}
"""Kinds that are one kind of traffic in a pattern, of which one stage sends most."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Calls of one collective that a rank takes part in, in one iteration."""

    kind: str  # one of KINDS, or of a further Part.traffic
    collective: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv
    ranks: Float64  # n of the group
    stride: Float64  # between neighbors of the group, in Megatron's order of ranks
    buffer: Float64  # bytes of a call, as nccl-tests count them: the whole buffer
    calls: Float64  # of an iteration
    every_micro_batch: bool = False  # or once an iteration
    # of a send_recv's calls, what this rank sends; None: all
    sent: Values | None = None
    point: str = ""  # of an iteration, where copies are kept equal: one of POINTS
    group: str = ""  # kind of process group, where a kind of traffic has several
    at_once: Values = False  # with those of its kind's other groups: the longest counts

    @property
    def wire(self) -> Float64:
        """Bytes that a rank sends, by the conventions of collectives."""
        if self.sent is None:
            return self.moved
        return wire_bytes(self.collective, self.ranks, self.sent * self.buffer)

    @cached_property
    def moved(self) -> Float64:
        """Bytes that the rank sends or waits for, one after the other."""
        return wire_bytes(self.collective, self.ranks, self.calls * self.buffer)

    @property
    def steps(self) -> Float64:
        """Messages one after the other of a rank: latency's part of Hockney's T."""
        return np.asarray(self.calls * steps(self.collective, self.ranks))


def traffic(layout: Layout) -> list[Traffic]:
    """What a rank sends in an iteration: of each of :data:`TOGETHER` the rank of the
    stage that sends most of it."""
    c = layout.arrays()
    m, of = c.sizes, c.stages
    parts = LayerCalls(c)  # exchanged counts are a few bytes
    forward_passes = 1.0 + (c.recompute == "full")
    entering = c.accumulation / c.pair  # micro-batches that begin or end on a rank
    further = entering * of.last * m.mtp
    sums: dict[tuple[Any, ...], list[Any]] = {}

    def add(calls: Sequence[Part], times: Values, *, once: bool = False) -> None:
        """Count calls a number of times, those of the same buffer together."""
        for part in calls:
            if not np.any(part.times):
                continue
            kind = "ends" if part.label in ENDS else part.traffic.lower()
            size = part.buffer
            same = float(size) if np.ndim(size) == 0 else id(size)
            key = kind, part.group, part.operation, once, same
            if key in sums:
                sums[key][1] = sums[key][1] + part.times * times
            else:
                sums[key] = [size, part.times * times]

    for sparse, crosses in LAYERS:
        number = entering * of.layers(sparse=sparse, crosses=crosses)
        if not crosses and np.any(further):
            number = number + further * (m.mtp_sparse == sparse)
        if np.any(number):
            ahead = parts.forward(sparse=sparse, crosses=crosses).all
            add(ahead, number * forward_passes)
            add(parts.backward(sparse=sparse, crosses=crosses).all, number)
    if np.any(further):
        add(parts.joined(), further * forward_passes)
        add(parts.joined_gradient(), further)
    if np.any(c.tp > 1):
        lookups, ends = entering * of.first + further, entering * of.last * (1 + m.mtp)
        add(parts.embedded() + parts.embedded_gradient(), lookups)
        add(parts.predicted() + parts.predicted_gradient(), ends)
        own = of.dense * m.dense_own + of.sparse * m.sparse_own
        own = own + of.first * m.first_own
        own = own + of.last * (m.last_own + m.mtp * m.mtp_own)
        add(parts.norms(own, c.gradient_bytes), 1.0, once=True)
    rows = []
    for (kind, group, operation, once, _), (buffer, calls) in sums.items():
        ranks, stride = c.group(group)
        levels = c.dispatcher == "deduplicated" if group.startswith("ep_") else False
        rows.append(
            Traffic(
                kind=kind,
                collective=operation,
                group=group,
                ranks=ranks,
                stride=stride,
                buffer=buffer,
                calls=calls,
                every_micro_batch=not once,
                at_once=levels,
            )
        )
    if np.any(c.pp > 1):
        rows += _handed_on(c, parts)
    held, experts = fully_sharded(c)
    rows += _gradients(c, "dp", held, c.copies_held)
    if np.any(m.experts > 0):
        rows += _gradients(c, "edp", experts, c.expert_copies)
    tables = (c.last < 1) & ((m.tied > 0) | (m.mtp > 0))
    if np.any(tables):
        ranks, stride = c.group("embedding")
        rows.append(
            Traffic(
                kind="embedding",  # EmbTableSync: first and last stage
                collective="all_reduce",
                ranks=ranks,
                stride=stride,
                buffer=c.table * c.gradient_bytes,
                calls=tables * 1.0,
            )
        )
    return _largest(rows, c)


def _largest(rows: list[Traffic], c: Layout) -> list[Traffic]:
    """Calls of all stages as those of the stage that sends most of a kind."""
    sent: dict[str, Values] = {}
    for row in rows:
        kind = TOGETHER.get(row.kind, row.kind)
        sent[kind] = sent.get(kind, 0.0) + np.where(row.calls > 0, row.wire, 0.0)
    staged = len(c.shape) + 1
    most = {k: c.stages.most(w) for k, w in sent.items() if np.ndim(w) == staged}
    picked = []
    for row in rows:
        kind = TOGETHER.get(row.kind, row.kind)
        if kind in most:
            names = ("buffer", "calls", "sent")
            own = {n: c.stages.at(most[kind], getattr(row, n)) for n in names}
            row = replace(row, **own)
        picked.append(row)
    return picked


def _handed_on(c: Layout, parts: LayerCalls) -> list[Traffic]:
    """Activations and their gradients between stages, and what is gathered of them."""
    piped = np.where(c.pp > 1, c.accumulation, 0.0)
    handed = Part("PP", "pp", "send_recv", parts.handed_on, 1.0)
    rows = []
    for part in (handed, *parts.received()):
        if np.any(part.times):
            ranks, stride = c.group(part.group)
            times = piped * part.times
            rows.append(
                Traffic(
                    kind=part.traffic.lower(),
                    collective=part.operation,
                    ranks=ranks,
                    stride=stride,
                    buffer=part.buffer,
                    calls=times * 2 * c.virtual,
                    # behind its first or last layers a stage hands nothing on
                    sent=times * (2 * c.virtual - 1 + c.stages.inner),
                    every_micro_batch=True,
                )
            )
    return rows


def _gradients(c: Layout, kind: str, held: Values, copies: Values) -> list[Traffic]:
    """Gradients, and with ZeRO parameters, as :data:`ZERO` lists them.

    Stage 3 has a call for each layer.
    """
    shards: Values = np.where(c.zero > 0, c.among(copies), copies)
    across = copies / shards
    stride = c.tp if kind == "dp" else c.expert_tp * c.ep
    units = np.where(c.zero == 3, c.stage_layers, 1.0)
    # shares of the distributed optimizer are equally long
    padded = np.ceil(np.round(held, 3) / shards) * shards
    padded = np.where((c.zero == 1) | (c.zero == 2), padded, held) / units
    rows = []
    for stage, calls in enumerate(ZERO):
        chosen = ((c.zero == stage) & (held > 0)) * 1.0
        for call in calls if np.any(chosen) else ():
            number = chosen
            if call.point in (*UNIT_POINTS, "micro_batch"):
                number = number * c.accumulation
            if call.point in UNIT_POINTS:
                number = number * units
            if call.across:
                number = number * (across > 1)
            size = padded * (c.gradient_bytes if call.gradients else c.element_bytes)
            rows.append(
                Traffic(
                    kind=kind,
                    collective=call.operation,
                    point=call.point,
                    ranks=across if call.across else shards,
                    stride=stride * shards if call.across else stride,
                    buffer=size / shards if call.across else size,
                    calls=number,
                )
            )
    return rows
