"""Routers by name: of the table ``moetraffic.workload.ROUTERS``, and installed ones.

A package registers a router factory under the entry-point group
``moetraffic.routers``::

    [project.entry-points."moetraffic.routers"]
    mine = "my_package:my_router"      # my_router(gating, hidden, experts) -> Router

The factory receives ``gating.options`` unmodified.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature

from torch import nn

from moetraffic.errors import LayoutError
from moetraffic.workload.routing import ENTRY_POINTS, ROUTERS, Gating, known_routers

from .router import Seeded


def build(
    gating: Gating, hidden: int, experts: int, *, seed: int = 0, layer: int = 0
) -> nn.Module:
    """Create the router module selected by ``gating.router``.

    Parameters
    ----------
    gating
        Name, k, dispatch form, capacity factor and the router's own options; dropless
        dispatch has no capacity.
    hidden, experts
        Width h of a token vector, and number of experts E.
    seed, layer
        Seed of the run and layer index, for routers with a random assignment.

    Raises
    ------
    LayoutError
        If no built-in router and no installed package has this name, or the router
        has no such option.
    """
    spec = ROUTERS.get(gating.router)
    if spec is None:
        router = _installed(gating, hidden, experts)
    else:
        for rule, remedy in spec.broken_options(gating.options):
            raise LayoutError(f"{rule}: {remedy}")
        module, name = spec.router.split(":")
        kind = getattr(import_module(f"moetraffic.gating.{module}"), name)
        dropless = gating.dispatch == "dropless"
        arguments = {
            "hidden": hidden,
            "experts": experts,
            "k": gating.k,
            "capacity_factor": None if dropless else gating.capacity_factor,
            **spec.settled(gating.options),
        }
        accepted = signature(kind).parameters
        router = kind(**{n: value for n, value in arguments.items() if n in accepted})
    if isinstance(router, Seeded):
        router.reseed(seed, layer)
    return router


def _installed(gating: Gating, hidden: int, experts: int) -> nn.Module:
    """Create a router of an installed package."""
    for point in entry_points(group=ENTRY_POINTS).select(name=gating.router):
        router: nn.Module = point.load()(gating, hidden, experts)
        return router
    raise LayoutError(
        f"the router is one of {', '.join(known_routers())}, not {gating.router!r}: "
        "choose one of these or install a package with an entry point in "
        f"{ENTRY_POINTS!r}"
    )
