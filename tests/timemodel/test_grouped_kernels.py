"""The host's time for kernels of local experts, and memory without scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.patterns import Layout, preset
from moetraffic.studies.published_times import megatron_bridge
from moetraffic.timemodel import (
    H100,
    memory,
)
from moetraffic.timemodel.compute import passes

MOE = preset("qwen3-30b-a3b").model


@pytest.mark.parametrize(("fp8", "kernels"), [(False, 6), (True, 18)])
def test_each_local_expert_has_its_kernels(fp8: bool, kernels: int) -> None:
    slow = replace(H100, dispatch_s=1e-3)  # all else waits for the host

    def layer(ep: int) -> float:
        config = Layout(model=MOE, k=8, dp=32, ep=ep, global_batch=32, fp8=fp8)
        found = passes(config, slow)
        return float(found.forward + found.backward) / 48

    # 8 experts in place of 4: two products forward and four backward each, and in 8
    # bits three kernels for each of two inputs and two gradients
    assert layer(16) - layer(32) == pytest.approx(4 * kernels * 1e-3)


def test_fused_attention_keeps_no_scores() -> None:
    config = Layout(model=MOE, k=8, dp=8, ep=8, global_batch=8)
    scores = memory(config).activations
    fused = memory(replace(config, fused_attention=True)).activations
    # 5 a s/h of the 34 + 5 a s/h bytes of arXiv 2205.05198, 32 heads, 4096 tokens
    tokens = float(config.tokens)
    kept = 48 * 5 * 32 * float(MOE.sequence) * tokens
    assert float(scores - fused) == pytest.approx(kept)


@pytest.mark.parametrize("sparse", [False, True])
def test_published_runs_fit_into_their_gpus(sparse: bool) -> None:
    table = megatron_bridge(sparse)
    assert np.max(memory(table.config).total) < 1.02 * 80e9
