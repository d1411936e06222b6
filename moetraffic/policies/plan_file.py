"""Plans that another program made, as a policy: a JSON file.

A file has the family and a plan for each layer, or "*" for all others::

    {"family": "circuits", "layers": {"1": {"receivers": [[1, 0]], "room": [4096]}}}
    {"family": "placement", "layers": {"*": {"experts": [0, 1], "ranks": [1, 0]}}}

A plan has the fields of its type: Matchings (receivers, room) or HeldCircuits (number);
Rounds (shares, routing) or Hops (round, pair, sender, receiver, share, routing);
ExpertPlacement (experts, ranks).  The output of ``moetraffic schedule run.h5 -o
circuits.json`` is such a file, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import AnalysisError

from .cluster import ExpertPlacement
from .optical import HeldCircuits, Matchings
from .packets import Hops, Rounds
from .policy import View
from .series import number_of


@dataclass(frozen=True, kw_only=True)
class FixedPlans:
    """The same plan for a layer each time, whatever the past is."""

    name: str
    family: str
    plans: Mapping[str, Any]  # by layer, "*": all others
    forecasts: bool = False
    run: str = ""  # file name of the trace that it was planned from; "": unknown
    digest: str = ""  # of that trace; "": unknown
    planned: tuple[int, int] | None = None  # half-open range of its iterations

    def plan(self, view: View) -> Any:
        """Return the layer's plan."""
        own = str(number_of(view.layer))
        key = own if own in self.plans else "*"
        if key not in self.plans:
            raise LookupError(
                f"the file has plans for {', '.join(self.plans)}, but none for this "
                'layer or "*"'
            )
        return self.plans[key]


def plan_file(path: Path) -> Callable[[], FixedPlans]:
    """Read plans from a file; they are checked when they are evaluated.

    Raises
    ------
    AnalysisError
        If the file cannot be read, or has no plans in the format of this module.
    """
    origin: dict[str, Any] = {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given.get("verb") == "schedule":
            data, family = given["data"], "circuits"
            spans = [plan["iterations"] for plan in data["exchanges"]]
            origin = {
                "run": Path(data["file"]).name,
                "digest": data["digest"],
                "planned": (min(a for a, _ in spans), max(b for _, b in spans)),
            }
            layers: dict[str, Any] = {}
            for plan in data["exchanges"]:
                terms = plan["schedules"][0]["terms"]
                layers["*" if plan["layer"] is None else str(plan["layer"])] = {
                    "receivers": [term["to"] for term in terms],
                    "room": [max(term["bytes"]) for term in terms],
                }
        else:
            family, layers = str(given["family"]), given["layers"]
        build = BUILDERS[family]
        plans = {layer: build(plan) for layer, plan in layers.items()}
    except OSError as error:
        raise AnalysisError(
            f"{path} cannot be read ({error.strerror or error}): name a file of plans"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error)
        if isinstance(error, UnicodeDecodeError):
            why = "it is not text"
        elif isinstance(error, KeyError):
            why = f"{error} is missing, or not a valid name"
        elif not isinstance(error, ValueError):
            why = "its parts have other types"
        raise AnalysisError(
            f"a file of plans is JSON with family and layers, but {path} is not "
            f"({why}): see python -m pydoc {__name__}"
        ) from None
    return partial(FixedPlans, name=path.name, family=family, plans=plans, **origin)


def _circuits(plan: Mapping[str, Any]) -> Matchings | HeldCircuits:
    if "number" in plan:
        return HeldCircuits(number=np.array(plan["number"]))
    to = np.array(plan["receivers"], np.int64)
    own = to == np.arange(to.shape[-1]) if to.ndim == 2 else np.zeros(to.shape, bool)
    room = np.array(plan["room"], np.float64)
    return Matchings(receivers=np.where(own, -1, to), room=room)


def _transmission(plan: Mapping[str, Any]) -> Rounds | Hops:
    routing = str(plan.get("routing", "ecmp"))
    if "shares" in plan:
        return Rounds(shares=np.array(plan["shares"], np.float64), routing=routing)
    names = ("round", "pair", "sender", "receiver")
    columns: dict[str, Any] = {name: np.array(plan[name], np.int64) for name in names}
    return Hops(**columns, share=np.array(plan["share"], np.float64), routing=routing)


def _placement(plan: Mapping[str, Any]) -> ExpertPlacement:
    experts, ranks = (np.array(plan[name], np.int64) for name in ("experts", "ranks"))
    return ExpertPlacement(experts=experts, ranks=ranks)


BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "circuits": _circuits,
    "transmission": _transmission,
    "placement": _placement,
}
"""Functions that build a plan of a family from its fields."""
