"""Every preset's pattern can be computed, under all kinds of parallelism together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moetraffic.patterns import PRESETS, Layout, megatron_pattern
from moetraffic.patterns.matrices import traffic_matrices


@pytest.mark.parametrize("name", PRESETS)
def test_each_kind_of_traffic_is_there(name: str) -> None:
    preset = PRESETS[name]
    shape = replace(preset.model, target_sequence=128 * preset.model.two_stacks)
    one_stack = not (shape.two_stacks or shape.masked)
    ep = 2 if shape.experts else 1
    pp = 2 if one_stack else 1
    tp = 1 if shape.heads % 2 or shape.two_stacks else 2
    cp = 1 if shape.two_stacks else 2
    sizes = {"tp": tp, "cp": cp, "dp": 2, "pp": pp, "ep": ep}
    plan = Layout(**sizes, accumulation=pp, sequence_parallel=True, zero=1)
    matrices = traffic_matrices(megatron_pattern(shape, plan, preset.gating))
    expected = {"DP", "control"} | ({"TP"} if tp > 1 else set())
    expected |= {"CP"} if cp > 1 else set()
    if pp > 1:
        expected |= {"PP"} | ({"EmbTableSync"} if shape.tied else set())
    if ep > 1:
        expected.add("EP")
    assert set(matrices) == expected
    for kind, matrix in matrices.items():
        assert matrix.nnz, kind
        assert not matrix.diagonal().any()
