"""A model's file: HDF5 of plain columns, read without trust as traces are.

Root attributes: ``format`` = "moetraffic-model", ``format_version`` = 7, ``fitted`` in
iterations, ``scenario`` as JSON.  Columns: ``array`` names each
parameter; ``array_axes`` says how many axes it has, ``axis_length`` how long these are,
one array after the other; the panel ``value_row`` holds all of them row-major, rounded
to what float32 can tell, in rows of 64 with zeros at the end.  Nothing is unpickled,
and everything has its checksum.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError
from moetraffic.trace import PHASES
from moetraffic.trace.hdf5.container import Container, OtherVersionError
from moetraffic.trace.hdf5.durable import (
    DeferredErrorFile,
    remedy,
    replacing,
    validate_output,
)
from moetraffic.trace.hdf5.image import Image
from moetraffic.trace.panel import ArrayPanel

from .dynamics import Dynamics
from .model import TrafficModel
from .rhythm import PLACES, Rhythm
from .rows import RowVariation
from .scenario import Exchange, Scenario

Float64 = npt.NDArray[np.float64]

KIND = "moetraffic-model"
VERSION = 7
"""Up to 4 the load had a trend and autoregressions of each expert; 5 had lognormal
rows, and 6 rows that changed from knot to knot."""

PARTS: dict[str, type[Any]] = {
    "dynamics": Dynamics,
    "rows": RowVariation,
    "rhythm": Rhythm,
}
"""What arrays belong to, by the first part of their name."""

ROW = 64
MOST_AXES = 4
MOST_VALUES = 1 << 26


def save(model: TrafficModel, path: Path, *, force: bool) -> None:
    """See :meth:`TrafficModel.save`."""
    validate_output(path, force=force, error=TraceError)
    attributes = {
        "format": KIND,
        "format_version": VERSION,
        "fitted": model.fitted,
        "scenario": json.dumps(asdict(model.scenario), separators=(",", ":")),
    }
    arrays = {
        f"{part}_{field.name}": np.asarray(getattr(value, field.name), "<f4")
        for part, kind in PARTS.items()
        if (value := getattr(model, part)) is not None
        for field in fields(kind)
    }
    names = [name.encode() for name in arrays]
    flat = np.concatenate([a.ravel() for a in arrays.values()]).astype("<f8")
    rows = np.pad(flat, (0, -len(flat) % ROW)).reshape(-1, ROW)
    try:
        with replacing(path) as temporary, DeferredErrorFile(temporary) as file:
            with Image(file, attributes) as image:
                image.column("array", names, f"S{max(map(len, names))}")
                axes = [a.ndim for a in arrays.values()]
                image.column("array_axes", axes, "<i4", axis="array")
                lengths = [n for a in arrays.values() for n in a.shape]
                image.column("axis_length", lengths, "<i4")
                image.column("row", np.arange(len(rows)), "<i4")
                image.column("place", np.arange(ROW), "<i4")
                image.panel("value_row", ArrayPanel(rows), "<f8", ("row", "place"))
            file.settle()
    except (OSError, ValueError) as error:
        told = error if isinstance(error, OSError) else OSError(str(error))
        raise TraceError(
            f"{path} cannot be written ({told.strerror or told}): {remedy(told)}"
        ) from None


def load(path: Path) -> TrafficModel:
    """See :meth:`TrafficModel.load`."""
    container = Container(path, KIND, VERSION)
    try:
        scenario = _scenario(container)
        arrays = _arrays(container)
        parts = {
            part: _part(container, kind, part, arrays)
            for part, kind in PARTS.items()
            if any(name.startswith(f"{part}_") for name in arrays)
        }
        model = TrafficModel(
            scenario=scenario,
            dynamics=parts["dynamics"],
            rows=parts["rows"],
            rhythm=parts.get("rhythm"),
            fitted=_count(container, "fitted"),
        )
        _refuse_strange(container, model)
        return model
    except BaseException as error:
        raise container.translated(error) from None
    finally:
        container.close()


def is_model(path: Path) -> bool:
    """Whether a file is a traffic model; False if it cannot be read."""
    try:
        Container(path, KIND, VERSION).close()
    except OtherVersionError:
        return True  # loading it says which it is
    except TraceError:
        return False
    return True


def _arrays(container: Container) -> dict[str, Float64]:
    names = [n.decode() for n in container.column("array", "S").tolist()]
    axes = container.column("array_axes", "<i4", len(names))
    lengths = container.column("axis_length", "<i4")
    panel = container.panel("value_row", "<f8", (None, ROW))
    if panel.shape[0] * ROW > MOST_VALUES:
        raise container.damaged(f"it has {panel.shape[0]} rows of values")
    values = panel.read(0, panel.shape[0]).ravel()
    if len(axes) and not 0 < axes.min() <= axes.max() <= MOST_AXES:
        raise container.damaged("an array has an impossible number of axes")
    if lengths.size and (lengths.min() < 0 or axes.sum() != len(lengths)):
        raise container.damaged("the axes do not match the number of values")
    found: dict[str, Float64] = {}
    at = axis = 0
    for name, count in zip(names, axes.tolist(), strict=True):
        shape = [int(n) for n in lengths[axis : axis + count]]
        size = int(np.prod(shape, dtype=object))
        if size > MOST_VALUES or at + size > len(values):
            raise container.damaged(f"array {name} has the shape {shape}")
        found[name] = values[at : at + size].reshape(shape)
        at, axis = at + size, axis + count
    if not at <= len(values) < at + ROW:
        raise container.damaged("there are more values than arrays")
    return found


def _part(
    container: Container, kind: type[Any], name: str, arrays: dict[str, Float64]
) -> Any:
    told = {}
    for field in fields(kind):
        if f"{name}_{field.name}" not in arrays:
            raise container.damaged(f"array {name}_{field.name} is not there")
        told[field.name] = arrays[f"{name}_{field.name}"]
    return kind(**told)


def _scenario(container: Container) -> Scenario:
    text = container.attributes.get("scenario")
    if not isinstance(text, str):
        raise container.damaged("the scenario is missing")
    told = json.loads(text)
    exchanges = tuple(
        Exchange(**{**x, "phases": tuple(x["phases"])}) for x in told.pop("exchanges")
    )
    scenario = Scenario(exchanges=exchanges, **told)
    numbers = [
        *(getattr(scenario, f.name) for f in fields(Scenario) if f.type == "int"),
        *(v for x in exchanges for v in (x.layer, x.slot, x.row_bytes)),
    ]
    text_fields = [
        *(getattr(scenario, f.name) for f in fields(Scenario) if f.type == "str"),
        *(x.dtype for x in exchanges),
    ]
    sound = (
        bool(exchanges)
        and all(type(n) is int and 0 <= n < 1 << 31 for n in numbers)
        and all(isinstance(t, str) for t in text_fields)
        and all(p in PHASES for x in exchanges for p in x.phases)
        and 1 <= scenario.k <= scenario.experts
        and scenario.ranks >= 1
        and len({(x.slot, x.layer) for x in exchanges}) == len(exchanges)
    )
    if not sound:
        raise container.damaged("the scenario is invalid")
    return scenario


def _refuse_strange(container: Container, model: TrafficModel) -> None:
    """Shapes that belong together, and values that can be drawn from."""
    scene, d, r = model.scenario, model.dynamics, model.rows
    layers, experts = len(scene.layers), scene.experts
    knots, components = len(d.knots), len(d.damping)
    factors = r.factors.shape[2] if r.factors.ndim == 3 else 0
    shapes = {
        "knots": (d.knots, (knots,)),
        "level": (d.level, (knots, layers, experts)),
        "kept": (d.kept, (knots,)),
        "adjacent": (d.adjacent, (knots,)),
        "damping": (d.damping, (components,)),
        "frequency": (d.frequency, (components,)),
        "variance": (d.variance, (knots, layers, components)),
        "saturation": (d.saturation, (knots, layers)),
        "factors": (r.factors, (layers, experts, factors)),
        "own": (r.own, (layers, experts)),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape or not np.isfinite(array).all() or not shape[0]:
            raise container.damaged(f"{name} has the shape {array.shape} or no numbers")
    sound = (
        all(
            ((part >= 0) & (part <= 1)).all()
            for part in (d.kept, d.adjacent, d.damping)
        )
        and (d.variance >= 0).all()
        and (d.saturation >= 0).all()
        and (r.own >= 0).all()
        and (np.diff(d.knots) > 0).all()
        and d.knots[0] >= 0
    )
    if not sound:
        raise container.damaged("a correlation, variance or knot is out of range")
    rhythm = model.rhythm
    if rhythm is not None and rhythm.gap.shape != (len(scene.exchanges), len(PLACES)):
        raise container.damaged("the rhythm does not match the exchanges")


def _count(container: Container, name: str) -> int:
    value = container.attributes.get(name)
    if not isinstance(value, int) or value < 0:
        raise container.damaged(f"attribute {name} is {value!r}")
    return value
