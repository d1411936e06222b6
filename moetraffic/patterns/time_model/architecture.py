"""Model shape for the time model: multiplied weights and stored parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from moetraffic.patterns.parameters import parameter_count
from moetraffic.patterns.shape import ModelShape

from .values import Values, numbers


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A transformer in the numbers that decide its time; each may be an array.

    Layers are taken alike: what only some have (experts) is spread over all.
    """

    layers: Values  # l
    hidden: Values  # h
    heads: Values  # a
    attention: Values  # a times a head's width
    keys: Values  # key and value groups times a head's width
    sequence: Values  # s, tokens
    vocabulary: Values  # V
    dense_ffn: Values  # feed-forward width of a layer without experts
    expert_ffn: Values = 0  # of an expert
    shared_ffn: Values = 0  # of a MoE layer's shared experts together
    gated: Values = 0  # 1: two matrices lead into the feed-forward network
    weights: Values  # that all tokens multiply with, of a mean layer
    expert_weights: Values = 0  # of one expert
    moe_layers: Values = 0
    experts: Values = 0  # E of a MoE layer
    k: Values = 0  # experts of a token
    parameters: Values  # N without the experts'
    tied: Values = True  # the head is the embedding

    def __post_init__(self) -> None:
        for field in fields(self):
            made = numbers(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, made)

    @property
    def ffn(self) -> Values:
        """Feed-forward width that a token passes through in a mean layer."""
        moe = self.moe_layers
        passed = (self.layers - moe) * self.dense_ffn
        passed = passed + moe * (self.k * self.expert_ffn + self.shared_ffn)
        return passed / self.layers

    @property
    def expert_parameters(self) -> Values:
        """Parameters of all experts of all layers."""
        return self.moe_layers * self.experts * self.expert_weights

    @classmethod
    def gpt(
        cls,
        *,
        layers: Values,
        hidden: Values,
        heads: Values,
        sequence: Values,
        vocabulary: Values,
    ) -> Architecture:
        """A dense GPT of four times its width in between, with tied embeddings.

        ``N = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h))``: Narayanan et al., SC'21
        (arXiv 2104.04473), equation 2.

        Examples
        --------
        >>> told = dict(layers=24, hidden=2304, heads=24, sequence=2048)
        >>> model = Architecture.gpt(**told, vocabulary=51200)
        >>> f"{float(model.parameters) / 1e9:.2f}B"
        '1.65B'
        """
        wide, long = numbers("hidden", hidden), numbers("layers", layers)
        ends = numbers("vocabulary", vocabulary) + numbers("sequence", sequence)
        return cls(
            layers=long,
            hidden=wide,
            heads=heads,
            attention=wide,
            keys=wide,
            sequence=sequence,
            vocabulary=vocabulary,
            dense_ffn=4 * wide,
            weights=12 * wide**2,
            parameters=12 * long * wide**2 + 13 * long * wide + ends * wide,
        )

    @classmethod
    def of(cls, shape: ModelShape, *, k: int = 0) -> Architecture:
        """A preset's, or any other's shape.

        Behind an encoder a decoder's sequence is another: a mean layer's is taken.

        Parameters
        ----------
        shape
            A sound one.
        k
            Experts of a token; 0 for a dense model.
        """
        count = parameter_count(shape, k=max(k, 1))
        moe = len(shape.moe_layers)
        one = (3 if shape.gated else 2) * shape.hidden * shape.expert_width
        decoder = shape.layers - shape.encoder_layers
        tokens = shape.encoder_layers * shape.sequence + decoder * shape.targets
        weights = count.attention + count.ffn + count.shared + count.router
        return cls(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            attention=shape.heads * shape.head_width,
            keys=shape.groups * shape.head_width,
            sequence=tokens / shape.layers,
            vocabulary=shape.vocabulary,
            dense_ffn=shape.ffn_width,
            expert_ffn=shape.expert_width if moe else 0,
            shared_ffn=shape.shared_ffn if moe else 0,
            gated=np.float64(shape.gated),
            weights=weights / shape.layers,
            expert_weights=one if moe else 0,
            moe_layers=moe,
            experts=shape.experts,
            k=k if moe else 0,
            parameters=count.total - count.experts,
            tied=np.float64(shape.tied),
        )
