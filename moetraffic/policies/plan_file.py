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

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError

from .cluster import ExpertPlacement
from .optical import HeldCircuits, Matchings
from .packets import Hops, Rounds
from .policy import View
from .series import ExchangeSeries, number_of

PLANS: Mapping[str, Mapping[type, tuple[str, ...]]] = {
    "circuits": {HeldCircuits: ("number",), Matchings: ("receivers", "room")},
    "transmission": {
        Rounds: ("shares",),
        Hops: ("round", "pair", "sender", "receiver", "share"),
    },
    "placement": {ExpertPlacement: ("experts", "ranks")},
}
"""Types of plans of each family, and their fields in a file."""

REAL = ("room", "share", "shares")
"""Fields that are real numbers; the others are integers."""


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

    def serves_its_source(self, series: ExchangeSeries, points: Int64) -> bool:
        """Whether the plans were made from iterations of the run that they serve.

        A run is known by its digest, or by its file name where one has no digest.
        """
        if self.planned is None:
            return False
        same = self.run == Path(series.name).name
        if self.digest and series.digest:
            same = self.digest == series.digest
        first, last = series.iterations[points[[0, -1]]]
        return same and bool(self.planned[0] <= last and self.planned[1] > first)


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
        family, layers = given.get("family"), given.get("layers")
        if given.get("verb") == "schedule":
            data, family = given["data"], "circuits"
            spans = [plan["iterations"] for plan in data["exchanges"]]
            origin = {
                "run": Path(data["file"]).name,
                "digest": data["digest"],
                "planned": (min(a for a, _ in spans), max(b for _, b in spans)),
            }
            layers = {}
            for plan in data["exchanges"]:
                terms = plan["schedules"][0]["terms"]
                layers["*" if plan["layer"] is None else str(plan["layer"])] = {
                    "receivers": [term["to"] for term in terms],
                    "room": [max(term["bytes"]) for term in terms],
                }
        plans = {layer: _plan(family, plan) for layer, plan in layers.items()}
    except OSError as error:
        raise AnalysisError(
            f"{path} cannot be read ({error.strerror or error}): name a file of plans"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise AnalysisError(
            f"a file of plans is JSON with family and layers, but {path} is not "
            f"({type(error).__name__}: {error}): see python -m pydoc {__name__}"
        ) from None
    if family not in PLANS:
        raise AnalysisError(
            f"a file of plans is JSON with family and layers, but the family of {path} "
            f"is {family!r}: choose one of {', '.join(PLANS)}"
        )
    return partial(FixedPlans, name=path.name, family=family, plans=plans, **origin)


def _plan(family: str, fields: Mapping[str, Any]) -> Any:
    """Build a plan of a family from its fields."""
    kinds = PLANS[family].items()
    kind, names = next((k, n) for k, n in kinds if n[0] in fields)
    columns: dict[str, Any] = {
        name: np.array(fields[name], np.float64 if name in REAL else np.int64)
        for name in names
    }
    if family == "transmission":
        columns["routing"] = str(fields.get("routing", "ecmp"))
    if kind is Matchings:  # a circuit of a port to itself is idle
        to = columns["receivers"]
        columns["receivers"] = np.where(to == np.arange(to.shape[-1]), -1, to)
    return kind(**columns)
