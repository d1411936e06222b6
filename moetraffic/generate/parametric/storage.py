"""A model's file: HDF5 of one column, read without trust as traces are.

Root attributes: ``format`` = "moetraffic-model", ``format_version`` = 8, ``fitted`` in
iterations, ``scenario`` as JSON, and the numbers of ``knots``, ``components`` and
``factors``, and of ``times`` of calls (0: they are unknown).  The column ``value``
holds all parameters, one array after the other, row-major and rounded to what float32
resolves.  Nothing is unpickled, and everything has its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.generate.scenario import Exchange, Scenario
from moetraffic.generate.writing.rhythm import PLACES, Rhythm
from moetraffic.trace import PHASES
from moetraffic.trace.hdf5.container import Container, OtherVersionError
from moetraffic.trace.hdf5.durable import (
    DeferredErrorFile,
    remedy,
    replacing,
    validate_output,
)
from moetraffic.trace.hdf5.image import Image

from .dynamics import Dynamics
from .rows import RowVariation

KIND = "moetraffic-model"
VERSION = 8
"""Up to 4 the load had a trend and autoregressions of each expert; 5 had lognormal
rows, 6 rows that changed from knot to knot, and 7 a column for each array's shape."""

Shapes = dict[str, dict[str, tuple[int, ...]]]
"""Shapes of arrays by what they belong to and their names, in the file's order."""


def _shapes(
    scenario: Scenario, *, knots: int, components: int, factors: int, times: int
) -> Shapes:
    layers, experts = len(scenario.layers), scenario.experts
    call = (len(scenario.exchanges), len(PLACES))
    return {
        "dynamics": {
            "knots": (knots,),
            "level": (knots, layers, experts),
            "kept": (knots,),
            "adjacent": (knots,),
            "damping": (components,),
            "frequency": (components,),
            "variance": (knots, layers, components),
            "saturation": (knots, layers),
        },
        "rows": {"factors": (layers, experts, factors), "own": (layers, experts)},
        "rhythm": {
            field.name: (1,) if field.name == "per_byte" else call
            for field in fields(Rhythm)
            if times
        },
    }


def save(model: Mapping[str, Any], path: Path, *, force: bool) -> None:
    """Write the fields of a model, see :meth:`TrafficModel.save`."""
    validate_output(path, force=force, error=TraceError)
    sizes = {
        "knots": len(model["dynamics"].knots),
        "components": len(model["dynamics"].damping),
        "factors": model["rows"].factors.shape[2],
        "times": int(model["rhythm"] is not None),
    }
    attributes = {
        "format": KIND,
        "format_version": VERSION,
        "fitted": model["fitted"],
        "scenario": json.dumps(asdict(model["scenario"]), separators=(",", ":")),
        **sizes,
    }
    values = [
        np.ravel(getattr(model[part], name))
        for part, shapes in _shapes(model["scenario"], **sizes).items()
        for name in shapes
    ]
    try:
        with replacing(path) as temporary, DeferredErrorFile(temporary) as file:
            with Image(file, attributes) as image:
                rounded = np.concatenate(values).astype("<f4")
                image.column("value", rounded, "<f8")
            file.settle()
    except (OSError, ValueError) as error:
        told = error if isinstance(error, OSError) else OSError(str(error))
        raise TraceError(
            f"{path} cannot be written ({told.strerror or told}): {remedy(told)}"
        ) from None


def load(path: Path) -> dict[str, Any]:
    """Read the fields of a model, see :meth:`TrafficModel.load`."""
    with Container(path, KIND, VERSION) as container:
        try:
            model = _read(container)
            _require_ranges(container, model["dynamics"], model["rows"])
        except BaseException as error:
            raise container.translated(error) from None
        return model


def is_model(path: Path) -> bool:
    """Whether a file is a traffic model; False if it cannot be read."""
    try:
        Container(path, KIND, VERSION).close()
    except OtherVersionError:
        return True  # loading it says which it is
    except TraceError:
        return False
    return True


def _read(container: Container) -> dict[str, Any]:
    scenario = _scenario(container)
    names = ("knots", "components", "factors", "times")
    shapes = _shapes(scenario, **{name: _count(container, name) for name in names})
    counts = [
        np.prod(s, dtype=object) for each in shapes.values() for s in each.values()
    ]
    values = container.column("value", "<f8", sum(counts))
    arrays = iter(np.split(values, np.cumsum(counts[:-1]).astype(int)))
    read = {
        part: {name: next(arrays).reshape(shape) for name, shape in each.items()}
        for part, each in shapes.items()
    }
    return {
        "scenario": scenario,
        "dynamics": Dynamics(**read["dynamics"]),
        "rows": RowVariation(**read["rows"]),
        "rhythm": Rhythm(**read["rhythm"]) if read["rhythm"] else None,
        "fitted": _count(container, "fitted"),
    }


def _scenario(container: Container) -> Scenario:
    text = container.attributes.get("scenario")
    container.require(isinstance(text, str), "the scenario is missing")
    told = json.loads(str(text))
    exchanges = tuple(
        Exchange(**{**x, "phases": tuple(x["phases"])}) for x in told.pop("exchanges")
    )
    scenario = Scenario(exchanges=exchanges, **told)
    numbers = [
        *(getattr(scenario, f.name) for f in fields(Scenario) if f.type == "int"),
        *(v for x in exchanges for v in (x.layer, x.slot, x.row_bytes)),
    ]
    texts = [
        *(getattr(scenario, f.name) for f in fields(Scenario) if f.type == "str"),
        *(x.dtype for x in exchanges),
    ]
    container.require(
        bool(exchanges)
        and all(type(n) is int and 0 <= n < 1 << 31 for n in numbers)
        and all(isinstance(t, str) for t in texts)
        and all(p in PHASES for x in exchanges for p in x.phases)
        and 1 <= scenario.k <= scenario.experts
        and scenario.ranks >= 1
        and len({(x.slot, x.layer) for x in exchanges}) == len(exchanges),
        "the scenario is invalid",
    )
    return scenario


def _require_ranges(container: Container, d: Dynamics, r: RowVariation) -> None:
    """Require finite parameters within the ranges that samples are drawn from."""
    arrays = [*vars(d).values(), *vars(r).values()]
    container.require(
        all(np.isfinite(array).all() for array in arrays)
        and all(((a >= 0) & (a <= 1)).all() for a in (d.kept, d.adjacent, d.damping))
        and all((array >= 0).all() for array in (d.variance, d.saturation, r.own))
        and min(len(d.knots), len(d.damping)) > 0
        and bool((np.diff(d.knots) > 0).all())
        and d.knots[0] >= 0,
        "a correlation, variance or knot is out of range",
    )


def _count(container: Container, name: str) -> int:
    value = container.attributes.get(name)
    if not isinstance(value, int) or value < 0:
        raise container.damaged(f"attribute {name} is {value!r}")
    return value
