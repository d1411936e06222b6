"""Computing time of a layer on a GPU: matrix products, memory traffic, launches.

A matrix product takes the larger of two times: its tiles, in whole waves over the
multiprocessors, and its bytes.  Everything between matrix products is bound by memory,
and each kernel starts late.  Two numbers of a GPU are fitted, the share of its peak
that full waves reach and the share of its memory rate; the others are from its data
sheet or named here with their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.values import Values, anywhere, where

from .gpus import Gpu

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Rows and columns of a tile of cuBLAS and CUTLASS, of which the fastest is taken."""

REUSE = 64.0
"""Products a loaded element, ``MN/(M + N)``, from which on a tile runs at full speed: a
128 x 128 tile does, smaller ones are bound by the cache (NVIDIA, Matrix Multiplication
Background User's Guide, section 'Tile Quantization')."""

MODULES = RECOMPUTE.index("modules")

FORWARD, BACKWARD, CORE, ROUTING = 20, 40, 4, 15
"""Kernels of a layer in either pass, of its attention core, and of an expert layer's
gate and permutations, in each pass (Megatron-LM with its fused kernels)."""

PRODUCTS, QUANTIZED = (2, 4), (6, 6)
"""Kernels of each local expert, forward and backward: products of grouped layers, and
largest value, scale and cast of the inputs or gradients of both layers, expert by
expert, where a product in 8 bits takes its scales from these (Transformer Engine 2,
``cast.cpp``: "Currently only have fused kernel for FP8 delayed scaling")."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of one micro-batch on a rank."""

    forward: Float64  # of the layers of the stage that takes longest
    backward: Float64
    recomputed: Float64
    head: Float64  # output layer and loss, all passes, on the last stage
    spare: Float64  # what the layers of the last stage take less than the longest
    core: Float64  # of both passes, attention's products of queries, keys and values
    launches: Float64  # of all passes, in which the GPU waits for the host's launches

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
    '0.73'
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
    time = np.maximum(computing / where(fp8, gpu.fp8_speed, 1.0), moved / rate)
    return np.asarray(time + where(fp8, 4.0, 0.0) * sides / rate)


@cache
def _tiles() -> tuple[Float64, Float64, Float64]:
    """Rows, columns and relative speed of each tile."""
    high, wide = np.array(TILES, np.float64).T
    return high, wide, np.minimum(1.0, high * wide / (high + wide) / REUSE)


def passes(config: Configuration, gpu: Gpu) -> Passes:
    """Computing time of a micro-batch's passes through the stage that takes longest,
    and of the head.

    Bytes between matrix products are counted kernel by kernel of Megatron-LM's layer in
    16 bits with fused softmax, activation and dropout: of a token and unit of the
    hidden size 22 forward and 46 backward that tensor parallelism leaves whole
    (norms, dropout, residual; sequence parallelism divides them), 20 and 42 that it
    divides, of which the activation's grow with the width; of an attention score 9 and
    11.  Fused attention has neither scores in memory nor the masked half of them.
    """
    c, m = config, config.sizes
    tokens, whole = c.tokens, m.hidden
    rate = gpu.memory_bytes_s * gpu.memory_share
    apart = where(c.sequence_parallel > 0, c.tp, 1.0)
    gate = 1.0 + m.gated
    dense, sparse = anywhere(m.moe_layers < m.layers), anywhere(m.moe_layers > 0)
    fp8 = (c.fp8 > 0) & (gpu.fp8_speed > 1)

    # Step 1: all products of weights at once: rows, columns, inner, number, in 8 bits.
    products: dict[str, Product] = {
        "attention_in": (tokens, (m.attention + 2 * m.keys) / c.tp, whole, 1, fp8),
        "attention_out": (tokens, whole, m.attention / c.tp, 1, fp8),
        "head": (tokens, m.vocabulary / c.tp, whole, 1, False),
    }
    # by name: rows of each, width, how many there are
    networks: dict[str, tuple[Values, Values, Values]] = {}
    if dense:
        networks["dense"] = tokens, m.dense_ffn / c.tp, 1
    if sparse:
        spread = where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)
        local = np.maximum(m.experts / c.ep, 1)
        copies = c.k * tokens * spread * c.expert_tp / c.tp
        networks["experts"] = copies / local, m.expert_ffn / c.expert_tp, local
        products["router"] = tokens, np.maximum(m.experts, 1), whole, 1, False
        if anywhere(m.shared_ffn > 0):
            networks["shared"] = tokens, m.shared_ffn / c.tp, 1
    for name, (at, width, number) in networks.items():
        products[f"{name}_up"] = at, gate * width, whole, number, fp8
        products[f"{name}_down"] = at, whole, width, number, fp8
    sequences, heads = c.micro_batch, m.heads / c.tp
    width, here = m.attention / m.heads, m.sequence / c.cp
    number = sequences * heads
    scores: dict[str, Product] = {
        "queries": (here, m.sequence, width, number, False),
        "values": (here, width, m.sequence, number, False),
    }
    seconds = _seconds(products, scores, c.shape, gpu)

    def pair(ahead: Values, back: Values) -> Float64:
        """Forward and backward, of the configuration's shape."""
        both = np.empty((2, *c.shape))
        both[0], both[1] = ahead, back
        return both

    def network(name: str) -> Float64:
        """A feed-forward network, its activation included."""
        at, width, number = networks[name]
        between = number * at * width / rate
        matrices = seconds[f"{name}_up"] + seconds[f"{name}_down"]
        return np.asarray(
            matrices + pair((2 * gate + 2) * between, (4 * gate + 2) * between)
        )

    # Step 2: attention, and what lies around matrix products.
    fused = c.fused_attention > 0
    stored = where(fused, 0.0, number * here * m.sequence)
    core = seconds["queries"][0] + seconds["values"][0]
    half = core / 2, 2.5 * core / 2
    if gpu.attention and anywhere(fused):
        causal = 2 * number * here * m.sequence * width
        half = gpu.attention.seconds(causal, m.sequence, width)
    core_again = where(fused, half[0], core + 9 * stored / rate)
    cores = pair(core_again, where(fused, half[1], 2 * core + 11 * stored / rate))
    row = tokens * whole / rate
    around = pair(22 * row / apart + 4 * row / c.tp, 46 * row / apart + 18 * row / c.tp)
    time = seconds["attention_in"] + seconds["attention_out"] + cores + around
    # Step 3: feed-forward of dense and of expert layers: time, and number of kernels.
    # A layer: forward and backward, of it in which the GPU waits, and recomputed parts.
    layers: list[tuple[Float64, Float64, Values]] = []
    norms: Values = 0.0
    again_parts = anywhere(c.recompute == MODULES)
    if again_parts:
        # norms, activations and, in latent attention, most of its first products
        norms = 8 * row / apart + 6 * gpu.start_s
        norms = norms + where(m.latent > 0, seconds["attention_in"][0], 0.0)

    def layer(time: Float64, kernels: Float64, *names: str) -> None:
        """Add a kind: kernels start one after the other, and the host must keep
        ahead."""
        busy = time + kernels * gpu.start_s
        time = np.maximum(busy, kernels * gpu.dispatch_s)
        parts = norms
        for name in names if again_parts else ():
            at, width, number = networks[name]
            parts = parts + (2 * gate + 2) * number * at * width / rate
        layers.append((time, time - busy, parts))

    kernels = pair(FORWARD, BACKWARD)
    numbers: list[Float64] = []
    if dense:
        numbers.append(c.stages.dense)
        layer(time + network("dense"), kernels, "dense")
    if sparse:
        experts = network("experts") + seconds["router"]
        if "shared" in networks:
            experts = experts + where(m.shared_ffn > 0, network("shared"), 0.0)
        # rows are read and written before and after the experts
        moved = 8 * copies * whole / where(c.sequence_parallel > 0, c.expert_tp, 1.0)
        one = pair(*PRODUCTS) + where(fp8, pair(*QUANTIZED), 0.0)
        numbers.append(c.stages.sparse)
        routed = time + experts + moved / rate
        own = (name for name in networks if name != "dense")
        layer(routed, kernels + ROUTING + local * one, *own)
    # Step 4: the stage that takes longest, which others wait for.
    of_stages = zip(numbers, layers, strict=True)
    slowest = c.stages.most(sum(n * one[0].sum(axis=0) for n, one in of_stages))
    each, last = (
        [c.stages.at(stage, n) / c.pair for n in numbers]
        for stage in (slowest, c.stages.most(c.stages.last))
    )

    def total(each: list[Values], part: int) -> Any:
        """Of so many layers of each kind."""
        return sum(n * one[part] for n, one in zip(each, layers, strict=True))

    def timed(each: list[Values]) -> tuple[Float64, Float64, Values]:
        """Forward, backward and recomputed."""
        ahead, back = total(each, 0)
        again = where(c.recompute == 2, ahead, 0.0)
        once_more = sum(each) * (core_again + CORE * gpu.start_s)
        again = where((c.recompute == 1) & ~fused, once_more, again)
        return ahead, back, where(c.recompute == MODULES, total(each, 2), again)

    ahead, back, again = timed(each)
    differs = any(anywhere(n != m) for n, m in zip(each, last, strict=True))
    spare = ahead + back + again - sum(timed(last)) if differs else np.zeros(c.shape)
    waits = total(each, 1)
    waits = waits.sum(axis=0) + where(c.recompute == 2, waits[0], 0.0)
    # Step 5: the output layer; the loss passes 46 bytes a logit in 32 bits.
    head = seconds["head"].sum(axis=0) + 46 * tokens * m.vocabulary / c.tp / rate
    return Passes(
        forward=ahead,
        backward=back,
        recomputed=again,
        head=head,
        spare=spare,
        core=np.asarray(sum(each) * (cores[0] + cores[1])),
        launches=waits,
    )


Product: TypeAlias = tuple[Values, Values, Values, Values, Values]
"""Rows, columns and inner size of a matrix product, how many there are at once, and
whether it is in 8 bits."""

TOGETHER = 4096
"""Configurations up to which all products are stacked in one array: the time of few
configurations is that of calling numpy, of many that of the memory."""


def _seconds(
    linear: Mapping[str, Product],
    forward: Mapping[str, Product],
    shape: tuple[int, ...],
    gpu: Gpu,
) -> dict[str, Float64]:
    """Seconds of products ``[2, *shape]``, forward and backward.

    Parameters
    ----------
    linear
        Products with weights, whose backward pass has one by the input and one by the
        weight.
    forward
        Products of which the forward pass alone is computed.
    shape, gpu
        Of the configuration; where it runs.
    """
    asked: list[Product] = []
    for rows, columns, inner, number, short in linear.values():
        asked.append((rows, columns, inner, number, short))
        asked.append((rows, inner, columns, number, short))
        asked.append((inner, columns, rows, number, short))
    asked += forward.values()
    together = len(asked) if prod(shape) <= TOGETHER else 1
    found = np.empty((len(asked), *shape))
    for first in range(0, len(asked), together):
        some = asked[first : first + together]
        sizes = np.empty((5, len(some), *shape))
        for place, product in enumerate(some):
            for of, size in enumerate(product):
                sizes[of, place] = size
        rows, columns, inner, number, short = sizes
        found[first : first + together] = matmul(
            rows, columns, inner, gpu, number=number, fp8=short > 0
        )
    passes = found[: 3 * len(linear)].reshape(len(linear), 3, *shape)
    both = np.stack([passes[:, 0], passes[:, 1] + passes[:, 2]], axis=1)
    seconds = dict(zip(linear, both, strict=True))
    return seconds | dict(zip(forward, found[3 * len(linear) :, None], strict=True))
