"""The parameters of a model one by one: names, sizes and how tensor ranks split them.

Sums of parameters do not tell what libraries send: buckets close at a tensor, an owner
gets whole tensors, and a shard is padded to rows of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, prod

from moetraffic.units import short_count

from .model import RELATIVE_BUCKETS, ModelShape

ROW_BIASES = ("out.bias", "down.bias")
"""Biases behind matrices split by input: each tensor rank adds them to its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTensor:
    """A parameter."""

    name: str  # as ``moetraffic.models.GPT.named_parameters`` has it
    sizes: tuple[int, ...]  # of the whole one: all experts of a layer, all tensor ranks
    part: str = "dense"  # or "expert"
    split: int = -1  # the axis that tensor-parallel ranks share; -1: whole on each
    layer: int = -1  # global layer, -1 outside of the blocks

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return prod(self.sizes)

    def on_rank(self, *, tp: int = 1, ep: int = 1) -> ModelTensor:
        """What one rank holds of it, of ``tp`` (of an expert: etp) and ``ep`` ranks."""
        sizes = list(self.sizes)
        if self.part == "expert":
            sizes[0] //= ep
        if self.split >= 0:
            # of heads beyond their number ranks have copies
            sizes[self.split] = max(sizes[self.split] // tp, 1)
        return replace(self, sizes=tuple(sizes))


def model_tensors(
    shape: ModelShape,
    *,
    layers: Sequence[int] | None = None,
    ends: tuple[bool, bool] | None = None,
    vocabulary_split: int = 0,
    gate: bool = True,
) -> tuple[ModelTensor, ...]:
    """The parameters that a rank's part of a model has, in the order of registration,
    whole: :meth:`ModelTensor.on_rank` says what of them is where.

    Parameters
    ----------
    layers
        The blocks of a pipeline stage; None: all.
    ends
        Whether the embeddings, and whether norm and head, and a tied embedding again,
        are there; None: with the first layer and the last.
    vocabulary_split
        Tensor-parallel ranks among which embedding and head are split by tokens, the
        vocabulary padded to a multiple of 128 a rank (Megatron-LM,
        ``_vocab_size_with_padding``); 0: they are whole on each rank.
    gate
        Whether the router has a matrix ``[E, h]``; a hash has none.
    """
    held = range(shape.layers) if layers is None else layers
    ends = ends or (0 in held, shape.layers - 1 in held)
    return tuple(_all(shape, held, ends, vocabulary_split, gate))


def counted_tensors(
    shape: ModelShape, *, vocabulary_split: int = 0
) -> Iterator[tuple[ModelTensor, int]]:
    """Each different parameter of a model once, of the first layer of its kind, the
    last layer, or no layer, with how many are like it."""
    kinds: dict[tuple[bool, bool], int] = {}
    times: dict[int, int] = {}
    last = shape.layers - 1
    for layer in range(shape.layers):
        first = kinds.setdefault((shape.sparse(layer), shape.crosses(layer)), layer)
        like = last if layer == last else first  # both ends come with their layers
        times[like] = times.get(like, 0) + 1
    of_each = model_tensors(
        shape, layers=tuple(times), vocabulary_split=vocabulary_split
    )
    for tensor in of_each:
        yield tensor, times.get(tensor.layer, 1)


def padded_vocabulary(vocabulary: int, ranks: int) -> int:
    """The vocabulary made divisible by 128 a tensor-parallel rank, as Megatron-LM does.

    Examples
    --------
    >>> padded_vocabulary(50257, 2)
    50432
    """
    return ceil(vocabulary / (128 * ranks)) * 128 * ranks


def sees_own_tokens(tensor: ModelTensor) -> bool:
    """Whether a tensor-parallel rank's gradient of it is of its own tokens alone."""
    return (
        "norm" in tensor.name.rpartition(".")[0].rpartition(".")[2]
        or tensor.name.endswith(ROW_BIASES)
        or tensor.name.endswith("router.weight")
    )


def _all(
    m: ModelShape,
    held: Sequence[int],
    ends: tuple[bool, bool],
    split: int,
    gate: bool,
) -> Iterator[ModelTensor]:
    first, last = ends
    h, post = m.hidden, m.norm_place == "post"
    rows = padded_vocabulary(m.vocabulary, split) if split else m.vocabulary
    table = ModelTensor(name="", sizes=(rows, h), split=0 if split else -1)
    if last and m.masked and m.bias:
        # a parameter of the model itself stands before those of its modules
        yield replace(table, name="unembed_bias", sizes=(rows,))
    if first or (last and (m.tied or m.mtp)):
        yield replace(table, name="token.weight")
    if first and m.positions == "learned":
        yield ModelTensor(name="position.weight", sizes=(m.sequence, h))
    if first and m.segments:
        yield ModelTensor(name="segment.weight", sizes=(m.segments, h))
    if first and post:
        yield from _norm(m, "norm_embedding")
    if first and m.two_stacks and not post:
        yield from _norm(m, "norm_encoder")
    if m.positions == "relative":
        for name in ("relative_encoder", "relative"):
            sizes = (RELATIVE_BUCKETS, m.heads)
            yield ModelTensor(name=f"{name}.table.weight", sizes=sizes)
    for layer in held:
        for tensor in _block(m, layer, gate):
            yield replace(tensor, name=f"blocks.{layer}.{tensor.name}", layer=layer)
    if last and not post:
        yield from _norm(m, "norm")
    for layer in m.predicting_layers if last else ():
        for tensor in _predicting(m, layer, gate):
            name = f"mtp.{layer - m.layers}.{tensor.name}"
            yield replace(tensor, name=name, layer=layer)
    if last and m.masked:
        yield from _linear("transform", h, h, bias=m.bias)
        yield from _norm(m, "norm_transform")
    if last and not m.tied:
        yield replace(table, name="unembed.weight")


def _predicting(m: ModelShape, layer: int, gate: bool) -> Iterator[ModelTensor]:
    """A module that predicts a further token: norms of the token and of what was
    computed, a matrix that joins them, a layer and a norm (Megatron-LM,
    ``multi_token_prediction.py``)."""
    yield from _norm(m, "norm_token")
    yield from _norm(m, "norm_hidden")
    yield from _linear("join", m.hidden, 2 * m.hidden, split=0)
    yield from _block(m, layer, gate)
    yield from _norm(m, "norm")


def _block(m: ModelShape, layer: int, gate: bool) -> Iterator[ModelTensor]:
    h = m.hidden
    yield from _norm(m, "norm_1")
    yield from _latent(m) if m.kv_rank else _attention(m, "attention")
    if m.crosses(layer):
        yield from _norm(m, "norm_cross")
        yield from _attention(m, "cross")
    yield from _norm(m, "norm_2")
    if not m.sparse(layer):
        yield from _feedforward(m, "mlp", m.ffn_width)
        return
    if gate:
        yield ModelTensor(name="mlp.router.weight", sizes=(m.experts, h))
    into, out = (m.experts, h, m.expert_width), (m.experts, m.expert_width, h)
    expert = ModelTensor(name="mlp.experts.up", sizes=into, part="expert", split=2)
    yield expert
    yield replace(expert, name="mlp.experts.down", sizes=out, split=1)
    if m.gated:
        yield replace(expert, name="mlp.experts.gate")
    if m.shared_ffn:
        yield from _feedforward(m, "shared", m.shared_ffn)
        if m.shared_gate:
            yield from _linear("shared_gate", 1, h)


def _attention(m: ModelShape, name: str) -> Iterator[ModelTensor]:
    h, d = m.hidden, m.head_width
    biased = m.bias or m.qkv_bias
    for part, heads in (("q", m.heads), ("k", m.groups), ("v", m.groups)):
        yield from _linear(f"{name}.{part}", heads * d, h, bias=biased, split=0)
    yield from _linear(f"{name}.out", h, m.heads * d, bias=m.bias, split=1)
    if m.qk_norm:
        for part in ("q_norm", "k_norm"):
            yield ModelTensor(name=f"{name}.{part}.weight", sizes=(d,))


def _latent(m: ModelShape) -> Iterator[ModelTensor]:
    """DeepSeek-V2's attention (arXiv 2405.04434, equations 9 to 19)."""
    h, d, rope = m.hidden, m.head_width, m.rope_size
    if m.query_rank:
        yield from _linear("attention.q_down", m.query_rank, h)
        yield ModelTensor(name="attention.q_norm.weight", sizes=(m.query_rank,))
    rows = m.heads * (d + rope)
    yield from _linear("attention.q", rows, m.query_rank or h, split=0)
    yield from _linear("attention.kv_down", m.kv_rank + rope, h)
    yield ModelTensor(name="attention.kv_norm.weight", sizes=(m.kv_rank,))
    rows = m.heads * (d + m.value_width)
    yield from _linear("attention.kv", rows, m.kv_rank, split=0)
    yield from _linear("attention.out", h, m.heads * m.value_width, split=1)


def _feedforward(m: ModelShape, name: str, width: int) -> Iterator[ModelTensor]:
    h = m.hidden
    for part in ("up", "gate") if m.gated else ("up",):
        yield from _linear(f"{name}.{part}", width, h, bias=m.bias, split=0)
    yield from _linear(f"{name}.down", h, width, bias=m.bias, split=1)


def _linear(
    name: str, rows: int, columns: int, *, bias: bool = False, split: int = -1
) -> Iterator[ModelTensor]:
    yield ModelTensor(name=f"{name}.weight", sizes=(rows, columns), split=split)
    if bias:
        # what a matrix split by input adds is added after its all-reduce: whole
        place = 0 if split == 0 else -1
        yield ModelTensor(name=f"{name}.bias", sizes=(rows,), split=place)


def _norm(m: ModelShape, name: str) -> Iterator[ModelTensor]:
    yield ModelTensor(name=f"{name}.weight", sizes=(m.hidden,))
    if m.norm == "layer" and m.norm_bias:
        yield ModelTensor(name=f"{name}.bias", sizes=(m.hidden,))


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
    """The parameters of the model that ``moetraffic.models`` builds from a sound shape;
    ``k`` experts of a token are ``active``.

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
