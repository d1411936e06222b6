"""The least memory that a workload can train in: what is certainly not too much."""

from __future__ import annotations

from .shape import ModelShape
from .workload import Workload

RANK_BYTES = 100_000_000
"""An interpreter with torch takes more than this, measured with torch 2.4 and 2.13."""

ELEMENT_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def least_parameters(shape: ModelShape) -> int:
    """Parameters that a model of this shape has at least.

    Attention 4 h^2 a layer, feed-forwards and experts of two matrices of ``ffn_multiple
    h^2``, routers E h, embeddings V h.  What variants add (gates, biases, norms, shared
    experts) is left out.
    """
    h = shape.hidden
    moe = shape.layers // shape.moe_every
    feed_forward = int(2 * shape.ffn_multiple * h * h)
    return (
        # grouped-query attention has as little as the query's and the output's part
        shape.layers * 2 * h * h
        + (shape.layers - moe) * feed_forward
        + moe * shape.experts * (feed_forward + h)
        + shape.vocabulary * h
    )


def least_bytes(workload: Workload) -> int:
    """Bytes that all ranks of a workload need together, at least.

    Every parameter is held once, with its gradient and AdamW's two moments (ZeRO may
    hold no more than that; without it dense parameters have a copy on every rank).  A
    pass keeps the input of each layer, which activation checkpointing keeps too, and
    the logits of one micro-batch.

    Returns
    -------
    int
        A lower bound: a run that needs more than this may still not fit.
    """
    shape, training = workload.model, workload.training
    element = ELEMENT_BYTES.get(training.dtype, 2)
    ranks = 1 if training.virtual else workload.layout.world
    tokens = training.micro_batch * shape.sequence
    # tensor, pipeline and context parallelism cut a replica's activations
    replicas = 1 if training.virtual else workload.layout.dp
    activations = tokens * (shape.layers * shape.hidden + shape.vocabulary) * element
    return (
        ranks * RANK_BYTES
        + 4 * element * least_parameters(shape)
        + replicas * activations
    )
