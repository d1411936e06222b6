"""What holds of every router in every dispatch form, on real ranks and virtual ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from moetraffic.capture.annotate import ShardRouting, subscribe_shards
from moetraffic.gating import build
from moetraffic.models.layers.virtual_moe import Shards, VirtualMixture
from moetraffic.patterns import ROUTERS, Gating
from moetraffic.trace import PHASES, Group, Meta, Steps
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.model import TRANSPOSED_PHASES
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.workload.routing import broken_rules

Run = Callable[..., list[Any]]

FORMS = [(r, form) for r, spec in ROUTERS.items() for form in spec.dispatch]


@st.composite
def cases(draw: st.DrawFn, world: int, router: str, form: str) -> dict[str, Any]:
    """Sizes with which a router can work; tokens need not divide."""
    spec = ROUTERS[router]
    experts = world * draw(st.integers(1, 4))
    tokens = draw(st.integers(1, 40))
    if router.startswith("fairscale"):
        tokens = experts * draw(st.integers(1, 4))
    gating = Gating(
        router=router,
        k=spec.k or draw(st.integers(1, min(3, experts))),
        dispatch=form,
        capacity_factor=spec.capacity_factor or draw(st.sampled_from([0.3, 1.0, 1.7])),
    )
    virtual = False
    assume(not broken_rules(gating, experts=experts, tokens=tokens, virtual=virtual))
    return {"gating": asdict(gating), "experts": experts, "tokens": tokens}


@st.composite
def one_of_each(draw: st.DrawFn, world: int) -> list[dict[str, Any]]:
    return [draw(cases(world, router, form)) for router, form in FORMS]


def check(case: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Conservation, transposition and capacity of one layer on all its ranks."""
    world, experts = len(ranks), case["experts"]
    form = case["gating"]["dispatch"]
    demand = torch.stack([r["demand"] for r in ranks])  # [W, E]
    dropped = torch.stack([r["dropped"] for r in ranks])
    kept = (demand - dropped).view(world, world, -1)  # [W, holder, L]
    assert (kept >= 0).all()
    for rank in ranks:
        if rank["k"] is not None:
            assert int(rank["demand"].sum()) == rank["k"] * case["tokens"]
        if form == "dropless":
            assert int(rank["dropped"].sum()) == 0
        if rank["capacity"] is not None:
            assert int((rank["demand"] - rank["dropped"]).max()) <= rank["capacity"]
        (reported,) = rank["reported"]
        assert reported["demand"] == rank["demand"].tolist()
        if reported["dropped"] is not None:
            assert reported["dropped"] == rank["dropped"].tolist()
    if form == "padded":
        rows = ranks[0]["capacity"] * experts // world
        dispatch = torch.full((world, world), rows)
    else:
        dispatch = kept.sum(2)
    for phase in PHASES:
        sent = torch.stack([split(r, phase, "send", world) for r in ranks])
        received = torch.stack([split(r, phase, "receive", world) for r in ranks])
        assert (sent == received.T).all()  # what one sends, another receives
        expected = dispatch.T if phase in TRANSPOSED_PHASES else dispatch
        assert (sent == expected).all(), (case, phase)


def split(rank: dict[str, Any], phase: str, side: str, world: int) -> torch.Tensor:
    """Rows to or from each rank, of 8 numbers: an even split has no list."""
    one = rank["exchanges"][phase]
    if one[side] is not None:
        return torch.tensor(one[side])
    rows = int(np.prod(one["shape"])) // 8
    assert rows % world == 0
    return torch.full((world,), rows // world)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_real_ranks(world: int, run_ranks: Run) -> None:
    @settings(max_examples=2, phases=[Phase.generate], database=None)
    @given(chosen=one_of_each(world))
    def on_ranks(chosen: list[dict[str, Any]]) -> None:
        told = run_ranks("invariants", world, cases=chosen)
        for number, case in enumerate(chosen):
            check(case, [rank[number] for rank in told])

    on_ranks()


@pytest.mark.parametrize(
    ("router", "form"), [one for one in FORMS if one[0] != "fairscale"]
)
@settings(max_examples=8)
@given(data=st.data(), world=st.sampled_from([1, 2, 3, 8]))
def test_virtual_ranks(router: str, form: str, data: st.DataObject, world: int) -> None:
    case = data.draw(cases(world, router, form))
    gating, experts, tokens = Gating(**case["gating"]), case["experts"], case["tokens"]
    heard: list[ShardRouting] = []
    end = subscribe_shards(heard.append)
    try:
        layer = VirtualMixture(
            build(gating, 8, experts),
            experts=experts,
            hidden=8,
            width=8,
            dispatch=form,
            layer=0,
        )
        torch.manual_seed(0)
        for p in layer.parameters():
            torch.nn.init.normal_(p)
        layer.shards = Shards(
            count=world, first=0, slot=0, members=tuple(range(world)), width=world
        )
        x = torch.randn(world * tokens, 8, requires_grad=True)
        y, routing = layer(x, ids=torch.randint(256, (world * tokens,)))
        y.square().sum().backward()
    finally:
        end()
    (told,) = heard
    dropped = told.dropped
    assert (told.demand.sum(0) == routing.demand()).all()
    assert ((told.demand - dropped).sum(0) == routing.load()).all()
    assert (told.demand >= dropped).all()
    if routing.capacity is not None:
        assert int((told.demand - dropped).max()) <= routing.capacity
    if routing.k is not None:
        assert (told.demand.sum(1) == routing.k * tokens).all()
    # the trace that follows from it keeps the same rules as real ranks' splits
    groups = [Group(kind="ep", ranks=tuple(range(world)))]
    trace = trace_of_routing(
        [
            RoutedLayer(
                layer=0,
                slot=0,
                iteration=np.array([0]),
                demand=ArrayPanel(told.demand.numpy()[None].astype(np.int32)),
                dropped=ArrayPanel(dropped.numpy()[None].astype(np.int32)),
                row_bytes=told.row_bytes,
                dtype=told.dtype,
                padded=told.padded,
            )
        ],
        groups=groups,
        placements=contiguous_placement(groups, [0], experts),
        meta=Meta(world=world, ep=world, dp=world),
        steps=Steps.of_training(np.array([0]), world, tokens=tokens),
    )
    ranks = [
        {
            "demand": told.demand[r],
            "dropped": dropped[r],
            "capacity": routing.capacity,
            "k": routing.k,
            "reported": [{"demand": told.demand[r].tolist(), "dropped": None}],
            "exchanges": {
                phase: {
                    "send": sent(trace, phase)[r].tolist(),
                    "receive": sent(trace, phase)[:, r].tolist(),
                }
                for phase in PHASES
            },
        }
        for r in range(world)
    ]
    check(case, ranks)


def sent(trace: Any, phase: str) -> np.ndarray:
    """Rows between the virtual ranks."""
    (wire,) = trace.wire(trace.find(phase=phase))
    assert (wire % 32 == 0).all()  # rows of 8 float32
    return wire // 32
