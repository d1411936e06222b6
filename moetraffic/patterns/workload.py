"""A workload: the model's shape, its routing, its parallel layout and its training.

It is plain data without torch, so that the command line can check it before a process
starts, ``models/`` can train it and ``patterns/`` can compute its traffic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from moetraffic.errors import LayoutError

from . import training
from .layout import ParallelLayout
from .limits import outside
from .routers import DISPATCH_FORMS, ROUTERS, Gating
from .shape import ModelShape
from .training import Training


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
    m, g, p = work.model, work.gating, work.layout
    broken = [rule for part in (m, g, p, work.training) for rule in outside(part)]
    if broken:
        return broken  # what follows computes with these numbers
    broken += training.unmet(work.training)
    if m.hidden % m.heads:
        broken.append(
            (
                f"heads must divide hidden, but {m.heads} does not divide {m.hidden}",
                "change --hidden or --heads",
            )
        )
    if not m.moe_layers:
        broken.append(
            (
                f"at least one layer must carry experts, but with {m.layers} layers "
                f"and moe-every {m.moe_every} none does",
                "lower --moe-every or raise --layers",
            )
        )
    if m.experts % p.ep:
        broken.append(
            (
                f"ep must divide the experts, but there are {m.experts} experts "
                f"for ep {p.ep}",
                "change --experts or --ep",
            )
        )
    if g.router not in ROUTERS:
        broken.append(
            (
                f"the router is one of {', '.join(ROUTERS)}, not {g.router!r}",
                "see --router",
            )
        )
    if g.dispatch not in DISPATCH_FORMS:
        broken.append(
            (
                f"the dispatch form is one of {', '.join(DISPATCH_FORMS)}, "
                f"not {g.dispatch!r}",
                "see --dispatch",
            )
        )
    if g.router == "switch" and g.k != 1:
        broken.append(
            (f"Switch routes a token to one expert, but k is {g.k}", "set --k 1")
        )
    if g.k > m.experts:
        broken.append(
            (
                f"a token's k experts are distinct, but k is {g.k} and there are "
                f"{m.experts} experts",
                "lower --k",
            )
        )
    if g.dispatch != "dropless" and g.capacity_factor <= 0:
        broken.append(
            (
                f"the capacity factor must be above 0, but is {g.capacity_factor}",
                "raise --capacity-factor or use --dispatch dropless",
            )
        )
    for axis in ("tp", "pp", "cp"):
        if getattr(p, axis) != 1:
            broken.append(
                (
                    f"training supports {axis} = 1 so far, but {axis} is "
                    f"{getattr(p, axis)}",
                    f"leave out --{axis}",
                )
            )
    return broken
