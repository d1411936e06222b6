"""Floating-point operations of a micro-batch on a rank, and of a whole iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.values import where

from .conventions import SC21, Conventions


@dataclass(frozen=True, kw_only=True)
class Operations:
    """FLOP of one micro-batch on one rank; a multiplication and addition are two."""

    forward: Float64
    backward: Float64
    recomputed: Float64  # forward again, before backward
    weights: Float64  # of backward, the gradients of weights
    core: Float64  # of both passes, attention's products of queries, keys and values

    @property
    def all(self) -> Float64:
        """All three."""
        return self.forward + self.backward + self.recomputed


def operations(config: Configuration, conventions: Conventions = SC21) -> Operations:
    """FLOP of a micro-batch of ``b s`` tokens on a rank.

    ``flops="layers"``: a layer takes ``2 w b s`` for its ``w`` weights and
    ``4 b s^2 h`` for attention without the causal half, the head ``2 b s h V``;
    backward is twice that.  A GPT's iteration is then
    ``96 B s l h^2 (1 + s/6h + V/16lh)`` with full recomputation (SC'21, equation 3),
    ``72 ... V/12lh`` without.
    ``flops="parameters"``: ``8 N/(p t) b s``, of which forward is 2 (APNet'24).

    Experts count with the busiest rank's load (``imbalance``), or with their padded
    buffers.

    Parameters
    ----------
    config
        Any; with ``stage="last"`` of ``conventions`` the rank is one that has the head.
    conventions
        How it is counted.
    """
    c, m = config, config.sizes
    again = where(c.recompute == 2, 1.0, 0.0)
    spread = where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)
    routed = 2 * c.k * m.expert_weights * m.moe_layers * spread * c.tokens
    split = c.tp * m.layers / c.stage_layers
    core = 4 * m.layers * c.tokens * m.sequence * m.attention / split
    if conventions.flops == "parameters":
        whole = (2 * m.parameters * c.tokens + routed) / split
        return Operations(
            forward=whole,
            backward=2 * whole,
            recomputed=again * whole,
            weights=whole,
            core=3 * core,
        )
    layers = (2 * m.layers * m.weights * c.tokens + routed) / split + core
    head = 2 * c.tokens * m.hidden * m.vocabulary / c.tp
    # modules that predict further tokens are a mean layer and a head each
    head = head + m.mtp * (head + layers / c.stage_layers)
    if conventions.stage == "mean":
        head = head / c.pp
    return Operations(
        forward=layers + head,
        backward=2 * (layers + head),
        recomputed=again * layers + where(c.recompute == 1, core, 0.0),
        weights=layers - core + head,
        core=3 * core,
    )


def model_operations(config: Configuration) -> Float64:
    """FLOP that an iteration's tokens ask of the model: nothing is computed again.

    ``72 B s l h^2 (1 + s/6h + V/12lh)`` of a GPT; what model FLOP utilization counts.
    """
    c, m = config, config.sizes
    a_token = m.layers * (2 * m.weights + 4 * m.sequence * m.attention)
    a_token = a_token + 2 * c.k * m.expert_weights * m.moe_layers
    a_token = a_token * (1 + m.mtp / m.layers)
    a_token = a_token + 2 * m.hidden * m.vocabulary * (1 + m.mtp)
    return np.asarray(3 * a_token * c.sequences * m.sequence)
