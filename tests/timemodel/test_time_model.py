from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, parameter_count, preset
from moetraffic.patterns.bandwidth import BandwidthTable, Sample
from moetraffic.patterns.layout import RECOMPUTE
from moetraffic.patterns.schedules import passes
from moetraffic.studies.apnet24 import counted
from moetraffic.timemodel import (
    MODEL_ERROR,
    MeasuredLinks,
    NodeLinks,
    System,
    estimate,
    memory,
    model_operations,
    operations,
    projected_speedup,
    search,
    sensitivity,
    traffic,
)

L, H, A, S, V = 24, 2048, 16, 1024, 51200
GPT = replace(
    preset("gpt-1.3b").model, layers=L, hidden=H, heads=A, sequence=S, vocabulary=V
)
MOE = preset("mixtral-8x7b").model
FIRST = {"recompute": "full"}
FLAT = System(peak_flops=100e12, utilization=0.5, bandwidth=10e9)


def told(**named: Any) -> Layout:
    given_ = {
        **{"model": GPT, "micro_batch": 2, "global_batch": 64, "gradient_dtype": 2},
        **named,
    }
    return Layout(**given_)


def test_flop_of_an_iteration_are_those_of_equation_3() -> None:
    for recompute, factor, head in (("full", 96, 16), ("none", 72, 12)):
        config = told(pp=2, tp=4, dp=4, recompute=recompute)
        whole = operations(config).all * config.accumulation * config.world
        said = factor * 64 * S * L * H**2 * (1 + S / (6 * H) + V / (head * L * H))
        assert float(whole) == pytest.approx(said, rel=1e-12)
    asked = 72 * 64 * S * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H))
    assert float(model_operations(told(pp=2))) == pytest.approx(asked, rel=1e-12)


def test_the_terms_are_the_formulas_of_the_studies() -> None:
    p, t, d, b, batch = 4, 2, 2, 2, 64
    config = told(pp=p, tp=t, dp=d, recompute="full", gradient_dtype=4)
    found = counted(config, FLAT)
    m, n = batch / (b * d), float(parameter_count(GPT).total)
    speed = 10e9
    micro = 8 * n / (p * t) * b * S / (0.5 * 100e12)
    tensor = m * (L / p) * 6 * 2 * (t - 1) / t * 2 * b * S * H / speed
    pipe = m * 2 * 2 * b * S * H / speed
    gradients = 2 * (d - 1) / d * 4 * n / (p * t) / speed
    tied = V / t * H * 4 / speed
    bubble = (p - 1) * (micro + (tensor + pipe) / m)
    assert float(found.compute) == pytest.approx(m * micro)
    assert float(found.tp) == pytest.approx(tensor)
    assert float(found.pp) == pytest.approx(pipe)
    assert float(found.dp) == pytest.approx(gradients + tied)
    assert float(found.bubble) == pytest.approx(bubble)
    whole = m * micro + tensor + pipe + gradients + tied + bubble
    assert float(found.iteration) == pytest.approx(whole)
    shares = (tensor + pipe + gradients + tied) / whole
    assert float(found.comm_share) == pytest.approx(shares)
    assert float(found.waiting_share) == pytest.approx(shares + bubble / whole)
    # R_bubble leaves T_DP out
    ideal = float(found.bubble) / (whole - gradients - tied)
    assert ideal == pytest.approx((p - 1) / (p - 1 + m))
    assert float(found.bubble_of_ideal) == pytest.approx((p - 1) / m)


def test_zero_moves_what_its_paper_says() -> None:
    config = told(dp=4, micro_batch=4)
    found = estimate(replace(config, zero=np.arange(4.0)), FLAT)
    m = 64 / 16
    psi = float(parameter_count(GPT).total) * 2 * 3 / 4
    assert found.wire["dp"] == pytest.approx(
        [2 * psi, 2 * psi, (m + 1) * psi, 3 * m * psi]
    )
    held = found.memory
    n = float(parameter_count(GPT).total)
    # a shard of all, the layer that computes, and the next one's that is gathered ahead
    whole = 2 * n * (1 / 4 + 2 / GPT.layers)
    assert np.broadcast_to(held.weights, 4) == pytest.approx([2 * n] * 3 + [whole])
    assert held.gradients == pytest.approx([2 * n, 2 * n, n / 2, n / 2])
    assert held.optimizer == pytest.approx([12 * n] + [3 * n] * 3)


def test_activations_are_those_of_the_recomputation_paper() -> None:
    b, sbh = 2, 2 * S * H
    score = 5 * A * S / H

    def kept(**named: Any) -> float:
        # two stages: no logits, and two micro-batches in flight are all layers
        return float(memory(told(pp=2, micro_batch=b, **named)).activations)

    layers = L * sbh
    assert kept() == pytest.approx(layers * (34 + score))
    assert kept(tp=4) == pytest.approx(layers * (10 + 24 / 4 + score / 4))
    both = kept(tp=4, sequence_parallel=True)
    assert both == pytest.approx(layers / 4 * (34 + score))
    assert kept(recompute="selective") == pytest.approx(layers * 34)
    assert kept(recompute="full") == pytest.approx(layers * 2 + sbh * (34 + score))
    interleaved = kept(virtual=4)
    assert interleaved == pytest.approx(layers * (34 + score) * (1 + 1 / 8))


@given(
    p=st.sampled_from([2, 4, 8]), v=st.sampled_from([2, 3]), rounds=st.integers(1, 4)
)
def test_chunks_in_flight_are_those_of_the_schedule(
    p: int, v: int, rounds: int
) -> None:
    held = peak = 0
    for one in passes(0, p, rounds * p, v):
        held += -1 if one.backward else 1
        peak = max(peak, held)
    config = told(pp=p, virtual=v, micro_batch=1, global_batch=rounds * p)
    layer = 2 * S * H / 2 * (34 + 5 * A * S / H)
    layers = float(memory(config).activations) / layer
    assert layers == pytest.approx(peak * L / (p * v))


def test_experts_send_what_is_routed() -> None:
    config = told(model=MOE, k=2, dp=8, ep=4, micro_batch=1)
    found = {(c.kind, c.collective): c for c in traffic(config)}
    calls = found["ep", "all_to_all"]
    # 4 all-to-alls of each layer and micro-batch, k copies of each token
    tokens, hidden = float(MOE.sequence), float(MOE.hidden)
    assert float(calls.calls) == 8 * 32 * 4
    assert float(calls.buffer) == 2 * tokens * hidden * 2
    assert float(calls.wire) == pytest.approx(float(calls.calls * calls.buffer) * 3 / 4)
    experts = found["edp", "all_reduce"]
    assert float(experts.ranks) == 2
    one = 3 * hidden * 14336
    assert float(experts.buffer) == pytest.approx(32 * 8 * one / 4 * 2)
    slow = estimate(replace(config, imbalance=1.5), FLAT)
    even = estimate(config, FLAT)
    assert float(slow.ep / even.ep) == pytest.approx(1.5)
    assert float(slow.compute) > float(even.compute)
    padded = estimate(replace(config, capacity_factor=1.25, imbalance=1.5), FLAT)
    assert float(padded.ep / even.ep) == pytest.approx(1.25)


@given(
    p=st.sampled_from([1, 2, 4, 8]),
    t=st.sampled_from([1, 2, 4]),
    d=st.sampled_from([1, 2, 4]),
    b=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    recompute=st.integers(0, 2),
    apart=st.booleans(),
    hidden=st.floats(0, 1),
)
def test_arrays_say_what_each_element_says(**drawn: Any) -> None:
    """One element of an array is estimated as it is alone; terms add up."""
    hidden = drawn.pop("hidden")
    one = {
        "pp": drawn["p"],
        "tp": drawn["t"],
        "dp": drawn["d"],
        "micro_batch": drawn["b"],
        "zero": drawn["zero"] if drawn["p"] == 1 else min(drawn["zero"], 1),
        "recompute": RECOMPUTE[drawn["recompute"]],
        "sequence_parallel": drawn["apart"],
    }
    system = replace(
        FLAT,
        overlap={"dp": hidden, "tp": hidden},
        layer_overhead_s=1e-4,
        iteration_overhead_s=0.01,
        latency_s=1e-5,
        memory_bytes_s=1e12,
    )
    alone = estimate(told(**one), system)
    both = estimate(
        told(**{n: [FIRST.get(n, 1), v, FIRST.get(n, 1)] for n, v in one.items()}),
        system,
    )
    for name in ("iteration", "compute", "hidden", "bubble", "comm_share", "optimizer"):
        assert getattr(both, name)[1] == pytest.approx(float(getattr(alone, name)))
    assert both.memory.total[1] == pytest.approx(float(alone.memory.total))
    terms = alone.compute + alone.all_communication + alone.bubble + alone.overhead
    whole = terms + alone.optimizer - alone.hidden
    assert float(alone.iteration) == pytest.approx(float(whole))
    assert 0 <= alone.hidden <= min(alone.compute, alone.all_communication)
    assert 0 <= alone.comm_share <= 1


def test_what_cannot_be_is_refused_or_left_open() -> None:
    wrong = {
        "must divide the global batch": {"micro_batch": 3},
        "tp must divide the attention heads": {"tp": 3},
        "every chunk of a pipeline holds a layer": {"pp": 25},
        "an interleaved schedule has several stages": {"virtual": 2},
        "ep must divide dp": {"dp": 2, "ep": 4},
        "no experts to spread": {"dp": 2, "ep": 2},
        "ZeRO stage 0, 1 or 2": {"pp": 2, "zero": 3},
        "pp must be at least 1, but is 0": {"pp": 0},
    }
    for rule, named in wrong.items():
        with pytest.raises(LayoutError, match=rule):
            estimate(told(**named), FLAT)
        several = {name: [1.0, float(value)] for name, value in named.items()}
        open_ = estimate(told(**several), FLAT, strict=False)
        assert np.isfinite(open_.iteration[0])
        assert np.isnan(open_.iteration[1])
        assert open_.sound.tolist() == [True, False]
        assert not open_.fits[1]
    with pytest.raises(LayoutError, match="broadcast together"):
        told(pp=[1, 2], tp=[1, 2, 4])
    with pytest.raises(LayoutError, match="recompute is one of none, selective, full"):
        told(recompute="some")
    with pytest.raises(LayoutError, match="bandwidth of dp is needed"):
        estimate(told(dp=2), replace(FLAT, bandwidth={"tp": 1e9}))
    with pytest.raises(LayoutError, match="a kind of traffic is one of"):
        System(peak_flops=1, bandwidth={"ddp": 1e9})
    with pytest.raises(LayoutError, match="a share from 0 to 1"):
        System(peak_flops=1, overlap={"dp": 2})


def test_nodes_share_their_nics() -> None:
    links = NodeLinks(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)

    def speed(kind: str, **named: Any) -> float:
        moved = traffic(told(**named))
        (one,) = [c for c in moved if c.kind == kind and np.any(c.calls > 0)]
        return float(links.speed(one))

    assert speed("tp", tp=8) == 300e9
    assert speed("tp", tp=16) == 200e9  # a ring leaves its nodes once
    assert speed("dp", tp=8, dp=4) == 25e9  # eight rings share a node's NICs
    assert speed("dp", tp=2, dp=16) == 100e9  # two of them, four members in each node
    assert speed("dp", dp=32) == 200e9
    assert speed("pp", tp=8, pp=2) == 25e9
    assert speed("pp", tp=2, pp=2) == 300e9
    assert speed("pp", tp=2, pp=8) == 100e9  # two of eight hand on to another node
    half = replace(links, efficiency=0.5)
    moved = [c for c in traffic(told(dp=32)) if c.kind == "dp"]
    assert float(half.speed(moved[0])) == 100e9


def test_measured_bandwidth_is_asked_by_nodes() -> None:
    samples = [
        Sample(
            collective="all_reduce",
            ranks=ranks,
            span=span,
            size_bytes=size,
            time_us=size * 2 * (ranks - 1) / ranks / speed * 1e6,
        )
        for ranks, span, speed in ((4, 1, 100e9), (8, 2, 10e9))
        for size in (10**6, 10**8, 10**10)
    ]
    links = MeasuredLinks(table=BandwidthTable(samples), gpus=4)
    system = replace(FLAT, bandwidth=links)
    found = estimate(told(dp=[4.0, 8.0]), system)
    psi = float(parameter_count(GPT).total) * 2
    wire = np.array([2 * 3 / 4 * psi / 100e9, 2 * 7 / 8 * psi / 10e9])
    assert found.dp == pytest.approx(wire, rel=1e-6)


def test_any_table_of_bandwidths_will_do() -> None:
    class Falling:
        """Half as fast on twice the ranks, and slow for what is small."""

        def bandwidth(
            self, collective: str, ranks: np.ndarray, size: np.ndarray
        ) -> np.ndarray:
            assert collective == "all_reduce"
            return 20e9 / ranks * np.where(size < 1e6, 0.01, 1.0)

    config = told(dp=np.array([2.0, 4, 8]))
    found = estimate(config, replace(FLAT, bandwidth=Falling()))
    wire = found.wire["dp"]
    assert found.dp == pytest.approx(wire / (20e9 / np.array([2, 4, 8])))


def test_the_projection_is_exact_where_only_communication_changes() -> None:
    config = told(dp=np.array([2.0, 4, 8]), global_batch=32 * np.array([2.0, 4, 8]))
    found = estimate(config, replace(FLAT, bandwidth=np.array([10e9, 8e9, 5e9])))
    moved = found.all_communication
    speedup = projected_speedup(found.compute[0], moved[0], moved[0] / moved)
    assert speedup == pytest.approx(found.iteration[0] / found.iteration)
    share = (1 / (1 - 0.5925) - 1) / (7.35 - 1)
    assert 1 - float(projected_speedup(1 - share, share, 1 / 7.35)) == pytest.approx(
        0.5925
    )
    with pytest.raises(LayoutError, match="efficiency above 0"):
        projected_speedup(1, 1, 0)


def test_elasticities_are_shares_of_time() -> None:
    config = told(pp=1, tp=2, dp=4)
    found = estimate(config, FLAT)
    moved = sensitivity(config, FLAT)
    share = {k: float(v / found.iteration) for k, v in found.communication.items()}
    for kind in ("tp", "dp"):
        slope = float(moved[f"bandwidth of {kind}"])
        assert slope == pytest.approx(-share[kind], rel=1e-3)
    assert float(moved["utilization"]) == pytest.approx(
        -float(found.compute / found.iteration), rel=1e-3
    )
    assert "bandwidth of pp" not in moved


def test_the_search_finds_the_fastest_that_fits() -> None:
    links = NodeLinks(gpus=4, inside_bytes_s=100e9, nic_bytes_s=10e9)
    system = System(peak_flops=1e14, bandwidth=links, memory_bytes=16e9)
    asked: dict[str, Any] = {"gpus": 8, "global_batch": 32, "gradient_dtype": 2}
    found = search(GPT, system, **asked)
    best = found.rows(1)[0]
    config = told(**best, global_batch=32)
    alone = estimate(config, system)
    first = found.order[0]
    assert float(alone.iteration) == pytest.approx(found.estimate.iteration[first])
    assert alone.fits
    assert float(config.world) == 8
    times = found.estimate.iteration
    near = times[found.estimate.fits] <= (1 + MODEL_ERROR) * times[first]
    assert found.unranked == near.sum() > 1
    assert times[first] == times[found.estimate.fits].min()
    # less memory never makes it faster, none at all fits nothing
    tight = search(GPT, replace(system, memory_bytes=8e9), **asked)
    assert tight.estimate.iteration[tight.order[0]] >= times[first]
    none = search(GPT, replace(system, memory_bytes=1e6), **asked)
    assert not len(none.order)
    rows = {tuple(row.values()) for row in found.rows(len(found.order))}
    assert len(rows) == len(found.order)
    with_experts = search(
        MOE, replace(system, memory_bytes=1e12), gpus=8, global_batch=8, k=2
    )
    assert {row["ep"] for row in with_experts.rows(10**6)} >= {1.0, 2.0, 4.0, 8.0}
    with pytest.raises(LayoutError, match="no configuration of 29 GPUs"):
        search(GPT, system, gpus=29, global_batch=1)
