"""The calls of an iteration: which collectives each rank makes, in order, how large.

Ranks of one pipeline stage call the same collectives, each in its own groups, so a
pattern has a :class:`Stage` each.  Its calls are *rows*, a call and how often it is
made; they are put in order only for a trace (:attr:`Pattern.programs`).  Sizes are
payloads, counted as the capture's hook counts them: the bytes of a member's input.
What travels of them between whom an algorithm decides (:mod:`.matrices`).

Passes, what their layers send (:mod:`.layer`), messages between stages, copies that are
kept equal (:mod:`.copies`) and the tied embedding are the same in all libraries; where
these differ each library's dialect has a stage here.

Megatron-LM is one.  Of ``moetraffic.models`` tensor parallelism is fairscale's, stages
1 and 2 of ZeRO too, stage 3 is torch's ``fully_shard``, pipelines are torch's 1F1B:
embeddings and head are whole on each tensor rank, and activation checkpointing ends a
recomputation at the last tensor that a gradient needs, so that the all-reduce behind a
dense layer's last matrix is not sent again (torch, ``utils/checkpoint.py``:
``set_checkpoint_early_stop``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import Any, ClassVar, NamedTuple

from moetraffic.errors import LayoutError
from moetraffic.workload.model import ModelShape
from moetraffic.workload.routing import ROUTERS, Gating
from moetraffic.workload.tensors import ModelTensor, model_tensors, sees_own_tokens
from moetraffic.workload.training import Training

from .copies import ROOT, Copies, Synchronization, Unit
from .layer import TRAFFIC, Halves, LayerCalls, Part
from .layout import Groups, Layout, element_bytes
from .rules import SYNCHRONIZATION_RULES, check
from .schedules import Pass, chunk_layers, handed_on, passes
from .workload import Workload

ACROSS_STAGES = frozenset({"pp", "embedding", "mp", "world", "dp_pair", "edp_pair"})
"""Kinds of groups whose members are on several stages."""

WAYS = ("forward", "backward")

OWN = ("all-reduce", "oss", "sharded-ddp", "fsdp2")
"""How ``moetraffic.models`` does each ZeRO stage."""

ADAPTIVE = frozenset({"deepseek"})
"""Routers that learn from the load of the step."""

Shares = tuple[tuple[float, ...], ...]
"""Of an exchange's token copies, by measured layer and expert-parallel rank."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as a member of its group calls it."""

    traffic: str  # one of TRAFFIC
    group: str  # kind of process group
    operation: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv ...
    # bytes of a member's input; all-to-all: to all members together, itself included,
    # the same to each; broadcast and reduce: the buffer on every member
    size: int
    dtype: str = ""
    layer: int = -1  # global layer; -1: none
    direction: str = "forward"  # or "backward" or "recompute"
    phase: str = ""  # of an expert exchange, as a trace has them
    label: str = ""
    row_bytes: int = 0  # of a token vector in an expert exchange
    root: int = 0  # of a broadcast or reduce, as a member of the group
    peers: tuple[int, int] = (-1, -1)  # (source, destination) of a send_recv, members
    shares: tuple[float, ...] = ()  # of an expert exchange, by receiver; (): equal
    shift: int = 0  # a send_recv of every member to the one so much further
    exact: bool = True  # whether the size follows from the configuration alone

    def messages(self, members: int) -> tuple[tuple[int, int], ...]:
        """(source, destination) of a send_recv's messages, as members."""
        if self.shift:
            return tuple((i, (i + self.shift) % members) for i in range(members))
        return (self.peers,)


class Event(NamedTuple):
    """A call in a program; the micro-batch that it belongs to, -1 where to all."""

    call: Call
    micro_batch: int = -1


class Row(NamedTuple):
    """Calls of a stage that differ in their place alone."""

    call: Call  # without layer and shares
    stages: tuple[int, ...]  # whose ranks make as many
    times: int  # in an iteration, by each member
    when: str  # the call's direction, or "after backward": of no micro-batch


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The collectives of one iteration."""

    name: str  # of the model
    layout: Layout
    stages: tuple[Stage, ...]  # of the pipeline
    # what a trace of it says beside: model's and training's fields by name of Meta
    about: tuple[tuple[str, object], ...] = ()

    @cached_property
    def programs(self) -> tuple[tuple[Event, ...], ...]:
        """The calls of each pipeline stage in order."""
        return tuple(stage.program() for stage in self.stages)

    def program(self, rank: int) -> tuple[Event, ...]:
        """What a rank calls, in order."""
        return self.programs[self.stage_of[rank]]

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """The pipeline stage of each world rank."""
        return self.layout.stage_of

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of groups that communicate."""
        counts = (stage.counts for stage in self.stages)
        return tuple(sorted({call.group for call, _ in chain(*counts)}))

    @cached_property
    def _groups(self) -> dict[tuple[str, int], list[tuple[int, ...]]]:
        """Groups by kind and stage."""
        groups: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for kind in self.kinds:
            for group in self.layout.groups(kind):
                for stage in {self.stage_of[rank] for rank in group}:
                    groups.setdefault((kind, stage), []).append(group)
        return groups

    def groups(self, kind: str, stage: int) -> Groups:
        """The groups of a kind with a member on a stage."""
        return tuple(self._groups.get((kind, stage), ()))

    def calls(
        self, traffic: Sequence[str] | None = None
    ) -> Iterator[tuple[Call, Groups, int]]:
        """Each collective once: the call without its layer, the groups that make it,
        and how often each does in an iteration; ``traffic``: kinds, None takes all."""
        stage_of = self.stage_of
        for stage in self.stages:
            counts: Counter[Call] = Counter()
            for (call, _), times in stage.counts.items():
                if traffic is None or call.traffic in traffic:
                    counts[replace(call, layer=-1)] += times
            for call, times in counts.items():
                groups = self.groups(call.group, stage.number)
                if call.group in ACROSS_STAGES:
                    # the first of its members counts it; a message, its source
                    first = max(call.peers[0], 0)
                    groups = tuple(
                        g for g in groups if stage_of[g[first]] == stage.number
                    )
                if groups:
                    yield call, groups, times

    def rows(self) -> list[Row]:
        """The calls in short: those alike but for their layer, counted by stage."""
        counts: dict[tuple[Call, str], Counter[int]] = {}
        for stage in self.stages:
            for (call, ends), times in stage.counts.items():
                when = call.direction
                if ends and when == "forward":
                    when = "after backward"
                key = replace(call, layer=-1, shares=()), when
                counts.setdefault(key, Counter())[stage.number] += times
        rows = []
        for (call, when), of_stage in counts.items():
            for times in sorted(set(of_stage.values()), reverse=True):
                same = tuple(s for s, n in of_stage.items() if n == times)
                rows.append(Row(call, same, times, when))
        return sorted(rows, key=lambda r: (TRAFFIC.index(r.call.traffic), r.stages))


# ---- a stage, whatever library trains ------------------------------------------------


class Chunk(NamedTuple):
    """What a micro-batch passes at once on a stage."""

    layers: range  # global
    first: bool  # whether the embedding is in front of them
    last: bool  # whether norm, head and further predictions are behind them


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline of Megatron-LM; of one stage where there is no pipeline."""

    shape: ModelShape
    plan: Layout
    gating: Gating
    number: int
    shares: Shares = field(default=(), kw_only=True)

    dialect: ClassVar[type[LayerCalls]] = LayerCalls
    shard_label: ClassVar[str] = ""  # of calls that ZeRO adds; empty: as of gradients

    @cached_property
    def parts(self) -> LayerCalls:
        """What layers and ends send."""
        layout = Layout.of(self.shape, self.plan, self.gating).arrays()
        return self.dialect(layout, self.gating)

    # ---- the iteration -----------------------------------------------------------

    @cached_property
    def counts(self) -> Counter[tuple[Call, bool]]:
        """How often a rank makes each call, and whether it is of no micro-batch."""
        counts: Counter[tuple[Call, bool]] = Counter()
        for backward in (False, True):
            for chunk in range(len(self.chunks)):
                for call in self._pass(backward, chunk):
                    counts[call, False] += self.plan.accumulation // self.pair
        for call in self.end():
            counts[call, True] += 1
        return counts

    def program(self) -> tuple[Event, ...]:
        """The calls of an iteration, in order."""
        p = self.plan
        order = passes(self.number, p.pp, p.accumulation, p.virtual, p.schedule)
        calls = {
            (backward, chunk): self._pass(backward, chunk)
            for backward, chunk in {(one.backward, one.chunk) for one in order}
        }
        events = [
            Event(call, one.micro_batch)
            for one in order
            for call in calls[one.backward, one.chunk]
        ]
        return (*events, *(Event(call) for call in self.end()))

    def _pass(self, backward: bool, chunk: int) -> list[Call]:
        """The calls of one micro-batch's pass through a chunk, and its messages."""
        p, one = self.plan, Pass(backward, 0, chunk)
        messages = handed_on(one, self.number, p.pp, p.virtual, p.schedule)
        before, behind = (
            [
                Call(
                    *("PP", "pp", "send_recv", round(float(self.parts.handed_on))),
                    dtype=p.dtype,
                    label="pipeline",
                    peers=peers,
                    direction=WAYS[backward],
                )
            ]
            if peers
            else []
            for peers in messages
        )
        if before:
            before += self.listed(self.parts.received(), -1, WAYS[backward])
        calls = (self.backward if backward else self.forward)(self.chunks[chunk])
        return before + calls + behind

    def end(self) -> list[Call]:
        """Behind the last backward pass (``finalize_model_grads.py``)."""
        p = self.plan
        own = sum(t.elements for t in self.dense if sees_own_tokens(t))
        calls = self.synced("gradients")
        calls += self.listed(self.parts.norms(own, element_bytes(p.gradients)))
        calls += self.embedding_sync()
        shards = p.synchronized not in ("all-reduce", "ddp", "oss")
        if p.world > 1 and (shards or p.tp * p.pp > 1):
            group = "world" if shards else "mp"
            calls.append(control(group, "all_reduce", 4, "gradient_norm", "float32"))
        return calls + self.synced("parameters")

    # ---- a chunk and micro-batch ------------------------------------------------

    def forward(self, chunk: Chunk) -> list[Call]:
        """Embedding, layers, head and loss, as far as they are in the chunk."""
        calls, parts = self.synced("before_forward", ROOT), self.parts
        embedded, predicted = map(self.listed, (parts.embedded(), parts.predicted()))
        if chunk.first:
            calls += embedded
        for layer in chunk.layers:
            calls += self._layer(layer)
        if chunk.last:
            calls += predicted
            for layer in self.shape.predicting_layers:
                calls += embedded + self.listed(parts.joined(), layer)
                calls += self._layer(layer) + predicted
        return calls

    def backward(self, chunk: Chunk) -> list[Call]:
        """The same, from the end."""
        calls, parts = self.synced("before_backward", ROOT), self.parts
        embedded, predicted = (
            self.listed(end, -1, "backward")
            for end in (parts.embedded_gradient(), parts.predicted_gradient())
        )
        if chunk.last:
            for layer in reversed(self.shape.predicting_layers):
                calls += predicted + self._layer_gradient(layer, parts.joined())
                calls += self.listed(parts.joined_gradient(), layer, "backward")
                calls += embedded
            calls += predicted
        for layer in reversed(chunk.layers):
            calls += self._layer_gradient(layer)
        if chunk.first:
            calls += embedded
        calls += self.synced("after_backward", ROOT)
        return calls + (self.synced("micro_batch") if chunk == self.chunks[0] else [])

    @cached_property
    def _halves(self) -> dict[tuple[bool, bool, bool], Halves]:
        """What passes send: backward, with experts, behind an encoder."""
        ways = self.parts.forward, self.parts.backward
        return {
            (back, sparse, crosses): ways[back](sparse=sparse, crosses=crosses)
            for back, sparse, crosses in product((False, True), repeat=3)
        }

    def _parts(self, layer: int, *, backward: bool = False) -> Halves:
        """What a layer's pass sends."""
        shape = self.shape
        return self._halves[backward, shape.sparse(layer), shape.crosses(layer)]

    def _layer(self, layer: int) -> list[Call]:
        """A layer's forward pass."""
        halves = self._parts(layer)
        return [
            *self.synced("before_forward", ("block", layer)),
            *self.listed(halves.before, layer),
            *self.synced("before_forward", ("experts", layer)),
            *self.listed(halves.experts + halves.behind, layer),
        ]

    def _layer_gradient(self, layer: int, ahead: Sequence[Part] = ()) -> list[Call]:
        """Its backward pass; ``ahead`` is computed again with it."""
        again: list[Call] = []
        if self.plan.recompute == "full":
            parts = [*ahead, *self._parts(layer).all]
            again = self.recomputed(self.listed(parts, layer, "recompute"), layer)
        halves = self._parts(layer, backward=True)
        return [
            *self.synced("before_backward", ("block", layer)),
            *again,
            *self.listed(halves.before, layer, "backward"),
            *self.synced("before_backward", ("experts", layer)),
            *self.listed(halves.experts, layer, "backward"),
            *self.synced("after_backward", ("experts", layer)),
            *self.listed(halves.behind, layer, "backward"),
            *self.synced("after_backward", ("block", layer)),
        ]

    def recomputed(self, calls: list[Call], layer: int) -> list[Call]:
        """What of a layer's forward pass is sent again before its backward pass."""
        return calls

    def listed(
        self, parts: Sequence[Part], layer: int = -1, direction: str = "forward"
    ) -> list[Call]:
        """Parts call by call."""
        calls = []
        for part in parts:
            if part.times:
                calls += [self.call(part, layer, direction)] * int(part.times)
        return calls

    def call(self, part: Part, layer: int, direction: str) -> Call:
        """A part as a member of its group calls it."""
        p, size = self.plan, round(float(part.buffer))
        out = part.phase in ("dispatch", "combine_grad")
        dtype = {"cross_entropy": "float32", "count_exchange": "int64"}.get(part.label)
        if out or (part.label, part.operation) == ("experts", "all_gather"):
            dtype = p.dispatched
        if part.operation == "all_gather":
            members = {"tp": p.tp, "cp": p.cp, "etp": p.expert_tp}
            size //= members.get(part.group, p.expert_tp * p.ep)
        row = p.row_bytes(self.shape.hidden, dispatched=out) if part.phase else 0
        routed = part.phase or part.label == "experts"
        return Call(
            traffic=part.traffic,
            group=part.group,
            operation=part.operation,
            size=size,
            dtype=dtype or p.dtype,
            layer=layer,
            direction=direction,
            label=part.label,
            phase=part.phase,
            row_bytes=int(row),
            shares=self._shares_of(layer) if part.phase else (),
            shift=int(part.operation == "send_recv"),
            exact=self.gating.dispatch == "padded" or not routed,
        )

    def _shares_of(self, layer: int) -> tuple[float, ...]:
        """Shares of a layer, that of the measured ones at the same depth."""
        if not self.shares:
            return ()
        sparse = self.shape.moe_layers
        place = min(bisect_left(sparse, layer), len(sparse) - 1)
        return self.shares[place * len(self.shares) // len(sparse)]

    # ---- copies ----------------------------------------------------------------

    def synced(self, point: str, unit: Unit | None = None) -> list[Call]:
        """What keeps copies equal at a point of an iteration."""
        calls = []
        for sent in self.sync.at(point, unit):
            dtype = self.plan.gradients if sent.gradients else self.plan.dtype
            call = Call(
                traffic="DP",
                group=sent.copies.across_group if sent.across else sent.copies.group,
                operation=sent.operation,
                size=round(sent.elements * element_bytes(dtype)),
                dtype=dtype,
                direction=WAYS[sent.backward],
                label=(sent.added and self.shard_label) or sent.copies.label,
                root=sent.root,
            )
            calls.append(call)
        return calls

    def embedding_sync(self) -> list[Call]:
        """The embedding's gradient, where the first and the last stage use it."""
        p = self.plan
        shared = self.shape.tied or self.shape.mtp
        if p.pp == 1 or not shared or self.pair > 1 or self.number not in (0, p.pp - 1):
            return []
        table = next(t for t in self.dense if t.name == "token.weight")
        size = table.elements * element_bytes(p.gradients)
        how = "EmbTableSync", "embedding", "all_reduce"
        return [Call(*how, size, p.gradients, label="embedding_sync")]

    @cached_property
    def sync(self) -> Synchronization:
        """How copies of this stage's parameters are kept equal."""
        p = self.plan
        experts = [t for t in self.tensors if t.part == "expert"]
        copies = []
        for tensors, group, ranks, shards, label in (
            (
                *(self.dense, "dp_cp" if p.cp > 1 else "dp", p.dp * p.cp, p.shards),
                "gradient_sync",
            ),
            (experts, "edp", p.edp, p.expert_shards, "expert_gradient_sync"),
        ):
            base = group.partition("_")[0]
            if self.pair > 1:
                group, ranks, shards = f"{base}_pair", 2 * ranks, 2 * ranks
            if ranks > 1 and tensors:
                copies.append(
                    Copies(
                        tensors=tensors,
                        group=f"{base}_shard" if shards < ranks else group,
                        ranks=shards,
                        across=ranks // shards,
                        across_group=f"{base}_replicate",
                        label=label,
                    )
                )
        held = [layer for chunk in self.chunks for layer in chunk.layers]
        if any(chunk.last for chunk in self.chunks):
            held += self.shape.predicting_layers
        units: list[Unit] = []
        for layer in held:
            if p.edp > 1 and self.shape.sparse(layer):
                units.append(("experts", layer))
            units.append(("block", layer))
        return Synchronization(
            name=p.synchronized,
            copies=copies,
            units=[*units, ROOT] if copies else [],
            bucket_mib=p.bucket_mib,
            keep=p.keep,
            gradient_bytes=element_bytes(p.gradients),
            alone=0 if p.edp > 1 else sum(t.elements for t in experts),
        )

    # ---- what it holds ---------------------------------------------------------

    @property
    def pair(self) -> int:
        """Stages whose parameters its ranks hold: 2 of DualPipe."""
        return 2 if self.plan.schedule == "dualpipe" else 1

    @cached_property
    def chunks(self) -> list[Chunk]:
        """This stage's chunks."""
        p, number = self.plan, self.number
        ends = p.embedding_layers, p.head_layers
        layers = chunk_layers(self.shape.layers, p.pp, p.virtual, *ends)
        last = len(layers) - 1
        chunks = [Chunk(of, n == 0, n == last) for n, of in enumerate(layers)]
        if self.pair > 1:
            return [chunks[number], chunks[last - number]]
        return chunks[number :: p.pp]

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        p, held = self.plan, dict[str, ModelTensor]()
        for chunk in self.chunks:
            for t in model_tensors(
                self.shape,
                layers=chunk.layers,
                ends=(chunk.first, chunk.last),
                vocabulary_split=p.tp,
            ):
                # both ends of a tied model share its table
                tp = p.expert_tp if t.part == "expert" else p.tp
                held.setdefault(t.name, t.on_rank(tp=tp, ep=p.ep))
        return list(held.values())

    @cached_property
    def dense(self) -> list[ModelTensor]:
        """Tensors outside experts, in the order in which an optimizer has them."""
        return [t for t in self.tensors if t.part == "dense"]


def control(
    group: str,
    operation: str,
    size: int,
    label: str,
    dtype: str = "float64",
    root: int = 0,
) -> Call:
    """A call of a few bytes: a norm, a loss, counts."""
    return Call("control", group, operation, size, dtype, label=label, root=root)


def _pattern(stages: Sequence[Stage], **about: Any) -> Pattern:
    """The pattern of all stages of a pipeline, with further properties of the run."""
    shape, gating, plan = stages[0].shape, stages[0].gating, stages[0].plan
    about |= {"model": shape.name, "layers": shape.layers, "hidden": shape.hidden}
    about["dtype"] = plan.dtype
    if shape.experts:
        names = ("k", "router", "dispatch", "capacity_factor")
        about["experts"] = shape.experts
        about |= {name: getattr(gating, name) for name in names}
    whole, properties = tuple(stages), tuple(about.items())
    return Pattern(name=shape.name, layout=plan, stages=whole, about=properties)


def megatron_pattern(
    model: ModelShape,
    layout: Layout,
    gating: Gating | None = None,
    *,
    shares: Shares = (),
) -> Pattern:
    """The collectives of one iteration of Megatron-LM's parallelism, all ranks.

    Where ``gating`` decides how much is sent, all experts are taken to get as much, and
    the calls' ``exact`` is false.  ``shares`` are measured ones of an exchange's token
    copies, by expert-parallel rank: a row for each measured layer, which layers with
    experts follow in proportion; empty: equal.  LayoutError if the model cannot be
    spread so.
    """
    gating, p = gating or Gating(k=1), layout
    imbalance = p.ep * max(map(max, shares)) if shares else 1.0
    check(Layout.of(model, p, gating, imbalance=imbalance))
    way = p.dispatcher, p.expert_tp, gating.dispatch
    if shares and {p.ep} != (lengths := {len(row) for row in shares}):
        raise LayoutError(
            "there is a share for each expert-parallel rank, but there are "
            f"{min(lengths)} for ep {p.ep}: give --ep as many"
        )
    if shares and (way[:2] != ("plain", 1) or way[2] == "padded"):
        raise LayoutError(
            "measured shares of ranks are of whole experts whose tokens one all-to-all "
            f"sends, but dispatcher, etp and dispatch are {way}: use --dispatcher "
            "plain, --etp 1 and --dispatch dropless"
        )
    return _pattern([Stage(model, p, gating, n, shares=shares) for n in range(p.pp)])


# ---- moetraffic.models ---------------------------------------------------------------


def workload_pattern(workload: Workload) -> Pattern:
    """The collectives of one iteration of a workload, all of its ranks.

    Where routing decides how much is sent (dropped and dropless dispatch) the calls'
    ``exact`` is false and all experts are taken to get as much; what a rank dispatches
    without dropping, and the gradient of what it gets back, is exact all the same.

    Parameters
    ----------
    workload
        What is trained; its layout may name the synchronization of a model that is
        wrapped otherwise than in ``moetraffic.models``.

    Raises
    ------
    LayoutError
        If that does not go with the layout.
    """
    plan, w = workload.parallelism, workload
    plan = replace(plan, synchronization=plan.synchronization or OWN[plan.zero])
    check(plan, SYNCHRONIZATION_RULES)
    stages = [_OwnStage(w.model, plan, w.gating, n, w) for n in range(plan.pp)]
    return _pattern(stages, seed=w.training.seed, workload=w.to_json())


def trained_pattern(model: ModelShape, layout: Layout, gating: Gating) -> Pattern:
    """The collectives of one iteration of training with ``moetraffic.models``;
    LayoutError if that training does not support the layout."""
    training = Training(
        micro_batch=layout.micro_batch,
        accumulation=layout.accumulation,
        dtype=layout.dtype,
        recompute=layout.recompute == "full",
    )
    return workload_pattern(
        Workload(model=model, gating=gating, layout=layout, training=training)
    )


class FairscaleCalls(LayerCalls):
    """Layers of fairscale's tensor parallelism, whose experts are split as layers are;
    embedding and head are whole on each rank."""

    def embedded(self) -> list[Part]:
        """Nothing."""
        return []

    embedded_gradient = predicted = predicted_gradient = embedded

    def _counts(self) -> list[Part]:
        c, parts = self.layout, []
        size, gating = 8 * c.sizes.experts, self.gating
        if gating and gating.balance_scope == "global" and c.dp > 1:
            parts.append(Part("control", "dp", "all_reduce", size, 1, "balance_counts"))
        if self._counted and c.ep > 1:
            label = "count_exchange"
            parts.append(Part("control", "ep", "all_to_all", size, 1, label))
        return parts

    def _split_experts(self, crosses: bool) -> list[Part]:
        size, times = self._exchanged[crosses, False], self._split
        if self.gating and self.gating.router == "fairscale":  # expert by expert
            local = self.layout.sizes.experts / self.layout.ep
            size, times = size / local, times * local
        return [Part("TP", "tp", "all_reduce", size, times, "experts")]


@dataclass(frozen=True)
class _OwnStage(Stage):
    """What the ranks of one pipeline stage of ``moetraffic.models`` call."""

    work: Workload
    dialect: ClassVar[type[LayerCalls]] = FairscaleCalls
    shard_label: ClassVar[str] = "zero"

    def end(self) -> list[Call]:
        """Behind the last backward pass."""
        work, p, calls = self.work, self.plan, []
        if p.pp > 1:
            calls.append(control("pp", "broadcast", 8, "loss", root=p.pp - 1))
        calls += self.synced("gradients") + self.embedding_sync()
        if work.training.clip > 0:
            # of those who have different parts of the gradient
            kinds = [("dp", 16)] * (p.zero > 1 and p.dp > 1)
            kinds = kinds or [("ep", 8)] * (p.ep > 1)
            kinds += [(kind, 8) for kind in ("tp", "pp") if getattr(p, kind) > 1]
            for kind, size in kinds:
                calls.append(control(kind, "all_reduce", size, "gradient_norm"))
        calls += self.synced("parameters")
        layers = [n for n in self.chunks[0].layers if n in work.model.moe_layers]
        if work.gating.router in ADAPTIVE and layers and p.dp > 1:
            size = 8 * len(layers) * work.model.experts
            calls.append(control("dp", "all_reduce", size, "router_load", "int64"))
        return calls

    def recomputed(self, calls: list[Call], layer: int) -> list[Call]:
        """A pass again, without the last sum where no gradient needs it."""
        shape, sparse = self.shape, layer in self.shape.moe_layers
        multiplied = sparse and (not shape.shared_ffn or shape.shared_gate)
        if shape.norm_place == "post" or multiplied or self.plan.tp == 1:
            return calls
        return calls[:-1]

    def call(self, part: Part, layer: int, direction: str) -> Call:
        """A part as a call, in the element type that it is sent in."""
        gating, training = self.gating, self.work.training
        products = training.precision or training.dtype
        # fairscale's router dispatches in 32 bits what experts compute in the own type
        sent_as = "float32" if gating.router == "fairscale" else products
        dtype = training.dtype if direction == "backward" else products
        if part.phase or part.label in ("experts", "shared"):
            dtype = sent_as
        if part.label == "experts" and gating.router == "fairscale":
            dtype = training.dtype
        label, row, exact = part.label, 0, True
        if part.traffic == "control":
            dtype, row = "int64", 8 * (part.operation == "all_to_all")
        else:
            element = element_bytes(dtype)
            size = part.buffer / element_bytes(training.dtype) * element
            part = part._replace(buffer=size)
            padded = gating.dispatch == "padded"
            if part.phase:
                row = self.shape.hidden * element
                sent = part.phase in ("dispatch", "combine_grad")
                exact = padded or (gating.dispatch == "dropless" and sent)
            else:
                label = "tensor_parallel"
            if part.label == "experts":
                whole = self.plan.ep == 1 and gating.dispatch == "dropless"
                exact = padded or whole
        made = super().call(part, layer, direction)
        return replace(made, dtype=dtype, label=label, row_bytes=row, exact=exact)

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        spec = ROUTERS.get(self.gating.router)
        gate = spec is None or spec.gate
        whole = model_tensors(self.shape, layers=self.chunks[0].layers, gate=gate)
        return [t.on_rank(tp=self.plan.tp, ep=self.plan.ep) for t in whole]

    @cached_property
    def dense(self) -> list[ModelTensor]:
        """The dense ones, those that tensor ranks share behind the whole ones, a bias
        before its matrix (``parallelism/tensor.py``)."""
        dense = [t for t in self.tensors if t.part == "dense"]
        if self.plan.tp == 1:
            return dense
        shared = {t.name: t for t in dense if t.split >= 0}
        order = [t for t in dense if t.split < 0]
        for name, tensor in shared.items():
            bias = shared.get(name.removesuffix("weight") + "bias")
            if not name.endswith(".bias"):
                order += [bias, tensor] if bias else [tensor]
        return order
