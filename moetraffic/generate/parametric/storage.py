"""A model's file: HDF5 of two columns, read without trust as traces are.

Root attributes: ``format`` = "moetraffic-model", ``format_version`` = 9, ``fitted`` in
iterations, and the numbers of bytes of ``scenario``, of ``knots``, ``components`` and
``factors``, and of ``times`` of calls (0: they are unknown).  The column ``scenario``
is JSON.  The column ``value`` holds all parameters, one array after the other,
row-major and rounded to what float32 resolves.  Nothing is unpickled, and everything
has its checksum.
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
    replacing,
    validate_output,
    write_errors,
)
from moetraffic.trace.hdf5.image import Image

from .dynamics import Dynamics
from .rows import RowVariation

KIND = "moetraffic-model"
VERSION = 9
"""Up to 4 the load had a trend and autoregressions of each expert; 5 had lognormal
rows, 6 rows that changed from knot to knot, 7 a column for each array's shape, and 8
the scenario in an attribute, too short for some 140 exchanges."""


def _shapes(
    scenario: Scenario, *, knots: int, components: int, factors: int, times: int
) -> dict[tuple[str, str], tuple[int, ...]]:
    """Shapes of arrays by what they belong to and their names, in the file's order."""
    layers, experts = len(scenario.layers), scenario.experts
    call = (len(scenario.exchanges), len(PLACES))
    timed = [f.name for f in fields(Rhythm) if times]
    return {
        ("dynamics", "knots"): (knots,),
        ("dynamics", "level"): (knots, layers, experts),
        ("dynamics", "kept"): (knots,),
        ("dynamics", "adjacent"): (knots,),
        ("dynamics", "damping"): (components,),
        ("dynamics", "frequency"): (components,),
        ("dynamics", "variance"): (knots, layers, components),
        ("dynamics", "saturation"): (knots, layers),
        ("rows", "factors"): (layers, experts, factors),
        ("rows", "own"): (layers, experts),
        **{("rhythm", n): (1,) if n == "per_byte" else call for n in timed},
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
    scenario = json.dumps(asdict(model["scenario"]), separators=(",", ":")).encode()
    attributes = {
        "format": KIND,
        "format_version": VERSION,
        "fitted": model["fitted"],
        "scenario": len(scenario),
        **sizes,
    }
    names = _shapes(model["scenario"], **sizes)
    values = [np.ravel(getattr(model[part], name)) for part, name in names]
    with (
        write_errors(path, error=TraceError),
        replacing(path) as temporary,
        DeferredErrorFile(temporary) as file,
    ):
        with Image(file, attributes) as image:
            image.column("scenario", np.frombuffer(scenario, "u1"), "u1")
            image.column("value", np.concatenate(values).astype("<f4"), "<f8")
        file.settle()


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
    counts = [np.prod(shape, dtype=object) for shape in shapes.values()]
    values = container.column("value", "<f8", sum(counts))
    arrays = np.split(values, np.cumsum(counts[:-1]).astype(int))
    read: dict[str, dict[str, Any]] = {"dynamics": {}, "rows": {}, "rhythm": {}}
    for ((part, name), shape), array in zip(shapes.items(), arrays, strict=True):
        read[part][name] = array.reshape(shape)
    return {
        "scenario": scenario,
        "dynamics": Dynamics(**read["dynamics"]),
        "rows": RowVariation(**read["rows"]),
        "rhythm": Rhythm(**read["rhythm"]) if read["rhythm"] else None,
        "fitted": _count(container, "fitted"),
    }


def _scenario(container: Container) -> Scenario:
    text = container.column("scenario", "u1", _count(container, "scenario"))
    told = json.loads(text.tobytes())
    exchanges = tuple(
        Exchange(**{**x, "phases": tuple(x["phases"])}) for x in told.pop("exchanges")
    )
    scenario = Scenario(exchanges=exchanges, **told)
    every: tuple[Scenario | Exchange, ...] = (scenario, *exchanges)
    values = [(f.type, getattr(x, f.name)) for x in every for f in fields(x)]
    container.require(
        bool(exchanges)
        and all(type(v) is int and 0 <= v < 1 << 31 for t, v in values if t == "int")
        and all(isinstance(v, str) for t, v in values if t == "str")
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
