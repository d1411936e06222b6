"""Models by name: shape, routing, and what the source of each says of its size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moetraffic.data import path
from moetraffic.errors import LayoutError
from moetraffic.patterns.parameters import ParameterCount, parameter_count
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.workloads.routers import Gating
from moetraffic.spelling import nearest

# building blocks of families, as fields of a shape
GPT: Mapping[str, Any] = {"norm_bias": True, "bias": True, "experts": 0}
LLAMA: Mapping[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "tied": False,
    "moe_every": 1,
}
T5: Mapping[str, Any] = {"positions": "relative", "norm": "rms", "activation": "relu"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {"gpt": GPT, "llama": LLAMA, "t5": T5}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model by name."""

    model: ModelShape
    source: str  # of the shape: a paper's table or a published configuration
    gating: Gating = field(default_factory=Gating)  # of a dense model: not used
    micro_batch: int = 4  # sequences of a rank in one forward pass
    published: int = 0  # parameters that the source states; 0: it states none
    left_out: Mapping[str, int] = field(
        default_factory=dict
    )  # parts that the source counts and this library does not build
    within: float = 0.01  # of published: above 0.01 the remark says why
    remark: str = ""  # how the published count is to be read
    note: str = ""  # what was assumed

    @property
    def name(self) -> str:
        """What ``--model`` takes."""
        return self.model.name

    @property
    def parameters(self) -> ParameterCount:
        """The count of what is built, without ``left_out``."""
        return parameter_count(self.model, k=self.gating.k)


def _read(name: str, shape: Mapping[str, Any], **rest: Any) -> Preset:
    blocks = FAMILIES.get(rest.pop("family", ""), {})
    model = ModelShape(**{**blocks, **shape, "name": name})
    return Preset(model=model, gating=Gating(**rest.pop("gating", {})), **rest)


PRESETS: Mapping[str, Preset] = {
    told["name"]: _read(**told)
    for told in json.loads(path("models.json").read_text(encoding="utf-8"))["models"]
}
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
        raise LayoutError(
            f"a model is one of the presets, not {name!r}: {nearest(name, PRESETS)}see "
            "moetraffic models"
        )
    return found
