"""Shipped traffic models, fitted to runs on real text."""

from __future__ import annotations

import re
from importlib import resources

from moetraffic.data import path
from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

from .model import TrafficModel


def preset_names() -> tuple[str, ...]:
    """Names of the shipped models."""
    files = (entry.name for entry in resources.files("moetraffic.data").iterdir())
    found = re.findall(r"^traffic-(.*)\.h5$", "\n".join(files), re.MULTILINE)
    return tuple(sorted(found))


def preset_model(name: str) -> TrafficModel:
    """Load a shipped model by its name.

    Raises
    ------
    LayoutError
        If there is none of this name.
    """
    check_choice("a shipped model", name, preset_names(), LayoutError)
    return TrafficModel.load(path(f"traffic-{name}.h5"))
