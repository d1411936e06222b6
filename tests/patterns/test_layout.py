from __future__ import annotations

from itertools import chain, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from moetraffic.cli.workload import describe
from moetraffic.errors import LayoutError
from moetraffic.patterns import ModelShape, ParallelLayout, Training, Workload
from moetraffic.patterns.layout import AXES

ORDERS = ["-".join(order) for order in permutations(AXES)]
SIZES = some.integers(1, 3)
LAYOUTS = some.builds(
    lambda ep, edp, **more: ParallelLayout(dp=ep * edp, ep=ep, **more),
    ep=SIZES,
    edp=SIZES,
    tp=SIZES,
    pp=SIZES,
    cp=some.integers(1, 2),
    order=some.sampled_from(ORDERS),
)


def test_megatrons_order() -> None:
    # (p, t, d) = (4, 2, 4), figure 2 of the APNet'24 study too
    layout = ParallelLayout(pp=4, tp=2, dp=4)
    assert layout.groups("tp")[:2] == ((0, 1), (2, 3))
    assert layout.groups("dp")[:3] == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14))
    assert layout.groups("pp")[:2] == ((0, 8, 16, 24), (1, 9, 17, 25))
    assert layout.groups("embedding")[:2] == ((0, 24), (1, 25))


@settings(max_examples=30, deadline=None)
@given(LAYOUTS)
def test_groups_partition_the_world(layout: ParallelLayout) -> None:
    sizes = {"edp": layout.edp, "world": layout.world}
    for kind in (*AXES, "edp", "world"):
        groups = layout.groups(kind)
        assert sorted(chain(*groups)) == list(range(layout.world))
        assert {len(g) for g in groups} == {
            sizes.get(kind) or getattr(layout, kind),
        }
    # a replica's experts: ep and edp cross in one rank, and make up dp
    for dp in layout.groups("dp"):
        for kind in ("ep", "edp"):
            inside = [g for g in layout.groups(kind) if set(g) <= set(dp)]
            assert sorted(chain(*inside)) == sorted(dp)


@settings(max_examples=30, deadline=None)
@given(some.integers(1, 6), some.integers(1, 40))
def test_stages_divide_the_layers_evenly(pp: int, layers: int) -> None:
    stages = ParallelLayout(pp=pp).stages(layers)
    assert list(chain(*stages)) == list(range(layers))
    lengths = [len(stage) for stage in stages]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize(
    ("layout", "changes", "said"),
    [
        ({"tp": 3}, {}, "tp must divide the attention heads, but there are 4 heads"),
        ({"tp": 4}, {"hidden": 12, "ffn": 12, "heads": 4}, None),
        ({"tp": 2}, {"hidden": 4, "ffn": 4}, None),
        ({"tp": 4}, {"hidden": 6, "ffn": 6, "heads": 2}, "tp must divide"),
        ({"pp": 5}, {}, "at least one layer, but there are 4 layers for pp 5"),
        ({"pp": 2}, {"accumulation": 1}, "needs as many micro-batches as stages"),
        ({"pp": 2, "zero": 1}, {}, None),
        ({"pp": 2, "zero": 2}, {}, "ZeRO stage 0 or 1"),
        ({"cp": 2}, {}, "not support context parallelism"),
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
            layout=ParallelLayout(**layout),
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
    assert describe(8, {"ep": 2}).layout == ParallelLayout(dp=8, ep=2)
    assert describe(4, {"dp": 4, "zero": 2}).layout.zero == 2
