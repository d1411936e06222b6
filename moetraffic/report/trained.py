"""Words for what an iteration trains: the model, and the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.patterns import ModelShape, parameter_count
from moetraffic.patterns.layouts.parallelism import CONTEXTS, DISPATCHERS
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.patterns.time_model import Configuration
from moetraffic.patterns.values import anywhere


def model_words(config: Configuration) -> str:
    """State the parameters of a configuration's model, if it is one, and what is
    assumed of attention."""
    fused = "fused" if anywhere(config.fused_attention) else "unfused"
    if not isinstance(config.model, ModelShape):
        return f"Attention: {fused}"
    return f"{shape_words(config.model, int(np.max(config.k)))}, {fused} attention"


def shape_words(shape: ModelShape, k: int) -> str:
    """State the parameters of a model, and in how many of its layers experts are."""
    text = parameter_count(shape, k=k).words
    sparse = len(shape.moe_layers)
    if not sparse:
        return text
    every = f" (--moe-every {shape.moe_every})" * (shape.moe_every > 1)
    return f"{text}, experts in {sparse} of {shape.layers} layers{every}"


def batch_words(
    micro_batches: float, micro_batch: float, replicas: float, tokens: float
) -> str:
    """State what an iteration trains on.

    Examples
    --------
    >>> batch_words(1, 1, 64, 4096)
    '64 sequences of 4,096 tokens an iteration (1 micro-batch of 1 on 64 replicas)'
    """
    sequences = micro_batches * micro_batch * replicas
    several, more = "s" * (sequences != 1), "es" * (micro_batches != 1)
    return (
        f"{sequences:,.0f} sequence{several} of {tokens:,.0f} tokens an iteration "
        f"({micro_batches:,.0f} micro-batch{more} of {micro_batch:.0f} on "
        f"{replicas:,.0f} replica{'s' * (replicas != 1)})"
    )


def layout_notes(config: Configuration) -> list[str]:
    """Describe what of one layout is another than usual, and that no search varies."""

    def first(value: Any) -> int:
        return round(float(np.ravel(value)[0]))

    c, etp = config, first(config.expert_tp)
    limit = f", at most {first(c.node_limit)} nodes" if first(c.node_limit) else ""
    context = CONTEXTS[first(c.context)]
    if 1 < first(c.ulysses) < first(c.cp):
        context += f" with Ulysses {first(c.ulysses)}"
    words = (
        (first(c.schedule), f"schedule {SCHEDULES[first(c.schedule)]}"),
        (first(c.sizes.experts) and etp != first(c.tp), f"ETP {etp}"),
        (first(c.shard), f"ZeRO shards over {first(c.shard)} replicas"),
        (first(c.cp) > 1, f"attention by {context}"),
        (
            first(c.dispatcher),
            f"{DISPATCHERS[first(c.dispatcher)]} dispatch of tokens{limit}",
        ),
        (first(c.sizes.mtp), f"MTP {first(c.sizes.mtp)}"),
    )
    return [said for there, said in words if there]
