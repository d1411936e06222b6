"""Model shape for the time model: multiplied weights and stored parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.patterns.parameters import parameter_count
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.tensors import model_tensors, sees_own_tokens
from moetraffic.patterns.values import Values, numbers


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
    key_heads: Values  # these groups
    key_width: Values  # of a query and key head, its rotated part included
    value_width: Values  # of a value head
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
    tied: Values = True  # the head is the embedding
    layer_split: Values  # parameters of a mean layer that tensor ranks share
    layer_whole: Values  # and that each of them holds: norms, some biases, routers
    layer_own: Values = 0  # of these, whose gradients are of a rank's own tokens alone
    row_bias: Values = 0  # 1: a bias of each word's logit
    first_whole: Values = 0  # in front of the layers, without the embedding
    first_own: Values = 0
    last_whole: Values = 0  # behind them, without the head
    last_own: Values = 0
    mtp: Values = 0  # modules that predict further tokens, behind the last layer
    mtp_sparse: Values = 0  # 1: they have experts
    mtp_split: Values = 0  # parameters of one that tensor ranks share, no experts
    mtp_whole: Values = 0  # and that each of them holds
    mtp_own: Values = 0  # of these, whose gradients are of a rank's own tokens
    cross_layers: Values = 0  # of a decoder that attends to an encoder
    source: Values = 0  # tokens that are embedded; 0: sequence
    targets: Values = 0  # tokens that are predicted; 0: sequence

    def __post_init__(self) -> None:
        for field in fields(self):
            made = numbers(field.name, getattr(self, field.name))
            if field.name in ("source", "targets"):
                made = np.where(made > 0, made, self.sequence)
            object.__setattr__(self, field.name, made)

    @property
    def ffn(self) -> Values:
        """Feed-forward width that a token passes through in a mean layer."""
        moe = self.moe_layers
        passed = (self.layers - moe) * self.dense_ffn
        passed = passed + moe * (self.k * self.expert_ffn + self.shared_ffn)
        return passed / self.layers

    @property
    def parameters(self) -> Values:
        """Parameters N without the experts', each once, the vocabulary not padded."""
        layers = self.layers * (self.layer_split + self.layer_whole)
        layers = layers + self.mtp * (self.mtp_split + self.mtp_whole)
        tables = self.hidden * np.where(self.tied > 0, 1, 2) + self.row_bias
        tables = self.vocabulary * tables
        return layers + tables + self.first_whole + self.last_whole

    @property
    def expert_parameters(self) -> Values:
        """Parameters of all experts of all layers."""
        layers = self.moe_layers + self.mtp * self.mtp_sparse
        return layers * self.experts * self.expert_weights

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
        wide = numbers("hidden", hidden)
        return cls(
            layers=layers,
            hidden=wide,
            heads=heads,
            attention=wide,
            keys=wide,
            key_heads=heads,
            key_width=wide / numbers("heads", heads),
            value_width=wide / numbers("heads", heads),
            sequence=sequence,
            vocabulary=vocabulary,
            dense_ffn=4 * wide,
            weights=12 * wide**2,
            layer_split=12 * wide**2 + 7 * wide,
            layer_whole=6 * wide,
            layer_own=6 * wide,
            first_whole=numbers("sequence", sequence) * wide,
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

        Raises
        ------
        LayoutError
            If the model has experts and ``k`` is 0.
        """
        if shape.experts and not k:
            raise LayoutError(
                f"a token selects 1 to {shape.experts} experts, but k is 0: give k"
            )
        count = parameter_count(replace(shape, mtp=0), k=max(k, 1))
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
            keys=_keys(shape),
            key_heads=shape.heads if shape.kv_rank else shape.groups,
            key_width=shape.key_width,
            value_width=shape.value_width,
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
            tied=np.float64(shape.tied),
            row_bias=np.float64(shape.masked and shape.bias),
            mtp=shape.mtp,
            mtp_sparse=float(shape.sparse(shape.layers - 1)),
            **_held(shape),
            cross_layers=decoder if shape.two_stacks else 0,
            source=shape.sequence,
            targets=shape.targets,
        )


def _keys(shape: ModelShape) -> float:
    """Mean width of all keys and of all values together."""
    if not shape.kv_rank:
        return shape.groups * shape.head_width
    key = shape.head_width + shape.rope_size
    return shape.heads * (key + shape.value_width) / 2


def _held(shape: ModelShape) -> dict[str, float]:
    """Parameters by where they are held, layers taken alike; no experts, no tables."""
    places = ("layer_split", "layer_whole", "layer_own", "first_whole", "first_own")
    further = ("mtp_split", "mtp_whole", "mtp_own")
    found = dict.fromkeys((*places, "last_whole", "last_own", *further), 0.0)
    for tensor in model_tensors(shape):
        if tensor.part == "expert" or tensor.name in TABLES:
            continue
        place = "layer"
        if tensor.layer >= shape.layers:
            place = "mtp"
        elif tensor.layer < 0:
            place = "last" if tensor.name.split(".")[0] in BEHIND else "first"
        alone = tensor.split < 0 or place in ("first", "last")
        size = tensor.elements
        found[f"{place}_{'whole' if alone else 'split'}"] += size
        if sees_own_tokens(tensor):
            found[f"{place}_own"] += size
    return {
        name: size
        / {"layer": shape.layers, "mtp": max(shape.mtp, 1)}.get(
            name[: name.index("_")], 1
        )
        for name, size in found.items()
    }


TABLES = ("token.weight", "unembed.weight", "unembed_bias")
BEHIND = ("norm", "transform", "norm_transform")
"""Parameters behind the layers, by the first part of their names."""
