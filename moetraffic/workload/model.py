"""The shape of a model: its sizes, its building blocks, and which layers carry experts.

One flat table describes decoders (GPT-2, Llama, Mixtral, Qwen, DeepSeek), encoders
(BERT) and encoder-decoders (T5, Switch, GShard).  A width of 0 is derived from others,
as its comment says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .rules import Broken, Rule, broken, one_of, outside

POSITIONS = ("learned", "sinusoidal", "rotary", "relative")
NORMS = ("layer", "rms")
NORM_PLACES = ("pre", "post")
ACTIVATIONS = ("gelu", "relu", "silu")

RELATIVE_BUCKETS = 32
"""Distances that T5's relative positions tell apart (Raffel et al., arXiv 1910.10683,
section 2.1)."""

BYTES = 256
"""Vocabulary of the built-in text, which is bytes."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A transformer whose feed-forward is a mixture of experts in some layers."""

    name: str = "tiny"  # of the preset that it is, or was scaled from

    # the stack
    layers: int = 4  # transformer blocks, the encoder's included
    encoder_layers: int = 0  # the first blocks; 0: a decoder; all: an encoder
    hidden: int = 128  # model width h
    sequence: int = 128  # tokens of a sequence s; of the encoder's if there are two
    target_sequence: int = 0  # the decoder's behind an encoder; 0: sequence
    vocabulary: int = BYTES  # the last entry of an encoder's is the mask
    tied: bool = True  # the output head is the embedding
    mtp: int = 0  # modules that predict further tokens (DeepSeek-V3, arXiv 2412.19437,
    # section 2.2): a layer behind the last one, embedding and head shared
    segments: int = 0  # BERT's segment embeddings

    # attention
    heads: int = 4  # query heads
    kv_heads: int = 0  # key and value heads (grouped-query attention); 0: heads
    head_size: int = 0  # of a query and key, without rope_size; 0: hidden / heads
    query_rank: int = 0  # latent attention: of the compressed query; 0: as it is
    kv_rank: int = 0  # latent attention: of compressed key and value; 0: none
    rope_size: int = 0  # latent attention: of the part of a head that is rotated
    value_size: int = 0  # latent attention: of a value head; 0: head_size
    positions: str = "learned"  # one of POSITIONS
    rotary_base: float = 10_000.0  # slowest wave length / 2 pi
    qkv_bias: bool = False  # biases of query, key and value (Qwen1.5 and 2)
    qk_norm: bool = False  # an RMS norm of each query and key head (Qwen3)

    # norms and biases
    norm: str = "layer"  # one of NORMS
    norm_place: str = "pre"  # one of NORM_PLACES
    norm_bias: bool = False
    bias: bool = False  # of all matrices outside experts and head

    # feed-forward
    activation: str = "gelu"  # one of ACTIVATIONS
    gated: bool = False  # act(x W_gate) * (x W_up) instead of act(x W_up)
    ffn: int = 0  # width of a layer without experts; 0: 4 hidden
    expert_ffn: int = 0  # width of an expert; 0: that of ffn
    shared_ffn: int = 0  # width of the shared experts together; 0: there are none
    shared_gate: bool = False  # a sigmoid gate of the shared experts (Qwen1.5 and 2)
    experts: int = 8  # experts of a MoE layer E; 0: a dense model
    moe_every: int = 2  # every n-th layer of a stack carries experts: n-1, 2n-1, ...
    moe_first: int = 0  # but no layer of a stack before this one

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Global indices of the layers that carry experts.

        The decoder's layers are numbered after the encoder's, but counted from its own
        first one.
        """
        return tuple(filter(self.sparse, range(self.layers)))

    def sparse(self, layer: int) -> bool:
        """Whether a layer carries experts; those of further predictions follow the last
        layer, and are as that one is."""
        place = min(layer, self.layers - 1)
        place -= self.encoder_layers if place >= self.encoder_layers else 0
        every = (place + 1) % self.moe_every == 0
        return self.experts > 0 and place >= self.moe_first and every

    def crosses(self, layer: int) -> bool:
        """Whether a layer is of a decoder, and attends to an encoder's tokens."""
        return self.two_stacks and layer >= self.encoder_layers

    @property
    def predicting_layers(self) -> range:
        """Layers of modules that predict further tokens, numbered after the others."""
        return range(self.layers, self.layers + self.mtp)

    @property
    def two_stacks(self) -> bool:
        """Whether there is an encoder and a decoder."""
        return 0 < self.encoder_layers < self.layers

    @property
    def masked(self) -> bool:
        """Whether it is an encoder alone, which learns to fill in masked tokens."""
        return self.encoder_layers == self.layers

    @property
    def window(self) -> int:
        """Tokens of text that a training sequence takes."""
        return self.sequence + (self.targets if self.two_stacks else 0)

    @property
    def targets(self) -> int:
        """Tokens of a sequence that are predicted, or may be."""
        return (self.two_stacks and self.target_sequence) or self.sequence

    @property
    def groups(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of a query and key head, without the rotated part of a latent one."""
        return self.head_size or self.hidden // self.heads

    @property
    def key_width(self) -> int:
        """Width of a query and key head, with the rotated part of a latent one."""
        return self.head_width + (self.rope_size if self.kv_rank else 0)

    @property
    def rotated(self) -> int:
        """Width of the part of a head that rotary positions turn."""
        return self.rope_size if self.kv_rank else self.head_width

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return (self.kv_rank and self.value_size) or self.head_width

    @property
    def ffn_width(self) -> int:
        """Feed-forward width of a layer without experts."""
        return self.ffn or 4 * self.hidden

    @property
    def expert_width(self) -> int:
        """Feed-forward width of an expert."""
        return self.expert_ffn or self.ffn_width

    @property
    def widths(self) -> tuple[int, ...]:
        """The different feed-forward widths in use, ascending."""
        dense = len(self.moe_layers) < self.layers
        used = {self.ffn_width} if dense else set()
        if self.moe_layers:
            used |= {self.expert_width, self.shared_ffn} - {0}
        return tuple(sorted(used))


def broken_rules(shape: ModelShape) -> list[Broken]:
    """The rules that a shape breaks, each with its values and the remedy.

    If a size is out of range, only such rules: the others rely on them.
    """
    ranges = outside(shape) + broken(CHOICES, shape)
    return ranges or broken(MODEL_RULES, shape)


CHOICES: tuple[Rule, ...] = (
    one_of("positions", POSITIONS),
    one_of("norm", NORMS),
    one_of("norm_place", NORM_PLACES),
    one_of("activation", ACTIVATIONS),
)

MODEL_RULES: tuple[Rule, ...] = (
    (
        lambda m: m.head_size == 0 and m.hidden % m.heads,
        "heads must divide hidden, but {0.heads} does not divide {0.hidden}: "
        "change --hidden or --heads",
    ),
    (
        lambda m: m.heads % m.groups,
        "kv-heads must divide heads, but {0.groups} does not divide {0.heads}: "
        "change --kv-heads or --heads",
    ),
    (
        lambda m: m.encoder_layers > m.layers,
        "the encoder's layers are some of the layers, but encoder-layers is "
        "{0.encoder_layers} and layers is {0.layers}: lower --encoder-layers or raise "
        "--layers",
    ),
    (
        lambda m: m.experts and not m.moe_layers,
        "at least one layer must carry experts, but with layers {0.layers}, "
        "encoder-layers {0.encoder_layers}, moe-first {0.moe_first} and moe-every "
        "{0.moe_every} none does: lower --moe-every or raise --layers",
    ),
    (
        lambda m: m.positions == "rotary" and m.rotated % 2,
        "rotary positions turn pairs of numbers, but the rotated part of a head "
        "has {0.rotated}: change --head-size or --hidden to make it even",
    ),
    (
        lambda m: (
            (m.positions == "relative") > m.two_stacks
            or (m.positions == "learned") > (not m.two_stacks)
        ),
        "positions are relative in encoder-decoders alone, and learned in one stack "
        "alone, but are {0.positions} with {0.encoder_layers} encoder layers of "
        "{0.layers}: change --encoder-layers, or positions",
    ),
    (
        lambda m: (
            m.kv_rank
            and (m.positions != "rotary" or not m.rope_size or m.encoder_layers)
        ),
        "latent attention is a decoder's with rotary positions, but positions is "
        "{0.positions}, rope-size is {0.rope_size} and encoder-layers is "
        "{0.encoder_layers}: set kv-rank to 0 or change these",
    ),
    (
        lambda m: m.mtp and (m.encoder_layers or m.norm_place != "pre"),
        "a decoder with norms before its layers predicts further tokens, but "
        "mtp is {0.mtp}, encoder-layers is {0.encoder_layers} and norm-place is "
        "{0.norm_place}: leave out --mtp",
    ),
    (
        lambda m: m.kv_rank and m.groups != m.heads,
        "latent attention has as many keys as queries, but kv-heads is "
        "{0.groups} and heads is {0.heads}: leave out --kv-heads",
    ),
    (
        lambda m: m.query_rank and not m.kv_rank,
        "the query is compressed in latent attention, but query-rank is "
        "{0.query_rank} and kv-rank is 0: set kv-rank too",
    ),
)
