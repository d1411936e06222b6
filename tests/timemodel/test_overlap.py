"""What hides behind which compute, against schedules that are played out here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, ModelShape
from moetraffic.patterns.schedules import passes
from moetraffic.timemodel import Estimate, System, estimate
from moetraffic.timemodel.estimate import WINDOWS, paired_share

LAYERS = 8
GPT = ModelShape(
    layers=LAYERS, hidden=512, heads=8, sequence=256, vocabulary=4096, experts=0
)
MOE = replace(GPT, experts=16, moe_every=1)


def made(bandwidth: float, model: ModelShape = GPT, **named: Any) -> Estimate:
    kinds = dict.fromkeys(("tp", "cp", "pp", "ep", "dp", "edp"), 1.0)
    config = Layout(
        model=model,
        **{"global_batch": 16, "gradient_dtype": 2, "k": 2 if model.experts else 0},
        **named,
    )
    system = System(
        peak_flops=1e14, utilization=0.5, bandwidth=bandwidth, overlap=kinds
    )
    return estimate(config, system)


def played(computes: list[float], sends: list[list[float]]) -> float:
    """Seconds from the first compute to the end of all: what a layer sends begins when
    its compute has ended and the network is free."""
    clock = network = 0.0
    for compute, sent in zip(computes, sends, strict=True):
        clock += compute
        for one in sent:
            network = max(network, clock) + one
    return max(clock, network)


@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 5e9, 2e10, 1e12])
def test_gradients_hide_behind_the_last_backward_pass(bandwidth: float) -> None:
    found = made(bandwidth, dp=4)
    config, m = found.config, 4
    backward = float(found.compute) / m * 2 / 3
    whole = float(found.communication["dp"])
    held = float(config.held)
    layer = float(config.sizes.dense_whole + config.sizes.dense_split)
    ends = float(config.table + config.sizes.first_whole)
    parts = [[whole * layer / held] for _ in range(LAYERS)]
    parts[0].insert(0, whole * float(config.sizes.last_whole) / held)
    parts[-1].append(whole * ends / held)  # the embedding's gradient is there last
    end = played([backward / LAYERS] * LAYERS, parts)
    expected = backward + whole - end
    hidden = found.overlapped["dp", "gradients"]
    assert float(hidden) == pytest.approx(expected, rel=1e-3)


def gathered(compute: float, gather: float, ahead: int) -> float:
    """Seconds of a pass whose layers are gathered so many ahead of their compute."""
    ends: list[float] = []  # of computes
    network = 0.0
    for layer in range(LAYERS):
        # room for it when the layer that far before begins
        begin = layer - ahead
        free = 0.0 if begin <= 0 else ends[begin - 1]
        network = max(network, free) + gather
        ends.append(max(network, ends[-1] if ends else 0.0) + compute)
    return ends[-1]


@pytest.mark.parametrize("bandwidth", [1e9, 1e10, 1e11, 1e13])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_gathers_hide_behind_the_layer_before(bandwidth: float, ahead: int) -> None:
    found = made(bandwidth, dp=4, zero=3, prefetch=ahead)
    m = 4
    forward = float(found.compute) / m / 3
    (gather,) = (c for c in found.traffic if c.point == "before_forward")
    one = float(gather.moved) / bandwidth / m
    expected = forward + one - gathered(forward / LAYERS, one / LAYERS, ahead)
    hidden = float(found.overlapped["dp", "before_forward"]) / m
    assert hidden == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_backward_shares_its_compute_between_gathers_and_gradients() -> None:
    slow = made(1e9, dp=4, zero=3)
    backward = float(slow.compute) * 2 / 3 * (1 - 1 / LAYERS)
    both = sum(slow.overlapped["dp", f"{p}_backward"] for p in ("before", "after"))
    assert float(both) == pytest.approx(backward)
    fast = made(1e13, dp=4, zero=3)
    assert float(fast.hidden) == pytest.approx(
        float(fast.communication["dp"]) * (1 - 1 / LAYERS)
    )


@pytest.mark.parametrize(("stages", "batches"), [(4, 8), (4, 20), (8, 16), (8, 40)])
def test_dualpipe_pairs_passes_of_both_directions(stages: int, batches: int) -> None:
    """Counted in the order of passes: a forward pass beside a backward pass of the
    other direction, in the steady part and the one behind it."""
    order = passes(0, stages, batches, 1, "dualpipe")
    alone = [p for p in order if not p.backward]
    begin = 2 * (stages // 2 - 1) + 2 + (stages // 2 - 1)  # F, Ff, and the f of bf
    paired = len(alone) - begin
    assert paired_share(stages, batches) == pytest.approx(paired / batches)
    config = {"pp": stages, "dp": 4, "ep": 4, "schedule": "dualpipe"}
    model = replace(MOE, layers=16)
    kinds = {"ep": 1.0}
    found = estimate(
        Layout(model=model, k=2, global_batch=4 * batches, **config),
        System(peak_flops=1e14, bandwidth=1e12, overlap=kinds),
    )
    assert float(found.overlapped["ep", "directions"]) == pytest.approx(
        float(found.communication["ep"]) * paired / batches
    )


def test_rings_hide_behind_attention_and_gathers_of_it_do_not() -> None:
    ring = made(1e14, cp=4)
    assert float(ring.overlapped["cp", "attention"]) == pytest.approx(
        float(ring.communication["cp"])
    )
    slow = made(1e6, cp=4)
    flop = 12 * LAYERS * 256 / 4 * 256 * 512 * 16  # QK and PV, three passes' worth
    behind = slow.overlapped["cp", "attention"]
    assert float(behind) == pytest.approx(3 / 4 * flop / 0.5e14)
    assert not made(1e12, cp=4, context="all-gather").overlapped.get(
        ("cp", "attention")
    )


def test_no_compute_hides_twice_and_terms_add_up() -> None:
    for bandwidth in (1e8, 1e10, 1e12):
        found = made(bandwidth, MOE, tp=2, dp=4, ep=4, sequence_parallel=True)
        assert float(found.hidden) <= float(found.compute) * (1 + 1e-12)
        for kind, sent in found.communication.items():
            mine = [float(t) for (of, _), t in found.overlapped.items() if of == kind]
            assert sum(mine) <= float(sent) * (1 + 1e-12)
        assert {window for _, window in found.overlapped} <= set(WINDOWS)
        whole = found.compute + found.all_communication + found.bubble
        assert float(found.iteration) == pytest.approx(
            float(whole + found.overhead + found.optimizer - found.hidden)
        )


def test_kinds_without_a_window_do_not_overlap() -> None:
    with pytest.raises(LayoutError, match="traffic that overlaps is one of"):
        System(peak_flops=1, overlap={"embedding": 1.0})
