from __future__ import annotations

from itertools import chain, permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some

from moetraffic.errors import LayoutError
from moetraffic.patterns import ParallelLayout
from moetraffic.patterns.grid import KINDS, MegatronGrid, stage_of
from moetraffic.patterns.layout import AXES

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
    grid = MegatronGrid(pp=p, tp=t, dp=d)
    first = [grid.groups(kind)[0] for kind in ("tp", "dp", "pp", "embedding")]
    assert first == [tp, dp, pp, embedding]
    # every other group is the first one moved along
    for rank in range(t):
        assert grid.groups("dp")[rank] == tuple(r + rank for r in dp)
    for rank in range(t * d):
        assert grid.groups("pp")[rank] == tuple(r + rank for r in pp)


def test_a_rank_is_where_the_formula_says() -> None:
    grid = MegatronGrid(tp=2, cp=3, dp=4, pp=2)
    for pp in range(2):
        for dp in range(4):
            for cp in range(3):
                for tp in range(2):
                    rank = tp + 2 * (cp + 3 * (dp + 4 * pp))
                    assert rank in grid.groups("tp")[cp + 3 * (dp + 4 * pp)]
                    assert stage_of(grid)[rank] == pp


@settings(max_examples=40, deadline=None)
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
        grid = MegatronGrid(**wanted, etp=etp, order=order)
    except LayoutError:
        # both grids must have the same stages, which they have with pp at an end
        assert "pp" not in (order[:2], order[-2:])
        assume(False)
    sizes = {
        **{"tp": tp, "cp": cp, "dp": grid.dp, "dp_cp": grid.dp * cp, "pp": pp},
        **{"mp": tp * pp, "etp": etp, "ep": ep, "edp": edp, "etp_ep": etp * ep},
        "world": grid.world,
    }
    for kind in set(KINDS) - {"embedding"}:
        groups = grid.groups(kind)
        assert sorted(chain(*groups)) == list(range(grid.world))
        assert {len(g) for g in groups} == {sizes[kind]}
    # a stage's ranks share no pipeline
    for kind in ("tp", "cp", "dp", "ep", "etp", "edp"):
        for group in grid.groups(kind):
            assert len({stage_of(grid)[rank] for rank in group}) == 1


@settings(max_examples=20, deadline=None)
@given(ep=SIZES, edp=SIZES, tp=SIZES, pp=SIZES)
def test_it_is_the_layout_that_trains(ep: int, edp: int, tp: int, pp: int) -> None:
    # where experts are split as their layers are, and no sequence is
    sizes = {"ep": ep, "dp": ep * edp, "tp": tp, "pp": pp}
    layout, grid = ParallelLayout(**sizes), MegatronGrid(**sizes)
    for kind in ("tp", "dp", "pp", "ep", "edp", "embedding", "world"):
        assert layout.groups(kind) == grid.groups(kind)


def test_experts_need_not_be_split_as_their_layers_are() -> None:
    grid = MegatronGrid(tp=2, dp=4, ep=4, etp=1)
    assert grid.groups("ep") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert grid.groups("edp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    # context-parallel ranks, too, hold experts
    grid = MegatronGrid(cp=2, dp=2, ep=4)
    assert grid.groups("ep") == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"tp": 0}, "at least 1, but tp is 0"),
        ({"dp": 4, "ep": 3}, "must divide tp x cp x dp"),
        ({"etp": -1}, "etp must be at least 1"),
        ({"order": "tp-dp"}, "must name tp, cp, ep, dp, pp once each"),
        ({"tp": 2, "dp": 2, "pp": 2, "etp": 1, "order": "tp-pp-cp-ep-dp"}, "same pipe"),
    ],
)
def test_impossible_grids(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        MegatronGrid(**sizes)


def test_unknown_kind() -> None:
    with pytest.raises(LayoutError, match="a group kind is one of"):
        MegatronGrid().groups("rows")
