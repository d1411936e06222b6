"""How a model is trained in parallel: one description, of one run or of many at once.

Fields are numbers and names, or lists of them that broadcast together.  A pattern lists
the calls of one run, the time model sums those of arrays of them: what a field means,
and what cannot be (:mod:`.rules`), is the same for both.

Dense layers use the grid (tp, cp, dp, pp), experts a second one (etp, ep, edp, pp) over
the same ranks: a rank's place in the one says nothing of its place in the other but for
the pipeline stage, which both share.  Both are numbered in the same order of axes, the
leftmost varies fastest: in the default order tp-cp-ep-dp-pp a rank of the first grid is
``tp + t (cp + c (dp + d pp))``.

References
----------
Megatron-LM, ``megatron/core/parallel_state.py``: ``RankGenerator`` and its two
instances, ``decoder_rank_generator`` and ``expert_decoder_rank_generator``.
Narayanan et al., arXiv 2104.04473, section 3 (tensor ranks beside each other).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from functools import cached_property
from math import prod

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice
from moetraffic.workload.model import ModelShape
from moetraffic.workload.routing import Gating
from moetraffic.workload.rules import Values
from moetraffic.workload.sizes import ModelSizes, model_sizes

from .rules import LAYOUT_RULES, ORDER, check
from .schedules import StageLayers, stage_layers

Groups = tuple[tuple[int, ...], ...]


SCHEDULES = ("1f1b", "zb-h1", "dualpipe")
"""Orders of passes; the first is interleaved where a rank has virtual stages."""

RECOMPUTE = ("none", "selective", "full", "modules")
"""What is computed again in backward; selective: the attention matrices alone
(Korthikanti et al., arXiv 2205.05198, section 5); modules: norms, activation functions
and up-projections of latent attention (DeepSeek-V3, arXiv 2412.19437, section 3.2.3;
Megatron-LM, ``--recompute-modules layernorm moe_act mla_up_proj``)."""

CONTEXTS = ("ring", "all-gather", "all-to-all")
"""How attention sees the whole sequence: keys and values round a ring (Liu et al.,
arXiv 2310.01889), gathered (Llama 3, arXiv 2407.21783, section 3.3.2), or heads for
tokens exchanged (Ulysses, Jacobs et al., arXiv 2309.14509)."""

DISPATCHERS = ("plain", "two-level", "deduplicated")
"""One all-to-all; one inside each node and one between the ranks of each place; a token
once for each node, and from there once for each rank, that has some of its experts."""

SYNCHRONIZATIONS = (
    *("all-reduce", "ddp", "distributed-optimizer", "zero-2"),
    *("oss", "sharded-ddp", "fsdp1", "fsdp2"),
)
"""How libraries keep copies of parameters equal: see :mod:`.copies`."""

OF_STAGE = ("all-reduce", "distributed-optimizer", "zero-2", "fsdp2")
"""How copies are kept equal where the ZeRO stage alone is given."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "context": CONTEXTS,
    "schedule": SCHEDULES,
    "dispatcher": DISPATCHERS,
    "synchronization": ("", *SYNCHRONIZATIONS),
}
"""Names that a field may have."""

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}

FLOAT8_TILE = 128
"""Elements of a token's vector that share a 32-bit scale where it is sent in 8 bits
(DeepSeek-V3, arXiv 2412.19437, section 3.3.1)."""

DENSE_KINDS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "dp_cp": ("cp", "dp"),  # copies of the dense parameters
    "pp": ("pp",),
    "mp": ("tp", "pp"),  # one copy of the model: its gradient's norm
    "world": ("tp", "cp", "dp", "pp"),
}
EXPERT_KINDS: Mapping[str, tuple[str, ...]] = {
    "etp": ("etp",),
    "ep": ("ep",),
    "edp": ("edp",),  # copies of the experts
    "etp_ep": ("etp", "ep"),
}
SHARD_KINDS = ("dp_shard", "dp_replicate", "edp_shard", "edp_replicate")
"""Of copies that ZeRO shards within some ranks and replicates over the others."""

PAIR_KINDS = ("dp_pair", "edp_pair")
"""Of copies on a stage and on the mirrored one, which DualPipe has."""

NODE_KINDS = ("ep_within", "ep_across")
"""Of ranks of experts on a node, and at the same place of their nodes."""

GROUP_KINDS = (
    *(*DENSE_KINDS, *EXPERT_KINDS, *SHARD_KINDS, *PAIR_KINDS, *NODE_KINDS),
    "embedding",
)
"""Kinds of process groups; "embedding": the first and the last stage of each pipeline,
which both hold a tied embedding."""


def element_bytes(dtype: Values) -> Values:
    """Bytes of an element: of its type, or the bytes as given.

    Raises
    ------
    LayoutError
        If there is no such type, or bytes are not above 0.
    """
    if isinstance(dtype, str):
        check_choice("an element type", dtype, ELEMENT_BYTES, LayoutError)
        return ELEMENT_BYTES[dtype]
    if np.asarray(dtype).dtype.kind == "U":
        return np.array([element_bytes(str(name)) for name in np.ravel(dtype)])
    if np.any(np.asarray(dtype) <= 0):
        raise LayoutError(
            f"an element has bytes above 0, but it has {dtype}: name its type, as "
            "bfloat16"
        )
    return dtype


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout, schedule, batch, storage and the libraries' ways of a training.

    Whether a run can exist is asked by those who use it: :func:`~.rules.violations`.

    Parameters
    ----------
    global_batch
        Sequences of an iteration, in place of ``accumulation``.
    """

    model: ModelShape | Sequence[ModelShape] | None = None  # several: of an array's
    # elements; None: process groups alone are asked for
    tp: Values = 1  # tensor-parallel ranks of a layer t
    cp: Values = 1  # context-parallel ranks of a sequence c
    dp: Values = 1  # replicas d, each with its own data; those of ep included
    pp: Values = 1  # pipeline stages p
    ep: Values = 1  # ranks that share one set of experts
    etp: Values = 0  # tensor-parallel ranks of an expert; 0: tp
    zero: Values = 0  # ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters
    # neighboring copies of the dense parameters among which ZeRO shards them, such as a
    # node's (HSDP; Zhao et al., arXiv 2304.11277, section 3.2.2); 0: all copies
    shard: Values = 0
    order: str = ORDER  # of axes over world ranks, the fastest first
    # how a rank passes through its layers
    micro_batch: Values = 1  # sequences of a replica in one forward pass b
    accumulation: Values = 1  # micro-batches of an iteration m
    global_batch: InitVar[Values] = None
    virtual: Values = 1  # chunks of layers on each pipeline stage v
    embedding_layers: Values = 0  # that the embedding counts as, where layers are
    head_layers: Values = 0  # divided among chunks, and the output layer and loss
    schedule: Values = "1f1b"  # one of SCHEDULES
    sequence_parallel: Values = False  # Megatron's, over the tensor-parallel ranks
    recompute: Values = "none"  # one of RECOMPUTE
    context: Values = "ring"  # one of CONTEXTS: attention over the ranks of cp
    # tensor ranks hand a t-th each to the next stage, and gather it there (SC'21, arXiv
    # 2104.04473, section 4.1)
    scatter_gather: Values = False
    dispatcher: Values = "plain"  # one of DISPATCHERS: how tokens travel to experts
    node_limit: Values = 0  # nodes that the experts of a token lie on; 0: any
    gpus_per_node: Values = 0  # neighboring ranks of a node; 0: all are on one
    # how copies are kept equal: one of SYNCHRONIZATIONS in place of that of the stage
    synchronization: str = ""
    bucket_mib: float = 0.0  # of the synchronization "ddp"; 0: torch's 1, then 25
    keep: bool = False  # of "fsdp2": parameters stay gathered until backward
    prefetch: Values = 1  # layers that ZeRO 3 gathers ahead; 0: none
    # elements, by name or in bytes
    dtype: Values = "bfloat16"  # of parameters and activations
    dispatch_dtype: Values = ""  # of tokens sent to experts; empty: as dtype
    gradient_dtype: Values = ""  # empty: float32 for bfloat16, as Megatron-LM, or dtype
    state_bytes: Values = 12  # of the optimizer's states of a parameter; Adam: master
    # copy and two moments in fp32; 8 without the copy
    fused_attention: Values = False  # scores never leave the multiprocessors, and only
    # the causal half of them is computed (FlashAttention)
    fp8: Values = False  # products of layers' weights in 8 bits
    # routing
    k: Values = 0  # experts of a token; of no matter to a dense model
    capacity_factor: Values = 0.0  # of padded buffers of experts; 0: what is routed
    imbalance: Values = 1.0  # busiest expert-parallel rank over the mean

    def __post_init__(self, global_batch: Values) -> None:
        for name in (*NUMBERS, *CHOICES, *ELEMENTS):
            given = getattr(self, name)
            if isinstance(given, (list, tuple, np.ndarray)):
                given = np.asarray(given)
                object.__setattr__(self, name, given)
            if name in CHOICES:
                for choice in np.unique(given).tolist() if np.ndim(given) else [given]:
                    check_choice(name, choice, CHOICES[name], LayoutError)
            elif name in NUMBERS:
                _check_number(name, given)
            elif not isinstance(given, str) or given:
                element_bytes(given)
        if global_batch is not None:
            _check_number("global_batch", global_batch)
            a_pass = np.maximum(np.multiply(self.micro_batch, self.dp), 1)
            batches = np.asarray(global_batch) / a_pass
            whole = not batches.ndim and batches % 1 == 0
            number = int(batches) if whole else batches
            object.__setattr__(self, "accumulation", number)
        _ = self.shape  # refuses lists that do not broadcast

    @classmethod
    def of(
        cls,
        model: ModelShape,
        layout: Layout | None = None,
        gating: Gating | None = None,
        **more: Values,
    ) -> Layout:
        """A layout with its model and routing; ``more`` are further fields."""
        gating = gating or Gating(k=1)
        padded = model.experts and gating.dispatch == "padded"
        routing = {"k": gating.k, "capacity_factor": gating.capacity_factor * padded}
        return replace(layout or cls(), **{"model": model, **routing, **more})

    # ---- many at once -----------------------------------------------------------

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of all fields together."""
        shapes = {np.shape(getattr(self, n)) for n in (*NUMBERS, *CHOICES, *ELEMENTS)}
        if self.model is not None and not isinstance(self.model, ModelShape):
            shapes.add((len(self.model),))
        if shapes == {()}:
            return ()
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            told = ", ".join(sorted(str(shape) for shape in shapes if shape))
            raise LayoutError(
                f"the arrays of a layout broadcast together, but have the shapes {told}"
                ": give them one"
            ) from None

    def arrays(self) -> Layout:
        """The same with float64 numbers and arrays of names, for formulas: a division
        by 0 is infinite there, and ``~`` is a negation."""
        if "of_arrays" in self.__dict__:
            return self
        made = object.__new__(Layout)
        held = {f.name: getattr(self, f.name) for f in fields(Layout)}
        held |= {n: np.float64(held[n]) for n in NUMBERS}
        held |= {n: np.asarray(held[n]) for n in CHOICES if n != "synchronization"}
        made.__dict__.update(held, shape=self.shape, of_arrays=True)
        if self.model is not None:
            made.__dict__["k"] = np.where(made.sizes.experts > 0, made.k, 0.0)
        return made

    def at(self, index: int) -> Layout:
        """One of the layouts, by its flat index."""
        held = {f.name: getattr(self, f.name) for f in fields(Layout)}
        for name, value in held.items():
            if name == "model" and not isinstance(value, (ModelShape, type(None))):
                held[name] = value[np.arange(prod(self.shape))[index] % len(value)]
            elif isinstance(value, np.ndarray):
                held[name] = np.broadcast_to(value, self.shape).flat[index].item()
        return Layout(**held)

    # ---- sizes -----------------------------------------------------------------

    @cached_property
    def world(self) -> Values:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @cached_property
    def expert_tp(self) -> Values:
        """Tensor-parallel ranks of an expert."""
        if isinstance(self.etp, int) and isinstance(self.tp, int):
            return self.etp or self.tp
        return np.where(np.asarray(self.etp) != 0, self.etp, self.tp)

    @cached_property
    def edp(self) -> Values:
        """Copies of each expert on a stage: expert parallelism is folded over its other
        ranks (Liu et al., arXiv 2504.14960)."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @cached_property
    def sequences(self) -> Values:
        """Of an iteration: the global batch B."""
        return self.micro_batch * self.accumulation * self.dp

    def among(self, copies: Values) -> Values:
        """Ranks among which ZeRO shards parameters that so many ranks hold: of all, or
        of a block of as many as shard dense parameters, one at least."""
        some = copies * self.shard // (self.dp * self.cp)
        among = np.where(self.shard > 0, np.maximum(some, 1), copies)
        return int(among) if isinstance(copies, int) else among

    @property
    def shards(self) -> Values:
        """Ranks among which ZeRO shards dense parameters."""
        return self.among(self.dp * self.cp)

    @property
    def expert_shards(self) -> Values:
        """Ranks among which ZeRO shards experts."""
        return self.among(self.edp)

    # ---- elements --------------------------------------------------------------

    @property
    def synchronized(self) -> str:
        """How copies of one run are kept equal, one of SYNCHRONIZATIONS."""
        return self.synchronization or OF_STAGE[int(self.zero)]

    @property
    def gradients(self) -> Values:
        """Element type in which gradients are reduced."""
        if isinstance(self.gradient_dtype, str) and not self.gradient_dtype:
            bf16 = isinstance(self.dtype, str) and self.dtype == "bfloat16"
            return "float32" if bf16 else self.dtype
        return self.gradient_dtype

    @property
    def dispatched(self) -> Values:
        """Element type in which tokens go to experts; what returns has ``dtype``."""
        same = isinstance(self.dispatch_dtype, str) and not self.dispatch_dtype
        return self.dtype if same else self.dispatch_dtype

    @cached_property
    def element_bytes(self) -> Values:
        """Bytes e of an element of parameters and activations."""
        return element_bytes(self.dtype)

    @cached_property
    def gradient_bytes(self) -> Values:
        """Bytes g of an element of a gradient as it is reduced."""
        return element_bytes(self.gradients)

    @cached_property
    def dispatched_bytes(self) -> Values:
        """Bytes of an element of tokens that go to experts."""
        return element_bytes(self.dispatched)

    def row_bytes(self, hidden: Values, *, dispatched: bool = False) -> Values:
        """Bytes of a token's vector of ``hidden`` elements, with the scales of one in 8
        bits; ``dispatched``: of one that goes to an expert."""
        size = self.dispatched_bytes if dispatched else self.element_bytes
        return hidden * size + 4 * (np.asarray(size) == 1) * -(-hidden // FLOAT8_TILE)

    # ---- what a model's stages hold: of ``arrays()`` ------------------------------

    @cached_property
    def sizes(self) -> ModelSizes:
        """Numbers of the model's shape."""
        assert self.model is not None
        return model_sizes(self.model)

    @cached_property
    def tokens(self) -> Values:
        """Of a micro-batch on a rank, ``b s`` over the context-parallel ranks."""
        return self.micro_batch * self.sizes.sequence / self.cp

    def copies(self, tokens: Values) -> Values:
        """Token copies of sequences that a rank routes in a layer, or their room."""
        ranks = self.cp * np.where(self.sequence_parallel > 0, self.tp, 1)
        routed = self.k * self.micro_batch * tokens / ranks
        padded = room(routed, self.sizes.experts, self.capacity_factor)
        return np.where(self.capacity_factor > 0, padded, routed * self.imbalance)

    @cached_property
    def most_imbalance(self) -> Values:
        """The busiest rank's load over the mean where all tokens go to its E/ep experts
        and, being k distinct ones, to others if these are fewer."""
        experts = self.sizes.experts / np.maximum(self.k, 1)
        return np.where(self.sizes.experts > 0, np.minimum(self.ep, experts), 1.0)

    @cached_property
    def stages(self) -> StageLayers:
        """Layers and ends of the stages that may have most."""
        assert self.model is not None
        ends = self.embedding_layers, self.head_layers
        how = self.pp, self.virtual, self.pair > 1, *ends
        return stage_layers(self.model, *how, dimensions=len(self.shape))

    @cached_property
    def stage_layers(self) -> Values:
        """Layers that a micro-batch passes on the rank that has most."""
        return self.stages.total.max(axis=0) / self.pair

    @cached_property
    def chunk_layers(self) -> Values:
        """Layers and counted ends of a chunk, rounded down."""
        whole = self.sizes.layers + self.embedding_layers + self.head_layers
        return whole // np.maximum(self.pp * self.virtual, 1)

    @cached_property
    def idle(self) -> Values:
        """Passes through a stage in which it waits under 1F1B: ``(p - 1)/v`` of chunks
        of the same length."""
        return self.stages.idle / self.stage_layers

    @cached_property
    def pair(self) -> Values:
        """Stages that a rank holds, and copies of a stage in a pipeline: 2 of DualPipe,
        which are mirrored."""
        return 1.0 + (self.schedule == "dualpipe")

    @cached_property
    def last(self) -> Values:
        """1 where a rank of the first stage is one of the last too, otherwise 0."""
        return np.where((self.pp > 1) & (self.pair < 2), 0.0, 1.0)

    @cached_property
    def copies_held(self) -> Values:
        """Ranks that hold the same dense parameters."""
        return self.dp * self.cp * self.pair

    @cached_property
    def expert_copies(self) -> Values:
        """Ranks that hold the same experts."""
        return self.pair * self.edp

    @cached_property
    def stage_held(self) -> Values:
        """Parameters of a rank of each of the stages ``[S, ...]``, without experts."""
        m, of = self.sizes, self.stages
        held = of.dense * (m.dense_split / self.tp + m.dense_whole)
        held = held + of.sparse * (m.sparse_split / self.tp + m.sparse_whole)
        held = held + of.first * m.first_whole + of.last * m.last_whole
        held = held + of.last * m.mtp * (m.mtp_split / self.tp + m.mtp_whole)
        looked_up = np.maximum(of.first, of.last * (m.mtp > 0))
        tables = np.where(
            m.tied > 0, np.maximum(of.first, of.last), looked_up + of.last
        )
        return held + (tables + of.last * m.row_bias / m.hidden) * self.table

    @cached_property
    def held(self) -> Values:
        """Parameters of a rank of the first stage, without experts."""
        return self.stage_held[0]

    @cached_property
    def table(self) -> Values:
        """Parameters of a rank's embedding, the vocabulary padded as by Megatron-LM."""
        rows = np.ceil(self.sizes.vocabulary / (128 * self.tp)) * 128
        return rows * self.sizes.hidden

    @cached_property
    def stage_experts(self) -> Values:
        """Parameters of experts of a rank of each of the stages ``[S, ...]``."""
        m, of = self.sizes, self.stages
        layers = of.sparse + of.last * m.mtp * m.mtp_sparse
        return layers * m.experts * m.expert_weights / (self.expert_tp * self.ep)

    @cached_property
    def ffn(self) -> Values:
        """Feed-forward width that a token passes through in a mean layer."""
        m, moe = self.sizes, self.sizes.moe_layers
        passed = (m.layers - moe) * m.dense_ffn
        passed = passed + moe * (self.k * m.expert_ffn + m.shared_ffn)
        return passed / m.layers

    @cached_property
    def inner(self) -> Values:
        """Context-parallel ranks that exchange heads for tokens; 1: none do."""
        return np.where(self.context == "all-to-all", self.cp, 1.0)

    @cached_property
    def near(self) -> Values:
        """Ranks of an expert-parallel group on a node, in the usual order of ranks."""
        node = np.where(self.gpus_per_node > 0, self.gpus_per_node, np.inf)
        near = np.minimum(np.floor(node / self.expert_tp), self.ep)
        return np.maximum(near, 1.0)

    # ---- process groups ------------------------------------------------------------

    @cached_property
    def _group_sizes(self) -> dict[str, tuple[Values, Values]]:
        c, etp, replica = self, self.expert_tp, self.tp * self.cp * self.dp
        sizes: dict[str, tuple[Values, Values]] = {
            **{"tp": (c.tp, 1.0), "cp": (c.cp, c.tp), "dp": (c.dp, c.tp * c.cp)},
            **{"dp_cp": (c.dp * c.cp, c.tp), "pp": (c.pp, replica)},
            **{"mp": (c.tp * c.pp, 1.0), "world": (c.world, 1.0)},
            **{"etp": (etp, 1.0), "ep": (c.ep, etp), "edp": (c.edp, etp * c.ep)},
            **{"etp_ep": (etp * c.ep, 1.0), "ep_within": (c.near, etp)},
            "ep_across": (c.ep / c.near, c.near * etp),
            "embedding": (1.0 + (c.pp > 1), replica * np.maximum(c.pp - 1, 1)),
        }
        copies = ("dp", c.copies_held, c.tp), ("edp", c.expert_copies, etp * c.ep)
        for name, ranks, stride in copies:
            shards = c.among(ranks)
            sizes[f"{name}_pair"] = ranks, stride
            sizes[f"{name}_shard"] = shards, stride
            sizes[f"{name}_replicate"] = ranks / shards, stride * shards
        return sizes

    def group(self, kind: str) -> tuple[Values, Values]:
        """Ranks of a kind of group, and the ranks between its neighbors, in the usual
        order: of ``arrays()``."""
        return self._group_sizes[kind]

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The pipeline stage of each world rank."""
        step = self.stride("pp")
        return tuple(rank // step % self.pp for rank in range(self.world))

    def stride(self, axis: str, *, dense: bool = True) -> int:
        """Ranks between neighbors on an axis of one of the grids."""
        sizes = _sizes(self, dense)
        names = list(sizes)
        return prod(sizes[name] for name in names[: names.index(axis)])

    def groups(self, kind: str) -> Groups:
        """Process groups of one kind, one of :data:`GROUP_KINDS`, of one layout: world
        ranks, ascending in each group; groups by their first rank.

        LayoutError if there is no such kind, or the layout cannot be.
        """
        check_choice("a group kind", kind, GROUP_KINDS, LayoutError)
        check(self, LAYOUT_RULES)
        return _groups_of(self, kind)


def _check_number(name: str, given: Values) -> None:
    if isinstance(given, (bool, int, float)) and given == given:
        return
    made = np.asarray(given)
    if made.dtype.kind not in "biuf" or np.isnan(made).any():
        raise LayoutError(
            f"{name} must be a number or an array of numbers, but is {given!r}: change "
            f"--{name.replace('_', '-')}"
        )


ELEMENTS = ("dtype", "dispatch_dtype", "gradient_dtype")
"""Fields that are element types."""

NUMBERS = tuple(
    f.name
    for f in fields(Layout)
    if f.name not in ("model", "order", "bucket_mib", "keep", *CHOICES, *ELEMENTS)
)
"""Fields that are numbers, or arrays of them."""


def room(routed: Values, experts: Values, capacity_factor: Values) -> Values:
    """Token copies of padded buffers: ``E ceil(factor k T / E)``, for all experts.

    Examples
    --------
    >>> float(room(2 * 100, 8, 1.1))
    224.0
    """
    number = np.maximum(experts, 1)
    # a factor as it is written: 1.1 x 10 is 11
    return number * np.ceil(np.round(capacity_factor * routed, 6) / number)


def _groups_of(p: Layout, kind: str) -> Groups:
    if kind == "embedding":
        return tuple(tuple(sorted({line[0], line[-1]})) for line in _groups_of(p, "pp"))
    if kind in PAIR_KINDS:
        mirrored = {
            rank: line[-1 - stage]
            for line in _groups_of(p, "pp")
            for stage, rank in enumerate(line)
        }
        copies = _groups_of(p, "dp_cp" if kind == "dp_pair" else "edp")
        pairs = {tuple(sorted({*g, *(mirrored[r] for r in g)})) for g in copies}
        return tuple(sorted(pairs))
    blocks: list[tuple[int, ...]] = []
    if kind in SHARD_KINDS:
        base, _, way = kind.partition("_")
        size = p.shards if base == "dp" else p.expert_shards
        for group in _groups_of(p, "dp_cp" if base == "dp" else base):
            near = [group[i : i + size] for i in range(0, len(group), size)]
            blocks += near if way == "shard" else zip(*near, strict=True)
        return tuple(sorted(blocks))
    if kind in NODE_KINDS:
        size = p.gpus_per_node or p.world
        for group in _groups_of(p, "ep"):
            nodes = sorted({rank // size for rank in group})
            near = [tuple(r for r in group if r // size == node) for node in nodes]
            blocks += near if kind == "ep_within" else zip(*near, strict=True)
        return tuple(sorted(blocks))
    dense = kind in DENSE_KINDS
    sizes, varying = _sizes(p, dense), (DENSE_KINDS if dense else EXPERT_KINDS)[kind]
    slowest = list(sizes)[::-1]
    axes = sorted(range(len(slowest)), key=lambda axis: slowest[axis] in varying)
    ranks = np.arange(prod(sizes.values())).reshape([sizes[name] for name in slowest])
    members = prod(size for name, size in sizes.items() if name in varying)
    return tuple(map(tuple, ranks.transpose(axes).reshape(-1, members).tolist()))


def _sizes(p: Layout, dense: bool) -> dict[str, int]:
    """Sizes of the dense grid or of that of experts, the fastest axis first."""
    if dense:
        own = {name: (name, getattr(p, name)) for name in ("tp", "cp", "dp", "pp")}
    else:
        own = {"tp": ("etp", p.expert_tp), "ep": ("ep", p.ep)}
        own |= {"dp": ("edp", p.edp), "pp": ("pp", p.pp)}
    return dict(own[axis] for axis in p.order.split("-") if axis in own)


def nested(p: Layout) -> bool:
    """Whether experts are split as their layers are, and their copies are some of those
    of the dense parameters."""
    beside = p.tp == 1 or p.stride("tp") == p.stride("etp", dense=False)
    return bool(p.expert_tp == p.tp and p.cp == 1 and beside)
