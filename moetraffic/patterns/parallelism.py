"""How a model is trained in parallel, as far as it decides what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from moetraffic.errors import LayoutError

from .element_types import element_bytes
from .layer_calls import CONTEXTS
from .layout import ParallelLayout
from .routers import Gating
from .schedules import SCHEDULES, passes
from .shape import ModelShape, unmet_in_parallel
from .synchronization import IN_EACH_MICRO_BATCH, OF_STAGE, SHARDED, SYNCHRONIZATIONS

RECOMPUTATIONS = ("none", "full")
FLOAT8_TILE = 128
"""Elements of a token's vector that share a 32-bit scale where it is sent in 8 bits
(DeepSeek-V3, arXiv 2412.19437, section 3.3.1)."""


@dataclass(frozen=True, kw_only=True)
class Parallelism(ParallelLayout):
    """Layout, schedule, batch, precision and the libraries' ways of a training.

    Raises
    ------
    LayoutError
        If a field is out of range.
    """

    micro_batch: int = 1  # sequences of a replica in one forward pass b
    accumulation: int = 1  # micro-batches of an iteration m
    virtual: int = 1  # chunks of layers on each pipeline stage v
    schedule: str = "1f1b"  # one of SCHEDULES
    # one of SYNCHRONIZATIONS, in place of what the ZeRO stage means by itself
    synchronization: str = ""
    bucket_mib: float = 0.0  # of the synchronization "ddp"; 0: torch's 1, then 25
    keep: bool = False  # of "fsdp2": parameters stay gathered until backward
    sequence_parallel: bool = False
    recompute: str = "none"  # one of RECOMPUTATIONS
    context: str = "ring"  # one of CONTEXTS
    dtype: str = "bfloat16"  # of parameters and activations
    dispatch_dtype: str = ""  # of tokens sent to experts; empty: as dtype
    gradient_dtype: str = ""  # empty: float32 for bfloat16, as Megatron-LM, else dtype

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("micro_batch", "accumulation", "virtual"):
            if getattr(self, name) < 1:
                raise LayoutError(
                    f"{name.replace('_', '-')} must be at least 1, but is "
                    f"{getattr(self, name)}: give a positive number"
                )
        known = {
            "recompute": RECOMPUTATIONS,
            "context": CONTEXTS,
            "schedule": SCHEDULES,
            "synchronization": ("", *SYNCHRONIZATIONS),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise LayoutError(
                    f"{name} is one of {', '.join(str(v) for v in values if v != '')}, "
                    f"not {getattr(self, name)!r}: choose one of them"
                )
        if not self.bucket_mib >= 0:
            raise LayoutError(
                "a bucket has some MiB, or 0 for what torch does, but bucket-mib is "
                f"{self.bucket_mib}: raise it"
            )
        element_bytes(self.dtype)
        element_bytes(self.gradients)
        element_bytes(self.dispatched)
        if self.pp > 1 and self.synchronized in IN_EACH_MICRO_BATCH:
            raise LayoutError(
                "a pipeline goes with gradients that wait for all micro-batches, but "
                f"pp is {self.pp} and {self.synchronized} sends in each: use "
                "--zero 1, another --synchronization or --pp 1"
            )
        if self.shard and self.synchronized not in SHARDED:
            raise LayoutError(
                f"shards are ZeRO's, but {self.synchronized} has none of the "
                f"{self.shard} that are asked for: give --zero 1, 2 or 3, or leave out "
                "--shard"
            )
        if self.shard and self.schedule == "dualpipe":
            raise LayoutError(
                "copies of DualPipe are on two stages, not in blocks that shard them, "
                f"but shard is {self.shard}: leave out --shard"
            )
        passes(0, self.pp, self.accumulation, self.virtual, self.schedule)

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


def check(shape: ModelShape, gating: Gating, plan: Parallelism) -> None:
    """Refuse a model that cannot be spread so.

    Raises
    ------
    LayoutError
        With the rule, its values and the remedy.
    """
    s = g = plan
    spread = g.sequence_ranks if s.sequence_parallel else g.cp
    rules = [
        (
            shape.heads % g.tp == 0,
            f"tp must divide the attention heads, but there are {shape.heads} heads "
            f"for tp {g.tp}",
            "change --tp",
        ),
        *(
            (False, rule, remedy)
            for rule, remedy in unmet_in_parallel(shape, tp=1, pp=g.pp)
        ),
        (
            shape.groups % g.tp == 0 or g.tp % shape.groups == 0,
            "tp must divide the key and value heads, or they tp, but there are "
            f"{shape.groups} for tp {g.tp}",
            "change --tp",
        ),
        (
            not any(width % g.tp for width in shape.widths),
            f"tp must divide every feed-forward width, but for tp {g.tp} they are "
            f"{', '.join(map(str, shape.widths))}",
            "change --tp",
        ),
        (
            shape.layers >= g.pp * s.virtual,
            "every chunk of a pipeline holds a layer, but there are "
            f"{shape.layers} layers for pp x virtual = {g.pp} x {s.virtual}",
            "lower --pp or --virtual",
        ),
        (
            shape.sequence % spread == 0 and shape.targets % spread == 0,
            "ranks that share a sequence must divide it, but it has "
            f"{' and '.join(map(str, sorted({shape.sequence, shape.targets})))} tokens "
            f"for {spread} ranks",
            "change --cp or --tp, or leave out --sequence-parallel",
        ),
        (
            shape.experts > 0 or (g.ep == 1 and g.etp in (0, 1, g.tp)),
            f"a dense model has no experts to spread, but ep is {g.ep} and etp is "
            f"{g.etp}",
            "set --ep 1",
        ),
        (
            shape.experts % g.ep == 0,
            f"ep must divide the experts, but there are {shape.experts} experts for "
            f"ep {g.ep}",
            "change --ep",
        ),
        (
            not shape.experts or shape.expert_width % g.expert_tp == 0,
            f"etp must divide an expert's width, but it is {shape.expert_width} for "
            f"etp {g.expert_tp}",
            "change --etp",
        ),
        (
            not shape.experts or g.tp == 1 or s.sequence_parallel,
            "experts under tensor parallelism have each token once with sequence "
            f"parallelism alone, but tp is {g.tp}",
            "give --sequence-parallel",
        ),
        (
            g.cp == 1 or s.context != "all-to-all" or shape.heads % (g.tp * g.cp) == 0,
            "context ranks that exchange heads for tokens divide a tensor rank's heads,"
            f" but there are {shape.heads} heads for tp x cp = {g.tp} x {g.cp}",
            "change --cp or --context",
        ),
        (
            gating.k <= max(1, shape.experts) or not shape.experts,
            f"a token's k experts are distinct, but k is {gating.k} and there are "
            f"{shape.experts} experts",
            "lower --k",
        ),
    ]
    for kept, rule, remedy in rules:
        if not kept:
            raise LayoutError(f"{rule}: {remedy}")
