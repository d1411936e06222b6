"""How a model is trained in parallel, as far as it decides what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from moetraffic.patterns.dispatchers import DISPATCHERS
from moetraffic.patterns.element_types import element_bytes
from moetraffic.patterns.layer_calls import CONTEXTS
from moetraffic.patterns.rules import Rule, choose, positive, refuse
from moetraffic.patterns.synchronization import (
    IN_EACH_PASS,
    OF_STAGE,
    SHARDED,
    SYNCHRONIZATIONS,
)

from .axes import RECOMPUTE, Steps
from .layout import Groups, ParallelLayout
from .schedules import SCHEDULES, schedule_rules

FLOAT8_TILE = 128
"""Elements of a token's vector that share a 32-bit scale where it is sent in 8 bits
(DeepSeek-V3, arXiv 2412.19437, section 3.3.1)."""


NODE_KINDS = ("ep_within", "ep_across")
"""Process groups of dispatchers of two levels."""


@dataclass(frozen=True, kw_only=True)
class Parallelism(ParallelLayout, Steps[int]):
    """Layout, schedule, batch, precision and the libraries' ways of a training.

    Raises
    ------
    LayoutError
        If a field is out of range.
    """

    accumulation: int = 1  # micro-batches of an iteration m
    # one of SYNCHRONIZATIONS, in place of what the ZeRO stage means by itself
    synchronization: str = ""
    bucket_mib: float = 0.0  # of the synchronization "ddp"; 0: torch's 1, then 25
    keep: bool = False  # of "fsdp2": parameters stay gathered until backward
    dtype: str = "bfloat16"  # of parameters and activations
    dispatch_dtype: str = ""  # of tokens sent to experts; empty: as dtype
    gradient_dtype: str = ""  # empty: float32 for bfloat16, as Megatron-LM, else dtype

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("micro_batch", "accumulation")
        refuse([positive(getattr(self, n), n.replace("_", "-")) for n in counts])
        known = {
            "recompute": RECOMPUTE,
            "context": CONTEXTS,
            "schedule": SCHEDULES,
            "dispatcher": DISPATCHERS,
            "synchronization": ("", *SYNCHRONIZATIONS),
        }
        for name, values in known.items():
            choose(name, getattr(self, name), values)
        for dtype in (self.dtype, self.gradients, self.dispatched):
            element_bytes(dtype)
        refuse(
            [
                Rule(
                    not self.bucket_mib >= 0,
                    "a bucket has some MiB, or 0 for what torch does, but bucket-mib "
                    "is {}",
                    (self.bucket_mib,),
                    "raise it",
                ),
                Rule(
                    self.pp > 1 and self.synchronized in IN_EACH_PASS,
                    "a pipeline gathers no parameters between its passes, but pp is {} "
                    "and {} sends in each micro-batch",
                    (self.pp, self.synchronized),
                    "use --zero 1, another --synchronization or --pp 1",
                ),
                Rule(
                    self.shard > 0 and self.synchronized not in SHARDED,
                    "shards are ZeRO's, but {} has none of the {} that are asked for",
                    (self.synchronized, self.shard),
                    "give --zero 1, 2 or 3, or leave out --shard",
                ),
                Rule(
                    self.dispatcher != "plain" and self.order != type(self).order,
                    "nodes of expert-parallel ranks are known in the usual order of "
                    "ranks, but it is {} and the dispatcher {}",
                    (self.order, self.dispatcher),
                    "leave out --order, or --dispatcher",
                ),
                *schedule_rules(
                    self.pp,
                    self.accumulation,
                    self.virtual,
                    SCHEDULES.index(self.schedule),
                    self.shard,
                ),
            ]
        )

    def groups(self, kind: str) -> Groups:
        """Process groups of one kind: those of a layout, and of its ranks of experts
        "ep_within", on a node, and "ep_across", at the same place of their nodes."""
        if kind not in NODE_KINDS:
            return super().groups(kind)
        size = self.gpus_per_node or self.world
        found: list[tuple[int, ...]] = []
        for group in super().groups("ep"):
            nodes = sorted({rank // size for rank in group})
            near = [tuple(r for r in group if r // size == node) for node in nodes]
            found += zip(*near, strict=True) if kind == "ep_across" else near
        return tuple(sorted(found))

    @property
    def synchronized(self) -> str:
        """How copies are kept equal, one of SYNCHRONIZATIONS."""
        return self.synchronization or OF_STAGE[self.zero]

    @property
    def dispatched(self) -> str:
        """Element type in which tokens go to experts; what returns has ``dtype``."""
        return self.dispatch_dtype or self.dtype

    def row_bytes(self, hidden: int, *, dispatched: bool = False) -> int:
        """Bytes of a token's vector, with the scales of one in 8 bits.

        Parameters
        ----------
        hidden
            Its elements.
        dispatched
            Whether it goes to an expert.
        """
        dtype = self.dispatched if dispatched else self.dtype
        scales = 4 * ceil(hidden / FLOAT8_TILE) if dtype == "float8" else 0
        return hidden * element_bytes(dtype) + scales

    @property
    def gradients(self) -> str:
        """Element type in which gradients are reduced."""
        wide = "float32" if self.dtype == "bfloat16" else self.dtype
        return self.gradient_dtype or wide
