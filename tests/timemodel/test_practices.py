"""Named practices, steps that are CUDA graphs, experts sharded among many ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, megatron_pattern, preset, traffic_matrices
from moetraffic.timemodel import (
    ATTENTION,
    H100,
    STACKS,
    NodeLinks,
    System,
    estimate,
    practice,
    search,
)

LINKS = NodeLinks.nominal(gpus=8, inside_bytes_s=450e9, nic_bytes_s=400e9)
SYSTEM = System.of_gpu(H100, LINKS)
MIXTRAL = preset("mixtral-8x7b")


def test_zero_3_pads_no_experts() -> None:
    """Gathered twice in 16 bits and reduced in 32; one local expert of 32 x 3 x 4096 x
    14336 a rank is cut along its second axis by any number of ranks."""
    expert = 32 * 3 * 4096 * 14_336
    for copies, whole in ((16, 34.6), (32, 46.3), (64, 52.2)):
        fields = {"dp": copies, "ep": 8, "zero": 3}
        layout = Layout.of(MIXTRAL.model, Layout(**fields), MIXTRAL.gating)
        found, share = estimate(layout, SYSTEM), 1 - 8 / copies
        assert float(found.wire["edp"]) == pytest.approx(share * expert * (2 + 2 + 4))
        assert float(found.wire["dp"] + found.wire["edp"]) / 1e9 == pytest.approx(
            whole, abs=0.05
        )
    pattern = megatron_pattern(MIXTRAL.model, layout, MIXTRAL.gating)
    sent = traffic_matrices(pattern)["DP"].sum() / 64
    assert sent == pytest.approx(float(found.wire["dp"] + found.wire["edp"]), rel=1e-9)
    one = {"zero": [3], "pp": [1], "tp": [1], "ep": [8], "micro_batch": [1]}
    best = search(
        MIXTRAL.model, SYSTEM, gpus=64, global_batch=64, among=one, **{"k": 2}
    )
    wire = best.estimate.wire["dp"] + best.estimate.wire["edp"]
    assert wire == pytest.approx(float(found.wire["dp"] + found.wire["edp"]))


@pytest.mark.parametrize("name", STACKS)
def test_a_practice_sets_what_is_not_given(name: str) -> None:
    layout = Layout.of(MIXTRAL.model, Layout(tp=2, dp=8, ep=8), MIXTRAL.gating)
    made, system = practice(name, layout, SYSTEM)
    assert made.sequence_parallel
    assert made.zero == STACKS[name].zero
    assert system.overlap["dp"] == system.overlap["edp"] == 1
    assert system.overlap.get("tp", 0) == (0.5 if STACKS[name].tp_parts else 0)
    kept, same = practice(name, layout, SYSTEM, ("zero", "overlap"))
    assert (kept.zero, same.overlap) == (layout.zero, SYSTEM.overlap)
    piped, _ = practice(name, replace(layout, pp=np.array([1, 2])), SYSTEM)
    assert np.broadcast_to(piped.zero, 2).tolist() == [STACKS[name].zero, 1]
    assert float(estimate(made, system).iteration) > 0
    with pytest.raises(LayoutError, match="megatron-bridge"):
        practice("megatron-brigde", layout, SYSTEM)


def test_graphs_and_attention_kernels_are_inputs() -> None:
    model = replace(preset("llama-3-8b").model, sequence=512)
    layout = Layout(model=model, tp=8, sequence_parallel=True, fused_attention=True)
    slow, graphs = (
        estimate(layout, replace(SYSTEM, graphs=which)) for which in (False, True)
    )
    assert float(slow.launches) > 0 == float(graphs.launches)
    waited = float(slow.compute - graphs.compute)
    assert waited == pytest.approx(float(slow.launches))
    long = replace(layout, model=replace(model, sequence=8192))
    flash = replace(H100, attention=ATTENTION["FlashAttention-2"])
    ours, theirs = (
        float(estimate(long, replace(SYSTEM, gpu=gpu)).compute) for gpu in (H100, flash)
    )
    assert ours < theirs  # cuDNN's is measured to be faster


def test_layouts_that_cannot_be_have_no_time() -> None:
    layout = Layout.of(
        MIXTRAL.model, Layout(tp=[1, 3], dp=8, ep=8, shard=2, zero=1), MIXTRAL.gating
    )
    found = estimate(layout, SYSTEM, strict=False)
    assert found.sound.tolist() == [True, False]
    assert np.isnan(found.iteration).tolist() == [False, True]
