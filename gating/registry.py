"""Routers by name: the built-in ones and those of installed third parties.

A third party registers a factory under the entry-point group ``moetraffic.routers``::

    [project.entry-points."moetraffic.routers"]
    mine = "my_package:my_router"      # my_router(gating, hidden, experts) -> Router
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol, cast

from torch import Tensor, nn

from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating

from .routing import Routing
from .switch import SwitchRouter
from .topk import TopKRouter

ENTRY_POINTS = "moetraffic.routers"


class Router(Protocol):
    """What a MoE layer asks of a router, which is an ``nn.Module`` besides."""

    def __call__(self, x: Tensor) -> Routing:
        """Route ``[T, h]`` token vectors."""
        ...


RouterFactory = Callable[[Gating, int, int], nn.Module]


def build(gating: Gating, hidden: int, experts: int) -> nn.Module:
    """The router that ``gating.router`` names, as a module that is a :class:`Router`.

    Parameters
    ----------
    gating
        Name, k, dispatch form and capacity factor; a dropless form has no capacity.
    hidden
        Width h of a token vector.
    experts
        Number of experts E.

    Raises
    ------
    LayoutError
        If no built-in router and no installed package has this name.
    """
    made = ROUTERS.get(gating.router)
    if made is not None:
        return made(gating, hidden, experts)
    installed = entry_points(group=ENTRY_POINTS)
    for point in installed.select(name=gating.router):
        return cast("RouterFactory", point.load())(gating, hidden, experts)
    known = sorted({*ROUTERS, *installed.names})
    raise LayoutError(
        f"the router is one of {', '.join(known)}, not {gating.router!r}: choose one "
        f"of these or install a package with an entry point in {ENTRY_POINTS!r}"
    )


def _capacity_factor(gating: Gating) -> float | None:
    return None if gating.dispatch == "dropless" else gating.capacity_factor


def _switch(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return SwitchRouter(hidden, experts, capacity_factor=_capacity_factor(gating))


def _topk(gating: Gating, hidden: int, experts: int) -> nn.Module:
    return TopKRouter(
        hidden, experts, k=gating.k, capacity_factor=_capacity_factor(gating)
    )


ROUTERS: dict[str, RouterFactory] = {"switch": _switch, "topk": _topk}
"""The built-in routers, ``name -> factory(gating, hidden, experts)``."""
