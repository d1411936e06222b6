"""Volumes of GPT-3 175B, Mixtral 8x7B and DeepSeek-V3 from the papers' shapes alone.

Parameters and activations are written out here, from the papers' tables; the listed
pattern and the time model must both send these bytes.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from moetraffic.patterns import preset
from moetraffic.patterns.calls import megatron_pattern
from moetraffic.patterns.layout import Layout
from moetraffic.workload.model import ModelShape
from moetraffic.workload.presets import scaled
from tests.patterns.test_agreement import sent, summed

GPT_3 = scaled(preset("megatron-145.6b").model, {"layers": 96, "vocabulary": 51_200})
"""arXiv 2005.14165, table 2.1: 96 layers of 12288, 96 heads, 2048 tokens; vocabulary
padded by Megatron-LM."""


def both(
    model: ModelShape, gating: Any, k: int, *, micro_batches: int, **how: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes by kind of the rank that sends most of it: listed, and summed."""
    listed = sent(
        megatron_pattern(model, Layout(accumulation=micro_batches, **how), gating)
    )
    config = Layout(
        model=model,
        k=k,
        global_batch=micro_batches * how.get("dp", 1),
        **how,
    )
    return dict(listed), {k: v for k, v in summed(config).items() if v}


def test_gpt_3_175b_with_sequence_parallelism_and_recomputation() -> None:
    h, s, m, t, p, d = 12288, 2048, 8, 8, 8, 4
    how = {"tp": t, "pp": p, "dp": d}
    how |= {"sequence_parallel": True, "recompute": "full"}
    found = both(GPT_3, None, 0, micro_batches=m, **how)
    row = Fraction(s * h * 2 * (t - 1), t)  # bfloat16, (t - 1)/t of an activation
    # A layer of 12 has two pairs of matrices.  Forward, again, and backward each gather
    # and reduce-scatter once a pair, and backward gathers the inputs once more.
    tensor = m * 12 * 2 * (4 + 3) * row
    # The last stage gathers the head's input twice and reduce-scatters its gradient,
    # the first one does two of the three for the embedding.  Three numbers of a token
    # are reduced for the loss, and in 32 bits gradients of two norms and two biases of
    # each layer and of the last norm.
    reduced = Fraction(2 * (t - 1), t)
    ends = m * 3 * row + reduced * (m * 3 * s + 12 * 6 * h + 2 * h) * 4
    # a layer: 12 h^2 of matrices, 7 h of their biases split, and 6 h that are not
    layer = (12 * h * h + 7 * h) // t + 6 * h
    held = 12 * layer + 51_200 // t * h + s * h
    expected = {
        "tp": tensor,
        "ends": ends,
        # each rank hands on its part of the sequence, on inner stages either way
        "pp": 2 * m * s * h * 2 // t,
        "dp": Fraction(2 * (d - 1), d) * held * 4,
        "embedding": 51_200 // t * h * 4,
    }
    for one in found:
        assert one == pytest.approx({k: float(v) for k, v in expected.items()}, rel=0)


def test_mixtral_8x7b() -> None:
    # arXiv 2401.04088, table 1: 32 layers of 4096, 32 heads of 128 and 8 of keys, eight
    # experts of 14336, two a token, vocabulary 32000
    known, m, d, e = preset("mixtral-8x7b"), 4, 16, 8
    found = both(known.model, known.gating, 2, micro_batches=m, dp=d, ep=e)
    h, s, f = 4096, 4096, 14_336
    attention = h * 32 * 128 + 2 * h * 8 * 128 + 32 * 128 * h
    dense = 32 * (attention + 8 * h + 2 * h) + 2 * 32_000 * h + h
    expert = 32 * 3 * h * f  # of each rank: one of each layer
    expected = {
        "ep": Fraction(m * 32 * 4 * 2 * s * h * 2 * (e - 1), e),
        "dp": Fraction(2 * (d - 1), d) * dense * 4,
        "edp": expert * 4,  # 2 (n - 1)/n of two replicas
    }
    assert dense + e * expert == 46_702_792_704  # the checkpoint's parameters
    for one in found:
        assert one == pytest.approx({k: float(v) for k, v in expected.items()}, rel=0)


def test_deepseek_v3() -> None:
    # arXiv 2412.19437, section 4.2: 61 layers of 7168, three of them dense with 18432;
    # 128 heads of 128, keys and values from 512, queries from 1536, rotary part 64; one
    # shared and 256 experts of 2048, eight a token; vocabulary 129280
    known, m, d, e = preset("deepseek-v3"), 2, 128, 64
    found = both(known.model, known.gating, 8, micro_batches=m, dp=d, ep=e)
    h, s = 7168, 4096
    queries = h * 1536 + 1536 + 1536 * 128 * (128 + 64)
    keys = h * (512 + 64) + 512 + 512 * 128 * (128 + 128)
    attention = queries + keys + 128 * 128 * h
    shared = 3 * h * 2048 + 256 * h  # and the router
    dense = 61 * (attention + 2 * h) + 3 * 3 * h * 18_432 + 58 * shared
    dense += 2 * 129_280 * h + h
    experts = 58 * (256 // e) * 3 * h * 2048
    expected = {
        "ep": Fraction(m * 58 * 4 * 8 * s * h * 2 * (e - 1), e),
        "dp": Fraction(2 * (d - 1), d) * dense * 4,
        "edp": experts * 4,
    }
    assert round((dense + e * experts) / 1e9) == 671
    for one in found:
        assert one == pytest.approx({k: float(v) for k, v in expected.items()}, rel=0)
