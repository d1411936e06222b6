"""How many parameters a model has, by part."""

from __future__ import annotations

from dataclasses import dataclass, fields

from moetraffic.units import short_count

from .shape import ModelShape
from .tensors import ModelTensor, counted_tensors


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters of a model, each in one part."""

    embedding: int  # of tokens, learned positions and segments; a tied head is here
    head: int  # an untied head, a masked model's, what joins further tokens
    attention: int  # matrices and biases of attention, relative positions included
    ffn: int  # feed-forward of the layers without experts
    experts: int  # of all MoE layers
    shared: int  # shared experts and their gates
    router: int  # linear gates, an expert a row
    norms: int  # all norms' weights and biases
    active: int  # what a token passes through: all but the experts it does not choose

    @property
    def total(self) -> int:
        """All parameters."""
        dense = self.embedding + self.head + self.attention + self.ffn + self.norms
        return dense + self.experts + self.shared + self.router

    @property
    def words(self) -> str:
        """State all parameters and, where they are fewer, the active ones."""
        active = f" ({short_count(self.active)} active per token)"
        fewer = self.active < self.total
        return f"{short_count(self.total)} parameters{active if fewer else ''}"


def parameter_count(shape: ModelShape, *, k: int = 1) -> ParameterCount:
    """The parameters of the model that ``moetraffic.models`` builds from a shape.

    Parameters
    ----------
    shape
        A sound shape: :func:`~moetraffic.patterns.shape.broken_rules` is empty.
    k
        Experts of a token, for ``active``.

    Examples
    --------
    >>> parameter_count(ModelShape(), k=2).total
    2673792
    """
    counts = dict.fromkeys((field.name for field in fields(ParameterCount)), 0)
    for tensor, times in counted_tensors(shape):
        counts[_part(tensor)] += times * tensor.elements
    idle = counts["experts"] * max(shape.experts - k, 0) // max(shape.experts, 1)
    active = sum(counts.values()) - idle
    return ParameterCount(**{**counts, "active": active})


def _part(tensor: ModelTensor) -> str:
    """The field of a count to which a parameter belongs."""
    name = tensor.name.split(".")
    if tensor.layer >= 0:
        name = name[2:]  # behind "blocks", the layer
    if tensor.part == "expert":
        return "experts"
    if any("norm" in word for word in name):
        return "norms"
    return "router" if "router" in name else PARTS[name[0]]


PARTS = {
    **dict.fromkeys(("token", "position", "segment"), "embedding"),
    **dict.fromkeys(("unembed", "unembed_bias", "transform", "join"), "head"),
    **dict.fromkeys(("attention", "cross"), "attention"),
    **dict.fromkeys(("relative", "relative_encoder"), "attention"),
    **dict.fromkeys(("shared", "shared_gate"), "shared"),
    "mlp": "ffn",
}
"""Parts of a count by the first word of a parameter's name."""
