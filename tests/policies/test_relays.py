"""Transmission over relays: FAST, two levels, de-duplication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic import Trace
from moetraffic.errors import FabricError
from moetraffic.fabric import Hosts, single_switch
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.packets import Hops, PacketNetwork, Rounds
from moetraffic.policies.service import crossing, line_bytes
from moetraffic.policies.transmission import (
    Fast,
    Forwarded,
    ShiftedRounds,
    TwoLevel,
    rail_shares,
    with_distinct_tokens,
)
from moetraffic.trace.choices import expert_ids
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.model import Group, Meta, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing

from .conftest import rows_of, view_of

RELAYED = (
    Fast(),
    TwoLevel(),
    Forwarded(),
)


def network(hosts: int, ranks: int, *, inside: float = 9.0) -> PacketNetwork:
    """Hosts with a unit NIC for each rank, on one switch."""
    made = Hosts(number=hosts, ranks=ranks, nic_bytes_s=1, inside_bytes_s=inside)
    return PacketNetwork(network=single_switch(made))


def matrix_of(rows: str) -> np.ndarray:
    """Read "02:6 13:2" as a matrix of 6 ranks."""
    made = np.zeros((6, 6))
    for item in rows.split():
        made[int(item[0]), int(item[1])] = int(item[3:])
    return made


THREE_HOSTS = matrix_of("02:6 04:2 13:2 15:2 20:1 24:5 31:3 35:1 40:4 51:2 53:4")


def seconds(policy: Any, matrix: np.ndarray, on: PacketNetwork) -> float:
    plan = policy.plan(view_of(matrix, on))
    if isinstance(plan, Rounds):
        return on.serve(matrix, plan).completion_s
    assert on.check(plan, np.zeros((len(matrix), len(matrix)))) == ""
    return on.serve(matrix, plan).completion_s


def test_three_hosts_of_two_ranks() -> None:
    """S = [[0,8,4],[4,0,6],[6,4,0]]: 6 at least, FAST 6 to 6 + 2/9 + 3/9."""
    on = network(3, 2)
    assert on.bound(THREE_HOSTS) == 6
    assert 6 <= seconds(Fast(), THREE_HOSTS, on) <= 6 + 2 / 9 + 3 / 9
    plan = Fast().plan(view_of(THREE_HOSTS, on))
    first = plan.round == 0
    moved = THREE_HOSTS.ravel()[plan.pair[first]] * plan.share[first]
    assert np.bincount(plan.sender[first], moved).max() == pytest.approx(2)
    # without balancing: the bound and the rounds of single ranks
    assert line_bytes(THREE_HOSTS) == 8
    assert seconds(ShiftedRounds(), THREE_HOSTS, on) == pytest.approx(10)


FEW = arrays(np.int64, (6, 6), elements=st.integers(0, 40))


@settings(max_examples=15, deadline=None)
@given(FEW, FEW)
def test_all_bytes_arrive_and_none_before_the_bound(
    truth: np.ndarray, guess: np.ndarray
) -> None:
    on = network(3, 2)
    truth, guess = crossing(truth), crossing(guess)
    for policy in RELAYED:
        plan = policy.plan(view_of(guess, on))
        assert on.check(plan, np.zeros((6, 6))) == ""
        took = on.serve(truth, plan).completion_s
        assert took >= on.bound(truth) * (1 - 1e-6)
    grid = on.rank_grid()
    between = crossing(truth[grid][:, :, grid].sum(axis=(1, 3)))
    inside = np.diag(truth[grid][:, :, grid].sum(axis=(1, 3)))
    if (inside <= between.sum(axis=1) / 3).all() and between.any():
        least = line_bytes(between) / 2
        # bytes are whole in the decomposition: at most one more for each pair
        known = seconds(Fast(), truth, on)
        assert known <= least * (1 + (2 + 2 / 3) / 9) + 1e-6


def test_balancing_moves_as_little_as_it_can() -> None:
    rng = np.random.default_rng()
    rows = rng.integers(0, 9, (3, 4, 3)).astype(float)
    share = rail_shares(rows)
    assert share.sum(axis=3) == pytest.approx(np.ones((3, 4, 3)))
    sent = (rows[..., None] * share).sum(axis=1)  # [H, H, g]
    assert sent == pytest.approx(
        np.broadcast_to(rows.mean(axis=1)[..., None], sent.shape)
    )
    own = np.einsum("akbk->akb", share)
    excess = np.maximum(rows - rows.mean(axis=1, keepdims=True), 0)
    assert (rows * (1 - own))[rows > 0] == pytest.approx(excess[rows > 0])


def sampled_trace(experts: int, ranks: int, k: int) -> Trace:
    """Uniform distinct experts, every token sampled."""
    rng = np.random.default_rng()
    order = np.argsort(rng.random((16, ranks, 64, experts)), axis=-1)
    groups = [Group(kind="ep", ranks=tuple(range(ranks)))]
    layer = RoutedLayer(
        layer=0,
        slot=0,
        iteration=np.arange(16),
        demand=ArrayPanel((order < k).sum(axis=2).astype(np.int32)),
        dropped=None,
        row_bytes=8,
        dtype="float32",
        chosen=expert_ids(order < k),
    )
    return trace_of_routing(
        [layer],
        groups=groups,
        placements=contiguous_placement(groups, [0], experts),
        meta=Meta(world=ranks, dp=ranks, ep=ranks, experts=experts, k=k, virtual=True),
        steps=Steps(
            iteration=np.arange(16),
            kind=("train",) * 16,
            loss=np.zeros((16, ranks)),
            tokens=np.full((16, ranks), 64),
            start=np.zeros((16, ranks), np.int64),
            end=np.ones((16, ranks), np.int64),
            source=np.zeros(16, np.uint8),
        ),
    )


def test_de_duplicated_bytes_are_those_of_distinct_hosts() -> None:
    on = network(4, 2)
    trace = sampled_trace(8, 8, 2)
    with_sample = with_distinct_tokens(on, trace)
    share = with_sample.distinct
    assert share is not None
    between = share[share < 1]
    assert between.size
    # 39/28 of 1.5 copies leave a host
    crossing_hops = [
        share[i, j] for i in range(8) for j in range(8) if i // 2 != j // 2
    ]
    some = [s for s in crossing_hops if s < 1]
    assert np.mean(some) == pytest.approx((39 / 28) / 1.5, rel=0.03)
    plain, once = Forwarded(), Forwarded(once=True)
    found = evaluate(trace, ["deduplicated", "forwarded"], networks={"four": on})
    assert found.data["failures"] == []
    score = {s.policy: s.completion_mean_s for s in rows_of(found)}
    assert score["deduplicated"] < score["forwarded"]
    matrix = np.ones((8, 8))
    assert seconds(once, matrix, with_sample) < seconds(plain, matrix, with_sample)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"share": np.array([0.5, 1])}, "not all bytes from 0 to 1 arrive"),
        ({"sender": np.array([1, 1]), "receiver": np.array([0, 0])}, "than it has"),
        ({"receiver": np.array([0, 0])}, "different ranks"),
        ({"receiver": np.array([2, 0])}, "0 to 1"),
        ({"share": np.array([-1.0, 1])}, "0 or more"),
        ({"share": np.ones(3)}, "one length"),
        ({"routing": "magic"}, "routing is one of"),
        ({"pair": np.array([1.0, 2])}, "integers"),
        ({"once": True}, "--token-sample"),
    ],
)
def test_impossible_hops(change: dict[str, Any], why: str) -> None:
    on = network(2, 1)
    plan = Hops(
        round=np.zeros(2, int),
        pair=np.array([1, 2]),
        sender=np.array([0, 1]),
        receiver=np.array([1, 0]),
        share=np.ones(2),
        routing="ecmp",
    )
    assert on.check(plan, np.zeros((2, 2))) == ""
    assert why in on.check(replace(plan, **change), np.zeros((2, 2)))


def test_hosts_of_different_sizes_are_refused() -> None:
    hosts = Hosts(number=2, ranks=2, nic_bytes_s=1)
    on = PacketNetwork(network=single_switch(hosts).placed(np.array([0, 1, 2])))
    with pytest.raises(FabricError, match="as many ranks"):
        on.rank_grid()
