"""Computing time of a layer on a GPU: matrix products, memory traffic, launches.

A matrix product takes the larger of two times: its tiles, in whole waves over the
multiprocessors, and its bytes.  Everything between matrix products is bound by memory,
and each kernel starts late.  Two numbers of a GPU are fitted, the share of its peak
that full waves reach and the share of its memory rate; the others are from its data
sheet or named here with their source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from .configuration import Configuration
from .gpus import Gpu
from .values import Float64, Values

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Rows and columns of a tile of cuBLAS and CUTLASS, of which the fastest is taken."""

REUSE = 64.0
"""Products a loaded element, ``MN/(M + N)``, from which on a tile runs at full speed: a
128 x 128 tile does, smaller ones are bound by the cache (NVIDIA, Matrix Multiplication
Background User's Guide, section 'Tile Quantization')."""

FORWARD, BACKWARD, CORE, ROUTING = 20, 40, 4, 15
"""Kernels of a layer in either pass, of its attention core, and of an expert layer's
gate and permutations, in each pass (Megatron-LM with its fused kernels)."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of one micro-batch on a rank."""

    forward: Float64  # of the layers of a mean stage
    backward: Float64
    recomputed: Float64
    head: Float64  # output layer and loss, all passes, on the last stage

    @property
    def all(self) -> Float64:
        """Of the layers."""
        return self.forward + self.backward + self.recomputed


def matmul(
    rows: Values,
    columns: Values,
    inner: Values,
    gpu: Gpu,
    *,
    number: Values = 1,
    fp8: Values = False,
) -> Float64:
    """Seconds of ``number`` products ``[rows, inner] x [inner, columns]`` at once.

    Parameters
    ----------
    rows, columns, inner, number
        Broadcast together; ``number`` is of a batched or grouped product.
    fp8
        In 8 bits, in which both sides are written first, and once more transposed.
    gpu
        Where it runs.

    Examples
    --------
    >>> from moetraffic.patterns.time_model import A100
    >>> one = matmul(8192, 8192, 8192, A100)
    >>> f"{2 * 8192**3 / float(one) / A100.peak_flops:.2f}"
    '0.71'
    """
    rows, columns, inner = (np.asarray(x, np.float64) for x in (rows, columns, inner))
    shape = np.broadcast_shapes(*(np.shape(x) for x in (rows, columns, inner, number)))
    high, wide, speed = (x.reshape(-1, *[1] * len(shape)) for x in _tiles())
    tiles = number * np.ceil(rows / high) * np.ceil(columns / wide)
    waves = np.ceil(tiles / gpu.multiprocessors) / speed
    full = gpu.peak_flops * gpu.matmul_share / gpu.multiprocessors
    computing = (waves * (2 / full * high * wide)).min(axis=0) * inner
    sides = number * (rows * inner + inner * columns)
    moved = 2.0 * (sides + number * rows * columns)
    rate = gpu.memory_bytes_s * gpu.memory_share
    time = np.maximum(computing / np.where(fp8, gpu.fp8_speed, 1.0), moved / rate)
    return np.asarray(time + np.where(fp8, 4.0, 0.0) * sides / rate)


@cache
def _tiles() -> tuple[Float64, Float64, Float64]:
    """Rows, columns and relative speed of each tile."""
    high, wide = np.array(TILES, np.float64).T
    return high, wide, np.minimum(1.0, high * wide / (high + wide) / REUSE)


def passes(config: Configuration, gpu: Gpu) -> Passes:
    """Computing time of a micro-batch's passes through a mean stage, and of the head.

    Bytes between matrix products are counted kernel by kernel of Megatron-LM's layer in
    16 bits with fused softmax, activation and dropout: of a token and unit of the
    hidden size 22 forward and 46 backward that tensor parallelism leaves whole
    (norms, dropout, residual; sequence parallelism divides them), 20 and 42 that it
    divides, of which the activation's grow with the width; of an attention score 9 and
    11.  Fused attention has neither scores in memory nor the masked half of them.
    """
    c, m = config, config.model
    tokens, whole = c.tokens, m.hidden
    rate = gpu.memory_bytes_s * gpu.memory_share
    apart = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    gate = 1.0 + m.gated

    zero = np.zeros(c.shape)

    def pair(ahead: Values, back: Values) -> Float64:
        """Forward and backward, of the configuration's shape."""
        return np.stack([ahead + zero, back + zero])

    fp8 = (c.fp8 > 0) & (gpu.fp8_speed > 1)

    def linear(
        columns: Values,
        inner: Values,
        at: Values = tokens,
        number: Values = 1,
        short: Values = fp8,
    ) -> Float64:
        """Forward, and backward by input and by weight."""
        how = {"number": number, "fp8": short}
        ahead = matmul(at, columns, inner, gpu, **how)
        back = matmul(at, inner, columns, gpu, **how)
        back = back + matmul(inner, columns, at, gpu, **how)
        return pair(ahead, back)

    def network(width: Values, at: Values = tokens, number: Values = 1) -> Float64:
        """A feed-forward network, its activation included."""
        between = number * at * width / rate * pair(2 * gate + 2, 4 * gate + 2)
        up = linear(gate * width, whole, at, number)
        return np.asarray(up + linear(whole, width, at, number) + between)

    # Step 1: attention, and what lies around matrix products.
    time = linear((m.attention + 2 * m.keys) / c.tp, whole)
    time = time + linear(whole, m.attention / c.tp)
    sequences, heads = c.micro_batch, m.heads / c.tp
    width = m.attention / m.heads
    here = m.sequence / c.cp
    core = matmul(here, m.sequence, width, gpu, number=sequences * heads)
    core = core + matmul(here, width, m.sequence, gpu, number=sequences * heads)
    fused = c.fused_attention > 0
    scores = np.where(fused, 0.0, sequences * heads * here * m.sequence)
    core = np.where(fused, core / 2, core)
    core_again = core + 9 * scores / rate
    cores = pair(core_again, np.where(fused, 2.5, 2.0) * core + 11 * scores / rate)
    row = tokens * whole / rate
    around = pair(22 * row / apart + 4 * row / c.tp, 46 * row / apart + 18 * row / c.tp)
    # Step 2: feed-forward of dense and of expert layers.
    share = np.where(m.layers > 0, m.moe_layers / m.layers, 0.0)
    time = time + cores + around
    if np.any(share < 1):
        time = time + (1 - share) * network(m.dense_ffn / c.tp)
    kernels = pair(FORWARD, BACKWARD)
    if np.any(share > 0):
        time = time + share * _experts(c, rate, network, linear)
        kernels = kernels + share * ROUTING
    # Step 3: kernels start one after the other, and the host must keep ahead.
    time = np.maximum(time + kernels * gpu.start_s, kernels * gpu.dispatch_s)
    layers = c.stage_layers
    ahead, back = time * layers
    again = np.where(c.recompute == 2, ahead, 0.0)
    core_again = layers * (core_again + CORE * gpu.start_s)
    again = np.where((c.recompute == 1) & ~fused, core_again, again)
    # Step 4: the output layer; the loss passes 46 bytes a logit in 32 bits.
    head = linear(m.vocabulary / c.tp, whole, short=False).sum(axis=0)
    head = head + 46 * tokens * m.vocabulary / c.tp / rate
    return Passes(forward=ahead, backward=back, recomputed=again, head=head)


def _experts(
    c: Configuration,
    rate: float,
    network: Callable[..., Float64],
    linear: Callable[..., Float64],
) -> Float64:
    """An expert layer's feed-forward: gate, permutations, grouped products."""
    m = c.model
    spread = np.where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)
    local = np.maximum(m.experts / c.ep, 1)
    copies = m.k * c.tokens * spread * c.split / c.tp
    time = network(m.expert_ffn / c.split, copies / local, local)
    time = time + np.where(m.shared_ffn > 0, network(m.shared_ffn / c.tp), 0.0)
    time = time + linear(np.maximum(m.experts, 1), m.hidden, short=False)
    # rows are read and written before and after the experts
    moved = 8 * copies * m.hidden / np.where(c.sequence_parallel > 0, c.split, 1.0)
    return np.asarray(time + moved / rate)
