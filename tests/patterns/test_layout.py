from __future__ import annotations

from itertools import chain, permutations, product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from moetraffic.cli.workload import describe
from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.patterns.layout import GROUP_KINDS, nested
from moetraffic.patterns.rules import AXES

ORDERS = ["-".join(order) for order in permutations(AXES)]
SIZES = some.integers(1, 3)


@pytest.mark.parametrize(
    ("p", "t", "d", "tp", "dp", "pp", "embedding"),
    [
        # the three of the APNet'24 study's figures
        (4, 2, 4, (0, 1), (0, 2, 4, 6), (0, 8, 16, 24), (0, 24)),
        (4, 4, 4, (0, 1, 2, 3), (0, 4, 8, 12), (0, 16, 32, 48), (0, 48)),
        (2, 8, 4, tuple(range(8)), (0, 8, 16, 24), (0, 32), (0, 32)),
    ],
)
def test_megatrons_order(
    p: int,
    t: int,
    d: int,
    tp: tuple[int, ...],
    dp: tuple[int, ...],
    pp: tuple[int, ...],
    embedding: tuple[int, ...],
) -> None:
    layout = Layout(pp=p, tp=t, dp=d)
    first = [layout.groups(kind)[0] for kind in ("tp", "dp", "pp", "embedding")]
    assert first == [tp, dp, pp, embedding]
    # every other group is the first one moved along
    for rank in range(t):
        assert layout.groups("dp")[rank] == tuple(r + rank for r in dp)
    for rank in range(t * d):
        assert layout.groups("pp")[rank] == tuple(r + rank for r in pp)


def test_a_rank_is_where_the_formula_says() -> None:
    layout = Layout(tp=2, cp=3, dp=4, pp=2)
    for pp in range(2):
        for dp in range(4):
            for cp in range(3):
                for tp in range(2):
                    rank = tp + 2 * (cp + 3 * (dp + 4 * pp))
                    assert rank in layout.groups("tp")[cp + 3 * (dp + 4 * pp)]
                    assert layout.stage_of[rank] == pp


@given(
    order=some.sampled_from(ORDERS),
    ep=SIZES,
    etp=SIZES,
    edp=SIZES,
    tp=SIZES,
    cp=some.integers(1, 2),
    pp=SIZES,
)
def test_both_grids_partition_the_world(
    order: str, ep: int, etp: int, edp: int, tp: int, cp: int, pp: int
) -> None:
    ranks = ep * etp * edp
    assume(ranks % (tp * cp) == 0)
    wanted = {"tp": tp, "cp": cp, "dp": ranks // tp // cp, "pp": pp, "ep": ep}
    try:
        layout = Layout(**wanted, etp=etp, order=order)
        layout.groups("world")
    except LayoutError:
        # both grids must have the same stages, which they have with pp at an end
        assert "pp" not in (order[:2], order[-2:])
        assume(False)
    sizes = {
        **{"tp": tp, "cp": cp, "dp": layout.dp, "dp_cp": layout.dp * cp, "pp": pp},
        **{"mp": tp * pp, "etp": etp, "ep": ep, "edp": edp, "etp_ep": etp * ep},
        "world": layout.world,
        **{"dp_shard": layout.dp * cp, "dp_replicate": 1},  # all copies shard
        **{"edp_shard": edp, "edp_replicate": 1},
        **{"ep_within": ep, "ep_across": 1},  # all are on one node
        # a stage's and the mirrored one's; the middle one is its own
        "dp_pair": layout.dp * cp * (2 if pp % 2 == 0 else 1),
        "edp_pair": edp * (2 if pp % 2 == 0 else 1),
    }
    for kind in set(GROUP_KINDS) - {"embedding"}:
        groups = layout.groups(kind)
        assert sorted(chain(*groups)) == list(range(layout.world))
        if kind.endswith("_pair") and pp % 2 and pp > 1:
            continue  # the middle stage is its own mirror
        assert {len(g) for g in groups} == {sizes[kind]}
    # a stage's ranks share no pipeline
    for kind in ("tp", "cp", "dp", "ep", "etp", "edp"):
        for group in layout.groups(kind):
            assert len({layout.stage_of[rank] for rank in group}) == 1


@given(ep=SIZES, edp=SIZES, tp=SIZES, pp=SIZES, order=some.sampled_from(ORDERS))
def test_experts_of_a_layout_that_trains_cross_in_its_replicas(
    ep: int, edp: int, tp: int, pp: int, order: str
) -> None:
    sizes = {"ep": ep, "dp": ep * edp, "tp": tp, "pp": pp}
    try:
        layout = Layout(**sizes, order=order)
        layout.groups("world")
    except LayoutError:
        assume(False)
    groups = {kind: set(layout.groups(kind)) for kind in ("tp", "etp", "dp")}
    if not nested(layout):
        assert groups["tp"] != groups["etp"]
        return
    assert groups["tp"] == groups["etp"]
    for dp in groups["dp"]:
        for kind in ("ep", "edp"):
            inside = [g for g in layout.groups(kind) if set(g) <= set(dp)]
            assert sorted(chain(*inside)) == sorted(dp)
        for one, other in product(layout.groups("ep"), layout.groups("edp")):
            if set(one) | set(other) <= set(dp):
                assert len(set(one) & set(other)) == 1


def test_experts_need_not_be_split_as_their_layers_are() -> None:
    layout = Layout(tp=2, dp=4, ep=4, etp=1)
    assert layout.groups("ep") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert layout.groups("edp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    # context-parallel ranks, too, hold experts
    layout = Layout(cp=2, dp=2, ep=4)
    assert layout.groups("ep") == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"tp": 0}, "tp must be at least 1, but is 0"),
        ({"dp": 4, "ep": 3}, "must divide tp x cp x dp"),
        ({"etp": -1}, "etp must be at least 0"),
        ({"order": "tp-dp"}, "must name tp, cp, ep, dp, pp once each"),
        ({"tp": 2, "dp": 2, "pp": 2, "etp": 1, "order": "tp-pp-cp-ep-dp"}, "same pipe"),
    ],
)
def test_impossible_grids(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        Layout(**sizes).groups("world")


def test_unknown_kind() -> None:
    with pytest.raises(LayoutError, match="a group kind is one of"):
        Layout().groups("rows")


@pytest.mark.parametrize(
    ("layout", "changes", "said"),
    [
        ({"tp": 3}, {}, "tp must divide the attention heads, but there are 4 for tp 3"),
        ({"tp": 4}, {"hidden": 12, "ffn": 12, "heads": 4}, None),
        ({"tp": 2}, {"hidden": 4, "ffn": 4}, None),
        ({"tp": 4}, {"hidden": 6, "ffn": 6, "heads": 2}, "tp must divide"),
        (
            {"pp": 5},
            {},
            "there are 4 layers for pp x virtual = 5 x 1",
        ),
        ({"pp": 2}, {"accumulation": 1}, "needs as many micro-batches as stages"),
        ({"pp": 2, "zero": 1}, {}, None),
        ({"pp": 2, "zero": 2}, {}, "ZeRO stage 0 or 1"),
        ({"cp": 2}, {}, "not support context parallelism"),
        ({"tp": 2, "dp": 2, "etp": 1}, {}, "leave out --etp"),
        (
            {"tp": 2, "dp": 2, "ep": 2, "order": "ep-tp-cp-dp-pp"},
            {},
            "put ep next to dp",
        ),
        ({"dp": 3, "ep": 3}, {}, "ep must divide the experts"),
    ],
)
def test_what_cannot_be_trained_is_said_before_it_starts(
    layout: dict[str, Any], changes: dict[str, Any], said: str | None
) -> None:
    accumulation = changes.pop("accumulation", 8)

    def make() -> Workload:
        return Workload(
            model=ModelShape(**changes),
            layout=Layout(**layout),
            training=Training(accumulation=accumulation),
        )

    if said is None:
        assert Workload.from_json(make().to_json()) == make()
        return
    with pytest.raises(LayoutError, match=said):
        make()


def test_dp_and_ep_follow_from_the_ranks() -> None:
    layout = describe(8, {"tp": 2, "pp": 2, "order": None}).layout
    assert (layout.dp, layout.ep, layout.world) == (2, 2, 8)
    assert describe(8, {"tp": 2, "pp": 2}).training.accumulation == 2
    assert describe(8, {"ep": 2}).layout == Layout(dp=8, ep=2)
    assert describe(4, {"dp": 4, "zero": 2}).layout.zero == 2


def test_lists_are_layouts_one_by_one() -> None:
    lists = Layout(dp=[1, 2, 4], recompute=["none", "full", "none"], tp=2)
    assert lists.shape == (3,)
    assert lists.at(1) == Layout(dp=2, recompute="full", tp=2)
    assert lists.world.tolist() == [lists.at(n).world for n in range(3)]
    batches = Layout(dp=[2, 4], micro_batch=1, global_batch=8)
    assert batches.accumulation.tolist() == [4, 2]
    several = Layout(model=[ModelShape(), ModelShape(layers=8)], k=2)
    assert several.arrays().sizes.layers.tolist() == [4, 8]
    assert several.at(1).model == ModelShape(layers=8)


def test_sizes_and_strides_of_groups_are_those_of_the_ranks() -> None:
    layout = Layout(tp=2, cp=2, dp=8, pp=2, ep=4, shard=4, zero=1, gpus_per_node=8)
    arrays = layout.arrays()
    for kind in set(GROUP_KINDS) - {"dp_pair", "edp_pair"}:
        first = layout.groups(kind)[0]
        ranks, stride = arrays.group(kind)
        assert len(first) == ranks
        if len(first) > 1:
            assert first[1] - first[0] == stride
