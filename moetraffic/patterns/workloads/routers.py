"""How tokens choose experts: what routers there are, and what each asks for.

What one router asks for stands in :data:`ROUTERS`; what all of them ask for, here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from math import inf

from moetraffic.patterns.rules import Broken, unmet

from .router_spec import DISPATCH_FORMS, OptionValue, RouterSpec, Setup
from .router_table import ROUTERS

BALANCE_SCOPES = ("micro_batch", "sequence", "global")
ENTRY_POINTS = "moetraffic.routers"
"""The entry-point group under which other packages register routers."""

_NUMBERS = ("no", "one", "two")


@dataclass(frozen=True, kw_only=True)
class Gating:
    """How tokens choose experts, and what becomes of those that do not fit."""

    router: str = "topk"  # one of ROUTERS, or an installed package's
    k: int = 2  # experts of a token; some routers have one k alone
    dispatch: str = "dropless"  # one of DISPATCH_FORMS
    capacity_factor: float = (
        1.25  # capacity = ceil(factor k T / E); dropless ignores it
    )
    balance: float = 0.01  # weight of the load-balancing loss
    balance_scope: str = "micro_batch"  # whose load it balances: one of BALANCE_SCOPES
    z_loss: float = 0.001  # weight of the router z-loss
    options: Mapping[str, OptionValue] = field(
        default_factory=dict
    )  # what only this router has, by name


def known_routers() -> tuple[str, ...]:
    """Names of the built-in routers and of those that installed packages register.

    Nothing is imported: only what packages say of themselves is read.
    """
    return tuple(sorted({*ROUTERS, *entry_points(group=ENTRY_POINTS).names}))


def broken_rules(
    gating: Gating, *, experts: int, tokens: int, virtual: bool = False
) -> list[Broken]:
    """The rules of routing that a workload breaks, each with its remedy.

    Parameters
    ----------
    gating
        What is checked.
    experts
        Experts of a MoE layer E, at least 1.
    tokens
        Tokens of a micro-batch on one rank T.
    virtual
        Whether all ranks are trained in one process.
    """
    broken = _broken_by_any(gating, experts)
    spec = ROUTERS.get(gating.router)
    if spec is not None:
        # a later rule may rely on the earlier ones
        broken = (
            broken
            or _broken_by_spec(spec, gating)
            or spec.broken_options(gating.options)
            or spec.rule(
                Setup(
                    options=spec.settled(gating.options),
                    k=gating.k,
                    experts=experts,
                    tokens=tokens,
                    virtual=virtual,
                )
            )
        )
    elif gating.router not in (known := known_routers()):
        rule = f"the router is one of {', '.join(known)}, not {gating.router!r}"
        broken.append((rule, "see --router, or install the package that brings it"))
    return broken


def _broken_by_any(g: Gating, experts: int) -> list[Broken]:
    """Rules of all routers."""
    return unmet(
        (g.k >= 1, f"k must be at least 1, but is {g.k}: give --k a positive number"),
        (
            g.k <= experts,
            f"a token's k experts are distinct, but k is {g.k} and there are {experts} "
            "experts: lower --k",
        ),
        (
            g.dispatch in DISPATCH_FORMS,
            f"the dispatch form is one of {', '.join(DISPATCH_FORMS)}, not "
            f"{g.dispatch!r}: see --dispatch",
        ),
        (
            g.dispatch == "dropless" or 0 < g.capacity_factor < inf,
            f"the capacity factor must be above 0, but is {g.capacity_factor}: "
            "raise --capacity-factor or use --dispatch dropless",
        ),
        (
            g.balance_scope in BALANCE_SCOPES,
            f"the balance scope is one of {', '.join(BALANCE_SCOPES)}, not "
            f"{g.balance_scope!r}: see --balance-scope",
        ),
    )


def _broken_by_spec(spec: RouterSpec, g: Gating) -> list[Broken]:
    """What this router cannot be combined with."""
    k, factor = spec.k or g.k, spec.capacity_factor or g.capacity_factor
    number = _NUMBERS[k] if spec.k else ""
    return unmet(
        (
            g.k == k,
            f"{spec.title} routes a token to {number} expert{'s' if k > 1 else ''}, but"
            f" k is {g.k}: set --k {k}",
        ),
        (
            g.dispatch in spec.dispatch,
            f"{spec.title} has the dispatch form {' or '.join(spec.dispatch)}, not "
            f"{g.dispatch}: set --dispatch {spec.dispatch[0]}",
        ),
        (
            g.capacity_factor == factor,
            f"{spec.title} has the capacity factor {factor:g} alone, but it is "
            f"{g.capacity_factor:g}: set --capacity-factor {factor:g}",
        ),
    )
