"""Volumes of presets, derived here from published sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import comb

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import preset
from moetraffic.patterns.calls import megatron_pattern
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.schedules import chunk_layers
from moetraffic.timemodel import (
    GPUS,
    NodeLinks,
    System,
    estimate,
)
from tests.patterns.test_agreement import sent, summed

DGX = System.of_gpu(
    GPUS["H100"],
    NodeLinks.nominal(gpus=8, inside_bytes_s=450e9, nic_bytes_s=400e9),
)


def test_llama_3_405b_has_ends_alone_in_their_chunks() -> None:
    """arXiv 2407.21783, section 3.3.2: 16 stages; the first chunk has the embedding
    alone, the last one the output layer and the loss."""
    known = preset("llama-3-405b")
    plan = Layout(
        **{"tp": 8, "pp": 16, "dp": 2, "virtual": 8, "accumulation": 16},
        **{"embedding_layers": 1, "head_layers": 1},
        sequence_parallel=True,
    )
    pattern = megatron_pattern(known.model, plan, known.gating)
    config = Layout.of(known.model, plan, known.gating)
    layers, labels = [], []
    for program in pattern.programs:
        first = [e.call for e in program if e.micro_batch == 0]
        layers.append({call.layer for call in first if call.layer >= 0})
        labels.append({call.label for call in first if call.traffic == "TP"})
    assert [len(of) for of in layers] == [7, *[8] * 14, 7]
    assert layers[0] == set(range(15, 126, 16))
    assert layers[15] == set(range(14, 126, 16))
    assert ["embedding" in of for of in labels] == [True, *[False] * 15]
    assert ["cross_entropy" in of for of in labels] == [*[False] * 15, True]
    found = sent(pattern)
    # a stage between others hands on each micro-batch of each chunk, either way
    assert found["pp"] == 16 * 8 * 2 * 8192 * 16384 * 2 // 8
    # grouped attention with 8 of 128 heads, three matrices of 53,248, two norms
    matrices = 2 * 16384 * (16384 + 1024) + 3 * 16384 * 53248
    held = 8 * (matrices // 8 + 2 * 16384)
    assert found["dp"] == 2 * 4 * held // 2
    assert found == pytest.approx(summed(config), rel=1e-12)
    time = estimate(config, DGX)
    assert 0 < float(time.flops_gpu) < GPUS["H100"].peak_flops
    # as long as even chunks of 128 layers whose ends take nothing
    even = replace(known.model, layers=128, vocabulary=128)
    whole = replace(config, model=even, embedding_layers=0, head_layers=0)
    assert float(time.compute) == pytest.approx(float(estimate(whole, DGX).compute))


def test_uneven_stages_are_those_of_torchtitan() -> None:
    """``generate_llm_fqn_per_model_part``: ends count as a layer each by default, and
    the first stages get what is over."""
    split = chunk_layers(32, 8, 1, 1, 1)
    assert [len(chunk) for chunk in split] == [4, 5, 4, 4, 4, 4, 4, 3]
    assert [layer for chunk in split for layer in chunk] == list(range(32))
    plan = Layout(pp=4, head_layers=11, accumulation=4)
    with pytest.raises(LayoutError, match="embedding and output layer count"):
        megatron_pattern(preset("llama-3-8b").model, plan)


def test_node_limited_dispatch_of_deepseek_v3() -> None:
    """A token has 8 of the 128 experts of 4 nodes: 32 on each, 4 on each rank."""
    deepseek = preset("deepseek-v3")
    plan = Layout(
        **{"pp": 16, "dp": 128, "ep": 64, "accumulation": 16, "gpus_per_node": 8},
        dispatcher="deduplicated",
        node_limit=4,
        dispatch_dtype="float8",
    )
    pattern = megatron_pattern(deepseek.model, plan, deepseek.gating)
    nodes = 4 * (1 - comb(96, 8) / comb(128, 8))
    ranks = 32 * (1 - comb(124, 8) / comb(128, 8))
    across, within = round(4096 * nodes), round(4096 * ranks)
    short, whole = 7168 + 4 * 56, 2 * 7168  # a scale for 128 elements
    found = Counter(
        (e.call.group, e.call.size)
        for program in pattern.programs
        for e in program
        if e.call.traffic == "EP"
    )
    # 58 layers, 16 micro-batches; two exchanges in 8 bits and two in 16
    assert found == {
        (group, rows * row): 2 * 16 * 58
        for group, rows in (("ep_across", across), ("ep_within", within))
        for row in (short, whole)
    }
    config = Layout.of(deepseek.model, plan, deepseek.gating)
    layers = 4  # of the longest stage without dense layers
    a_layer = 2 * (short + whole) * (7 / 8 * across + 7 / 8 * within)
    wire = estimate(config, DGX).wire["ep"]
    assert float(wire) == pytest.approx(16 * layers * a_layer, rel=1e-12)
