"""Placement policies and the time of a layer: published cases and invariants."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic import Trace, load_fabric
from moetraffic.errors import FabricError, LayoutError
from moetraffic.policies.cluster import Cluster, ExpertPlacement, rank_copies
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.networks import OPTICAL
from moetraffic.policies.packets import PacketNetwork
from moetraffic.policies.placement import Swaps, balance, beside_tokens, pack, swapped
from moetraffic.policies.series import byte_series, token_series
from moetraffic.trace.what_if.relocate import Relocation, relocate

from .conftest import by_name, rows_of, view_of

LOAD = np.array([42, 11, 9, 7, 5, 3, 2, 1.0])
SWAPPED = LOAD[[1, 0, 2, 3, 4, 5, 6, 7]]


def rank_loads(plan: ExpertPlacement, load: np.ndarray) -> list[float]:
    return rank_copies(load[None] / 4 * np.ones((4, 1)), plan).sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("slots", "more", "loads", "swapped_ratio"),
    [
        (8, {}, [43, 13, 12, 12], 2.2),
        (12, {}, [20.5, 19.5, 21, 19], 1.4375),
        (16, {}, None, 1.3071),
        (12, {"nodes": 2, "groups": 4}, [29, 27, 12, 12], 2.3833),
    ],
)
def test_eplb_gives_the_published_loads(
    slots: int, more: dict[str, int], loads: list[float] | None, swapped_ratio: float
) -> None:
    plan = balance(LOAD, ranks=4, slots=slots, **more)
    cluster = Cluster(rate_bytes_s=1, replicas=slots - 8)
    assert cluster.check(plan, np.zeros((4, 8))) == ""
    found = rank_loads(plan, LOAD)
    if loads is None:
        assert max(found) / 20 == pytest.approx(1.075)
    else:
        assert sorted(found) == pytest.approx(sorted(loads))
    assert max(rank_loads(plan, SWAPPED)) / 20 == pytest.approx(swapped_ratio, abs=5e-5)


def test_eplb_replicas() -> None:
    plan = balance(LOAD, ranks=4, slots=12)
    assert np.bincount(plan.experts).tolist() == [4, 2, 1, 1, 1, 1, 1, 1]
    plan = balance(LOAD, ranks=4, slots=12, nodes=2, groups=4)
    assert np.bincount(plan.experts).tolist() == [3, 1, 2, 2, 1, 1, 1, 1]
    with pytest.raises(LayoutError, match="nodes divide"):
        balance(LOAD, ranks=4, slots=12, nodes=3, groups=4)


def test_packing_can_be_a_sixth_off() -> None:
    weights = np.array([4, 2, 2, 2, 1, 1])
    found = pack(weights, 2)
    assert sorted(np.bincount(found, weights).tolist()) == [5, 7]


def test_moving_an_expert_of_deepseek_v3() -> None:
    """88.08 MB in bf16 take 1.7616 ms at 50 GB/s, 704.6 MB of state 14.09 ms."""
    one = ExpertPlacement(experts=np.arange(2), ranks=np.array([0, 1]))
    other = ExpertPlacement(experts=np.arange(2), ranks=np.array([1, 0]))
    for size, ms in ((88_080_384, 1.7616), (704_643_072, 14.09)):
        cluster = Cluster(rate_bytes_s=50e9, row_bytes=1, expert_bytes=size)
        found = cluster.serve(np.zeros((2, 2)), other, one)
        assert found.completion_s * 1e3 == pytest.approx(ms, rel=1e-3)
        assert found.moved_bytes == 2 * size
        held = cluster.serve(np.zeros((2, 2)), other, other)
        assert held.completion_s == held.moved_bytes == 0


def test_a_layer_by_hand() -> None:
    """3 and 1 copies of rank 0, 2 and 0 of rank 1, experts on ranks 0 and 1."""
    plan = ExpertPlacement(experts=np.arange(2), ranks=np.arange(2))
    cluster = Cluster(rate_bytes_s=10, row_bytes=5, token_s=0.25)
    found = cluster.serve([[3, 1], [2, 0]], plan, None)
    # 2 copies cross each way at most, 5 copies are computed on rank 0
    assert found.completion_s == 2 * 2 * 5 / 10 + 5 * 0.25
    assert found.load_imbalance == 5 / 3


TOKENS = arrays(np.int64, (4, 8), elements=st.integers(0, 60))


@settings(max_examples=10, deadline=None)
@given(TOKENS, st.sampled_from([0, 4, 8]))
def test_placements_are_possible_and_keep_the_copies(
    tokens: np.ndarray, replicas: int
) -> None:
    cluster = Cluster(rate_bytes_s=1, row_bytes=2, replicas=replicas)
    load = tokens.sum(axis=0).astype(float)
    plans = [balance(load, ranks=4, slots=8 + replicas)]
    plans += [Swaps().plan(view_of(tokens, cluster))]
    for plan in plans:
        assert cluster.check(plan, np.zeros((4, 8))) == ""
        copies = rank_copies(tokens, plan)
        assert copies.sum() == pytest.approx(tokens.sum())
        assert copies.sum(axis=1) == pytest.approx(tokens.sum(axis=1))
    change = swapped(plans[1], load, 4)
    if change is not None:
        before, after = (max(rank_loads(p, load)) for p in (plans[1], change))
        assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (ExpertPlacement(experts=np.arange(4), ranks=np.zeros(4, int)), "2 slots"),
        (ExpertPlacement(experts=np.zeros(4, int), ranks=np.arange(4) % 2), "expert"),
        (ExpertPlacement(experts=np.arange(3), ranks=np.arange(3)), "4 slots"),
        ("a text", "ExpertPlacement"),
    ],
)
def test_impossible_placements(plan: object, why: str) -> None:
    assert why in Cluster(rate_bytes_s=1).check(plan, np.zeros((2, 4)))


def test_impossible_clusters() -> None:
    with pytest.raises(FabricError, match="token_s must be at least 0"):
        Cluster(rate_bytes_s=1, token_s=-1)


def test_affinity_keeps_the_most_copies_on_their_rank() -> None:
    rng = np.random.default_rng()
    tokens = rng.integers(0, 50, (3, 6))
    plan = beside_tokens(tokens, 6)
    best = max(
        tokens[np.array(ranks), np.arange(6)].sum()
        for ranks in set(permutations([0, 0, 1, 1, 2, 2]))
    )
    assert tokens[plan.ranks, plan.experts].sum() == best


def stages_and_groups(steps: int = 20) -> Trace:
    """Two pipeline stages of four ranks, each with two groups of two."""
    rng = np.random.default_rng()
    share = rng.dirichlet(np.full(4, 0.5))
    counts = rng.multinomial(500, share, size=(steps, 1, 8))
    run = Trace.from_arrays(counts, placement=[0, 2, 4, 6])
    groups = [(0, 1), (2, 3), (4, 5), (6, 7)]

    def place(load: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(4), np.arange(4) * ranks // 4

    run = relocate(run, Relocation(ranks=8, groups=groups, place=place))
    sites = [replace(s, layer=s.group // 2) for s in run.sites]
    placements = run.placements.copy()
    placements["layer"] = placements["group"] // 2
    meta = replace(run.meta, pp=2, dp=4)
    return run.replaced(meta=meta, placements=placements, sites=sites)


def test_several_groups_and_pipeline_stages() -> None:
    trace = stages_and_groups()
    sent, routed = byte_series(trace), token_series(trace)
    assert {n: x.shape[1:] for n, x in sent.layers.items()} == {0: (4, 4), 1: (4, 4)}
    assert sent.ranks == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    assert not sent.layers[0][:, :2, 2:].any()  # nothing between groups
    assert list(routed.layers) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    for key, tokens in routed.layers.items():
        at = [r % 4 for r in routed.ranks[key]]
        own = tokens.reshape(len(tokens), 2, 2, 2).sum(axis=3)
        between = sent.layers[key[0]][:, at][:, :, at]  # type: ignore[index]
        assert (own * routed.row_bytes == between).all()
    fabric = load_fabric("leaf-spine", 8, capacity="400Gbps")
    found = evaluate(
        trace,
        ["rotation", "static-mean", "all-at-once", "fast", "eplb", "swaps"],
        networks={
            "optical": OPTICAL,
            "leaves": PacketNetwork(network=fabric),
            "cluster": Cluster(rate_bytes_s=1e9, token_s=1e-9),
        },
        forecasters=["persistence"],
    )
    assert found.data["failures"] == []
    assert len(by_name(found)) == 9
    assert found.data["runs"][0]["layers"] == [0, 1]
    bounded = [s for s in rows_of(found) if s.family != "placement"]
    assert min(s.over_bound for s in bounded) >= 1


def test_a_layer_waits_for_its_slowest_group() -> None:
    """Contiguous experts: every time, load and moved byte by hand."""
    trace = stages_and_groups()
    cluster = Cluster(rate_bytes_s=1e6, row_bytes=3, token_s=1e-5, expert_bytes=1e3)
    asked: dict[str, Any] = {"networks": {"cluster": cluster}}
    found = evaluate(trace, ["contiguous", "eplb"], **asked, forecasters=())
    (run,) = found.data["runs"]
    assert (run["ranks"], run["layers"]) == (8, [0, 1])
    fixed, planned = rows_of(found)
    assert fixed.exchanges == planned.exchanges == 10 * 2
    tokens = token_series(trace).layers
    seconds, ratios = [], []
    for step in range(10, 20):
        for layer in (0, 1):
            groups = [np.array(t[step]) for key, t in tokens.items() if key[0] == layer]
            copies = [g.reshape(2, 2, 2).sum(axis=2) for g in groups]
            crossing = [max(c[0, 1], c[1, 0]) for c in copies]
            load = np.array([c.sum(axis=0) for c in copies])
            each = 2 * 3 * np.array(crossing) / 1e6 + 1e-5 * load.max(axis=1)
            seconds.append(each.max())
            ratios.append(load.max() / load.mean())
    assert fixed.completion_mean_s == pytest.approx(np.mean(seconds))
    assert fixed.completion_p99_s == pytest.approx(np.quantile(seconds, 0.99))
    assert fixed.load_imbalance == pytest.approx(np.mean(ratios))
    moved = 0.0
    for group in tokens.values():
        plans = [balance(group[n].sum(axis=0), ranks=2, slots=4) for n in range(10, 20)]
        for one, other in pairwise(plans):
            moved += cluster.serve(group[0], other, one).moved_bytes
    assert planned.moved_bytes == pytest.approx(moved / 20)


def skewed(steps: int = 32) -> Trace:
    rng = np.random.default_rng()
    share = rng.dirichlet(np.full(8, 0.5))
    return Trace.from_arrays(rng.multinomial(500, share, size=(steps, 1, 4)))


def test_eplb_is_faster_than_fixed_experts_on_a_steady_skew() -> None:
    cluster = Cluster(rate_bytes_s=1e9, token_s=1e-8, replicas=8)
    found = evaluate(
        skewed(),
        ["contiguous", "strided", "eplb", "swaps"],
        networks={"cluster": cluster},
        forecasters=["persistence"],
        hold=4,
    )
    assert found.data["failures"] == []
    score = {s.policy: s for s in rows_of(found) if s.forecaster != "oracle"}
    assert score["eplb"].load_imbalance < score["contiguous"].load_imbalance
    assert score["swaps"].load_imbalance < score["contiguous"].load_imbalance
    assert score["eplb"].completion_mean_s < score["contiguous"].completion_mean_s
    assert score["contiguous"].moved_experts == score["contiguous"].moved_bytes == 0
    moved = any(s.moved_experts for s in rows_of(found))  # hardly ever none
    free = "is free here (--expert-bytes 0)."
    assert (free in " ".join(found.verdict)) == moved
    paid = evaluate(
        skewed(),
        ["eplb"],
        networks={"cluster": replace(cluster, expert_bytes=10)},
        forecasters=["persistence"],
    )
    assert all(s.moved_bytes == 10 * s.moved_experts for s in rows_of(paid))
    assert free not in " ".join(paid.verdict)
