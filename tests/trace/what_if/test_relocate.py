"""Captured routing on other ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError, TraceError
from moetraffic.patterns import Layout
from moetraffic.patterns.placement import place
from moetraffic.trace import ALL_TO_ALL, Group, Meta, Steps, Trace
from moetraffic.trace.model import PLACEMENT, TRANSPOSED_PHASES
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.totals import totals
from moetraffic.trace.what_if.relocate import Relocation, relocate, routed_layers


def made(
    ranks: int = 4,
    experts: int = 8,
    ep: int = 4,
    *,
    iterations: int = 6,
    padded: int = 0,
    drops: bool = False,
    evaluates: bool = False,
    seed: int = 0,
) -> Trace:
    """A trace of two layers whose routing is skewed and random.

    With ``evaluates`` the last iteration is an evaluation, of one micro-batch of two.
    """
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(experts, 0.5), size=(2, 1))
    groups = [Group(kind="ep", ranks=r) for r in Layout(dp=ranks, ep=ep).groups("ep")]
    layers = []
    for slot, layer in [(s, n) for s in range(1 + evaluates) for n in range(2)]:
        mine = iterations - slot
        demand = rng.multinomial(96, share[layer, 0], size=(mine, ranks))
        dropped = demand - np.minimum(demand, 20)
        layers.append(
            RoutedLayer(
                layer=layer,
                slot=slot,
                iteration=np.arange(mine),
                demand=ArrayPanel(demand.astype(np.int32)),
                dropped=ArrayPanel(dropped.astype(np.int32)) if drops else None,
                row_bytes=256,
                dtype="float32",
                padded=padded,
            )
        )
    rows = [
        (g, layer, e, 0, group.ranks[e * ep // experts], 0)
        for g, group in enumerate(groups)
        for layer in range(2)
        for e in range(experts)
    ]
    shape = (iterations, ranks)
    return trace_of_routing(
        layers,
        groups=groups,
        placements=np.array(rows, PLACEMENT),
        meta=Meta(
            world=ranks,
            dp=ranks,
            ep=ep,
            experts=experts,
            dispatch="padded" if padded else "dropped" if drops else "dropless",
            nodes=("",) * ranks,
        ),
        steps=Steps(
            iteration=np.arange(iterations),
            kind=("train",) * (iterations - evaluates) + ("evaluation",) * evaluates,
            loss=np.ones(shape),
            tokens=np.full(shape, 48),
            start=np.zeros(shape, np.int64),
            end=np.ones(shape, np.int64),
            source=np.zeros(iterations, np.uint8),
        ),
    )


def to(
    ranks: int, ep: int, name: str = "contiguous", more: int = 0, every: int = 0
) -> Relocation:
    def put(load: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        return place(name, load, width, len(load) + more)

    return Relocation(
        ranks=ranks,
        groups=Layout(dp=ranks, ep=ep).groups("ep"),
        place=partial(put),
        every=every,
    )


def whole_wire(trace: Trace, phase: str, layer: int) -> np.ndarray:
    """``[n, R, R]`` of a layer's phase, in world ranks."""
    iterations = len(trace.steps.iteration)
    out = np.zeros((iterations, trace.meta.world, trace.meta.world), np.int64)
    for number, site in enumerate(trace.sites):
        if (site.phase, site.layer) == (phase, layer):
            of = np.flatnonzero(trace.occurrences.site == number)
            ranks = np.array(trace.groups[site.group].ranks)
            out[:, ranks[:, None], ranks] += trace.wire(of)
    return out


def test_evaluations_are_left_out() -> None:
    """They have fewer micro-batches, and no backward pass."""
    trace = made(evaluates=True)
    moved = relocate(trace, to(4, 4))
    assert moved.iterations.tolist() == list(range(5))
    assert set(moved.steps.kind) == {"train"}
    assert totals(moved) == totals(trace)  # of the training
    assert totals(relocate(trace, to(4, 2))).bytes == totals(trace).bytes


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_the_busiest_rank_is_that_of_all_groups(ep: int) -> None:
    trace = relocate(made(ranks=8, ep=8), to(8, ep))
    received = np.array([whole_wire(trace, "dispatch", n).sum(axis=1) for n in (0, 1)])
    ratio = received.max(axis=2) / received.mean(axis=2)
    assert totals(trace).busiest_rank_over_mean == pytest.approx(ratio.mean())


def test_the_same_place_is_the_same_trace() -> None:
    trace = made()
    again = relocate(trace, to(4, 4))
    for phase in ("dispatch", "combine"):
        assert (whole_wire(again, phase, 1) == whole_wire(trace, phase, 1)).all()
    assert again.sites == trace.sites


@given(
    ep=st.sampled_from([1, 2, 4, 8]),
    ranks=st.sampled_from([8, 4]),
    name=st.sampled_from(["contiguous", "strided", "greedy"]),
    more=st.sampled_from([0, 8]),
    every=st.sampled_from([0, 2, 5]),
    drops=st.booleans(),
    seed=st.integers(0, 5),
)
def test_nothing_is_lost_wherever_the_experts_lie(
    ep: int, ranks: int, name: str, more: int, every: int, drops: bool, seed: int
) -> None:
    trace = made(ranks=8, experts=8, ep=8, drops=drops, seed=seed)
    ep = min(ep, ranks)
    moved = relocate(trace, to(ranks, ep, name, more, every))
    for layer, source in zip(moved.layers, routed_layers(trace), strict=True):
        sent = whole_wire(moved, "dispatch", layer)
        a_rank = source.kept(0, len(sent)).reshape(len(sent), ranks, -1).sum(axis=2)
        assert (sent.sum(axis=2) == 256 * a_rank).all()  # each rank sends its copies
        for phase in ("combine", "combine_grad", "dispatch_grad"):
            turned = sent.transpose(0, 2, 1) if phase in TRANSPOSED_PHASES else sent
            assert (whole_wire(moved, phase, layer) == turned).all()


def test_an_expert_receives_what_was_routed_to_it() -> None:
    trace = made(ranks=4, experts=8, ep=4)
    moved = relocate(trace, to(4, 2, "greedy"))
    layer = routed_layers(trace)[0]
    for number, group in enumerate(moved.groups):
        holder = moved.holder(0, number, 0)  # [E] group rank
        ranks = list(group.ranks)
        kept = layer.kept(0, 6)[:, ranks].sum(axis=1)  # [n, E]
        received = whole_wire(moved, "dispatch", 0)[:, :, ranks].sum(axis=1)
        for member in range(2):
            mine = kept[:, holder == member].sum(axis=1)
            assert (received[:, member] == 256 * mine).all()


def test_replicas_share_evenly() -> None:
    trace = made(ranks=4, experts=2, ep=2)
    moved = relocate(trace, to(4, 4, "strided", more=2))  # a slot a rank
    kept = routed_layers(trace)[0].kept(0, 6)
    sent = whole_wire(moved, "dispatch", 0) // 256
    rows = moved.placements[moved.placements["layer"] == 0]
    for expert in (0, 1):
        held = rows[rows["expert"] == expert]["rank"]
        parts = sent[:, :, held]
        assert (parts.sum(axis=2) == kept[:, :, expert]).all()
        assert (parts.max(axis=2) - parts.min(axis=2) <= 1).all()


def test_a_padded_layer_sends_its_slots_whatever_is_routed() -> None:
    moved = relocate(made(ranks=4, experts=8, ep=4, padded=5), to(4, 2))
    sent = whole_wire(moved, "dispatch", 0)
    assert np.unique(sent[sent > 0]).tolist() == [4 * 5 * 256]  # 4 experts, 5 rows
    assert (sent.sum(axis=2) == 8 * 5 * 256).all()


def test_a_placement_anew_goes_by_the_past_alone() -> None:
    trace = made(iterations=6, ranks=4, experts=8, ep=4)
    moved = relocate(trace, to(4, 4, "greedy", every=2))
    rows = moved.placements[moved.placements["layer"] == 0]
    assert np.unique(rows["valid_from"]).tolist() == [0, 2, 4]
    first = rows[rows["valid_from"] == 0]
    assert first["rank"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    load = routed_layers(trace)[0].kept(2, 4).sum(axis=(0, 1)).astype(float)
    _, expected = place("greedy", load, 4, 8)
    assert rows[rows["valid_from"] == 4]["rank"].tolist() == expected.tolist()


def test_iterations_between_placements_are_counted_by_their_numbers() -> None:
    """Recorded are iterations 0, 10 to 40 and 60 to 70: none is lost between these."""
    trace = made(iterations=6, ranks=4, experts=8, ep=4)
    when = np.array([0, 10, 20, 40, 60, 70])
    calls = trace.occurrences
    trace = trace.replaced(
        occurrences=replace(calls, iteration=when[calls.iteration]),
        steps=replace(trace.steps, iteration=when),
    )
    moved = relocate(trace, to(4, 4, "greedy", every=20))
    rows = moved.placements[moved.placements["layer"] == 0]
    assert np.unique(rows["valid_from"]).tolist() == [0, 20, 40, 60]
    for start, used in ((20, slice(0, 2)), (40, slice(2, 3)), (60, slice(3, 4))):
        load = routed_layers(trace)[0].kept(0, 6)[used].sum(axis=(0, 1)).astype(float)
        _, expected = place("greedy", load, 4, 8)
        assert rows[rows["valid_from"] == start]["rank"].tolist() == expected.tolist()


def test_greedy_evens_out_a_captured_run(captured: Path) -> None:
    with Trace.open(captured) as trace:
        spreads = {}
        for name in ("contiguous", "greedy"):
            moved = relocate(trace, to(trace.meta.world, trace.meta.ep, name))
            received = whole_wire(moved, "dispatch", trace.layers[0]).sum(axis=(0, 1))
            spreads[name] = received.max() / received.mean()
        assert 1 <= spreads["greedy"] <= spreads["contiguous"]


def test_a_saved_placement_is_read_back(tmp_path: Path) -> None:
    moved = relocate(made(ranks=4, experts=4, ep=4), to(4, 4, "greedy", more=4))
    moved.save(tmp_path / "placed.h5")
    with Trace.open(tmp_path / "placed.h5") as again:
        assert again.sites == moved.sites
        assert (again.placements == moved.placements).all()
        assert (
            whole_wire(again, "combine", 1) == whole_wire(moved, "combine", 1)
        ).all()


def test_refused(tmp_path: Path) -> None:
    trace = made()
    trace.meta = replace(trace.meta, tp=2)
    with pytest.raises(TraceError, match="tp x pp x cp = 2 x 1 x 1"):
        relocate(trace, to(4, 4))
    trace = made()
    with pytest.raises(LayoutError, match="3 does not divide the capture's 4"):
        relocate(trace, Relocation(ranks=3, groups=[(0, 1, 2)], place=to(4, 4).place))
    silent = trace.select(trace.find(operation=ALL_TO_ALL))
    with pytest.raises(TraceError, match="holds no routing"):
        relocate(silent, to(4, 4))
