"""Computing time and memory of a rank: FLOP, the roofline of a GPU, stored bytes.

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.data import published
from moetraffic.patterns.layout import Layout
from moetraffic.workload.rules import Values

# ---- GPUs ----------------------------------------------------------------------------

MATMUL_SHARE, MEMORY_SHARE = 0.732, 0.741
"""Fitted to the even rows of table 1 of SC'21, on A100s; :mod:`moetraffic.studies` has
the fit, and its errors on tables that were not fitted."""


class AttentionKernel(NamedTuple):
    """Measured speed of fused causal attention, forward and backward."""

    name: str
    tflops: tuple[float, float]  # of the causal half, long sequences, wide heads
    tokens: tuple[float, float]  # of a sequence at which half of it is reached
    width: tuple[float, float]  # of a head at which half of it is reached

    def seconds(self, flop: Values, sequence: Values, width: Values) -> list[Values]:
        """Forward pass of so many FLOP, and backward pass of 2.5 times as many."""
        kinds = zip(self.tflops, self.tokens, self.width, (1, 2.5), strict=True)
        return [
            more * flop / (1e12 * rate) * (1 + tokens / sequence) * (1 + wide / width)
            for rate, tokens, wide, more in kinds
        ]


ATTENTION = {
    row["kernel"]: AttentionKernel(
        row["kernel"],
        *(
            (float(row[f"forward_{name}"]), float(row[f"backward_{name}"]))
            for name in ("tflops", "tokens", "width")
        ),
    )
    for row in published("attention_kernels")
}
"""By name; measured on an H200."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its data sheet, and what is fitted."""

    name: str
    peak_flops: float  # dense 16-bit tensor cores, FLOP/s
    memory_bytes_s: float
    memory_bytes: float
    multiprocessors: int
    inside_bytes_s: float  # to the other GPUs of a node, each way, nominal
    fp8_speed: float = 1.0  # of 8-bit tensor cores over those of 16 bits; 1: none
    matmul_share: float = MATMUL_SHARE  # of the peak, in full waves
    memory_share: float = MEMORY_SHARE  # of the memory's rate
    start_s: float = 4e-6  # from one kernel's end to the next one's full speed
    attention: AttentionKernel | None = None  # fused; None: as other products
    fused_attention: bool = True  # whether training on it is usually with it
    dispatch_s: float = 40e-6  # of the host for a kernel, which the GPU waits for if
    # it is faster; fitted to the models with experts on H100; 0 of CUDA graphs


GPUS = {
    row["gpu"]: Gpu(
        name=row["gpu"],
        peak_flops=float(row["peak_tflops"]) * 1e12,
        memory_bytes_s=float(row["memory_gbs"]) * 1e9,
        memory_bytes=float(row["memory_gb"]) * 1e9,
        multiprocessors=int(row["multiprocessors"]),
        inside_bytes_s=float(row["inside_gbs"]) * 1e9,
        fp8_speed=float(row["fp8_speed"]),
        attention=ATTENTION.get(row["attention"]),
        fused_attention=row["fused_attention"] == "1",
    )
    for row in published("gpus")
}
"""By name."""

A100, H100 = GPUS["A100"], GPUS["H100"]

# ---- FLOP ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOP, or seconds, of one micro-batch on one rank."""

    forward: Values  # of the layers of the stage that takes longest; FLOP: all of it
    backward: Values
    recomputed: Values  # forward again, before backward
    core: Values  # of both passes, attention's products of queries, keys and values
    weights: Values = 0.0  # FLOP of backward, the gradients of weights
    head: Values = 0.0  # seconds of output layer and loss on the last stage, all passes
    spare: Values = 0.0  # what layers of the last stage take less than the longest
    launches: Values = 0.0  # in which the GPU waits for the host's kernel launches

    @property
    def all(self) -> Float64:
        """Forward, backward and recomputed."""
        return np.asarray(self.forward + self.backward + self.recomputed)


def operations(layout: Layout) -> Work:
    """FLOP of a micro-batch of ``b s`` tokens on a rank, a multiplication and addition
    being two.

    A layer takes ``2 w b s`` for its ``w`` weights and ``4 b s^2 h`` for attention
    without the causal half, the head ``2 b s h V``; backward is twice that.  A GPT's
    iteration is then ``96 B s l h^2 (1 + s/6h + V/16lh)`` with full recomputation
    (SC'21, equation 3), ``72 ... V/12lh`` without.  Experts count with the busiest
    rank's load (``imbalance``), or with their padded buffers.
    """
    c = layout.arrays()
    m, split = c.sizes, c.tp * c.sizes.layers / c.stage_layers
    routed = 2 * c.k * m.expert_weights * m.moe_layers * spread(c) * c.tokens
    core = 4 * m.layers * c.tokens * m.sequence * m.attention / split
    layers = (2 * m.layers * m.weights * c.tokens + routed) / split + core
    head = 2 * c.tokens * m.hidden * m.vocabulary / c.tp
    # modules that predict further tokens are a mean layer and a head each
    head = (head + m.mtp * (head + layers / c.stage_layers)) / c.pp
    again = np.where(c.recompute == "full", layers, 0.0)
    return Work(
        forward=layers + head,
        backward=2 * (layers + head),
        recomputed=np.where(c.recompute == "selective", core, again),
        weights=layers - core + head,
        core=3 * core,
    )


def spread(c: Layout) -> Values:
    """Rows of the busiest rank's experts, or of their buffers, over the mean."""
    return np.where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)


def model_operations(layout: Layout) -> Float64:
    """FLOP that an iteration's tokens ask of the model: nothing is computed again.

    ``72 B s l h^2 (1 + s/6h + V/12lh)`` of a GPT; what model FLOP utilization counts.
    """
    c = layout.arrays()
    m = c.sizes
    a_token = m.layers * (2 * m.weights + 4 * m.sequence * m.attention)
    a_token = a_token + 2 * c.k * m.expert_weights * m.moe_layers
    a_token = a_token * (1 + m.mtp / m.layers)
    a_token = a_token + 2 * m.hidden * m.vocabulary * (1 + m.mtp)
    return np.asarray(3 * a_token * c.sequences * m.sequence)


# ---- the roofline --------------------------------------------------------------------

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Rows and columns of a tile of cuBLAS and CUTLASS, of which the fastest is taken."""

REUSE = 64.0
"""Products a loaded element, ``MN/(M + N)``, from which on a tile runs at full speed: a
128 x 128 tile does, smaller ones are bound by the cache (NVIDIA, Matrix Multiplication
Background User's Guide, section 'Tile Quantization')."""

FORWARD, BACKWARD, CORE, ROUTING = 20, 40, 4, 15
"""Kernels of a layer in either pass, of its attention core, and of an expert layer's
gate and permutations, in each pass (Megatron-LM with its fused kernels)."""

PRODUCTS, QUANTIZED = (2, 4), (6, 6)
"""Kernels of each local expert, forward and backward: products of grouped layers, and
largest value, scale and cast of the inputs or gradients of both layers, expert by
expert, where a product in 8 bits takes its scales from these (Transformer Engine 2,
``cast.cpp``: "Currently only have fused kernel for FP8 delayed scaling")."""

Product: TypeAlias = tuple[Values, Values, Values, Values, Values]
"""Rows, columns and inner size of a matrix product, how many there are at once, and
whether it is in 8 bits."""


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

    Sizes broadcast together; ``number`` is of a batched or grouped product.  In
    ``fp8`` both sides are written in 8 bits first, and once more transposed.

    Examples
    --------
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
    time = np.maximum(computing / np.where(fp8, gpu.fp8_speed, 1.0), moved / rate)
    return np.asarray(time + np.where(fp8, 4.0, 0.0) * sides / rate)


@cache
def _tiles() -> tuple[Float64, Float64, Float64]:
    """Rows, columns and relative speed of each tile."""
    high, wide = np.array(TILES, np.float64).T
    return high, wide, np.minimum(1.0, high * wide / (high + wide) / REUSE)


TOGETHER = 4096
"""Layouts up to which all products are stacked in one array: the time of few layouts is
that of calling numpy, of many that of the memory."""


def _seconds(
    linear: Mapping[str, Product],
    forward: Mapping[str, Product],
    shape: tuple[int, ...],
    gpu: Gpu,
) -> dict[str, Float64]:
    """Seconds of products ``[2, *shape]``, forward and backward.

    ``linear`` are products with weights, whose backward pass has one by the input and
    one by the weight; of ``forward`` the forward pass alone is computed.
    """
    asked: list[Product] = []
    for rows, columns, inner, number, short in linear.values():
        asked.append((rows, columns, inner, number, short))
        asked.append((rows, inner, columns, number, short))
        asked.append((inner, columns, rows, number, short))
    asked += forward.values()
    together = len(asked) if prod(shape) <= TOGETHER else 1
    times = np.empty((len(asked), *shape))
    for first in range(0, len(asked), together):
        some = asked[first : first + together]
        sizes = np.empty((5, len(some), *shape))
        for place, product in enumerate(some):
            for of, size in enumerate(product):
                sizes[of, place] = size
        rows, columns, inner, number, short = sizes
        times[first : first + together] = matmul(
            rows, columns, inner, gpu, number=number, fp8=short > 0
        )
    passes = times[: 3 * len(linear)].reshape(len(linear), 3, *shape)
    both = np.stack([passes[:, 0], passes[:, 1] + passes[:, 2]], axis=1)
    seconds = dict(zip(linear, both, strict=True))
    return seconds | dict(zip(forward, times[3 * len(linear) :, None], strict=True))


def passes(layout: Layout, gpu: Gpu, *, graphs: bool = False) -> Work:
    """Seconds of a micro-batch's passes; of ``graphs`` the host launches no kernel.

    Bytes between matrix products are counted kernel by kernel of Megatron-LM's layer in
    16 bits with fused softmax, activation and dropout: of a token and unit of the
    hidden size 22 forward and 46 backward that tensor parallelism leaves whole
    (norms, dropout, residual; sequence parallelism divides them), 20 and 42 that it
    divides, of which the activation's grow with the width; of an attention score 9 and
    11.  Fused attention has neither scores in memory nor the masked half of them.
    """
    c = layout.arrays()
    m, tokens, whole = c.sizes, c.tokens, c.sizes.hidden
    rate = gpu.memory_bytes_s * gpu.memory_share
    apart = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    gate = 1.0 + m.gated
    dense, sparse = np.any(m.moe_layers < m.layers), np.any(m.moe_layers > 0)
    fp8 = (c.fp8 > 0) & (gpu.fp8_speed > 1)
    full, modules = c.recompute == "full", c.recompute == "modules"

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
        local = np.maximum(m.experts / c.ep, 1)
        copies = c.k * tokens * spread(c) * c.expert_tp / c.tp
        networks["experts"] = copies / local, m.expert_ffn / c.expert_tp, local
        products["router"] = tokens, np.maximum(m.experts, 1), whole, 1, False
        if np.any(m.shared_ffn > 0):
            networks["shared"] = tokens, m.shared_ffn / c.tp, 1
    for name, (rows, width, number) in networks.items():
        products[f"{name}_up"] = rows, gate * width, whole, number, fp8
        products[f"{name}_down"] = rows, whole, width, number, fp8
    width, here = m.attention / m.heads, m.sequence / c.cp
    number = c.micro_batch * m.heads / c.tp
    scores: dict[str, Product] = {
        "queries": (here, m.sequence, width, number, False),
        "values": (here, width, m.sequence, number, False),
    }
    seconds = _seconds(products, scores, c.shape, gpu)

    def pair(ahead: Values, back: Values) -> Float64:
        """Forward and backward, of the layout's shape."""
        both = np.empty((2, *c.shape))
        both[0], both[1] = ahead, back
        return both

    def network(name: str) -> Float64:
        """A feed-forward network, its activation included."""
        rows, width, number = networks[name]
        between = number * rows * width / rate
        matrices = seconds[f"{name}_up"] + seconds[f"{name}_down"]
        return np.asarray(
            matrices + pair((2 * gate + 2) * between, (4 * gate + 2) * between)
        )

    # Step 2: attention, and what lies around matrix products.
    fused = c.fused_attention > 0
    stored = np.where(fused, 0.0, number * here * m.sequence)
    core = seconds["queries"][0] + seconds["values"][0]
    half = [core / 2, 2.5 * core / 2]
    if gpu.attention and np.any(fused):
        causal = 2 * number * here * m.sequence * width
        half = gpu.attention.seconds(causal, m.sequence, width)
    core_again = np.where(fused, half[0], core + 9 * stored / rate)
    cores = pair(core_again, np.where(fused, half[1], 2 * core + 11 * stored / rate))
    row = tokens * whole / rate
    around = pair(22 * row / apart + 4 * row / c.tp, 46 * row / apart + 18 * row / c.tp)
    time = seconds["attention_in"] + seconds["attention_out"] + cores + around

    # Step 3: feed-forward of dense and of expert layers.  Kernels start one after the
    # other, and the host must keep ahead.  Of a kind of layer: how many of each stage,
    # forward and backward, of it in which the GPU waits, and recomputed parts.
    norms: Values = 0.0
    if np.any(modules):
        # norms, activations and, in latent attention, most of its first products
        norms = 8 * row / apart + 6 * gpu.start_s
        norms = norms + np.where(m.latent > 0, seconds["attention_in"][0], 0.0)
    layers: list[tuple[Float64, Float64, Float64, Values]] = []

    def layer(count: Float64, time: Float64, kernels: Float64, *names: str) -> None:
        busy = time + kernels * gpu.start_s
        time = np.maximum(busy, kernels * (0.0 if graphs else gpu.dispatch_s))
        parts = norms
        for name in names if np.any(modules) else ():
            rows, width, number = networks[name]
            parts = parts + (2 * gate + 2) * number * rows * width / rate
        layers.append((count, time, time - busy, parts))

    kernels = pair(FORWARD, BACKWARD)
    if dense:
        layer(c.stages.dense, time + network("dense"), kernels, "dense")
    if sparse:
        experts = network("experts") + seconds["router"]
        if "shared" in networks:
            experts = experts + np.where(m.shared_ffn > 0, network("shared"), 0.0)
        # rows are read and written before and after the experts
        spread_over = np.where(c.sequence_parallel > 0, c.expert_tp, 1.0)
        routed = time + experts + 8 * copies * whole / spread_over / rate
        one = pair(*PRODUCTS) + np.where(fp8, pair(*QUANTIZED), 0.0)
        own = (name for name in networks if name != "dense")
        layer(c.stages.sparse, routed, kernels + ROUTING + local * one, *own)

    # Step 4: the stage that takes longest, which others wait for, and the last one.
    slowest = c.stages.most(sum(n * one.sum(axis=0) for n, one, *_ in layers))
    each, last = (
        [c.stages.at(stage, n) / c.pair for n, *_ in layers]
        for stage in (slowest, c.stages.most(c.stages.last))
    )

    def total(counts: list[Values], part: int) -> Any:
        """Of so many layers of each kind."""
        return sum(n * one[part] for n, one in zip(counts, layers, strict=True))

    def timed(counts: list[Values]) -> tuple[Float64, Float64, Values]:
        """Forward, backward and recomputed."""
        ahead, back = total(counts, 1)
        again = np.where(full, ahead, 0.0)
        core_alone = (c.recompute == "selective") & ~fused
        once_more = sum(counts) * (core_again + CORE * gpu.start_s)
        again = np.where(core_alone, once_more, again)
        return ahead, back, np.where(modules, total(counts, 3), again)

    ahead, back, again = timed(each)
    waits = total(each, 2)
    # Step 5: the output layer; the loss passes 46 bytes a logit in 32 bits.
    head = seconds["head"].sum(axis=0) + 46 * tokens * m.vocabulary / c.tp / rate
    # modules that predict further tokens are a mean layer and a head each
    longest = ahead + back + again
    head = head + m.mtp * (head + longest / c.stage_layers)
    return Work(
        forward=ahead,
        backward=back,
        recomputed=again,
        head=head,
        spare=longest - sum(timed(last)),
        core=sum(each) * (cores[0] + cores[1]),
        launches=waits.sum(axis=0) + np.where(full, waits[0], 0.0),
    )


# ---- memory --------------------------------------------------------------------------


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


def memory(layout: Layout) -> Memory:
    """Bytes that a rank holds: weights of the largest stage, activations of the first.

    Weights, gradients and optimizer states: Rajbhandari et al., arXiv 1910.02054,
    section 3.1 and figure 1 (each ZeRO stage shards one more of them).  Of ZeRO 3 the
    layer that computes is whole, and those gathered ahead of it.

    Activations: Korthikanti et al., arXiv 2205.05198, equations 1, 2, 4, 5 and table 2,
    in fp16 with a byte a mask, for any element size here.  A GPT's layer has
    ``s b h (34 + 5 a s/h)`` bytes; tensor parallelism divides 24 of the 34 and the
    attention matrices, sequence parallelism all.  Other models' are counted by the same
    rules from their widths, without masks of dropout where feed-forward networks are
    gated.  With ``fp8`` inputs of products of weights are kept in 8 bits, but for
    attention's output (Transformer Engine, ``linear.py``), with ``recompute="modules"``
    those of activation functions too (arXiv 2412.19437, section 3.3.3).

    1F1B keeps ``min(p, m)`` micro-batches of a stage in flight, an interleaved schedule
    ``min(1 + (p - 1)/(p v), m/p)`` of all layers: with few micro-batches all of their
    chunks.  A last stage has the logits in fp32; a stage alone is the last one.
    """
    c = layout.arrays()
    gathered = np.where(c.zero == 3, (1 + c.prefetch) / c.stage_layers, 0.0)
    most = c.stages.most(c.stage_held + c.stage_experts)
    sums: list[Any] = [0.0, 0.0, 0.0]
    sizes = c.element_bytes, c.gradient_bytes, c.state_bytes
    held_by = (c.stage_held, c.copies_held), (c.stage_experts, c.expert_copies)
    for held, copies in held_by:
        here, ranks = c.stages.at(most, held), c.among(copies)
        for n, size in enumerate(sizes):
            left = np.where(c.zero >= 3 - n, 1 / ranks, 1.0)
            left = np.minimum(left + gathered, 1.0) if n == 0 else left
            sums[n] = sums[n] + here * size * left
    return Memory(
        weights=np.asarray(sums[0]),
        gradients=np.asarray(sums[1]),
        optimizer=np.asarray(sums[2]),
        activations=_activations(c),
    )


def _activations(c: Layout) -> Float64:
    m, e = c.sizes, c.element_bytes
    apart = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    full, again = c.recompute == "full", c.recompute == "modules"
    # Step 1: one layer, bytes of a token.  Without sequence parallelism inputs of norms
    # and of products behind them, and masks of dropout, are whole on tensor ranks.
    share = np.where(m.layers > 0, m.moe_layers / m.layers, 0.0)
    short = np.where(c.fp8 > 0, 1.0, e)
    copies = share * np.maximum(c.k * spread(c), 1) + np.where(again, 0.0, 1 - share)
    normed = m.hidden * short * (copies + np.where(again, 0.0, 1.0))
    masks = np.where(m.gated > 0, 0.0, 2.0) * m.hidden
    whole = 2 * m.hidden * e + normed + masks + np.where(again, m.latent * e, 0.0)
    queried = m.heads * m.key_width + 2 * m.keys
    queried = np.where(again & (m.latent > 0), 0.0, queried)
    attention = (queried + m.heads * m.value_width) * e
    up = (1 + m.gated) * c.ffn
    wide = np.where(again, up * short, up * e + c.ffn * short)
    layer = c.tokens * (whole / apart + (attention + wide) / c.tp)
    core = 5 * m.heads * m.attended * c.tokens * e / 2 / c.tp
    core = np.where(c.fused_attention > 0, 0.0, core)  # scores stay on chip
    kept = np.where(c.recompute == "selective", layer, layer + core)
    kept = np.where(full, c.tokens * m.hidden * e / apart, kept)
    # Step 2: layers in flight on the first stage; DualPipe: arXiv 2412.19437, table 2.
    flight = np.minimum(c.pp, c.accumulation) / c.pp
    interleaved = 1 + (c.pp - 1) / (c.pp * c.virtual)
    interleaved = np.minimum(interleaved, c.accumulation / c.pp)
    flight = np.where(c.virtual > 1, interleaved, flight)
    flight = np.where(c.pair > 1, (c.pp + 1) / c.pp, flight)
    active = np.where(full, layer + core, 0.0)
    # Step 3: the ends, of a stage alone.
    last = c.micro_batch * m.targets / c.cp
    logits = 4 * last * (m.vocabulary / c.tp + m.hidden * e / 2 / apart) * c.last
    return np.asarray(m.layers * kept * flight + active + logits)
