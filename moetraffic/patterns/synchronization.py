"""How copies of parameters are kept equal: what each library sends for it, and when.

The volumes of ZeRO are one thing (Rajbhandari et al., arXiv 1910.02054, section 7), the
calls that a library makes of them another: buckets, owners, padding.  Each way here has
a name in SYNCHRONIZATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import ClassVar, NamedTuple

from .pattern import Call
from .tensors import ModelTensor

Unit = tuple[str, int]
"""What is gathered together: ("root", -1), ("block", layer) or ("experts", layer)."""

ROOT: Unit = ("root", -1)
MEBIBYTE = 1 << 20
FIRST_MIB, BUCKET_MIB = 1, 25  # of DistributedDataParallel, where nothing is asked for


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The parameters of a rank of which there are copies on a kind of group.

    ``tensors`` are what this rank holds, in the order in which an optimizer has them.
    """

    tensors: Sequence[ModelTensor]
    group: str  # kind of process group
    ranks: int  # of it
    dtype: str
    element: int  # bytes of a parameter
    gradient: int  # bytes of a gradient's element
    gradient_dtype: str
    label: str = ""
    across: int = 1  # ranks that hold the same shard, where ZeRO shards over some alone
    across_group: str = ""  # kind of their process group

    @property
    def elements(self) -> int:
        """Parameters of this rank."""
        return sum(t.elements for t in self.tensors)

    def call(
        self,
        operation: str,
        elements: int,
        *,
        gradients: bool,
        layer: int = -1,
        direction: str = "forward",
        label: str = "",
        root: int = 0,
        across: bool = False,
    ) -> list[Call]:
        """A collective over the copies, or over those of a shard; none of one rank."""
        if (self.across if across else self.ranks) == 1:
            return []
        call = Call(
            traffic="DP",
            group=self.across_group if across else self.group,
            operation=operation,
            size=round(elements * (self.gradient if gradients else self.element)),
            dtype=self.gradient_dtype if gradients else self.dtype,
            layer=layer,
            direction=direction,
            label=label or self.label,
            root=root,
        )
        return [call]


class ZeroCall(NamedTuple):
    """A collective of a ZeRO stage."""

    point: str  # where it is called: one of POINTS
    operation: str
    gradients: bool  # or parameters
    across: bool = False  # over those who hold the same shard, of that shard

    @property
    def of_shard(self) -> bool:
        """Whether a member's input is its share, not the whole buffer."""
        return self.across or self.operation == "all_gather"


UNIT_POINTS = ("before_forward", "before_backward", "after_backward")
POINTS = (*UNIT_POINTS, "micro_batch", "gradients", "parameters")
"""Of an iteration: for each unit of each micro-batch, at the end of each backward pass,
when all micro-batches' gradients are there, and when the parameters have moved."""

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


@dataclass(kw_only=True)
class Synchronization:
    """What is called at each point of an iteration: that of a ZeRO stage, or nothing.

    ``copies`` are those of the dense parameters and of the experts, where there are
    several; ``units`` in the order in which their forward passes end.
    """

    copies: Sequence[Copies]
    units: Sequence[Unit] = ()
    label: str = ""
    options: Mapping[str, float] = field(default_factory=dict)
    stage: ClassVar[int | None] = None  # of ZeRO

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """What is called at one of POINTS, for a unit where it has such points."""
        if unit is not None:
            return []
        every = (self._at(point, c, self._padded(c)) for c in self.copies if c.elements)
        return list(chain(*every))

    def _at(self, point: str, c: Copies, elements: int, label: str = "") -> list[Call]:
        """The calls of this stage at a point, on a buffer of some elements."""
        calls: list[Call] = []
        for one in ZERO[self.stage] if self.stage is not None else ():
            if one.point == point:
                calls += c.call(
                    one.operation,
                    elements // c.ranks if one.of_shard else elements,
                    gradients=one.gradients,
                    across=one.across,
                    direction="backward" if point in IN_BACKWARD else "forward",
                    label=label,
                )
        return calls

    def _padded(self, c: Copies) -> int:
        return c.elements


IN_BACKWARD = ("before_backward", "after_backward", "micro_batch")


class AllReduce(Synchronization):
    """One all-reduce of all gradients: ``moetraffic.models``, Megatron-LM."""

    stage = 0


class Buckets(Synchronization):
    """torch's DistributedDataParallel: an all-reduce a bucket.

    From the second iteration on buckets are filled in the order in which gradients
    came, which is the reverse of registration, until one reaches its limit: that of
    ``bucket_mib``, or, where it is 0, 1 MiB for the first and 25 for all others (torch,
    ``reducer.cpp``: ``rebuild_buckets``, ``compute_bucket_assignment_by_size``;
    ``nn/parallel/distributed.py``: ``BucketCapacityConfig``).
    """

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """All-reduces when all micro-batches' gradients are there."""
        calls: list[Call] = []
        if point != "gradients":
            return calls
        for c in self.copies:
            asked = self.options.get("bucket_mib", 0)
            limit, filled = (asked or FIRST_MIB) * MEBIBYTE, 0
            for at, tensor in enumerate(reversed(c.tensors)):
                filled += tensor.elements
                if filled * c.gradient >= limit or at == len(c.tensors) - 1:
                    calls += c.call("all_reduce", filled, gradients=True)
                    filled = 0
                    limit = (asked or BUCKET_MIB) * MEBIBYTE
        return calls


class DistributedOptimizer(Synchronization):
    """Megatron-LM's: gradients reduce-scattered, parameters all-gathered.

    The buffer is padded so that each rank's share is as long.
    """

    stage = 1

    def _padded(self, c: Copies) -> int:
        return ceil(c.elements / c.ranks) * c.ranks


class ShardedGradients(DistributedOptimizer):
    """ZeRO's second stage as published: a reduce-scatter each micro-batch."""

    stage = 2


class OwnedStates(AllReduce):
    """fairscale's OSS: each tensor belongs to one rank, which broadcasts it moved.

    A tensor goes to the rank that has least, matrices before vectors; a rank's tensors
    are one buffer, sent in one broadcast (fairscale 0.4.13, ``oss.py``:
    ``partition_parameters``, ``_broadcast_params``).
    """

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """Broadcasts when the parameters have moved, beside AllReduce's calls."""
        if point != "parameters":
            return super().at(point, unit)
        return [
            call
            for c in self.copies
            for owner, mine in enumerate(owners(c))
            for call in c.call(
                "broadcast",
                sum(t.elements for t in mine),
                gradients=False,
                label=self.label,
                root=owner,
            )
            if mine
        ]


class OwnedGradients(OwnedStates):
    """fairscale's ShardedDataParallel over OSS, reducing in each micro-batch.

    A rank's gradients are one buffer as far as they fit in (2^23 elements, or the
    model's if these are fewer), smaller tensors first; others are reduced by
    themselves (``sharded_ddp.py``: ``_setup_bucket_strategy``).
    """

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """Reductions at the end of each backward pass, and none at the end of all."""
        if point != "micro_batch":
            return [] if point == "gradients" else super().at(point, unit)
        model = sum(c.elements for c in self.copies)
        model += int(self.options.get("alone", 0))  # tensors without a copy
        most = min(1 << 23, model)
        calls = []
        for c in self.copies:
            for owner, mine in enumerate(owners(c)):
                together, by_itself = 0, []
                for tensor in sorted(mine, key=lambda t: t.elements):
                    if together + tensor.elements < most:
                        together += tensor.elements
                    else:
                        by_itself.append(tensor.elements)
                calls += [
                    call
                    for elements in (together, *by_itself)
                    for call in c.call(
                        "reduce",
                        elements,
                        gradients=True,
                        direction="backward",
                        label=self.label,
                        root=owner,
                    )
                    if elements
                ]
        return calls


class FullyShard(Synchronization):
    """torch's ``fully_shard`` (FSDP2): a part of each tensor on every rank.

    A tensor is cut along its first axis, which is padded to a multiple of the ranks.  A
    unit is gathered for its forward pass, and for its backward pass when the unit
    before it in that order begins its own (``_fsdp_param_group.py``:
    ``_backward_prefetch``); with ``keep`` set it is not freed in between, which is
    ZeRO's second stage.  Where other ranks hold the same shards, gradients are summed
    over these too (``_fsdp_collectives.py``: ``foreach_reduce``).
    """

    stage = 3

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """What a unit calls; before its backward pass the next one's is prepared."""
        if unit is None:
            return []
        if point != "before_backward":
            return self._of_unit(point, unit)
        if self.options.get("keep"):
            return []
        order = list(reversed(self.units))
        at = order.index(unit)
        due = order[: 2 if at == 0 else 0] or order[at + 1 : at + 2]
        return list(chain(*(self._of_unit(point, u) for u in due)))

    def _of_unit(self, point: str, unit: Unit) -> list[Call]:
        c, shard = self.part(unit)
        return self._at(point, c, shard * c.ranks, self.label)

    def part(self, unit: Unit) -> tuple[Copies, int]:
        """The copies that a unit belongs to, and the elements of a rank's shard."""
        c, tensors = unit_tensors(self.copies, unit)
        return c, sum(shard_elements(t, c.ranks) for t in tensors)


def shard_elements(tensor: ModelTensor, ranks: int) -> int:
    """Elements of a rank's shard of a tensor whose first axis is padded to the ranks.

    Examples
    --------
    >>> shard_elements(ModelTensor(name="gate", sizes=(6, 10)), 4)
    20
    """
    return ceil(tensor.sizes[0] / ranks) * (tensor.elements // tensor.sizes[0])


class FlatParameters(FullyShard):
    """torch's FullyShardedDataParallel (FSDP1): a unit is one flat padded tensor.

    The outermost unit is not freed between forward and backward pass
    (``_runtime_utils.py``: ``_post_forward`` and its root).
    """

    def at(self, point: str, unit: Unit | None = None) -> list[Call]:
        """What a unit calls, but for the root's gather before its backward pass."""
        calls = super().at(point, unit)
        return calls[1:] if (point, unit) == ("before_backward", ROOT) else calls

    def part(self, unit: Unit) -> tuple[Copies, int]:
        """The copies that a unit belongs to, and the elements of a rank's shard."""
        c, tensors = unit_tensors(self.copies, unit)
        return c, ceil(sum(t.elements for t in tensors) / c.ranks)


SYNCHRONIZATIONS: Mapping[str, Callable[..., Synchronization]] = {
    "all-reduce": AllReduce,
    "ddp": Buckets,
    "distributed-optimizer": DistributedOptimizer,
    "zero-2": ShardedGradients,
    "oss": OwnedStates,
    "sharded-ddp": OwnedGradients,
    "fsdp1": FlatParameters,
    "fsdp2": FullyShard,
}
"""By name, how libraries keep copies equal."""

IN_EACH_PASS = frozenset({"sharded-ddp", "fsdp1", "fsdp2"})
"""Those whose calls in each micro-batch do not go with a pipeline."""


SHARDED = frozenset({"distributed-optimizer", "zero-2", "fsdp1", "fsdp2"})
"""Those that can shard over some of the copies and replicate over the others."""


def owners(copies: Copies) -> list[list[ModelTensor]]:
    """Each rank's tensors, as fairscale's OSS gives them out.

    Matrices and vectors are two groups of parameters (one decays, one does not); in
    each a tensor goes to the first rank that has least.
    """
    mine: list[list[ModelTensor]] = [[] for _ in range(copies.ranks)]
    sizes = [0] * copies.ranks
    matrices = [t for t in copies.tensors if len(t.sizes) > 1]
    vectors = [t for t in copies.tensors if len(t.sizes) == 1]
    for tensor in (*matrices, *vectors):
        rank = sizes.index(min(sizes))
        mine[rank].append(tensor)
        sizes[rank] += tensor.elements
    return mine


def unit_tensors(
    copies: Sequence[Copies], unit: Unit
) -> tuple[Copies, list[ModelTensor]]:
    """The tensors of a unit, and the copies that they are of."""
    what, layer = unit
    part = "expert" if what == "experts" else "dense"
    for c in copies:
        found = [t for t in c.tensors if t.part == part and t.layer == layer]
        if found:
            return c, found
    return copies[0], []
