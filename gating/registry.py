"""Registry of built-in routers and of routers from installed packages, by name.

A package registers a router factory under the entry-point group
``moetraffic.routers``::

    [project.entry-points."moetraffic.routers"]
    mine = "my_package:my_router"      # my_router(gating, hidden, experts) -> Router

The factory receives ``gating.options`` unmodified.  Names, options and option ranges of
the built-in routers are defined in ``moetraffic.patterns.ROUTERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from inspect import signature
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
    """Create the router module selected by ``gating.router``.

    Parameters
    ----------
    gating
        Name, k, dispatch form, capacity factor and the router's own options; dropless
        dispatch has no capacity.
    hidden
        Width h of a token vector.
    experts
        Number of experts E.
    seed, layer
        Seed of the run and layer index, for routers with a random assignment.

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
    """Collect the capacity factor and the router's options as keyword arguments."""
    dropless = gating.dispatch == "dropless"
    return {
        "capacity_factor": None if dropless else gating.capacity_factor,
        **SPECS[gating.router].settled(gating.options),
    }


def _create(
    kind: Callable[..., nn.Module], gating: Gating, hidden: int, experts: int
) -> nn.Module:
    """Create a router with those sizes and options that its constructor accepts."""
    given = {"hidden": hidden, "experts": experts, "k": gating.k, **_limited(gating)}
    accepted = signature(kind).parameters
    return kind(**{name: value for name, value in given.items() if name in accepted})


ROUTERS: dict[str, RouterFactory] = {
    "switch": partial(_create, SwitchRouter),
    "topk": partial(_create, TopKRouter),
    "gshard": partial(_create, GShardRouter),
    "fairscale-top2": partial(_create, FairscaleTop2Router),
    "fairscale": partial(_create, FairscaleTop2Router),  # of layers/fairscale_moe.py
    "expert-choice": partial(_create, ExpertChoiceRouter),
    "deepseek": partial(_create, DeepSeekRouter),
    "hash": partial(_create, HashRouter),
    "sinkhorn": partial(_create, SinkhornRouter),
    "skewed": partial(_create, SkewedRouter),
}
"""The built-in routers, ``name -> factory(gating, hidden, experts)``."""
