"""Catalog of policies: the built-in ones, and those of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points

from moetraffic.errors import AnalysisError

from .circuits.birkhoff import Birkhoff, Solstice, StaticMean
from .circuits.eclipse import Eclipse
from .circuits.max_weight import MaxWeight
from .circuits.regional import PacketsOnly, Regional
from .circuits.rotation import Rotation
from .circuits.trimmed import Trimmed
from .family import FAMILIES
from .jobs.shifts import Compatible, RandomShifts, Unshifted
from .placement.affinity import Affinity
from .placement.fixed import FixedPlacement
from .placement.load_balancer import LoadBalancer
from .placement.popularity import Popularity
from .placement.replication import Replication
from .placement.swaps import Swaps
from .policy import Policy
from .transmission.balanced_paths import BalancedPaths
from .transmission.balancing import Balanced
from .transmission.rails import RailSpray
from .transmission.rounds import AllAtOnce, BirkhoffRounds, ShiftedRounds
from .transmission.two_level import Forwarded, TwoLevel

ENTRY_POINTS = "moetraffic.policies"

Maker = Callable[[], Policy]
"""Makes a new policy without state; called once for each evaluation."""

POLICIES: Mapping[str, Maker] = {
    "rotation": Rotation,
    "static-mean": StaticMean,
    "birkhoff": Birkhoff,
    "solstice": Solstice,
    "eclipse": Eclipse,
    "max-weight": MaxWeight,
    "birkhoff-trimmed": partial(Trimmed, base=Birkhoff()),
    "solstice-trimmed": partial(Trimmed, base=Solstice()),
    "eclipse-trimmed": partial(Trimmed, base=Eclipse()),
    "max-weight-trimmed": partial(Trimmed, base=MaxWeight()),
    "regional": Regional,
    "packets": PacketsOnly,
    "all-at-once": AllAtOnce,
    "sprayed": partial(AllAtOnce, name="sprayed", routing="ideal"),
    "shifted-rounds": ShiftedRounds,
    "birkhoff-rounds": BirkhoffRounds,
    "balanced-paths": BalancedPaths,
    "fast": Balanced,
    "rail-spray": RailSpray,
    "rail-lpt": partial(RailSpray, name="rail-lpt", chunks=True),
    "two-level": TwoLevel,
    "forwarded": Forwarded,
    "deduplicated": partial(Forwarded, name="deduplicated", once=True),
    "unshifted": Unshifted,
    "random-shifts": RandomShifts,
    "cassini": Compatible,
    "contiguous": partial(FixedPlacement, name="contiguous"),
    "strided": partial(FixedPlacement, name="strided"),
    "eplb": LoadBalancer,
    "eplb-nodes": partial(LoadBalancer, name="eplb-nodes", hierarchical=True),
    "swaps": Swaps,
    "flexmoe": Replication,
    "lina": Popularity,
    "affinity": Affinity,
}
"""The built-in policies by name."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies, built-in ones first."""
    others = set(entry_points(group=ENTRY_POINTS).names) - POLICIES.keys()
    return (*POLICIES, *sorted(others))


def policy_maker(name: str) -> Maker:
    """Look up a policy by name.

    Raises
    ------
    AnalysisError
        If there is none, or the entry point makes no policy.

    Examples
    --------
    >>> policy_maker("rotation")().family
    'circuits'
    """
    if name in POLICIES:
        return POLICIES[name]
    for point in entry_points(group=ENTRY_POINTS).select(name=name):
        return validated(point.load(), name)
    raise AnalysisError(
        f"a policy is one of {', '.join(policy_names())}, not {name[:40]!r}: choose one"
    )


def policy_family(name: str) -> str:
    """Return the family of a policy by its name."""
    return policy_maker(name)().family


def validated(maker: Maker, name: str) -> Maker:
    """Return a maker after checking that it makes a policy of a known family.

    Raises
    ------
    AnalysisError
        If it does not.
    """
    made = maker() if callable(maker) else maker
    if not (callable(maker) and isinstance(made, Policy)):
        raise AnalysisError(
            f"a policy has name, family, forecasts and plan(view), but {name!r} makes "
            f"a {type(made).__name__}: see docs/write-a-policy.md"
        )
    if made.family not in FAMILIES:
        raise AnalysisError(
            f"the family of a policy is one of {', '.join(FAMILIES)}, but that of "
            f"{made.name!r} is {made.family!r}: choose one"
        )
    return maker
