"""A workload: the model's shape, its routing, its parallel layout and its training.

It is plain data without torch, so that the command line can check it before a process
starts, ``models/`` can train it and ``patterns/`` can compute its traffic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from moetraffic.errors import LayoutError

from . import dropping, layout, shape
from .dropping import Dropping
from .layout import ParallelLayout
from .router_table import ROUTERS
from .routers import Gating, broken_rules
from .shape import ModelShape

PRECISIONS = ("", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Optimiser, batch and length of a run."""

    iterations: int = 200
    micro_batch: int = 4  # sequences of a rank in one forward pass
    accumulation: int = 1  # micro-batches a step
    learning_rate: float = 1e-3
    warmup: int = 20  # iterations of linear warm-up
    weight_decay: float = 0.1
    clip: float = 1.0  # gradient norm; 0 switches clipping off
    seed: int = 0
    dtype: str = "float32"  # of parameters, their gradients and the optimiser
    precision: str = ""  # of products and of what experts are sent; empty: as dtype
    recompute: bool = False  # keep a block's input alone, compute the rest twice
    device: str = "cpu"  # cpu or cuda
    corpus: str = ""  # file, folder or glob; empty: Python's standard library
    virtual: bool = False  # all ranks' shards in one process, nothing sent
    until_steady: bool = False  # end before, when the load over experts has settled


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
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    training: Training = field(default_factory=Training)
    dropping: Dropping = field(default_factory=Dropping)

    def __post_init__(self) -> None:
        for rule, remedy in _broken(self):
            raise LayoutError(f"{rule}: {remedy}")

    def to_json(self) -> str:
        """The workload as one JSON object, field names as here."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The workload that :meth:`to_json` wrote; anything else is refused."""
        try:
            parts = json.loads(text)
        except json.JSONDecodeError as error:
            parts = error
        if not isinstance(parts, dict):
            raise LayoutError(
                f"a workload is a JSON object, but {text[:40]!r} is none: write what "
                "Workload.to_json() returns"
            )
        kinds = {
            "model": ModelShape,
            "gating": Gating,
            "layout": ParallelLayout,
            "training": Training,
            "dropping": Dropping,
        }
        made: dict[str, Any] = {}
        for name, values in parts.items():
            kind = kinds.get(name)
            known = {f.name for f in fields(kind)} if kind else set()
            if kind is None or not set(values) <= known:
                raise LayoutError(
                    f"a workload has {', '.join(kinds)}, each with its own fields, "
                    f"but {name!r} holds {sorted(set(values) - known)}: remove them"
                )
            made[name] = kind(**values)
        return cls(**made)


def _broken(work: Workload) -> list[tuple[str, str]]:
    """The rules that a workload breaks, each with its remedy."""
    m, g, p, t = work.model, work.gating, work.layout, work.training
    positive = {
        "iterations": t.iterations,
        "micro-batch": t.micro_batch,
        "accumulation": t.accumulation,
    }
    broken = shape.unmet(m) + dropping.unmet(work.dropping)
    if t.virtual and (p.tp, p.pp, p.cp, p.zero) != (1, 1, 1, 0):
        broken.append(
            (
                "virtual ranks have data and expert parallelism alone, but tp x pp x "
                f"cp is {p.tp} x {p.pp} x {p.cp} and the ZeRO stage {p.zero}",
                "leave these out, or train real ranks",
            )
        )
    if t.until_steady and not t.virtual:
        broken.append(
            (
                "ranks that communicate do not tell each other their loads, so only a "
                "virtual run can end when these are steady",
                "set virtual",
            )
        )
    if work.dropping.share and not t.virtual:
        broken.append(
            (
                "a lossy network is simulated between the shards of one process, but "
                "the run is not virtual",
                "set virtual",
            )
        )
    broken += [
        (
            f"{name} must be at least 1, but is {value}",
            f"give --{name} a positive number",
        )
        for name, value in positive.items()
        if value < 1
    ]
    if broken:
        return broken
    if not m.experts and p.ep > 1:
        broken.append(
            (
                f"a dense model has no experts to spread, but ep is {p.ep}",
                "set --ep 1, or --experts",
            )
        )
    if m.experts:
        broken += broken_rules(
            g,
            experts=m.experts,
            tokens=t.micro_batch * m.sequence,
            virtual=t.virtual,
        )
    spec = ROUTERS.get(g.router)
    if m.experts and spec is not None and spec.needs_ids and p.pp > 1:
        broken.append(
            (
                f"{spec.title} routes by token ids, which the first pipeline stage "
                f"alone has, but pp is {p.pp}",
                "use --pp 1 or another --router",
            )
        )
    if t.precision not in PRECISIONS or (t.precision and t.dtype != "float32"):
        broken.append(
            (
                "the precision is empty (as dtype), or bfloat16 beside dtype float32, "
                f"but precision is {t.precision!r} and dtype is {t.dtype!r}",
                "change --precision or --dtype",
            )
        )
    broken += layout.unmet(
        p,
        layers=m.layers,
        heads=m.heads,
        width=m.ffn_width,
        experts=m.experts,
        accumulation=t.accumulation,
    )
    broken += shape.unmet_in_parallel(m, tp=p.tp, pp=p.pp)
    return broken
