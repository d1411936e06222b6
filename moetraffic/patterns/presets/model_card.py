"""A model by name: its shape, its routing, and what its source says of its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moetraffic.patterns.parameters import ParameterCount, parameter_count
from moetraffic.patterns.routers import Gating
from moetraffic.patterns.shape import ModelShape

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
    remark: str = ""  # what was assumed, or how the published count is to be read

    @property
    def name(self) -> str:
        """What ``--model`` takes."""
        return self.model.name

    @property
    def parameters(self) -> ParameterCount:
        """The count of what is built, without ``left_out``."""
        return parameter_count(self.model, k=self.gating.k)
