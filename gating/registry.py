"""Registry of routers by name: built-in ones and those of installed packages.

A third party registers a factory under the entry-point group ``moetraffic.routers``::

    [project.entry-points."moetraffic.routers"]
    mine = "my_package:my_router"      # my_router(gating, hidden, experts) -> Router

``gating.options`` reaches it as the user gave it.  Names, options and their ranges of
the built-in routers stand in ``moetraffic.patterns.ROUTERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

from torch import nn

from moetraffic.errors import LayoutError
from moetraffic.patterns import ROUTERS as SPECS
from moetraffic.patterns import Gating
from moetraffic.patterns.routers import ENTRY_POINTS, known_routers

from .deepseek import DeepSeekRouter
from .expert_choice import ExpertChoiceRouter
from .fairscale_top2 import FairscaleTop2Router
from .gshard import GShardRouter
from .hash_router import HashRouter
from .protocols import Seeded
from .sinkhorn import SinkhornRouter
from .skewed import SkewedRouter
from .switch import SwitchRouter
from .topk import TopKRouter

RouterFactory = Callable[[Gating, int, int], nn.Module]


def build(
    gating: Gating, hidden: int, experts: int, *, seed: int = 0, layer: int = 0
) -> nn.Module:
    """Build the router module that ``gating.router`` names.

    Parameters
    ----------
    gating
        Name, k, dispatch form, capacity factor and the router's own options; a
        dropless form has no capacity.
    hidden
        Width h of a token vector.
    experts
        Number of experts E.
    seed, layer
        What a router that holds a random assignment draws it from.

    Raises
    ------
    LayoutError
        If no built-in router and no installed package has this name, or the router
        has no such option.
    """
    router = _factory(gating)(gating, hidden, experts)
    if isinstance(router, Seeded):
        router.reseed(seed, layer)
    return router


def _factory(gating: Gating) -> RouterFactory:
    made = ROUTERS.get(gating.router)
    if made is not None:
        for rule, remedy in SPECS[gating.router].broken_options(gating.options):
            raise LayoutError(f"{rule}: {remedy}")
        return made
    for point in entry_points(group=ENTRY_POINTS).select(name=gating.router):
        return cast("RouterFactory", point.load())
    raise LayoutError(
        f"the router is one of {', '.join(known_routers())}, not {gating.router!r}: "
        f"choose one of these or install a package with an entry point in "
        f"{ENTRY_POINTS!r}"
    )


def _limited(gating: Gating) -> dict[str, Any]:
    """Capacity factor and the router's own options, as keyword arguments."""
    dropless = gating.dispatch == "dropless"
    return {
        "capacity_factor": None if dropless else gating.capacity_factor,
        **SPECS[gating.router].settled(gating.options),
    }


def _switch(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return SwitchRouter(hidden, experts, **_limited(gating))


def _topk(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return TopKRouter(hidden, experts, k=gating.k, **_limited(gating))


def _gshard(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return GShardRouter(hidden, experts, **_limited(gating))


def _fairscale(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return FairscaleTop2Router(hidden, experts)


def _expert_choice(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return ExpertChoiceRouter(hidden, experts, k=gating.k, **_limited(gating))


def _deepseek(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return DeepSeekRouter(hidden, experts, k=gating.k, **_limited(gating))


def _hash(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return HashRouter(experts, k=gating.k, **_limited(gating))


def _sinkhorn(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return SinkhornRouter(hidden, experts, k=gating.k, **_limited(gating))


def _skewed(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return SkewedRouter(hidden, experts, k=gating.k, **_limited(gating))


ROUTERS: dict[str, RouterFactory] = {
    "switch": _switch,
    "topk": _topk,
    "gshard": _gshard,
    "fairscale-top2": _fairscale,
    "fairscale": _fairscale,  # the gate of models/layers/fairscale_moe.py
    "expert-choice": _expert_choice,
    "deepseek": _deepseek,
    "hash": _hash,
    "sinkhorn": _sinkhorn,
    "skewed": _skewed,
}
"""The built-in routers, ``name -> factory(gating, hidden, experts)``."""
