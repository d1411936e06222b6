"""Policies by name: the built-in ones, those of other packages, and of files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice, nearest

from .circuits import (
    Birkhoff,
    MaxWeight,
    PacketsOnly,
    Regional,
    Rotation,
    Solstice,
    StaticMean,
)
from .placement import Affinity, FixedPlacement, LoadBalancer, Swaps
from .policy import FAMILIES, Policy
from .transmission import AllAtOnce, Fast, Forwarded, ShiftedRounds, TwoLevel

ENTRY_POINTS = "moetraffic.policies"

Maker = Callable[[], Policy]
"""Makes a new policy without state; called once for each evaluation."""

POLICIES: Mapping[str, Maker] = {
    "packets": PacketsOnly,
    "rotation": Rotation,
    "rotation-two-hop": partial(Rotation, name="rotation-two-hop", two_hops=True),
    "static-mean": StaticMean,
    "birkhoff": Birkhoff,
    "solstice": Solstice,
    "max-weight": MaxWeight,
    "regional": Regional,
    "all-at-once": AllAtOnce,
    "sprayed": partial(AllAtOnce, name="sprayed", routing="ideal"),
    "shifted-rounds": ShiftedRounds,
    "two-level": TwoLevel,
    "forwarded": Forwarded,
    "deduplicated": partial(Forwarded, name="deduplicated", once=True),
    "fast": Fast,
    "contiguous": partial(FixedPlacement, name="contiguous"),
    "strided": partial(FixedPlacement, name="strided"),
    "eplb": LoadBalancer,
    "eplb-nodes": partial(LoadBalancer, name="eplb-nodes", hierarchical=True),
    "swaps": Swaps,
    "affinity": Affinity,
}
"""The built-in policies by name."""


def policy_maker(name: str) -> Maker:
    """Look up a policy by name, or as ``file.py:Class``.

    Raises
    ------
    AnalysisError
        If there is none, or what the name stands for makes no policy.

    Examples
    --------
    >>> policy_maker("rotation")().family
    'circuits'
    """
    if name in POLICIES:
        return POLICIES[name]
    others = entry_points(group=ENTRY_POINTS)
    for point in others.select(name=name):
        return validated(point.load(), name)
    path, _, attribute = (f"{name}:" if name.endswith(".py") else name).rpartition(":")
    if path.endswith(".py"):
        return validated(_from_file(Path(path), attribute), name)
    known = (*POLICIES, *sorted(others.names - POLICIES.keys()))
    raise AnalysisError(
        f"a policy is file.py:Class or one of {', '.join(known)}, not "
        f"{name[:40]!r}: {nearest(name, known)}choose one"
    )


def _from_file(path: Path, attribute: str) -> Any:
    """Return an attribute of a Python file, which is run."""
    module = ModuleType(f"moetraffic_policy_{path.stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        SourceFileLoader(module.__name__, str(path)).exec_module(module)
    except Exception as error:
        raise AnalysisError(
            f"a policy is file.py:Class, but {path} cannot be read "
            f"({first_line(error)}): correct the file or its path"
        ) from error
    if attribute not in vars(module):
        own = [
            f"{path}:{name}"
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
            and hasattr(value, "plan")
        ]
        raise AnalysisError(
            f"a policy is file.py:Class, but {path} has no class {attribute!r}: "
            + (f"give {' or '.join(own)}" if own else "write a class with plan(view)")
        )
    return vars(module)[attribute]


def first_line(error: Exception) -> str:
    """Return type and first line of an exception."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *(line[:200] for line in lines[:1])])


def validated(maker: Any, name: str) -> Maker:
    """Return a maker after checking that it makes a policy of a known family."""
    try:
        made = maker()
    except Exception as error:
        raise AnalysisError(
            f"the policy {name!r} cannot be made without arguments "
            f"({first_line(error)}): give them defaults"
        ) from error
    if not isinstance(made, Policy):
        raise AnalysisError(
            f"a policy has name, family, forecasts and plan(view), but {name!r} makes "
            f"an object of type {type(made).__name__}: add what it lacks"
        )
    whose = f"the family of the policy {made.name!r}"
    check_choice(whose, made.family, FAMILIES, AnalysisError)
    return maker  # type: ignore[no-any-return]
