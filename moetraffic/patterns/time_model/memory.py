"""Memory that a rank needs.

Weights, gradients and optimizer states: Rajbhandari et al., arXiv 1910.02054, section
3.1 and figure 1 (Adam in mixed precision: 2 + 2 + 12 bytes a parameter; each stage
shards one more of them).  Activations: Korthikanti et al., arXiv 2205.05198, equations
1, 2, 4, 5 and table 2, in fp16 with a byte a mask, for any element size here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.patterns.values import anywhere, where

MODULES = RECOMPUTE.index("modules")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the rank that needs most: of the first stage under 1F1B."""

    weights: Float64
    gradients: Float64
    optimizer: Float64
    activations: Float64

    @property
    def total(self) -> Float64:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations


def memory(config: Configuration) -> Memory:
    """Bytes that a rank holds: weights of the largest stage, activations of the first.

    Activations of a GPT's layer are ``s b h (34 + 5 a s/h)`` bytes in fp16; tensor
    parallelism divides 24 of the 34 and the attention matrices, sequence parallelism
    all.  Other models' are counted by the same rules from their widths, without masks
    of dropout where feed-forward networks are gated.  With ``fp8`` inputs of products
    of weights are kept in 8 bits, but for attention's output (Transformer Engine,
    ``linear.py``), with ``recompute="modules"`` those of activation functions as well
    (DeepSeek-V3, arXiv 2412.19437, section 3.3.3).

    Recomputing the attention matrices (or never storing them) leaves ``34 s b h``, full
    recomputation the layer's input ``2 s b h`` and one layer that is being computed
    again.  1F1B keeps ``min(p, m)`` micro-batches of a stage in flight, an interleaved
    schedule ``min(1 + (p - 1)/(p v), m/p)`` of all layers: with few micro-batches all
    of their chunks.  Of ZeRO 3 the layer that computes is whole, and those gathered
    ahead of it.  A last stage has the logits in fp32; a stage alone is the last
    one.  Weights are those of the stage that has most, which need not be the first.
    """
    c = config
    parts = []
    gathered = where(c.zero == 3, (1 + c.prefetch) / c.stage_layers, 0.0)
    most = c.stages.most(c.stage_held + c.stage_experts)
    held_of = [c.stages.at(most, held) for held in (c.stage_held, c.stage_experts)]
    every = (c.copies_held, c.expert_copies)
    for held, copies in zip(held_of, every, strict=True):
        shards = c.among(copies)
        cut = [where(c.zero >= stage, shards, 1.0) for stage in (3, 2, 1)]
        sizes = (c.element_bytes, c.gradient_bytes, c.state_bytes)
        cut[0] = 1 / np.minimum(1 / cut[0] + gathered, 1.0)
        parts.append([held * size / by for size, by in zip(sizes, cut, strict=True)])
    weights, gradients, optimizer = (sum(pair) for pair in zip(*parts, strict=True))
    return Memory(
        weights=np.asarray(weights),
        gradients=np.asarray(gradients),
        optimizer=np.asarray(optimizer),
        activations=_activations(c),
    )


def _activations(c: Configuration) -> Float64:
    m = c.sizes
    e, apart = c.element_bytes, where(c.sequence_parallel > 0, c.tp, 1.0)
    # Step 1: one layer, bytes of a token.  Without sequence parallelism inputs of norms
    # and of products behind them, and masks of dropout, are whole on tensor ranks.
    padded = where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)
    share = where(m.layers > 0, m.moe_layers / m.layers, 0.0)
    again, short = c.recompute == MODULES, where(c.fp8 > 0, 1.0, e)
    copies = share * np.maximum(c.k * padded, 1) + where(again, 0.0, 1 - share)
    normed = m.hidden * short * (copies + where(again, 0.0, 1.0))
    masks = where(m.gated > 0, 0.0, 2.0) * m.hidden
    whole = 2 * m.hidden * e + normed + masks + where(again, m.latent * e, 0.0)
    queried = m.heads * m.key_width + 2 * m.keys
    queried = where(again & (m.latent > 0), 0.0, queried)
    attention = (queried + m.heads * m.value_width) * e
    up = (1 + m.gated) * c.ffn
    wide = where(again, up * short, up * e + c.ffn * short)
    layer = c.tokens * (whole / apart + (attention + wide) / c.tp)
    core = 5 * m.heads * m.attended * c.tokens * e / 2 / c.tp
    core = where(c.fused_attention > 0, 0.0, core)  # scores stay on chip
    kept = where(c.recompute == 1, layer, layer + core)
    kept = where(c.recompute == 2, c.tokens * m.hidden * e / apart, kept)
    # Step 2: layers in flight on the first stage.
    flight = np.minimum(c.pp, c.accumulation) / c.pp
    interleaved = 1 + (c.pp - 1) / (c.pp * c.virtual)
    interleaved = np.minimum(interleaved, c.accumulation / c.pp)
    flight = where(c.virtual > 1, interleaved, flight)
    if anywhere(c.schedule > 1):
        # arXiv 2401.10241, section 2.2, and 2412.19437, table 2
        deeper = np.minimum(2 * c.pp - 1, c.accumulation) / c.pp
        flight = where(c.schedule == SCHEDULES.index("zb-h2"), deeper, flight)
        flight = where(c.pair > 1, (c.pp + 1) / c.pp, flight)
    active = where(c.recompute == 2, layer + core, 0.0)
    # Step 3: the ends, of a stage alone.
    last = c.micro_batch * m.targets / c.cp
    logits = 4 * last * (m.vocabulary / c.tp + m.hidden * e / 2 / apart) * c.last
    return np.asarray(m.layers * kept * flight + active + logits)
