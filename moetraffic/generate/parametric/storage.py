"""Traffic models in HDF5 files.

Root attributes are ``format`` = "moetraffic-model", ``version`` = 10 and ``fitted`` in
iterations.  The dataset ``scenario`` is JSON, and each parameter array a dataset in
float32 with named axes; without ``rhythm`` times of calls are unknown.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from moetraffic.errors import TraceError
from moetraffic.files import validate_output, write_errors, write_whole
from moetraffic.generate.scenario import Exchange, Scenario
from moetraffic.generate.writing.rhythm import PLACES, Rhythm
from moetraffic.trace.storage import OtherVersionError, TraceFile, Writer

from .dynamics import Dynamics
from .rows import RowVariation

KIND, VERSION = "moetraffic-model", 10
AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "dynamics": {
        **dict.fromkeys(("knots", "kept", "adjacent"), ("knot",)),
        **dict.fromkeys(("damping", "frequency"), ("component",)),
        "level": ("knot", "layer", "expert"),
        "variance": ("knot", "layer", "component"),
        "saturation": ("knot", "layer"),
    },
    "rows": {"factors": ("layer", "expert", "factor"), "own": ("layer", "expert")},
    "rhythm": {
        f.name: ("value",) if f.name == "per_byte" else ("exchange", "place")
        for f in fields(Rhythm)
    },
}
"""Axes of the arrays of each part of a model."""


def save(model: Mapping[str, Any], path: Path, *, force: bool) -> None:
    """Write the fields of a model, see :meth:`TrafficModel.save`."""
    validate_output(path, force=force, error=TraceError)
    attributes = {"format": KIND, "version": VERSION, "fitted": model["fitted"]}
    scenario = json.dumps(asdict(model["scenario"]), separators=(",", ":"))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("v110", "v110")) as file:
        writer = Writer(file, attributes)
        writer.put("scenario", [scenario], axes=("value",))
        for part, arrays in AXES.items():
            for name, axes in arrays.items() if model[part] else ():
                writer.put(f"{part}/{name}", getattr(model[part], name), "<f4", axes)
    with write_errors(path, error=TraceError):
        write_whole(path, buffer.getbuffer())


def load(path: Path) -> dict[str, Any]:
    """Read the fields of a model, see :meth:`TrafficModel.load`."""
    with TraceFile(path, KIND, VERSION) as file, file.reading("the model"):
        scenario = _scenario(json.loads(file.text("scenario")[0]))
        sizes = {
            "layer": len(scenario.layers),
            "expert": scenario.experts,
            "exchange": len(scenario.exchanges),
            "place": len(PLACES),
            "value": 1,
        }
        timed = "rhythm" in file.names()
        model: dict[str, Any] = {
            "scenario": scenario,
            "dynamics": Dynamics(**_arrays(file, "dynamics", sizes)),
            "rows": RowVariation(**_arrays(file, "rows", sizes)),
            "rhythm": Rhythm(**_arrays(file, "rhythm", sizes)) if timed else None,
            "fitted": int(file.attributes["fitted"]),
        }
        _require_ranges(model["dynamics"], model["rows"])
        return model


def is_model(path: Path) -> bool:
    """Whether a file is a traffic model, of any version; False if it is unreadable."""
    try:
        TraceFile(path, KIND, VERSION).close()
    except OtherVersionError:
        return True
    except TraceError:
        return False
    return True


def _arrays(file: TraceFile, part: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Read the arrays of a part, whose axes of one name have one length."""
    read = {}
    for name, axes in AXES[part].items():
        array = read[name] = file.column(f"{part}/{name}", "<f4").astype(np.float64)
        for axis, length in zip(axes, array.shape, strict=True):
            if sizes.setdefault(axis, length) != length:
                raise ValueError(f"{part}/{name} has {length} of axis {axis}")
    return read


def _scenario(read: dict[str, Any]) -> Scenario:
    exchanges = tuple(
        Exchange(**{**x, "phases": tuple(x["phases"])}) for x in read.pop("exchanges")
    )
    scenario = Scenario(exchanges=exchanges, **read)
    if not (exchanges and 1 <= scenario.k <= scenario.experts and scenario.ranks >= 1):
        raise ValueError("the scenario is invalid")
    return scenario


def _require_ranges(d: Dynamics, r: RowVariation) -> None:
    """Require finite parameters within the ranges that samples are drawn from."""
    arrays = [*vars(d).values(), *vars(r).values()]
    if not (
        all(np.isfinite(array).all() for array in arrays)
        and all(((a >= 0) & (a <= 1)).all() for a in (d.kept, d.adjacent, d.damping))
        and all((array >= 0).all() for array in (d.variance, d.saturation, r.own))
        and min(len(d.knots), len(d.damping)) > 0
        and bool((np.diff(d.knots) > 0).all())
        and d.knots[0] >= 0
    ):
        raise ValueError("a correlation, variance or knot is out of range")
