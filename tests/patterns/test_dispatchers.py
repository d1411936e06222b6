"""Two-level and de-duplicated dispatch in both verbs; bytes derived by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating, Layout, ModelShape, megatron_pattern
from moetraffic.patterns.layer import distinct
from moetraffic.patterns.matrices import exchange_matrix, traffic_matrix
from moetraffic.timemodel import (
    A100,
    NodeLinks,
    System,
    estimate,
)
from tests.patterns.test_agreement import sent, summed

TOKENS, HIDDEN = 64, 256
PHASES = ("dispatch", "combine", "combine_grad", "dispatch_grad")


def shape(experts: int = 8) -> ModelShape:
    return ModelShape(
        layers=1,
        hidden=HIDDEN,
        heads=8,
        sequence=TOKENS,
        vocabulary=512,
        experts=experts,
        moe_every=1,
    )


def plan(ranks: int = 8, node: int = 4, **more: Any) -> Layout:
    return Layout(dp=ranks, ep=ranks, gpus_per_node=node, **more)


def exchanges(of: Layout, k: int, experts: int = 8) -> Any:
    made = megatron_pattern(shape(experts), of, Gating(k=k, dispatch="dropless"))
    return made, [e.call for e in made.programs[0] if e.call.traffic == "EP"]


def reached(experts: int, k: int, ranks: int, node: int, limit: int) -> Any:
    """Mean numbers of nodes and of ranks of all choices of k experts."""
    nodes, each = ranks // node, experts // ranks
    found = [
        (
            len({expert // each // node for expert in chosen}),
            len({expert // each for expert in chosen}),
        )
        for allowed in combinations(range(nodes), min(limit or nodes, nodes))
        for chosen in combinations(
            [e for e in range(experts) if e // each // node in allowed], k
        )
    ]
    return np.mean(found, axis=0)


@pytest.mark.parametrize(
    ("experts", "k", "ranks", "node", "limit"),
    [
        (8, 2, 8, 4, 0),
        (8, 4, 8, 2, 0),
        (16, 4, 8, 2, 2),
        (16, 3, 8, 1, 4),
        (8, 8, 8, 4, 0),
        (16, 2, 4, 4, 0),
    ],
)
def test_tokens_go_once_to_a_node_and_once_to_a_rank(
    experts: int, k: int, ranks: int, node: int, limit: int
) -> None:
    """Both verbs, and the matrix, against every choice of experts there is."""
    of = plan(ranks, node, dispatcher="deduplicated", node_limit=limit)
    made, calls = exchanges(of, k, experts)
    nodes, places = reached(experts, k, ranks, node, limit)
    row, count = HIDDEN * 2, ranks // node
    across, within = (round(TOKENS * mean) * row for mean in (nodes, places))
    stages = [("ep_across", across)] * (count > 1) + [("ep_within", within)] * (
        node > 1
    )
    assert [(c.phase, c.group, c.size) for c in calls] == [
        (phase, *stage)
        for phase, order in zip(PHASES, (1, -1, 1, -1), strict=True)
        for stage in stages[::order]
    ]
    expected = 4 * ((count - 1) / count * across + (node - 1) / node * within)
    assert sent(made)["ep"] == pytest.approx(expected)
    config = Layout.of(shape(experts), of, Gating(k=k))
    assert summed(config)["ep"] == pytest.approx(expected)
    matrix = traffic_matrix(made, traffic=["EP"], gpus_per_node=node)
    far = np.arange(ranks) // node
    between = matrix * (far[:, None] != far[None, :])
    # rows that do not divide are spread over the members, so a rank's may differ
    assert between.sum() == pytest.approx(
        4 * ranks * (count - 1) / count * across, abs=4 * ranks * count * row
    )
    assert matrix.sum() == pytest.approx(ranks * expected, abs=8 * ranks**2 * row)


@pytest.mark.parametrize(("ranks", "node"), [(8, 4), (8, 2), (16, 8)])
def test_two_levels_send_rows_twice(ranks: int, node: int) -> None:
    _, calls = exchanges(plan(ranks, node), 2, ranks)
    two, levels = exchanges(plan(ranks, node, dispatcher="two-level"), 2, ranks)
    assert [c.group for c in levels[:4]] == [
        *("ep_within", "ep_across", "ep_across", "ep_within")
    ]
    assert {c.size for c in levels} == {c.size for c in calls}
    matrix = traffic_matrix(two, traffic=["EP"])
    whole = sum(c.size for c in calls)
    within, across = (node - 1) / node, (ranks / node - 1) / (ranks / node)
    assert matrix[0].sum() == pytest.approx(whole * (within + across))
    config = Layout.of(
        shape(ranks), plan(ranks, node, dispatcher="two-level"), Gating(k=2)
    )
    assert summed(config)["ep"] == pytest.approx(matrix[0].sum())


def test_distinct_parts_at_the_ends() -> None:
    assert float(distinct(1, 64, 8)) == pytest.approx(1)
    assert float(distinct(8, 8, 8)) == pytest.approx(8)
    assert float(distinct(5, 64, 1)) == 1
    assert float(distinct(57, 64, 8)) == pytest.approx(8)  # 7 of 8 fill a part at most


def time(links: NodeLinks, **named: Any) -> float:
    config = Layout(
        model=shape(16), k=4, dp=16, ep=16, global_batch=16, gpus_per_node=8, **named
    )
    found = estimate(config, System.of_gpu(A100, links))
    return float(found.communication["ep"])


def test_levels_follow_each_other_and_copies_are_forwarded_meanwhile() -> None:
    links = NodeLinks(gpus=8, inside_bytes_s=100e9, nic_bytes_s=8 * 10e9)
    row, rows = HIDDEN * 2, TOKENS * 4
    inside = 7 / 8 * rows * row / 100e9
    between = 1 / 2 * rows * row / 10e9
    assert time(links, dispatcher="two-level") == pytest.approx(4 * (inside + between))
    nodes, places = reached(16, 4, 16, 8, 0)
    inside = 7 / 8 * round(TOKENS * places) * row / 100e9
    between = 1 / 2 * round(TOKENS * nodes) * row / 10e9
    assert time(links, dispatcher="deduplicated") == pytest.approx(
        4 * max(inside, between)
    )
    slow = replace(links, inside_bytes_s=1e9)
    assert time(slow, dispatcher="deduplicated") == pytest.approx(4 * 100 * inside)


def test_what_a_dispatcher_cannot_do_both_refuse() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "as many expert-parallel ranks on each node": {"node": 3},
        "dispatcher is one of plain": {"dispatcher": "fast"},
        "give --dispatcher deduplicated": {"dispatcher": "plain", "node_limit": 2},
        "leave out --order": {"order": "ep-tp-cp-dp-pp"},
    }
    for said, named in wrong.items():
        with pytest.raises(LayoutError, match=said):
            exchanges(plan(**{"dispatcher": "two-level", **named}), 2)
    once = plan(dispatcher="deduplicated", node_limit=1, node=2)
    with pytest.raises(LayoutError, match="raise node_limit"):
        exchanges(once, 4)
    padded = Gating(k=2, dispatch="padded", capacity_factor=1.0)
    with pytest.raises(LayoutError, match="without padding"):
        megatron_pattern(shape(), plan(dispatcher="deduplicated"), padded)
    dense = replace(shape(), experts=0)
    with pytest.raises(LayoutError, match="leave out --dispatcher"):
        megatron_pattern(dense, Layout(dp=8, dispatcher="two-level"))


def test_measured_shares_move_bytes_and_keep_their_sum() -> None:
    shares = (0.5, 0.25, 0.125, 0.125)
    of = Layout(dp=4, ep=4)
    gating = Gating(k=2, dispatch="dropless")
    even = traffic_matrix(megatron_pattern(shape(), of, gating), traffic=["EP"])
    pattern = megatron_pattern(shape(), of, gating, shares=(shares,))
    matrix = traffic_matrix(pattern, traffic=["EP"])
    row = 2 * TOKENS * HIDDEN * 2  # what a rank dispatches, once
    expected = np.tile(np.array(shares) * row, (4, 1))
    np.fill_diagonal(expected, 0)
    assert (matrix == 2 * (expected + expected.T)).all()  # two phases each way
    assert matrix.sum() == even.sum()
    equal = megatron_pattern(shape(), of, gating, shares=((0.25,) * 4,))
    assert (traffic_matrix(equal, traffic=["EP"]) == even).all()
    # rows that do not divide: none is lost, and nobody is off by more than one
    odd = (0.301, 0.299, 0.2004, 0.1996)
    uneven = megatron_pattern(shape(), of, gating, shares=(odd,))
    call = next(e.call for e in uneven.programs[0] if e.call.phase == "dispatch")
    rows = exchange_matrix(call, 4)[0] // call.row_bytes
    assert rows.sum() == 2 * TOKENS
    assert (abs(rows - np.array(odd) * 2 * TOKENS) < 1).all()
    for said, dispatcher, some in (
        ("a share for each", "plain", shares[:2]),
        ("use --dispatcher plain", "two-level", shares),
    ):
        other = replace(of, dispatcher=dispatcher)
        with pytest.raises(LayoutError, match=said):
            megatron_pattern(shape(), other, gating, shares=(some,))
