"""Fused attention at measured speeds, and memory that published trainings need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.patterns import Layout, ModelShape, preset
from moetraffic.timemodel import (
    A100,
    GPUS,
    H100,
    Gpu,
    memory,
)
from moetraffic.timemodel.compute import ATTENTION, matmul, passes

GPT = ModelShape(
    layers=2, hidden=2048, heads=16, sequence=8192, vocabulary=512, experts=0
)


def core(gpu: Gpu, sequence: int = 8192, **named: object) -> float:
    """Seconds of attention in both passes of a layer."""
    config = Layout(
        model=replace(GPT, sequence=sequence), fused_attention=True, **named
    )
    return float(passes(config, gpu).core) / 2


def test_a_layer_takes_what_was_measured_on_a_gpu() -> None:
    """Medians of an H200, ms: cuDNN, 32 heads of 128, 8,192 tokens; 16 here."""
    assert core(H100) == pytest.approx((0.91282 + 2.7697) / 2 * 1e-3, rel=0.03)
    flash = replace(H100, attention=ATTENTION["FlashAttention-2"])
    assert core(flash) == pytest.approx((1.7348 + 5.1496) / 2 * 1e-3, rel=0.03)
    assert core(GPUS["H200"]) == core(H100)


def test_attention_grows_with_the_square_of_long_sequences_alone() -> None:
    times = np.array([core(H100, 1024 * 2**n) for n in range(7)])
    growth = times[1:] / times[:-1]
    assert (np.diff(growth) > 0).all()
    assert 2 < growth[0] < growth[-1] < 4
    assert growth[-1] == pytest.approx(4, rel=0.02)


def test_scores_of_a_gpu_without_a_measured_kernel_are_other_products() -> None:
    """The causal half of both, and backward 2.5 times as many."""
    products = replace(H100, attention=None)
    scores = matmul(8192, 8192, 128, products, number=16)
    both = scores + matmul(8192, 128, 8192, products, number=16)
    assert core(products) == pytest.approx((1 + 2.5) / 2 * float(both))
    assert A100.attention is None


DUALPIPE = {"schedule": "dualpipe", "recompute": "modules"}
LLAMA = {"tp": 8, "pp": 16, "virtual": 8, "zero": 1, "sequence_parallel": True}
LLAMA |= {"embedding_layers": 1, "head_layers": 1}


@pytest.mark.parametrize(
    ("model", "named", "total", "part"),
    [
        ("deepseek-v3", DUALPIPE, 76.9, ("activations", 43.9)),
        ("deepseek-v3", {}, 106.0, None),
        ("llama-3-405b", {**LLAMA, "dp": 128}, 86.5, None),
        ("llama-3-405b", {**LLAMA, "dp": 64}, 94.7, ("gradients", 12.8)),
        ("llama-3-405b", {**LLAMA, "dp": 128, "zero": 2}, 73.9, None),
        ("llama-3-405b", {**LLAMA, "dp": 64, "zero": 2}, 82.2, None),
    ],
)
def test_the_memory_of_published_trainings_in_gb(
    model: str, named: dict[str, object], total: float, part: tuple[str, float] | None
) -> None:
    known = preset(model)
    if known.model.experts:
        named = {"pp": 16, "ep": 64, "dp": 128, "zero": 1, "fp8": True, **named}
        named |= {"state_bytes": 8, "global_batch": 15360}
    else:
        named = {"global_batch": 2048, **named}
    config = Layout(model=known.model, k=known.gating.k, fused_attention=True, **named)
    found = memory(config)
    assert float(found.total) / 1e9 == pytest.approx(total, abs=0.05)
    if part is not None:
        assert float(getattr(found, part[0])) / 1e9 == pytest.approx(part[1], abs=0.05)
