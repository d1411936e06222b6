"""Models by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from moetraffic.errors import LayoutError

from .dense_models import DENSE
from .model_card import Preset
from .sparse_models import SPARSE

PRESETS: Mapping[str, Preset] = {found.name: found for found in (*SPARSE, *DENSE)}
"""The presets by name: tiny ones, mixtures of experts, dense models."""


def preset(name: str) -> Preset:
    """The preset of a name.

    Raises
    ------
    LayoutError
        If there is none.
    """
    found = PRESETS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, PRESETS, 1)
        perhaps = f"did you mean {near[0]}, or " if near else ""
        raise LayoutError(
            f"a model is one of the presets, not {name!r}: {perhaps}see moetraffic "
            "models"
        )
    return found
