"""Shipped traffic models, fitted to runs on real text."""

from __future__ import annotations

from importlib import resources

from moetraffic.errors import LayoutError

from .model import TrafficModel

PREFIX = "traffic-"
SUFFIX = ".h5"


def preset_names() -> tuple[str, ...]:
    """Names of the shipped models."""
    folder = resources.files("moetraffic.data")
    return tuple(
        sorted(
            entry.name[len(PREFIX) : -len(SUFFIX)]
            for entry in folder.iterdir()
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX)
        )
    )


def preset_model(name: str) -> TrafficModel:
    """Load a shipped model by its name.

    Raises
    ------
    LayoutError
        If there is none of this name.
    """
    names = preset_names()
    if name not in names:
        raise LayoutError(
            f"a shipped model is one of {', '.join(names)}, not {name!r}: choose one"
        )
    entry = resources.files("moetraffic.data") / f"{PREFIX}{name}{SUFFIX}"
    with resources.as_file(entry) as path:
        return TrafficModel.load(path)
