"""Published models: shapes, routing and batch by name, or from a configuration file."""

from __future__ import annotations

from .catalog import PRESETS, Preset, preset
from .huggingface import read_config
from .scaling import scaled

__all__ = ["PRESETS", "Preset", "preset", "read_config", "scaled"]
