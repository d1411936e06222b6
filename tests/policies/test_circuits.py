"""Circuit policies and their service: cases computed by enumeration, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic.errors import FabricError
from moetraffic.policies.circuits import (
    Rotation,
    Solstice,
    StaticMean,
    birkhoff,
    regional,
)
from moetraffic.policies.optical import (
    RESTS,
    HeldCircuits,
    Matchings,
    OpticalSwitch,
    max_weight_matchings,
)
from moetraffic.policies.service import crossing, line_bytes

from .conftest import A_LATER, A, B, H, view_of


def switch(delay: float = 1.0, **more: object) -> OpticalSwitch:
    return OpticalSwitch(rate_bytes_s=1, delay_s=delay, **more)  # type: ignore[arg-type]


def test_birkhoff_terms_and_times() -> None:
    plan = birkhoff(A)
    assert plan.receivers.tolist() == [
        [1, 2, 3, 0],
        [2, 0, 1, -1],
        [2, 3, 0, 1],
        [3, 2, 1, 0],
    ]
    assert plan.room.tolist() == [6, 2, 1, 1]
    for delay in (0.0, 1.0, 2.0):
        assert switch(delay).serve(A, plan).completion_s == 10 + 4 * delay
    for matrix in (B, H):  # both reach the lower bound 10 + 2 delay
        served = switch().serve(matrix, birkhoff(matrix))
        assert served.completion_s == switch().bound(matrix) == 12


def test_a_stale_plan_and_each_way_to_send_its_rest() -> None:
    plan = birkhoff(A)
    beside = switch(rest="packets", packet_bytes_s=0.1).serve(A_LATER, plan)
    assert beside.completion_s == pytest.approx(20)
    assert (beside.planned_bytes, beside.rest_bytes) == (33, 5)
    fresh = switch().serve(A_LATER, birkhoff(A_LATER))
    assert fresh.completion_s == 14
    replanned = switch().serve(A_LATER, plan)
    assert 14 <= replanned.completion_s <= 42


def test_max_weight_matchings_with_at_most_k() -> None:
    served = [
        [
            switch().serve(m, max_weight_matchings(A, most=k)).planned_bytes
            for m in (A, A_LATER)
        ]
        for k in (1, 2, 3)
    ]
    assert served == [[26, 23], [34, 30], [37, 34]]
    every = max_weight_matchings(A)
    assert (every.room.sum(), len(every.room)) == (12, 4)
    best = switch().serve(A_LATER, max_weight_matchings(A_LATER, most=2))
    assert best.planned_bytes == 32


def test_times_on_a_skewed_matrix_of_16_ranks() -> None:
    rng = np.random.default_rng(7)
    for n in (8, 16):
        matrix = rng.multinomial(4096, rng.dirichlet(np.full(n, 0.5), size=n))
        matrix = crossing(matrix)
    phi = line_bytes(matrix)
    assert phi == 5012
    plan = max_weight_matchings(matrix)
    times = {0.0: 1.3404, 0.001: 1.3564, 0.01: 1.5004, 0.05: 2.1404}
    for delay, ratio in times.items():
        found = switch(delay * phi).serve(matrix, plan)
        assert found.completion_s / phi == pytest.approx(ratio, abs=5e-5)


@pytest.mark.parametrize(
    ("rate", "seconds", "circuits", "rest"), [(0.1, 12, 3, 4), (0.2, 10, 2, 8)]
)
def test_solstice_stops_when_packets_carry_the_rest(
    rate: float, seconds: float, circuits: int, rest: float
) -> None:
    hybrid = switch(packet_bytes_s=rate, rest="packets")
    plan = Solstice().plan(view_of(A, hybrid))
    assert len(plan.room) == circuits
    found = hybrid.serve(A, plan)
    assert (found.completion_s, found.rest_bytes) == (seconds, rest)


@pytest.mark.parametrize(
    ("circuits", "pairs", "seconds", "rest", "line"),
    [
        (1, [(1, 2)], 7, 28, 10),
        (2, [(0, 1), (0, 3), (1, 2), (2, 3)], 7, 6, 3),
        (3, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 7, 0, 0),
    ],
)
def test_regional_circuits(
    circuits: int,
    pairs: list[tuple[int, int]],
    seconds: float,
    rest: float,
    line: float,
) -> None:
    number = regional(A, circuits=circuits)
    assert [tuple(p) for p in np.argwhere(np.triu(number)).tolist()] == pairs
    plan = HeldCircuits(number=number)
    fast = switch(0, circuits=circuits, packet_bytes_s=1e9, rest="packets")
    found = fast.serve(A, plan)
    assert (found.completion_s, found.rest_bytes) == (seconds, rest)
    slow = switch(0, circuits=circuits, packet_bytes_s=0.1, rest="packets")
    expected = max(seconds, line / 0.1)
    assert slow.serve(A, plan).completion_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("slot", "delay", "seconds"), [(1, 1, 38), (1, 0.1, 20.9), (7, 1, 20)]
)
def test_rotation(slot: float, delay: float, seconds: float) -> None:
    plan = Rotation(slot=slot).plan(view_of(A, switch(delay)))
    found = switch(delay).serve(A, plan)
    assert found.completion_s == pytest.approx(seconds)


@pytest.mark.parametrize("ranks", [3, 5, 9])
def test_two_hops_take_twice_the_bound_on_a_single_shift(ranks: int) -> None:
    """Where plain rotation waits for one shift of W - 1."""
    shift = 1e3 * np.roll(np.eye(ranks), 1, axis=1)
    on = switch(1e-6)
    plain, relayed = (
        on.serve(shift, Rotation(two_hops=hops, slot=20).plan(view_of(shift, on)))
        for hops in (False, True)
    )
    assert plain.completion_s / 1e3 == pytest.approx(ranks - 1, rel=0.06)
    assert relayed.completion_s / 1e3 == pytest.approx(2 - 2 / ranks, rel=0.2)
    assert relayed.planned_bytes + relayed.rest_bytes == relayed.demand_bytes


def test_rotation_ignores_where_the_bytes_are() -> None:
    rng = np.random.default_rng()
    past = rng.integers(0, 1000, (5, 6, 6))
    order = rng.permutation(6)
    moved = past[:, order][:, :, order]  # the same bytes between other ranks
    one, other = (Rotation().plan(view_of(p[0], switch(3), p)) for p in (past, moved))
    assert (one.receivers == other.receivers).all()
    assert (one.room == other.room).all()


def test_static_mean_never_plans_again() -> None:
    policy = StaticMean()
    first = policy.plan(view_of(A, switch()))
    assert policy.plan(view_of(A_LATER, switch(), [A_LATER])) is first


def test_the_window_hides_the_first_reconfiguration_only() -> None:
    plan = birkhoff(B)
    full = switch(3).serve(B, plan).completion_s
    assert switch(3, window_s=2).serve(B, plan).completion_s == full - 2
    assert switch(3, window_s=9).serve(B, plan).completion_s == full - 3


MATRICES = arrays(np.int64, (5, 5), elements=st.integers(0, 50))


@settings(max_examples=10, deadline=None)
@given(MATRICES, MATRICES, st.floats(0, 20), st.sampled_from(RESTS))
def test_nothing_is_lost_and_nothing_is_faster_than_the_bound(
    truth: np.ndarray, guess: np.ndarray, delay: float, rest: str
) -> None:
    packets = 0.25 * rest.startswith("packets")
    on = switch(delay, rest=rest, packet_bytes_s=packets)
    plans = [birkhoff(guess), max_weight_matchings(guess)]
    plans += [Solstice().plan(view_of(guess, on)), Rotation().plan(view_of(guess, on))]
    for plan in plans:
        assert on.check(plan, np.zeros((5, 5))) == ""
        found = on.serve(truth, plan)
        assert found.planned_bytes + found.rest_bytes == found.demand_bytes
        assert found.demand_bytes == crossing(truth).sum()
        assert found.completion_s >= on.bound(truth) * (1 - 1e-9)
    known = on.serve(truth, birkhoff(truth))
    assert known.rest_bytes == 0


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Matchings(receivers=np.array([[1, 1, 0]]), room=np.ones(1)), "two circuits"),
        (Matchings(receivers=np.array([[1, 3, 0]]), room=np.ones(1)), "0 to 2"),
        (Matchings(receivers=np.array([[1, 0]]), room=np.ones(1)), "shape"),
        (Matchings(receivers=np.array([[1, 2, 0]]), room=-np.ones(1)), "room"),
        (HeldCircuits(number=1 - np.eye(3, dtype=int)), "1 circuits at most"),
        (HeldCircuits(number=np.triu(np.ones((3, 3), int), 1)), "symmetric"),
        ("a text", "Matchings or HeldCircuits"),
    ],
)
def test_impossible_plans(plan: object, why: str) -> None:
    on = switch(packet_bytes_s=1)
    assert why in on.check(plan, np.zeros((3, 3)))


def test_held_circuits_need_packets() -> None:
    plan = HeldCircuits(number=np.zeros((3, 3), int))
    assert "packet switch" in switch().check(plan, np.zeros((3, 3)))


def test_impossible_switches() -> None:
    with pytest.raises(FabricError, match="rate of a circuit"):
        OpticalSwitch(rate_bytes_s=0, delay_s=0)
    with pytest.raises(FabricError, match="delay_s must be at least 0"):
        OpticalSwitch(rate_bytes_s=1, delay_s=float("nan"))
    with pytest.raises(FabricError, match="packet switch"):
        OpticalSwitch(rate_bytes_s=1, delay_s=0, rest="packets")
