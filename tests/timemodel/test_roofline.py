"""Computing time by roofline: exact cases, limits and what follows from a layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.patterns import Layout, preset
from moetraffic.timemodel import (
    A100,
    GPUS,
    NodeLinks,
    System,
    estimate,
    operations,
)
from moetraffic.timemodel.compute import matmul, passes

GPT = replace(
    preset("gpt-1.3b").model,
    layers=96,
    hidden=12288,
    heads=96,
    sequence=2048,
    vocabulary=51200,
)
MOE = preset("qwen3-30b-a3b").model
LINKS = NodeLinks.nominal(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)
NODES = System.of_gpu(A100, LINKS)


def told(**named: Any) -> Layout:
    return Layout(**{"model": GPT, "tp": 8, "pp": 8, "global_batch": 64, **named})


def test_a_product_of_whole_waves_runs_at_its_share_of_the_peak() -> None:
    # 108 tiles of 256 x 128 are one wave, the next tile is a second one
    rows, columns, inner = 256 * 12, 128 * 9, 65536
    full = 2 * rows * columns * inner / (A100.peak_flops * A100.matmul_share)
    assert float(matmul(rows, columns, inner, A100)) == pytest.approx(full)
    assert float(matmul(rows + 1, columns, inner, A100)) > 1.1 * full


def test_a_product_of_few_rows_takes_its_bytes() -> None:
    # one row, whole waves: 2 bytes of each weight, whatever is computed
    columns = 64 * 108 * 8
    found = float(matmul(1, columns, 4096, A100))
    moved = 2 * (4096 + 4096 * columns + columns)
    assert found == pytest.approx(moved / (A100.memory_bytes_s * A100.memory_share))


@given(
    rows=st.integers(1, 20_000),
    columns=st.integers(1, 20_000),
    inner=st.integers(1, 20_000),
    name=st.sampled_from(sorted(GPUS)),
)
def test_no_product_beats_the_peak_or_the_memory(
    rows: int, columns: int, inner: int, name: str
) -> None:
    gpu = GPUS[name]
    time = float(matmul(rows, columns, inner, gpu))
    least = 2 * rows * columns * inner / (gpu.peak_flops * gpu.matmul_share)
    assert time >= least * (1 - 1e-12)
    more = float(matmul(2 * rows, columns, inner, gpu))
    assert time <= more * (1 + 1e-12)


def test_large_layers_are_near_the_share_and_small_ones_are_not() -> None:
    def share(hidden: float, tp: float) -> float:
        model = replace(
            preset("gpt-1.3b").model,
            layers=4,
            hidden=hidden,
            heads=16,
            sequence=2048,
            vocabulary=51200,
        )
        config = told(model=model, tp=tp, pp=1, recompute="full")
        work = operations(config).all
        found = passes(config, A100)
        return float(work / (found.all + found.head) / A100.peak_flops)

    assert 0.5 < share(20480, 8) < A100.matmul_share
    assert share(1024, 8) < 0.1 < share(1024, 1) < share(8192, 1)


def test_recomputation_adds_a_forward_pass_or_the_attention_core() -> None:
    none, core, full = (
        passes(told(recompute=how), A100) for how in ("none", "selective", "full")
    )
    assert float(none.recomputed) == 0
    assert float(full.recomputed) == pytest.approx(float(full.forward))
    assert 0 < float(core.recomputed) < 0.3 * float(full.forward)
    fused = passes(told(fused_attention=True, recompute="selective"), A100)
    assert float(fused.recomputed) == 0
    assert float(fused.forward) < float(none.forward)


def test_eight_bits_need_a_gpu_that_has_them() -> None:
    for name, faster in (("A100", False), ("H100", True)):
        whole, short = (passes(told(fp8=way), GPUS[name]).all for way in (False, True))
        assert bool(short < whole) is faster


def test_a_stage_that_has_the_head_is_waited_for() -> None:
    alone, piped = (estimate(told(pp=p), NODES) for p in (1, 8))
    assert float(alone.bubble) == 0
    small = replace(GPT, vocabulary=8)
    heads = [float(passes(told(model=m), A100).head) for m in (GPT, small)]
    waited = float(piped.bubble - estimate(told(model=small), NODES).bubble)
    assert waited == pytest.approx(64 * (heads[0] - heads[1]))


def test_uneven_stages_take_what_the_longest_takes() -> None:
    model = replace(GPT, layers=94)
    uneven, even = (passes(told(model=m, pp=8), A100) for m in (model, GPT))
    assert float(uneven.forward) == float(even.forward)  # 12 layers either way


def test_expert_parallelism_folds_over_tensor_parallel_ranks() -> None:
    c = Layout(
        model=MOE, k=8, tp=2, dp=4, ep=8, etp=1, sequence_parallel=True, global_batch=8
    )
    found = estimate(c, NODES)
    whole = estimate(replace(c, tp=1, dp=8, global_batch=8), NODES)
    # a rank routes its half of the tokens of two ranks' sequences
    assert float(found.wire["ep"]) == pytest.approx(float(whole.wire["ep"]))
    assert float(c.stage_experts[0]) == pytest.approx(c.sizes.expert_parameters / 8)
    assert float(c.expert_copies) == 1
