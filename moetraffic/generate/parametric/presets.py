"""Shipped traffic models, fitted to runs on real text."""

from __future__ import annotations

from importlib import resources

from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

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
    check_choice("a shipped model", name, preset_names(), LayoutError)
    entry = resources.files("moetraffic.data") / f"{PREFIX}{name}{SUFFIX}"
    with resources.as_file(entry) as path:
        return TrafficModel.load(path)
