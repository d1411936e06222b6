"""How tokens choose experts: what routers there are, and what each asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ROUTERS = ("switch", "topk")
DISPATCH_FORMS = ("padded", "dropped", "dropless")


@dataclass(frozen=True, kw_only=True)
class Gating:
    """How tokens choose experts, and what becomes of those that do not fit."""

    router: str = "topk"  # one of ROUTERS
    k: int = 2  # experts of a token; Switch has 1
    dispatch: str = "dropless"  # one of DISPATCH_FORMS
    capacity_factor: float = (
        1.25  # capacity = ceil(factor k T / E); dropless ignores it
    )
    balance: float = 0.01  # weight of the load-balancing loss
    z_loss: float = 0.001  # weight of the router z-loss
    options: Mapping[str, float | int | bool | str] = field(
        default_factory=dict
    )  # what only this router has, by name
