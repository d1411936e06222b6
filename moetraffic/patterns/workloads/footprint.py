"""The least memory that a workload can train in: what is certainly not too much."""

from __future__ import annotations

from moetraffic.patterns.element_types import element_bytes
from moetraffic.patterns.parameters import parameter_count

from .workload import Workload

RANK_BYTES = 100_000_000
"""An interpreter with torch takes more than this, measured with torch 2.4 and 2.13."""


def least_bytes(workload: Workload) -> int:
    """Bytes that all ranks of a workload need together, at least.

    Every parameter is held once, with its gradient and AdamW's two moments (ZeRO may
    hold no more than that; without it dense parameters have a copy on every rank).  A
    pass keeps the input of each layer, which activation checkpointing keeps too, and
    the logits of one micro-batch.

    It is a lower bound: a run that needs more than this may still not fit.
    """
    shape, training = workload.model, workload.training
    element = int(element_bytes(training.dtype))
    ranks = 1 if training.virtual else int(workload.layout.world)
    tokens = training.micro_batch * shape.window
    # tensor, pipeline and context parallelism cut a replica's activations
    replicas = 1 if training.virtual else int(workload.layout.dp)
    activations = tokens * (shape.layers * shape.hidden + shape.vocabulary) * element
    return (
        ranks * RANK_BYTES
        + 4 * element * parameter_count(shape).total
        + replicas * activations
    )
