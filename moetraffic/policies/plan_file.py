"""Plans that another program made, as a policy: a JSON file.

A file has the family and a plan for each layer, or "*" for all others::

    {"family": "circuits", "layers": {"1": {"receivers": [[1, 0]], "room": [4096]}}}
    {"family": "placement", "layers": {"*": {"experts": [0, 1], "ranks": [1, 0]}}}

A plan has the fields of its type: :class:`Matchings` (receivers, room) or
:class:`HeldCircuits` (number); :class:`Rounds` (shares, routing) or :class:`Hops`
(round, pair, sender, receiver, share, routing); :class:`ExpertPlacement` (experts,
ranks).  The output of ``moetraffic schedule run.h5 -o circuits.json`` is such a file,
too.
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

from .catalog import Maker
from .exchange_series import number_of
from .policy import View
from .service.cluster import ExpertPlacement
from .service.optical import HeldCircuits, Matchings
from .service.packet_network import Rounds
from .service.relays import Hops


@dataclass(frozen=True, kw_only=True)
class FixedPlans:
    """The same plan for a layer each time, whatever the past is."""

    name: str
    family: str
    plans: Mapping[str, Any]  # by layer, "*": all others
    forecasts: bool = False
    run: str = ""  # file name of the trace that it was planned from; "": unknown
    digest: str = ""  # of that trace; "": unknown, as in plans of earlier releases
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


def plan_file(path: Path) -> Maker:
    """Read plans from a file; they are checked when they are evaluated.

    Raises
    ------
    AnalysisError
        If the file cannot be read, or has no plans in the format of this module.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        run, digest, planned = "", "", None
        if "exchanges" in given:
            family = "circuits"
            run = Path(str(given.get("file", ""))).name
            digest = str(given.get("digest", ""))
            # plans of earlier releases have no iterations
            ends = [one.get("iterations", ()) for one in given["exchanges"]]
            if all(ends):
                planned = (min(int(a) for a, _ in ends), max(int(b) for _, b in ends))
            layers: dict[str, Any] = {
                "*" if one["layer"] is None else str(one["layer"]): {
                    "receivers": [t["to"] for t in one["schedules"][0]["terms"]],
                    "room": [max(t["bytes"]) for t in one["schedules"][0]["terms"]],
                }
                for one in given["exchanges"]
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
        raise AnalysisError(
            f"a file of plans is JSON with family and layers, but {path} is not "
            f"({_why(error)}): see python -m pydoc {__name__}"
        ) from None
    return partial(
        FixedPlans,
        name=path.name,
        family=family,
        plans=plans,
        run=run,
        digest=digest,
        planned=planned,
    )


def _why(error: Exception) -> str:
    """Say what a file lacks, in terms of the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if isinstance(error, KeyError):
        return f"{error} is missing, or not a valid name"
    if isinstance(error, (TypeError, AttributeError)):
        return "its parts have other types"
    return str(error)


def _circuits(plan: Mapping[str, Any]) -> Matchings | HeldCircuits:
    if "number" in plan:
        return HeldCircuits(number=np.array(plan["number"]))
    to = np.array(plan["receivers"], np.int64)
    own = to == np.arange(to.shape[-1]) if to.ndim == 2 else np.zeros(to.shape, bool)
    return Matchings(
        receivers=np.where(own, -1, to), room=np.array(plan["room"], np.float64)
    )


def _transmission(plan: Mapping[str, Any]) -> Rounds | Hops:
    routing = str(plan.get("routing", "ecmp"))
    if "shares" in plan:
        shares = np.array(plan["shares"], np.float64)
        return Rounds(shares=shares, routing=routing)
    names = ("round", "pair", "sender", "receiver")
    columns = {name: np.array(plan[name], np.int64) for name in names}
    share = np.array(plan["share"], np.float64)
    return Hops(**columns, share=share, routing=routing)  # type: ignore[arg-type]


def _placement(plan: Mapping[str, Any]) -> ExpertPlacement:
    return ExpertPlacement(
        experts=np.array(plan["experts"], np.int64),
        ranks=np.array(plan["ranks"], np.int64),
    )


BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "circuits": _circuits,
    "transmission": _transmission,
    "placement": _placement,
}
"""Functions that build a plan of a family from its fields."""
