"""A workload: the model's shape, its routing, its parallel layout and its training.

It is plain data without torch, so that the command line can check it before a process
starts, ``models/`` can train it and :mod:`.calls` can compute its traffic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from moetraffic.errors import LayoutError
from moetraffic.workload import model, routing
from moetraffic.workload.model import ModelShape
from moetraffic.workload.routing import ROUTERS, Gating
from moetraffic.workload.rules import Broken, Rule, broken, outside, refuse
from moetraffic.workload.tensors import parameter_count
from moetraffic.workload.training import (
    DROPPING_RULES,
    TRAINING_RULES,
    Dropping,
    Training,
)

from .layout import Layout, element_bytes, nested
from .rules import LAYOUT_RULES, SPLIT_RULES, option, violations

LAYOUT = ("tp", "cp", "dp", "pp", "ep", "zero", "order", "etp")
"""Fields of a layout that a training reads, and a trace keeps."""

UNTRAINED = (
    *("sequence_parallel", "context", "schedule", "dispatcher", "node_limit"),
    *("gradient_dtype", "dispatch_dtype", "scatter_gather"),
    *("embedding_layers", "head_layers", "virtual"),
)
"""Fields of a layout that moetraffic's own training does not have."""

RANK_BYTES = 100_000_000
"""An interpreter with torch takes more than this, measured with torch 2.4 and 2.13."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, and how it is spread over ranks.

    Raises
    ------
    LayoutError
        If the parts cannot go together; the sentence names rule, values and remedy.
    """

    model: ModelShape = field(default_factory=ModelShape)
    gating: Gating = field(default_factory=Gating)
    layout: Layout = field(default_factory=Layout)
    training: Training = field(default_factory=Training)
    dropping: Dropping = field(default_factory=Dropping)

    def __post_init__(self) -> None:
        refuse(_broken(self))

    @property
    def parallelism(self) -> Layout:
        """The layout and the batch as a pattern or the time model takes them."""
        t = self.training
        return replace(
            self.layout,
            micro_batch=t.micro_batch,
            accumulation=t.accumulation,
            recompute="full" if t.recompute else "none",
            dtype=t.dtype,
            gradient_dtype=t.dtype,
        )

    @property
    def untrained(self) -> str:
        """Options of the layout that own training does not have."""
        usual = Layout()
        options = [
            f"--{option(name)}"
            for name in UNTRAINED
            if getattr(self.layout, name) != getattr(usual, name)
        ]
        if self.layout.recompute not in ("none", "full"):
            options.append(f"--recompute {self.layout.recompute}")
        return ", ".join(options)

    @property
    def routes_by_ids(self) -> bool:
        """Whether the router needs token ids."""
        spec = ROUTERS.get(self.gating.router) if self.model.experts else None
        return spec is not None and spec.needs_ids

    def to_json(self) -> str:
        """The workload as one JSON object, field names as here.

        Fields that older releases lack are there only where they are set.
        """
        names = ("model", "gating", "training", "dropping")
        parts: dict[str, Any] = {name: asdict(getattr(self, name)) for name in names}
        parts["layout"] = {name: getattr(self.layout, name) for name in LAYOUT}
        for part, name, unset in (
            *(("layout", "etp", 0), ("training", "data_seed", None)),
            ("model", "mtp", 0),
        ):
            if parts[part][name] == unset:
                del parts[part][name]
        return json.dumps(parts, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The workload that :meth:`to_json` wrote; anything else is refused."""
        try:
            parts = json.loads(text)
        except json.JSONDecodeError as error:
            parts = error
        held = [parts, *parts.values()] if isinstance(parts, dict) else [parts]
        if not all(isinstance(value, dict) for value in held):
            raise LayoutError(
                f"a workload is a JSON object of objects, but {text[:40]!r} is none: "
                "write what Workload.to_json() returns"
            )
        kinds = {f.name: f.default_factory for f in fields(cls)}
        made: dict[str, Any] = {}
        for name, values in parts.items():
            kind: Any = kinds.get(name)
            names = {f.name for f in fields(kind)} if kind else set()
            names = set(LAYOUT) if name == "layout" else names
            if kind is None or not set(values) <= names:
                raise LayoutError(
                    f"a workload has {', '.join(kinds)}, each with its own fields, "
                    f"but {name!r} holds {sorted(set(values) - names)}: remove them"
                )
            made[name] = kind(**values)
        return cls(**made)


WORKLOAD_RULES: tuple[Rule, ...] = (
    (
        lambda w: (
            w.training.virtual
            and (w.layout.tp, w.layout.pp, w.layout.cp, w.layout.zero) != (1, 1, 1, 0)
        ),
        "virtual ranks have data and expert parallelism alone, but tp x pp x cp is "
        "{0.layout.tp} x {0.layout.pp} x {0.layout.cp} and the ZeRO stage "
        "{0.layout.zero}: leave these out, or train real ranks without --virtual",
    ),
    (
        lambda w: w.dropping.share and not w.training.virtual,
        "a lossy network is simulated between the shards of one process, but the "
        "run is not virtual: give --virtual",
    ),
    (
        lambda w: w.model.mtp,
        "training predicts one token, but mtp is {0.model.mtp}: leave out --mtp",
    ),
    (
        lambda w: not w.model.experts and w.layout.ep > 1,
        "a dense model has no experts to spread, but ep is {0.layout.ep}: "
        "set --ep 1, or --experts",
    ),
    (
        lambda w: w.routes_by_ids and w.layout.pp > 1,
        "the router {0.gating.router} routes by token ids, which the first pipeline "
        "stage alone has, but pp is {0.layout.pp}: use --pp 1 or another --router",
    ),
)
"""Of parts of a workload together."""

OWN_RULES: tuple[Rule, ...] = (
    (
        lambda w: bool(w.untrained),
        "moetraffic's own training does not have {0.untrained}: leave these out, or use"
        " --library megatron",
    ),
    (
        lambda w: w.model.groups % w.layout.tp,
        "tp must divide the key and value heads, but there are {0.model.groups} for tp "
        "{0.layout.tp}: change --kv-heads or --tp",
    ),
    (
        lambda w: (
            w.layout.tp > 1
            and (w.model.kv_rank or w.model.qk_norm or w.model.positions == "relative")
        ),
        "tensor parallelism splits attention by heads alone, but latent attention, "
        "norms of query and key and relative positions have parameters that all heads "
        "share, and tp is {0.layout.tp}: use --tp 1",
    ),
    (
        lambda w: w.layout.pp > 1 and w.training.accumulation < w.layout.pp,
        "1F1B needs as many micro-batches as stages, but accumulation is "
        "{0.training.accumulation} for pp {0.layout.pp}: give --accumulation "
        "{0.layout.pp} or more",
    ),
    (
        # as DeepSpeed refuses it: each micro-batch's backward would reduce, or gather,
        # while its stage's neighbors wait
        lambda w: w.layout.pp > 1 and w.layout.zero > 1,
        "a pipeline goes with ZeRO stage 0 or 1, whose gradients wait for all "
        "micro-batches, but pp is {0.layout.pp} and zero is {0.layout.zero}: use "
        "--zero 1 or --pp 1",
    ),
    (
        lambda w: w.layout.shard,
        "training shards over all copies, but shard is {0.layout.shard}: leave out "
        "--shard",
    ),
    (
        lambda w: w.layout.cp == 1 and not nested(w.layout),
        "training splits experts as their layers and copies them over data-parallel "
        "ranks, but etp is {0.layout.expert_tp}, tp is {0.layout.tp} and the order is "
        "{0.layout.order}: leave out --etp, and put ep next to dp in --order",
    ),
    (
        lambda w: w.layout.cp > 1,
        "training does not support context parallelism, but cp is {0.layout.cp}: leave "
        "out --cp",
    ),
)
"""Of ``moetraffic.models``."""


def _broken(work: Workload) -> list[Broken]:
    """The rules that a workload breaks; later ones compute with what earlier check."""
    m, g, p, t = work.model, work.gating, work.layout, work.training
    sentences = model.broken_rules(m)
    sentences += [rule for part in (g, p, t, work.dropping) for rule in outside(part)]
    if sentences:
        return sentences
    sentences = broken(TRAINING_RULES, t) + broken(DROPPING_RULES, work.dropping)
    sentences += broken(WORKLOAD_RULES, work)
    if m.experts:
        tokens, virtual = t.micro_batch * m.sequence, t.virtual
        sentences += routing.broken_rules(
            g, experts=m.experts, tokens=tokens, virtual=virtual
        )
    if wrong := violations(p, LAYOUT_RULES):
        return sentences + wrong
    layout = Layout.of(m, p, g)
    return sentences + violations(layout, SPLIT_RULES) + broken(OWN_RULES, work)


def least_bytes(workload: Workload) -> int:
    """Bytes that all ranks of a workload need together, at least: a run that needs no
    more may still not fit.

    Every parameter is held once, with its gradient and AdamW's two moments (ZeRO may
    hold no more than that; without it dense parameters have a copy on every rank).  A
    pass keeps the input of each layer, which activation checkpointing keeps too, and
    the logits of one micro-batch.
    """
    shape, training = workload.model, workload.training
    element = int(element_bytes(training.dtype))
    ranks = 1 if training.virtual else int(workload.layout.world)
    tokens = training.micro_batch * shape.window
    # tensor, pipeline and context parallelism cut a replica's activations
    replicas = 1 if training.virtual else int(workload.layout.dp)
    activations = tokens * (shape.layers * shape.hidden + shape.vocabulary) * element
    states = 4 * element * parameter_count(shape).total
    return ranks * RANK_BYTES + states + replicas * activations
