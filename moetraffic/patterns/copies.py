"""How copies of parameters are kept equal: what each library sends for it, and when.

The volumes of ZeRO are one thing (Rajbhandari et al., arXiv 1910.02054, section 7), the
calls that a library makes of them another: buckets, owners, padding.

all-reduce
    One all-reduce of all gradients: ``moetraffic.models``, Megatron-LM.
ddp
    torch's DistributedDataParallel.  From the second iteration on buckets are filled in
    the order in which gradients came, the reverse of registration, until one reaches
    its limit: ``bucket_mib``, or, where it is 0, 1 MiB for the first and 25 for all
    others (torch, ``reducer.cpp``: ``rebuild_buckets``,
    ``compute_bucket_assignment_by_size``; ``nn/parallel/distributed.py``).
distributed-optimizer, zero-2
    Gradients reduce-scattered, parameters all-gathered, the buffer padded so that each
    rank's share is as long (Megatron-LM); or gradients in each micro-batch.
oss, sharded-ddp
    fairscale's: each tensor belongs to one rank, which broadcasts it moved; its
    gradients are all-reduced, or reduced to the owner in each micro-batch, a rank's in
    one buffer as far as they fit in (2^23 elements, or the model's if these are fewer),
    smaller tensors first (fairscale 0.4.13, ``oss.py``, ``sharded_ddp.py``:
    ``_setup_bucket_strategy``).
fsdp1, fsdp2
    torch's FullyShardedDataParallel, whose unit is one flat padded tensor and whose
    outermost unit is not freed between the passes; and ``fully_shard``, which cuts each
    tensor.  A unit is gathered for its forward pass, and for its backward pass when the
    unit before it in that order begins its own (``_fsdp_param_group.py``:
    ``_backward_prefetch``); with ``keep`` it is not freed in between, which is ZeRO's
    second stage.  Where other ranks hold the same shards, gradients are summed over
    these too (``_fsdp_collectives.py``: ``foreach_reduce``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.workload.model import ModelShape
from moetraffic.workload.rules import Values
from moetraffic.workload.sizes import of_each
from moetraffic.workload.tensors import ModelTensor, counted_tensors

from .layout import Layout

Unit = tuple[str, int]
"""What is gathered together: ("root", -1), ("block", layer) or ("experts", layer)."""

ROOT: Unit = ("root", -1)
MEBIBYTE = 1 << 20
FIRST_MIB, BUCKET_MIB = 1, 25  # of DistributedDataParallel, where nothing is asked for


class ZeroCall(NamedTuple):
    """A collective of a ZeRO stage."""

    point: str  # where it is called: one of POINTS
    operation: str
    gradients: bool  # or parameters
    across: bool = False  # over those who hold the same shard, of that shard


UNIT_POINTS = ("before_forward", "before_backward", "after_backward")
POINTS = (*UNIT_POINTS, "micro_batch", "gradients", "parameters")
"""Of an iteration: for each unit of each micro-batch, at the end of each backward pass,
when all micro-batches' gradients are there, and when the parameters have moved."""

IN_BACKWARD = ("before_backward", "after_backward", "micro_batch")

ZERO: tuple[tuple[ZeroCall, ...], ...] = (
    (ZeroCall("gradients", "all_reduce", True),),
    (
        ZeroCall("gradients", "reduce_scatter", True),
        ZeroCall("gradients", "all_reduce", True, across=True),
        ZeroCall("parameters", "all_gather", False),
    ),
    (
        ZeroCall("micro_batch", "reduce_scatter", True),
        ZeroCall("gradients", "all_reduce", True, across=True),
        ZeroCall("parameters", "all_gather", False),
    ),
    (
        ZeroCall("before_forward", "all_gather", False),
        ZeroCall("before_backward", "all_gather", False),
        ZeroCall("after_backward", "reduce_scatter", True),
        ZeroCall("after_backward", "all_reduce", True, across=True),
    ),
)
"""By stage, what is called (Rajbhandari et al., arXiv 1910.02054, section 7); under
accumulation stage 2 reduces, and stage 3 gathers and reduces, in each micro-batch."""

STAGES = {"distributed-optimizer": 1, "zero-2": 2, "fsdp1": 3, "fsdp2": 3}
"""ZeRO stages of synchronizations that make its calls, beside the all-reduce's 0."""


def shard_elements(tensor: ModelTensor, ranks: int) -> int:
    """Elements of a rank's shard under ``fully_shard``.

    A tensor is cut along its first axis, which is padded to a multiple of the ranks.
    Experts that are fewer than the ranks are cut along their second axis (torchtitan,
    ``llama4/infra/parallelize.py``: ``_experts_shard_placement_fn``) if they divide it.

    Examples
    --------
    >>> shard_elements(ModelTensor(name="gate", sizes=(6, 10)), 4)
    20
    >>> shard_elements(ModelTensor(name="up", sizes=(1, 8, 10), part="expert"), 4)
    20
    """
    first, second, *_ = (*tensor.sizes, 1)
    if tensor.part == "expert" and ranks > first and second % ranks == 0:
        return tensor.elements // ranks
    return ceil(first / ranks) * (tensor.elements // first)


def fully_sharded(c: Layout) -> tuple[Values, Values]:
    """Parameters of a rank of each stage, without experts and of experts: under ZeRO 3
    those of all its shards together, padded as ``fully_shard`` does.

    Both are ``[S, ...]``, or broadcast to it, of ``c`` of arrays.
    """
    dense, experts = c.stage_held, c.stage_experts
    third = c.zero == 3
    if np.any(third) and c.model is not None:
        copies = c.copies_held, c.expert_copies
        shards = [
            # no layout that can be has NaN
            np.nan_to_num(np.where(third, c.among(ranks), 1), nan=1, posinf=1)
            for ranks in copies
        ]
        whole = of_each(_sharded, c.model, c.tp, c.expert_tp, c.ep, *shards)
        dense = np.where(third, whole[..., 0], dense)
        experts = np.where(third, whole[..., 1], experts)
    return dense, experts


@cache
def _sharded(
    model: ModelShape, tp: int, etp: int, ep: int, shards: int, expert_shards: int
) -> Float64:
    """Parameters outside experts, and of experts, of all shards of a rank ``[2]``."""
    tp, etp, ep = (max(n, 1) for n in (tp, etp, ep))  # no layout has less
    parts = {"dense": (tp, max(shards, 1)), "expert": (etp, max(expert_shards, 1))}
    sums = dict.fromkeys(parts, 0)
    for tensor, times in counted_tensors(model, vocabulary_split=tp):
        split, ranks = parts[tensor.part]
        held = tensor.on_rank(tp=split, ep=ep)
        sums[tensor.part] += times * ranks * shard_elements(held, ranks)
    return np.array([sums["dense"], sums["expert"]], np.float64)


# ---- the calls of one layout ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The parameters of a rank of which there are copies on a kind of group.

    ``tensors`` are what this rank holds, in the order in which an optimizer has them.
    """

    tensors: Sequence[ModelTensor]
    group: str  # kind of process group
    ranks: int  # of it
    label: str = ""
    across: int = 1  # ranks that hold the same shard, where ZeRO shards over some alone
    across_group: str = ""  # kind of their process group

    @property
    def elements(self) -> int:
        """Parameters of this rank."""
        return sum(t.elements for t in self.tensors)

    def owners(self) -> list[list[ModelTensor]]:
        """Each rank's tensors, as fairscale's OSS gives them out.

        Matrices and vectors are two groups of parameters (one decays, one does not); in
        each a tensor goes to the first rank that has least.
        """
        owned: list[list[ModelTensor]] = [[] for _ in range(self.ranks)]
        sizes = [0] * self.ranks
        matrices = [t for t in self.tensors if len(t.sizes) > 1]
        for tensor in (*matrices, *(t for t in self.tensors if len(t.sizes) == 1)):
            rank = sizes.index(min(sizes))
            owned[rank].append(tensor)
            sizes[rank] += tensor.elements
        return owned


class Sent(NamedTuple):
    """A call over copies; :mod:`.calls` makes it one of the pattern."""

    copies: Copies
    operation: str
    elements: int  # of a member's input
    gradients: bool  # or parameters
    backward: bool = False
    added: bool = False  # by ZeRO, beside the reduction of gradients
    root: int = 0
    across: bool = False  # over those who hold the same shard


@dataclass(frozen=True, kw_only=True)
class Synchronization:
    """What is called at each point of an iteration, for copies of dense parameters and
    of experts; ``units`` are in the order in which their forward passes end."""

    name: str = "all-reduce"  # one of SYNCHRONIZATIONS
    copies: Sequence[Copies] = ()
    units: Sequence[Unit] = ()
    bucket_mib: float = 0.0
    keep: bool = False
    gradient_bytes: int = 4
    alone: int = 0  # parameters without a copy

    def at(self, point: str, unit: Unit | None = None) -> list[Sent]:
        """What is called at one of POINTS, for a unit where it has such points."""
        if (unit is not None) != self.name.startswith("fsdp") or not self.copies:
            return []
        if unit is not None:
            return list(self._of_unit(point, unit)) if unit in self.units else []
        return [call for c in self.copies if c.elements for call in self._of(point, c)]

    def _of(self, point: str, c: Copies) -> Iterator[Sent]:
        """The calls of a synchronization that knows no units."""
        if self.name == "ddp" and point == "gradients":
            limit, filled = (self.bucket_mib or FIRST_MIB) * MEBIBYTE, 0
            for tensor in reversed(c.tensors):
                filled += tensor.elements
                if filled * self.gradient_bytes >= limit or tensor is c.tensors[0]:
                    yield Sent(c, "all_reduce", filled, True)
                    limit, filled = (self.bucket_mib or BUCKET_MIB) * MEBIBYTE, 0
        elif self.name in ("oss", "sharded-ddp") and point == "parameters":
            for owner, owned in enumerate(c.owners()):
                if size := sum(t.elements for t in owned):
                    yield Sent(c, "broadcast", size, False, added=True, root=owner)
        elif self.name == "sharded-ddp" and point == "micro_batch":
            yield from self._to_owners(c)
        elif self.name not in ("ddp", "sharded-ddp"):
            stage = STAGES.get(self.name, 0)
            whole = ceil(c.elements / c.ranks) * c.ranks if stage else c.elements
            yield from zero_calls(stage, point, c, whole)

    def _to_owners(self, c: Copies) -> Iterator[Sent]:
        """Gradients of a micro-batch to those that own them."""
        most = min(1 << 23, sum(c.elements for c in self.copies) + self.alone)
        for owner, owned in enumerate(c.owners()):
            together, by_itself = 0, []
            for size in sorted(t.elements for t in owned):
                if together + size < most:
                    together += size
                else:
                    by_itself.append(size)
            for size in filter(None, (together, *by_itself)):
                yield Sent(c, "reduce", size, True, True, added=True, root=owner)

    def _of_unit(self, point: str, unit: Unit) -> Iterator[Sent]:
        """What a unit calls; before its backward pass the next one's is prepared."""
        due = [unit]
        if point == "before_backward":
            order = list(reversed(self.units))
            place = order.index(unit)
            due = order[:2] if place == 0 else order[place + 1 : place + 2]
            if self.name == "fsdp1" and unit == ROOT:
                due = due[1:]
            due = [] if self.keep else due
        for one in due:
            c, tensors = self._tensors(one)
            shard = sum(shard_elements(t, c.ranks) for t in tensors)
            if self.name == "fsdp1":
                shard = ceil(sum(t.elements for t in tensors) / c.ranks)
            for call in zero_calls(3, point, c, shard * c.ranks):
                yield call._replace(added=True)

    def _tensors(self, unit: Unit) -> tuple[Copies, list[ModelTensor]]:
        """The tensors of a unit, and the copies that they are of."""
        what, layer = unit
        part = "expert" if what == "experts" else "dense"
        for c in self.copies:
            held = [t for t in c.tensors if t.part == part and t.layer == layer]
            if held:
                return c, held
        return self.copies[0], []


def zero_calls(stage: int, point: str, c: Copies, elements: int) -> Iterator[Sent]:
    """The calls of a ZeRO stage at a point, on a buffer of some elements."""
    for call in ZERO[stage]:
        if call.point == point and (c.across if call.across else c.ranks) > 1:
            share = call.across or call.operation == "all_gather"
            size = elements // c.ranks if share else elements
            backward = point in IN_BACKWARD
            yield Sent(
                c, call.operation, size, call.gradients, backward, across=call.across
            )
