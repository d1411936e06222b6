"""Bytes that a rank sends in an iteration by kind of traffic, for arrays of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from moetraffic.patterns.layer_calls import LayerCalls, Part
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.parallelism import DEDUPLICATED
from moetraffic.patterns.layouts.stage_layers import LAYERS
from moetraffic.patterns.model_sizes import of_each
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.synchronization import UNIT_POINTS, ZERO, shard_elements
from moetraffic.patterns.tensors import counted_tensors
from moetraffic.patterns.values import Values, anywhere, numbers, where

from .calls import Traffic
from .conventions import SC21, Conventions

KINDS = ("tp", "cp", "pp", "ep", "dp", "edp", "embedding", "ends")
"""Of traffic; "edp" are gradients of experts, "ends" vocabulary-parallel ends."""

ENDS = ("embedding", "head", "cross_entropy", "norm_gradient_sync")
"""Labels of calls at a model's ends."""

TOGETHER = {"ends": "tp", "edp": "dp"}
"""Kinds that are one kind of traffic in a pattern, of which one stage sends most."""

STAGED = ("buffer", "calls", "sent")
"""Fields of calls that differ by stage."""

IN_DP = ("dp", "edp", "embedding")
"""Kinds that synchronize gradients and parameters: T_DP is their time."""


def traffic(config: Configuration, conventions: Conventions = SC21) -> list[Traffic]:
    """What a rank sends in an iteration: of each of :data:`TOGETHER` the rank of the
    stage that sends most of it.

    Calls of layers and ends are those of :mod:`moetraffic.patterns.layer_calls`, summed
    over a stage's layers.  Formulas and their sources: ``docs/time-model.md``.

    Parameters
    ----------
    config
        Any.
    conventions
        How sequence-parallel gathers, reduced parameters and ends are counted.
    """
    c, m = config, config.sizes
    batches = c.accumulation
    again = 1 if conventions.gathers == "megatron" else 0
    parts = LayerCalls(config=c, regathered=again)  # exchanged counts are a few bytes
    sums, of = _Sums(), c.stages
    forward_passes = where(c.recompute == 2, 2.0, 1.0)
    entering = batches / c.pair  # micro-batches that begin or end on a rank
    further = entering * of.last * m.mtp
    for sparse, crosses in LAYERS:
        number = entering * of.layers(sparse=sparse, crosses=crosses)
        if not crosses and anywhere(further):
            number = number + further * (
                m.mtp_sparse > 0 if sparse else m.mtp_sparse < 1
            )
        if anywhere(number):
            forward = parts.forward(sparse=sparse, crosses=crosses)
            backward = parts.backward(sparse=sparse, crosses=crosses)
            sums.add(forward.all, number * forward_passes)
            sums.add(backward.all, number)
    if anywhere(further):
        sums.add(parts.joined(), further * forward_passes)
        sums.add(parts.joined_gradient(), further)
    if conventions.ends == "counted":
        lookups = entering * of.first + further
        sums.add(parts.embedded() + parts.embedded_gradient(), lookups)
        ends = entering * of.last * (1 + m.mtp)
        sums.add(parts.predicted() + parts.predicted_gradient(), ends)
        own = of.dense * m.dense_own + of.sparse * m.sparse_own
        own = own + of.first * m.first_own
        own = own + of.last * (m.last_own + m.mtp * m.mtp_own)
        sums.add(parts.norms(own, c.gradient_bytes), 1.0)
    found = sums.traffic(c)
    if anywhere(c.pp > 1):
        found += _handed_on(c, parts)
    held = c.stage_held
    if conventions.reduced != "held":
        held = m.parameters
        if conventions.reduced == "mean":
            held = held / (c.pp * c.tp)
    lists = conventions.zero3 == "lists"
    if conventions.reduced == "held" and not lists and anywhere(c.zero == 3):
        shards = where(c.zero == 3, c.among(c.copies_held), 1)
        whole = of_each(_fully_sharded, c.model, c.tp, shards)
        held = where(c.zero == 3, whole, held)
    found += _gradients(c, "dp", held, c.copies_held, c.tp, lists)
    if anywhere(m.experts > 0):
        among = c.expert_tp * c.ep
        # fully sharded experts are cut by whole experts, padded to the ranks
        local = np.maximum(m.experts / c.ep, 1)
        shards = c.among(c.expert_copies)
        cut = np.ceil(local / shards) * shards / local
        experts = c.stage_experts * where(c.zero == 3, cut, 1.0)
        found += _gradients(c, "edp", experts, c.expert_copies, among, lists)
    tables = (c.last < 1) & ((m.tied > 0) | (m.mtp > 0))
    if anywhere(tables):
        found.append(
            Traffic(
                kind="embedding",  # EmbTableSync: first and last stage
                collective="all_reduce",
                ranks=where(c.pp > 1, 2.0, 1.0),
                stride=c.tp * c.cp * c.dp * np.maximum(c.pp - 1, 1),
                buffer=c.table * c.gradient_bytes,
                calls=where(tables, 1.0, 0.0),
                every_micro_batch=False,
            )
        )
    return _largest(found, c)


def _largest(found: list[Traffic], c: Configuration) -> list[Traffic]:
    """Calls of all stages as those of the stage that sends most of a kind."""
    sent: dict[str, Values] = {}
    for calls in found:
        kind = TOGETHER.get(calls.kind, calls.kind)
        wire = where(calls.calls > 0, calls.wire, 0.0)
        sent[kind] = sent.get(kind, 0.0) + wire
    of, staged = c.stages, len(c.shape) + 1
    most = {k: of.most(wire) for k, wire in sent.items() if np.ndim(wire) == staged}
    picked = []
    for calls in found:
        kind = TOGETHER.get(calls.kind, calls.kind)
        if kind not in most:
            picked.append(calls)
            continue
        at = most[kind]
        changed = {name: of.at(at, getattr(calls, name)) for name in STAGED}
        picked.append(replace(calls, **changed))
    return picked


class _Sums:
    """Calls of an iteration, those of the same buffer together."""

    def __init__(self) -> None:
        self.calls: dict[tuple[object, ...], list[Any]] = {}

    def add(self, parts: Sequence[Part], times: Values) -> None:
        """Count some calls, each part a number of times."""
        for part in parts:
            kind = "ends" if part.label in ENDS else part.traffic.lower()
            size = part.buffer
            same = float(size) if np.ndim(size) == 0 else id(size)
            once = part.label == "norm_gradient_sync"
            key = (kind, part.group, part.operation, once, same)
            if key in self.calls:
                self.calls[key][1] = self.calls[key][1] + part.times * times
            else:
                self.calls[key] = [size, part.times * times]

    def traffic(self, c: Configuration) -> list[Traffic]:
        """All of it."""
        groups = {"tp": (c.tp, 1.0), "etp": (c.expert_tp, 1.0)}
        groups["cp_heads"] = c.inner, c.tp
        groups["cp_ring"] = c.cp / c.inner, c.tp * c.inner
        groups["ep"] = c.ep, c.expert_tp
        if anywhere(c.dispatcher > 0):
            groups["ep_within"] = c.near, c.expert_tp
            groups["ep_across"] = c.ep / c.near, c.near * c.expert_tp
        once = c.dispatcher == DEDUPLICATED
        return [
            Traffic(
                kind=str(kind),
                collective=str(operation),
                group=str(group),
                ranks=groups[str(group)][0],
                stride=numbers("stride", groups[str(group)][1]),
                buffer=buffer,
                calls=calls,
                every_micro_batch=not alone,
                at_once=once if str(group).startswith("ep_") else 0,
            )
            for (kind, group, operation, alone, _), (buffer, calls) in (
                self.calls.items()
            )
        ]


def _handed_on(c: Configuration, parts: LayerCalls) -> list[Traffic]:
    """Activations and their gradients between stages, and what is gathered of them."""
    piped = where(c.pp > 1, c.accumulation, 0.0)
    stages = c.pp, c.tp * c.cp * c.dp
    each = [("pp", "send_recv", *stages, parts.handed_on, piped)]
    each += [
        ("tp", of.operation, c.tp, np.float64(1.0), of.buffer, piped * of.times)
        for of in parts.received()
    ]
    return [
        Traffic(
            kind=kind,
            collective=operation,
            ranks=ranks,
            stride=stride,
            buffer=buffer,
            calls=times * 2 * c.virtual,
            # behind its first or last layers a stage hands nothing on
            sent=times * (2 * c.virtual - 1 + c.stages.inner),
            every_micro_batch=True,
        )
        for kind, operation, ranks, stride, buffer, times in each
    ]


@cache
def _fully_sharded(model: ModelShape, tp: int, shards: int) -> int:
    """Parameters outside experts of all shards of a tensor rank, each tensor padded as
    FSDP does."""
    tp, shards = max(tp, 1), max(shards, 1)  # no layout has less: its time is NaN
    each = counted_tensors(model, vocabulary_split=tp)
    return shards * sum(
        times * shard_elements(tensor.on_rank(tp=tp), shards)
        for tensor, times in each
        if tensor.part == "dense"
    )


def _gradients(
    c: Configuration,
    kind: str,
    held: Values,
    ranks: Values,
    stride: Values,
    lists: bool,
) -> list[Traffic]:
    """Gradients, and with ZeRO parameters, as :data:`ZERO` lists them.

    Stage 3 has a call for each layer or part of it; where modules that are computed
    again release their parameters in between, these are gathered three times (arXiv
    2104.07857, section 4.1).
    """
    batches = c.accumulation
    shards: Values = where(c.zero > 0, c.among(ranks), ranks)
    units = where(c.zero == 3, c.stage_layers * c.gathers, 1.0)
    # shares of the distributed optimizer are equally long
    padded = np.ceil(np.round(held, 3) / shards) * shards
    padded = where((c.zero == 1) | (c.zero == 2), padded, held) / units
    again = where(lists & (c.recompute == 2), 2.0, 1.0)
    times: dict[tuple[str, str, bool, bool], Values] = {}
    for stage, calls in enumerate(ZERO):
        chosen = where((c.zero == stage) & (held > 0), 1.0, 0.0)
        if not anywhere(chosen):
            continue
        for call in calls:
            number = chosen
            if call.point in UNIT_POINTS:
                number = number * units * batches
            elif call.point == "micro_batch":
                number = number * batches
            if call.point == "before_backward":
                number = number * again
            key = call.point, call.operation, call.gradients, call.across
            times[key] = times.get(key, 0.0) + number
    found = []
    across = ranks / shards
    for (point, operation, gradients, other), number in times.items():
        buffer = padded * (c.gradient_bytes if gradients else c.element_bytes)
        if other and not anywhere(across > 1):
            continue
        found.append(
            Traffic(
                kind=kind,
                collective=operation,
                point=point,
                ranks=across if other else shards,
                stride=stride * shards if other else stride,
                buffer=buffer / shards if other else buffer,
                calls=number * (across > 1) if other else number,
                every_micro_batch=False,
                entries=0 if other else where(lists & (c.zero == 3), shards, 0),
            )
        )
    return found
