from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.pattern_trace import pattern_trace
from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload
from moetraffic.patterns.calls import Pattern, megatron_pattern, workload_pattern
from moetraffic.patterns.matrices import traffic_matrix
from moetraffic.replay import operations
from moetraffic.trace import Trace

SHAPE = ModelShape(layers=4, hidden=32, heads=4, sequence=16, experts=8)


def everything() -> Pattern:
    plan = Layout(
        **{"tp": 2, "cp": 2, "dp": 2, "pp": 2, "ep": 4, "etp": 1},
        micro_batch=2,
        accumulation=4,
        virtual=2,
        zero=1,
        sequence_parallel=True,
        recompute="full",
    )
    return megatron_pattern(SHAPE, plan, Gating(k=2, dispatch="padded"))


@pytest.mark.parametrize("algorithm", ["ring", "direct", "double-tree"])
def test_a_trace_sends_what_the_pattern_does(algorithm: str) -> None:
    pattern = everything()
    trace = pattern_trace(pattern, iterations=2)
    expected = traffic_matrix(pattern, algorithm=algorithm)
    found = world_matrices(trace, [0, 1], algorithm=algorithm)
    assert found.tolist() == [expected.tolist()] * 2
    assert trace.meta.origin == "generated"
    assert trace.meta.source == "computed from the configuration"


def test_a_trace_is_saved_analyzed_and_replayed(tmp_path: Path) -> None:
    path, pattern = tmp_path / "pattern.h5", everything()
    pattern_trace(pattern, iterations=3, tokens=128).save(path)
    with Trace.open(path) as trace:
        assert trace.meta.world == 16
        assert (trace.meta.experts, trace.meta.k) == (8, 2)
        assert (trace.steps.tokens == 128).all()
        # each rank goes through its program, three times; no order of sites is that
        # of messages between stages, which their ranks post in different orders
        for rank in (0, 15):
            sites = [trace.sites[s] for s in trace.occurrences.site[trace.order(rank)]]
            names = [
                (site.operation, site.phase or site.label, site.layer)
                for site in sites
                if trace.groups[site.group].kind != "pp"
            ]
            program = [
                (c.operation, c.phase or c.label, c.layer)
                for c, _ in pattern.program(rank)
                for _ in range(2 if c.shift else 1)  # it sends one and gets one
                if c.group != "pp"
            ]
            assert names == 3 * program
        # a group's collectives are counted on
        for group in range(len(trace.groups)):
            of = trace.find(group=group)
            counted = trace.occurrences.sequence[of]
            counted = np.sort(counted[counted >= 0])
            assert counted.tolist() == list(range(len(counted)))
        plan = operations(trace, dense=False)
        # 4 exchanges, 2 of them once more, of each MoE layer and micro-batch
        calls = [c for c, _ in pattern.program(15) if c.operation == "all_to_all"]
        groups = {r: g for g in pattern.layout.groups("ep") for r in g}
        with_experts = len({groups[r] for r in range(8, 16)})
        assert len(plan) == 3 * len(calls) * with_experts
        located = exchanges(trace, [])
        assert {exchange.layer for exchange in located} == {1, 3}
        holder = trace.holder(1, plan_group(trace), 0)
        assert holder.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def plan_group(trace: Trace) -> int:
    """A group that exchanges."""
    return next(s.group for s in trace.sites if s.operation == "all_to_all")


def test_calls_of_a_place_may_differ_in_size_and_root() -> None:
    work = Workload(
        model=ModelShape(layers=2, hidden=16, heads=2, sequence=8, experts=0),
        layout=Layout(dp=4, zero=2),
        training=Training(accumulation=2, micro_batch=1),
    )
    pattern = workload_pattern(work)
    trace = pattern_trace(pattern)
    for operation in ("broadcast", "reduce"):
        sizes = [
            int(trace.volume(np.array([o]))[0, 0])
            for o in trace.order(0)
            if trace.sites[trace.occurrences.site[o]].operation == operation
        ]
        expected = [c.size for c, _ in pattern.program(0) if c.operation == operation]
        assert sizes == expected
    assert trace.meta.workload == work.to_json()


def test_impossible_traces() -> None:
    with pytest.raises(LayoutError, match="at least one iteration"):
        pattern_trace(everything(), iterations=0)
    with pytest.raises(LayoutError, match="calls at most"):
        pattern_trace(everything(), iterations=10**6)
