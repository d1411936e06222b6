"""How many parameters a model has, in closed form and by part."""

from __future__ import annotations

from dataclasses import dataclass

from .shape import RELATIVE_BUCKETS, ModelShape


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


def parameter_count(shape: ModelShape, *, k: int = 1) -> ParameterCount:
    """The parameters of the model that ``moetraffic.models`` builds from a shape.

    An attention layer without latent compression has ``h H (d + d) + h G 2 d`` weights
    for H query and G key and value heads of size d; one with it those of DeepSeek-V2
    (arXiv 2405.04434, equations 1 to 14).  A feed-forward network of width f has
    ``2 h f``, a gated one ``3 h f`` (Shazeer, arXiv 2002.05202).

    Parameters
    ----------
    shape
        A sound shape: :func:`~moetraffic.patterns.shape.unmet` is empty.
    k
        Experts of a token, for ``active``.

    Examples
    --------
    >>> parameter_count(ModelShape(), k=2).total
    2673792
    """
    m = shape
    h, width = m.hidden, m.ffn_width
    moe = len(m.moe_layers)
    norm = h * (2 if m.norm == "layer" and m.norm_bias else 1)
    decoder = m.layers - m.encoder_layers
    crossing = decoder if m.two_stacks else 0
    one_expert = (3 if m.gated else 2) * h * m.expert_width
    attention, inner_norms = _attention(m)
    # modules that predict further tokens: a layer as the last one
    further, sparse = m.mtp, m.sparse(m.layers - 1)
    moe += further * sparse
    layers = m.layers + further
    # Step 1: the ends of the model.
    embedding = (m.vocabulary + m.segments) * h
    if m.positions == "learned":
        embedding += m.sequence * h
    head = (0 if m.tied else m.vocabulary * h) + further * 2 * h * h
    # norms: two a layer, another around cross-attention; at the end of each stack, or,
    # where norms come after, behind the embedding
    ends = 2 if m.two_stacks and m.norm_place == "pre" else 1
    norms = (2 * layers + 3 * further + crossing + ends) * norm
    norms += layers * inner_norms + crossing * inner_norms
    if m.masked:
        head += h * h + (h + m.vocabulary if m.bias else 0)
        norms += norm
    # Step 2: the layers.
    attention *= layers + crossing
    if m.positions == "relative":
        attention += 2 * RELATIVE_BUCKETS * m.heads
    ffn = (3 if m.gated else 2) * h * width
    if m.bias:
        ffn += (2 if m.gated else 1) * width + h
    shared = 0
    if m.shared_ffn:
        shared = (3 if m.gated else 2) * h * m.shared_ffn
        if m.bias:
            shared += (2 if m.gated else 1) * m.shared_ffn + h
        shared += h if m.shared_gate else 0
    count = ParameterCount(
        embedding=embedding,
        head=head,
        attention=attention,
        ffn=(layers - moe) * ffn,
        experts=moe * m.experts * one_expert,
        shared=moe * shared,
        router=moe * m.experts * h,
        norms=norms,
        active=0,
    )
    idle = moe * max(m.experts - k, 0) * one_expert
    return ParameterCount(**{**vars(count), "active": count.total - idle})


def _attention(m: ModelShape) -> tuple[int, int]:
    """Parameters of one attention layer: its matrices with biases, and its norms."""
    h, d = m.hidden, m.head_width
    if m.kv_rank:
        query, rows = m.query_rank or h, m.heads * (d + m.rope_size)
        weights = m.query_rank * h + rows * query  # queries, down and up
        weights += (m.kv_rank + m.rope_size) * h  # keys and values down
        weights += m.heads * (d + m.value_width) * m.kv_rank  # and up
        weights += m.heads * m.value_width * h
        return weights, m.query_rank + m.kv_rank
    into = (m.heads + 2 * m.groups) * d
    weights = into * h + m.heads * d * h
    if m.bias or m.qkv_bias:
        weights += into
    if m.bias:
        weights += h
    return weights, 2 * d if m.qk_norm else 0
