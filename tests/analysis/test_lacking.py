"""Traces that lack something: what can be computed is, and the rest says why not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis import Analysis, analyze
from moetraffic.analysis.claim import claim_of
from moetraffic.data import path
from moetraffic.report import plain_data
from moetraffic.report.results import summary
from moetraffic.trace import ALL_TO_ALL, ROUTING, Group, Meta, Steps, Trace
from moetraffic.trace.model import PLACEMENT, UNKNOWN_TIME, Presence
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from tests.timed import with_times


def made(
    demand: np.ndarray, *, k: int = 1, layers: Sequence[int] = (0,), groups: int = 1
) -> Trace:
    """A trace of demand ``[T, R, E]``, the same in every layer, on groups of ranks."""
    steps, ranks, experts = demand.shape
    ep = ranks // groups
    placements = np.zeros(groups * len(layers) * experts, PLACEMENT)
    placements["group"] = np.repeat(np.arange(groups), len(layers) * experts)
    placements["layer"] = np.tile(np.repeat(layers, experts), groups)
    placements["expert"] = np.tile(np.arange(experts), groups * len(layers))
    placements["rank"] = placements["expert"] * ep // experts + ep * placements["group"]
    return trace_of_routing(
        [
            RoutedLayer(
                layer=layer,
                slot=0,
                iteration=np.arange(steps),
                demand=ArrayPanel(demand.astype(np.int32)),
                dropped=None,
                row_bytes=64,
                dtype="float32",
            )
            for layer in layers
        ],
        groups=[
            Group(kind="ep", ranks=tuple(range(first, first + ep)))
            for first in range(0, ranks, ep)
        ],
        placements=placements,
        meta=Meta(world=ranks, ep=ep, experts=experts, k=k, dispatch="dropless"),
        steps=Steps.of_training(np.arange(steps), ranks),
    )


def told(found: Analysis) -> dict[str, object]:
    """Both ways out hold, and nothing in them is infinite or no JSON."""
    summary.tables(found)
    value = plain_data.as_dict(found)
    json.dumps(value)
    assert found.to_frame().value.dtype == np.float64
    return value


def drawn(steps: int, ranks: int, experts: int, tokens: int = 200) -> np.ndarray:
    rng = np.random.default_rng(steps * 1000 + ranks * 10 + experts)
    shares = rng.dirichlet(np.ones(experts) * 3, size=ranks)
    return np.stack([rng.multinomial(tokens, shares) for _ in range(steps)])


def test_one_iteration() -> None:
    found = analyze(made(drawn(1, 4, 8)))
    told(found)
    (exchange,) = found.exchanges
    curve = exchange.subjects[0].curves["cv"]
    assert curve.values.shape == (1,)
    assert np.isfinite(curve.values).all()
    assert curve.floor is not None
    for subject in exchange.subjects:
        assert subject.forecasts is not None
        assert all(v.reason for v in subject.forecasts.verdicts)


def test_one_rank_has_loads_and_no_wire() -> None:
    found = analyze(made(drawn(30, 1, 8)))
    told(found)
    assert [s.name for s in found.exchanges[0].subjects] == ["expert_load", "demand"]
    assert any("sends nothing to another" in note for note in found.notes)
    assert found.exchanges[0].network is None


def test_one_expert_is_even_by_itself() -> None:
    found = analyze(made(drawn(30, 1, 1)))
    told(found)
    load = found.exchanges[0].subjects[0]
    assert (load.curves["max_over_mean"].values == 1).all()
    assert (load.curves["cv"].values == 0).all()
    # the only expert's entropy has nothing to be normalized by
    assert np.isnan(load.curves["normalized_entropy"].values).all()


def test_nothing_but_zeros() -> None:
    found = analyze(made(np.zeros((30, 4, 8))))
    told(found)
    for subject in found.exchanges[0].subjects:
        assert np.isnan(subject.curves["cv"].values).all()
    assert any("no complexity" in note for note in found.notes)
    empty = found.exchanges[0].subjects[1].curves["sparsity"].values
    assert (empty == 1).all()


def test_a_step_without_tokens_between_others() -> None:
    demand = drawn(40, 4, 8)
    demand[17] = 0
    found = analyze(made(demand))
    told(found)
    values = found.exchanges[0].subjects[0].curves["cv"].values
    assert np.flatnonzero(np.isnan(values)).tolist() == [17]


def test_without_demand_without_wire_and_without_times() -> None:
    with Trace.open(path("golden.h5")) as trace:
        site = trace.occurrences.site
        routes = np.array([s.operation == ROUTING for s in trace.sites])[site]
        sends = np.array([s.operation == ALL_TO_ALL for s in trace.sites])[site]
        only_demand = analyze(trace.select(np.flatnonzero(routes)))
        assert any("no wire" in note for note in only_demand.notes)
        assert any("no rhythm" in note for note in only_demand.notes)
        assert only_demand.exchanges[0].complexity is not None
        told(only_demand)
        only_wire = analyze(trace, of=("wire",))
        told(only_wire)
        for exchange in only_wire.exchanges:
            assert [s.name for s in exchange.subjects] == ["wire", "received"]
            # a gate that was not seen has no floor
            assert exchange.subjects[0].curves["cv"].floor is None
            assert exchange.convergence is not None
        unknown = {
            width: np.full(trace.panels[f"call_{width}/issue"].shape, UNKNOWN_TIME)
            for width in (2, 4)
            if f"call_{width}/issue" in trace.panels
        }
        timeless = with_times(trace, dict.fromkeys(("issue", "start", "end"), unknown))
        found = analyze(timeless)
        assert found.beats.found == ()
        assert any("no rhythm" in note for note in found.notes)
        told(found)
        assert sends.any()


def test_a_rank_is_missing_now_and_then() -> None:
    trace = made(drawn(40, 4, 8), layers=(0, 1))
    table = np.array(trace.table_of_site)[trace.occurrences.site]
    layer = np.array([s.layer for s in trace.sites])[trace.occurrences.site]
    gone = (trace.occurrences.iteration % 10 == 3) & (layer == 1)
    panels = dict(trace.panels)
    for name in ("call_4", "routing_4x8"):
        panel = panels[f"{name}/present"]
        present = panel.read(0, panel.shape[0]).copy()
        present[trace.row[gone & (table == name)], 2] = Presence.ABSENT
        panels[f"{name}/present"] = ArrayPanel(present)
    found = analyze(trace.replaced(panels=panels))
    told(found)
    first, second = found.exchanges
    assert (first.left_out, second.left_out) == (0, 4)
    assert len(second.iterations) == 36
    assert 3 not in second.iterations
    whole = analyze(trace)
    kept = np.isin(whole.exchanges[1].iterations, second.iterations)
    for mine, theirs in zip(second.subjects, whole.exchanges[1].subjects, strict=True):
        assert np.array_equal(
            mine.curves["cv"].values, theirs.curves["cv"].values[kept]
        )


def test_hosts_are_told_where_nodes_are_known() -> None:
    trace = made(np.full((20, 8, 8), 5))
    on_two = trace.replaced(meta=replace(trace.meta, nodes=("a",) * 4 + ("b",) * 4))
    net = analyze(on_two, parts=["skew"]).exchanges[0].network
    assert net is not None
    assert net.hosts == 2
    # even traffic: 4 of the 7 other ranks are on the other host
    assert np.allclose(net.inter_host, 4 / 7)
    assert net.inter_host_uniform == pytest.approx(4 / 7)
    assert np.allclose(net.line_efficiency, 1)
    assert net.nic_flows == 7
    assert net.largest_flows_byte_share == pytest.approx(5 / 56)
    alone = analyze(trace, parts=["skew"]).exchanges[0].network
    assert alone is not None
    assert np.isnan(alone.inter_host).all()


@settings(max_examples=10)
@given(
    steps=st.integers(1, 40),
    ranks=st.sampled_from([1, 2, 4]),
    each=st.integers(1, 3),
    k=st.integers(1, 3),
    most=st.sampled_from([0, 1, 300, 2**31 - 1]),
    seed=st.integers(0, 2**16),
)
def test_any_trace_is_analyzed(
    steps: int, ranks: int, each: int, k: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.integers(0, most, (steps, ranks, ranks * each), endpoint=True)
    found = analyze(made(demand, k=k, layers=(0, 2)))
    told(found)
    assert len(found.exchanges) == 2


@pytest.mark.parametrize("at", [40, 130])
def test_a_load_that_changes_its_level_has_no_lower_bound(at: int) -> None:
    rng = np.random.default_rng(at)
    shares = rng.dirichlet(np.full(8, 20.0), size=2)[(np.arange(160) >= at) * 1]
    demand = np.stack([rng.multinomial(500, shares) for _ in range(4)], axis=1)
    steady = np.stack([rng.multinomial(500, shares[:1], 160) for _ in range(4)], axis=1)
    (moved,) = analyze(made(demand), parts=["limits"]).exchanges
    # the demand's 32 cells change, too, but with more sampling noise each
    assert {s.name for s in moved.subjects} >= {"expert_load", "demand", "received"}
    for subject in moved.subjects:
        assert subject.limits is not None
        assert subject.limits.reason == f"the level changes at iteration {at}"
        assert np.isnan([subject.limits.nmse, subject.limits.mse]).all()
        # nor a fitted persistence: one autoregression near a unit root would fit both
        assert subject.memory is not None
        assert np.isnan(subject.memory.phi)
        assert subject.memory.reason == subject.limits.reason
    (held,) = analyze(made(steady), parts=["limits"]).exchanges
    assert all(s.limits is not None and s.limits.nmse > 0 for s in held.subjects)


def lacking(trace: Trace, text: str) -> Trace:
    return trace.replaced(meta=replace(trace.meta, complete=False, missing=text))


def test_omitted_calls_are_counted_against_those_of_their_own_ranks() -> None:
    """A rank calls four phases and an exchange of counts, of two layers: ten a step."""
    trace = made(drawn(30, 4, 8), layers=(0, 2), groups=2)
    text = "ranks 0, 3 left out 40 x call of alltoall_base_ (TypeError('no'))"
    assert analyze(lacking(trace, text), parts=["skew"]).omitted == (
        "40 of 340 calls of alltoall_base_ left out by ranks 0, 3"
    )
    # of one call rank 3 has no record, of another one no bytes, which it recorded
    present = "call_2/present"
    rows = trace.panels[present].read(0, trace.panels[present].shape[0]).copy()
    mine = trace.find(operation=ALL_TO_ALL, group=1)
    rows[trace.row[mine[:2]], 1] = (Presence.ABSENT, Presence.UNSIZED)
    fewer = trace.replaced(panels={**trace.panels, present: ArrayPanel(rows)})
    alone = text.replace("ranks 0, 3", "rank 3")
    for said, counted in ((text, "40 calls"), (alone, "40 of 339 calls")):
        found = analyze(lacking(fewer, said), parts=["skew"])
        assert found.omitted.startswith(f"{counted} of alltoall_base_ left out by rank")


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (["skew"], []),
        (["rhythm"], ["rhythm"]),
        (["skew", "time-breakdown"], ["time-breakdown"]),
        (["claims"], ["claims about the bursts of a rank"]),
        (
            ["claims", "rhythm", "time-breakdown"],
            ["rhythm", "time-breakdown", "claims about the bursts of a rank"],
        ),
    ],
)
def test_what_omitted_calls_forbid_is_named_if_it_was_asked_for(
    parts: list[str], named: list[str]
) -> None:
    text = "rank 1 left out 3 x call of barrier (x)"
    found = analyze(lacking(made(drawn(30, 4, 8)), text), parts=parts)
    unknown = [note for note in found.notes if "left out by" in note]
    assert unknown == [
        f"no {each}: 3 calls of barrier left out by rank 1" for each in named
    ]


def test_the_half_life_of_a_transient_is_not_named_as_that_of_a_return() -> None:
    """Loads that return to a level and have no transient have the claim's alone."""
    rng, states = np.random.default_rng(5), np.zeros((300, 8))
    for now, before in zip(states[1:], states, strict=False):
        now += 0.85 * before + rng.normal(0, 0.1, 8)
    shares = np.exp(states) / np.exp(states).sum(axis=1, keepdims=True)
    demand = np.stack([rng.multinomial(1000, shares) for _ in range(2)], axis=1)
    found = analyze(made(demand), parts=["claims", "convergence"])
    returns = claim_of(found.claims, "mean-reverting")
    assert returns is not None
    assert returns.stated
    (table,) = summary.by_part(found)["convergence"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["half-life of the transient, it."] is None
    assert not [name for name in row if name.startswith("half-life, ")]
