"""Numbers of a model's shape that decide what it sends, computes and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

from .model import ModelShape
from .rules import Values
from .tensors import counted_tensors, sees_own_tokens

TABLES = ("token.weight", "unembed.weight", "unembed_bias")
BEHIND = ("norm", "transform", "norm_transform")
"""Parameters behind the layers, by the first part of their names."""


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """A transformer in numbers, or several in arrays.

    Layers with experts are taken alike, and so are those without.
    """

    layers: Values  # l
    hidden: Values  # h
    heads: Values  # a
    attention: Values  # a times a head's width
    keys: Values  # mean width of all keys and of all values together
    key_heads: Values  # key and value heads
    key_width: Values  # of a query and key head, its rotated part included
    value_width: Values  # of a value head
    latent: Values  # widths that latent attention projects up from; 0: it is not
    sequence: Values  # s, tokens; behind an encoder those of a mean layer
    attended: Values  # tokens of the same sequence, seen from a token in a mean layer
    source: Values  # tokens that are embedded
    targets: Values  # tokens that are predicted
    vocabulary: Values  # V
    dense_ffn: Values  # feed-forward width of a layer without experts; 0: none is
    expert_ffn: Values  # of an expert
    shared_ffn: Values  # of a MoE layer's shared experts together
    gated: Values  # 1: two matrices lead into the feed-forward network
    moe_layers: Values
    experts: Values  # E of a MoE layer
    encoder_layers: Values
    cross_layers: Values  # of a decoder that attends to an encoder
    tied: Values  # 1: the head is the embedding
    row_bias: Values  # 1: a bias of each word's logit
    mtp: Values  # modules that predict further tokens, behind the last layer
    mtp_sparse: Values  # 1: they have experts
    expert_weights: Values  # parameters of one expert
    parameters: Values = 0  # N without the experts', the vocabulary not padded
    weights: Values = 0  # that all tokens multiply with, of a mean layer
    dense_split: Values = 0  # of a layer without experts, that tensor ranks share
    dense_whole: Values = 0  # and that each of them holds: norms, some biases
    dense_own: Values = 0  # of these, whose gradients are of a rank's own tokens alone
    sparse_split: Values = 0  # of a layer with experts, but not these; also routers
    sparse_whole: Values = 0
    sparse_own: Values = 0
    first_whole: Values = 0  # in front of the layers, without the embedding
    first_own: Values = 0
    last_whole: Values = 0  # behind them, without the head
    last_own: Values = 0
    mtp_split: Values = 0  # of a module that predicts further tokens, no experts
    mtp_whole: Values = 0
    mtp_own: Values = 0

    @property
    def expert_parameters(self) -> Values:
        """Parameters of all experts of all layers."""
        layers = self.moe_layers + self.mtp * self.mtp_sparse
        return layers * self.experts * self.expert_weights


def model_sizes(model: ModelShape | Sequence[ModelShape]) -> ModelSizes:
    """The numbers of a sound shape, or arrays ``[n]`` of several shapes' numbers."""
    if isinstance(model, ModelShape):
        return _of(model)
    each = [_of(shape) for shape in model]
    names = (field.name for field in fields(ModelSizes))
    return ModelSizes(**{n: np.array([getattr(one, n) for one in each]) for n in names})


def of_each(
    function: Callable[..., npt.ArrayLike],
    model: ModelShape | Sequence[ModelShape],
    *sizes: Values,
) -> Float64:
    """What a function of a model and whole numbers has for each element of arrays.

    ``function`` is called once for each different combination of a model (one, or one
    of each element) and of ``sizes`` that broadcast; its values ``[..., *shape of the
    function's values]`` are float64.
    """
    if isinstance(model, ModelShape):
        if not any(map(np.ndim, sizes)):
            return np.asarray(function(model, *map(int, sizes)), np.float64)
        models: Sequence[ModelShape] = (model,)
    else:
        models = model
    place = 0 if isinstance(model, ModelShape) else np.arange(len(models))
    every = np.broadcast_arrays(place, *sizes)
    flat = np.stack([one.ravel() for one in every]).astype(np.int64)
    least = flat.min(axis=1, initial=0, keepdims=True)
    base = (flat - least).max(axis=1, initial=0) + 1
    keys = np.ravel_multi_index(tuple(flat - least), tuple(base))
    _, at, inverse = np.unique(keys, return_index=True, return_inverse=True)
    found = [function(models[of], *rest) for of, *rest in flat[:, at].T.tolist()]
    values = np.asarray(found, np.float64)[inverse.ravel()]
    return values.reshape(*every[0].shape, *values.shape[1:])


@cache
def _of(m: ModelShape) -> ModelSizes:
    moe, decoder = len(m.moe_layers), m.layers - m.encoder_layers
    tokens = m.encoder_layers * m.sequence + decoder * m.targets
    key, value = m.key_width, m.value_width
    one_expert = (3 if m.gated else 2) * m.hidden * m.expert_width
    key_heads = m.heads if m.kv_rank else m.groups
    same = (
        *("layers", "hidden", "heads", "vocabulary", "key_width", "value_width"),
        *("gated", "experts", "encoder_layers", "tied", "mtp", "targets"),
    )
    numbers = {
        **{name: getattr(m, name) for name in same},
        "attention": m.heads * m.head_width,
        "keys": key_heads * (key + value) / 2,
        "key_heads": key_heads,
        "latent": m.kv_rank
        and (m.query_rank or m.heads * key) + m.kv_rank + m.rope_size,
        "sequence": tokens / m.layers,
        "attended": (m.encoder_layers * m.sequence**2 + decoder * m.targets**2)
        / tokens,
        "source": m.sequence,
        "dense_ffn": m.ffn_width if moe < m.layers else 0,
        "expert_ffn": m.expert_width if moe else 0,
        "expert_weights": one_expert if moe else 0,
        "shared_ffn": m.shared_ffn if moe else 0,
        "moe_layers": moe,
        "cross_layers": decoder if m.two_stacks else 0,
        "row_bias": m.masked and m.bias,
        "mtp_sparse": m.sparse(m.layers - 1),
        **_held(m),
    }
    return ModelSizes(**{name: np.float64(size) for name, size in numbers.items()})


def _held(m: ModelShape) -> dict[str, float]:
    """Parameters by where they are held."""
    found: dict[str, float] = {"parameters": 0}
    numbers = {"sparse": len(m.moe_layers), "dense": m.layers - len(m.moe_layers)}
    for tensor, times in counted_tensors(m):
        size: float = tensor.elements
        if tensor.part == "expert":
            continue
        found["parameters"] += times * size
        if tensor.name in TABLES:
            continue
        alone = tensor.split < 0
        if tensor.layer >= m.layers:
            place, size = "mtp", size / m.mtp
        elif tensor.layer < 0:
            place = "last" if tensor.name.split(".")[0] in BEHIND else "first"
            alone = True
        else:
            place = "sparse" if m.sparse(tensor.layer) else "dense"
            if len(tensor.sizes) > 1:
                found["weights"] = found.get("weights", 0) + times * size / m.layers
            size = times * size
        names = [f"{place}_{'whole' if alone else 'split'}"]
        names += [f"{place}_own"] if sees_own_tokens(tensor) else []
        for name in names:
            found[name] = found.get(name, 0) + size
    for name in found:
        found[name] /= numbers.get(name.partition("_")[0], 1)  # whole where alike
    return found
