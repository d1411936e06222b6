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
from typing import cast

from torch import nn

from moetraffic.errors import LayoutError
from moetraffic.patterns import ROUTERS as SPECS
from moetraffic.patterns import Gating
from moetraffic.workload.routing import ENTRY_POINTS, known_routers

from .deepseek import DeepSeekRouter
from .expert_choice import ExpertChoiceRouter
from .fairscale_top2 import FairscaleTop2Router
from .gshard import GShardRouter
from .hashing import HashRouter
from .protocols import Seeded
from .sinkhorn import SinkhornRouter
from .skewed import SkewedRouter
from .topk import SwitchRouter, TopKRouter

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
    factory = ROUTERS.get(gating.router)
    if factory is not None:
        for rule, remedy in SPECS[gating.router].broken_options(gating.options):
            raise LayoutError(f"{rule}: {remedy}")
    else:
        points = entry_points(group=ENTRY_POINTS).select(name=gating.router)
        for point in points:
            factory = cast("RouterFactory", point.load())
    if factory is None:
        raise LayoutError(
            f"the router is one of {', '.join(known_routers())}, not "
            f"{gating.router!r}: choose one of these or install a package with an "
            f"entry point in {ENTRY_POINTS!r}"
        )
    router = factory(gating, hidden, experts)
    if isinstance(router, Seeded):
        router.reseed(seed, layer)
    return router


def _create(
    kind: Callable[..., nn.Module], gating: Gating, hidden: int, experts: int
) -> nn.Module:
    """Create a router with those sizes and options that its constructor accepts."""
    dropless = gating.dispatch == "dropless"
    given = {
        "hidden": hidden,
        "experts": experts,
        "k": gating.k,
        "capacity_factor": None if dropless else gating.capacity_factor,
        **SPECS[gating.router].settled(gating.options),
    }
    accepted = signature(kind).parameters
    return kind(**{name: value for name, value in given.items() if name in accepted})


ROUTERS: dict[str, RouterFactory] = {
    name: partial(_create, kind)
    for name, kind in {
        "switch": SwitchRouter,
        "topk": TopKRouter,
        "gshard": GShardRouter,
        "fairscale-top2": FairscaleTop2Router,
        "fairscale": FairscaleTop2Router,  # of layers/fairscale_moe.py
        "expert-choice": ExpertChoiceRouter,
        "deepseek": DeepSeekRouter,
        "hash": HashRouter,
        "sinkhorn": SinkhornRouter,
        "skewed": SkewedRouter,
    }.items()
}
"""The built-in routers, ``name -> factory(gating, hidden, experts)``."""
