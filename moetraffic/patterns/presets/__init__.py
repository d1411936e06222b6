"""Published models: shapes, routing and batch by name, or from a configuration file."""

from __future__ import annotations

from .catalog import PRESETS, preset
from .huggingface import read_config
from .model_card import Preset
from .scaling import scaled

__all__ = ["PRESETS", "Preset", "preset", "read_config", "scaled"]
