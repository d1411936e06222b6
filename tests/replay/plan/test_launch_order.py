"""All ranks launch operations of overlapping groups in one order, without a cycle."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.replay.plan.background import traffic_of
from tests.replay.conftest import make_trace, planned
from tests.timed import with_times


def waiting(programs) -> nx.DiGraph:
    """Which operation cannot end before which other: an edge from what comes first."""
    graph = nx.DiGraph()
    for program in programs.values():
        operation = program.operation.tolist()
        graph.add_nodes_from(operation)
        nx.add_path(graph, operation)  # one thread launches them in this order
        waits = program.after >= 0
        graph.add_edges_from(
            zip(
                program.operation[program.after[waits]].tolist(),
                program.operation[waits].tolist(),
                strict=True,
            )
        )
    return graph


def jittered(seed: int, world: int = 6):
    """Groups that overlap, with times that give every rank another order."""
    trace = make_trace(
        world=world, groups=[(0, 1, 2), (2, 3, 4), (4, 5, 0), (1, 3, 5)], seed=seed
    )
    rng = np.random.default_rng(seed)
    issue, end = {}, {}
    for width in (3, world):
        shape = trace.panels[f"call_{width}/issue"].shape
        issue[width] = rng.integers(0, 10**6, shape)
        end[width] = issue[width] + rng.integers(1, 10**6, shape)
    return with_times(trace, {"issue": issue, "end": end})


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_a_common_order_has_no_cycle_whatever_each_rank_did(seed):
    plan, programs = planned(jittered(seed), in_common=True)
    assert nx.is_directed_acyclic_graph(waiting(programs))
    assert sorted(waiting(programs)) == list(range(len(plan)))


@pytest.mark.parametrize("layout", ["tp=2,pp=2,dp=2", "tp=4,dp=2", "pp=4,dp=2"])
def test_with_dense_traffic_there_is_no_cycle_either(layout):
    beside = traffic_of(f"{layout},micro-batch=1", "tiny", 8)
    trace = make_trace(world=8, groups=[(0, 2, 4, 6), (1, 3, 5, 7)], iterations=(0, 1))
    plan, programs = planned(trace, background=beside, in_common=True)
    graph = waiting(programs)
    assert len(graph) == len(plan)
    assert nx.is_directed_acyclic_graph(graph)
    sends = {"send_recv"} & {plan.sites[s].operation for s in plan.site}
    assert bool(sends) is ("pp" in layout)
