"""A workload: the model's shape, its routing, its parallel layout and its training.

It is plain data without torch, so that the command line can check it before a process
starts, ``models/`` can train it and ``patterns/`` can compute its traffic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from moetraffic.errors import LayoutError
from moetraffic.patterns import shape
from moetraffic.patterns.layouts.parallelism import Parallelism
from moetraffic.patterns.layouts.violations import training_rules
from moetraffic.patterns.rules import Broken, unmet
from moetraffic.patterns.shape import ModelShape

from . import dropping, routers, training
from .dropping import Dropping
from .limits import outside
from .router_table import ROUTERS
from .routers import Gating
from .training import Training

LAYOUT = ("tp", "cp", "dp", "pp", "ep", "zero", "order", "etp")
"""Fields of a layout that a training reads, and a trace keeps."""


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
    layout: Parallelism = field(default_factory=Parallelism)
    training: Training = field(default_factory=Training)
    dropping: Dropping = field(default_factory=Dropping)

    def __post_init__(self) -> None:
        for rule, remedy in _broken(self):
            raise LayoutError(f"{rule}: {remedy}")

    @property
    def parallelism(self) -> Parallelism:
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

    def to_json(self) -> str:
        """The workload as one JSON object, field names as here.

        A data seed, the split of experts and further predictions are fields only where
        they are set: releases without them read the rest.
        """
        parts = asdict(self)
        if self.training.data_seed is None:
            del parts["training"]["data_seed"]
        parts["layout"] = {
            name: size
            for name, size in parts["layout"].items()
            if name in LAYOUT and (name != "etp" or size)
        }
        if not self.model.mtp:
            del parts["model"]["mtp"]
        return json.dumps(parts, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The workload that :meth:`to_json` wrote; anything else is refused."""
        try:
            parts = json.loads(text)
        except json.JSONDecodeError as error:
            parts = error
        every = [parts, *parts.values()] if isinstance(parts, dict) else [parts]
        if not all(isinstance(one, dict) for one in every):
            raise LayoutError(
                f"a workload is a JSON object of objects, but {text[:40]!r} is none: "
                "write what Workload.to_json() returns"
            )
        kinds = {
            "model": ModelShape,
            "gating": Gating,
            "layout": Parallelism,
            "training": Training,
            "dropping": Dropping,
        }
        made: dict[str, Any] = {}
        for name, values in parts.items():
            kind = kinds.get(name)
            known = {f.name for f in fields(kind)} if kind else set()
            known = set(LAYOUT) if name == "layout" else known
            # earlier releases had a multiple instead of the width
            multiple = name == "model" and values.get("ffn_multiple")
            hidden = values.get("hidden", ModelShape.hidden)
            if multiple in range(1, 10_001) and isinstance(hidden, int):
                values["ffn"] = hidden * values.pop("ffn_multiple")
            if kind is None or not set(values) <= known:
                raise LayoutError(
                    f"a workload has {', '.join(kinds)}, each with its own fields, "
                    f"but {name!r} holds {sorted(set(values) - known)}: remove them"
                )
            made[name] = kind(**values)
        return cls(**made)


def _broken(work: Workload) -> list[Broken]:
    """The rules that a workload breaks, each with its remedy."""
    m, g, p, t = work.model, work.gating, work.layout, work.training
    broken = shape.broken_rules(m)
    broken += [rule for part in (g, p, t, work.dropping) for rule in outside(part)]
    if broken:  # what follows computes with these numbers
        return broken
    broken = training.broken_rules(t) + dropping.broken_rules(work.dropping)
    spec = ROUTERS.get(g.router) if m.experts else None
    broken += unmet(
        (
            not t.virtual or (p.tp, p.pp, p.cp, p.zero) == (1, 1, 1, 0),
            "virtual ranks have data and expert parallelism alone, but tp x pp x cp is "
            f"{p.tp} x {p.pp} x {p.cp} and the ZeRO stage {p.zero}: "
            "leave these out, or train real ranks",
        ),
        (
            t.virtual or not t.until_steady,
            "ranks of a distributed run do not exchange expert loads, so only a "
            "virtual run can end when the loads are steady: set virtual",
        ),
        (
            t.virtual or not work.dropping.share,
            "a lossy network is simulated between the shards of one process, but the "
            "run is not virtual: set virtual",
        ),
        (
            m.mtp == 0,
            f"training predicts one token, but mtp is {m.mtp}: leave out --mtp",
        ),
        (
            m.experts > 0 or p.ep == 1,
            f"a dense model has no experts to spread, but ep is {p.ep}: "
            "set --ep 1, or --experts",
        ),
    )
    if m.experts:
        tokens = t.micro_batch * m.sequence
        broken += routers.broken_rules(
            g, experts=m.experts, tokens=tokens, virtual=t.virtual
        )
    if spec is not None:
        broken += unmet(
            (
                not spec.needs_ids or p.pp == 1,
                f"{spec.title} routes by token ids, which the first pipeline stage "
                f"alone has, but pp is {p.pp}: use --pp 1 or another --router",
            )
        )
    return broken + training_rules(p, m, accumulation=t.accumulation)
