"""Plans that another program made, as a policy: a JSON file of circuits or placements.

A file has the family and a plan for each layer, or "*" for all others::

    {"family": "circuits", "layers": {"1": {"receivers": [[1, 0]], "room": [4096]}}}
    {"family": "placement", "layers": {"*": {"experts": [0, 1], "ranks": [1, 0]}}}

The output of ``moetraffic schedule run.h5 -o circuits.json`` is such a file, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from .service.optical import Matchings


@dataclass(frozen=True, kw_only=True)
class FixedPlans:
    """The same plan for a layer each time, whatever the past is."""

    name: str
    family: str
    plans: Mapping[str, Any]  # by layer, "*": all others
    forecasts: bool = False

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
    """Read plans from a JSON file; they are checked when they are evaluated.

    Raises
    ------
    AnalysisError
        If the file cannot be read, or has no plans in the format of this module.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if "exchanges" in given:
            plans: dict[str, Any] = {
                "*" if one["layer"] is None else str(one["layer"]): _matchings(
                    [term["to"] for term in one["schedules"][0]["terms"]],
                    [max(term["bytes"]) for term in one["schedules"][0]["terms"]],
                )
                for one in given["exchanges"]
            }
            family = "circuits"
        else:
            family = given["family"]
            build = {"circuits": _circuits, "placement": _placement}[family]
            plans = {layer: build(plan) for layer, plan in given["layers"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise AnalysisError(
            f"a file of plans is JSON with family and layers, but {path} cannot be "
            f"read so ({why}): see docs/policies.md"
        ) from None
    return partial(FixedPlans, name=path.name, family=family, plans=plans)


def _circuits(plan: Mapping[str, Any]) -> Matchings:
    return _matchings(plan["receivers"], plan["room"])


def _matchings(receivers: Any, room: Any) -> Matchings:
    to = np.array(receivers, np.int64)
    own = to == np.arange(to.shape[-1]) if to.ndim == 2 else np.zeros(to.shape, bool)
    return Matchings(receivers=np.where(own, -1, to), room=np.array(room, np.float64))


def _placement(plan: Mapping[str, Any]) -> ExpertPlacement:
    return ExpertPlacement(
        experts=np.array(plan["experts"], np.int64),
        ranks=np.array(plan["ranks"], np.int64),
    )
