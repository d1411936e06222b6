"""Words for what an iteration trains: the model, and the batch."""

from __future__ import annotations

import numpy as np

from moetraffic.patterns import ModelShape, parameter_count
from moetraffic.patterns.time_model import Configuration
from moetraffic.patterns.values import anywhere


def model_words(config: Configuration) -> str:
    """State the parameters of a configuration's model, if it is one, and what is
    assumed of attention."""
    fused = "fused" if anywhere(config.fused_attention) else "unfused"
    if not isinstance(config.model, ModelShape):
        return f"Attention: {fused}"
    count = parameter_count(config.model, k=int(np.max(config.k)))
    return f"{count.words}, {fused} attention"


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
