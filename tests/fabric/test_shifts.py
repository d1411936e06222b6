"""CASSINI: exact scores and shifts, the unified circle, the shifts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import FabricError
from moetraffic.fabric import Job, compatibility, score, unify
from moetraffic.fabric.shifts import around

C = 50e9


def job(
    duty: float, *, period_s: float = 1.0, start: float = 0.0, name: str = ""
) -> Job:
    """On at the full rate for a share of the period."""
    at = np.arange(1000) / 1000
    on = (at - start) % 1.0 < duty - 1e-9
    return Job(name=name or f"{duty}", period_s=period_s, rate_bytes_s=C * on)


@pytest.mark.parametrize(
    ("duties", "best", "worst"),
    [
        ((0.5, 0.5), 1.0, 0.5),
        ((0.6, 0.6), 0.8, 0.4),
        ((0.4, 0.4, 0.4), 0.8, 0.2),
        ((0.25, 0.25, 0.5), 1.0, 0.5),
        ((0.3,), 1.0, 1.0),
    ],
)
def test_equal_periods_at_the_full_rate(
    duties: tuple[float, ...], best: float, worst: float
) -> None:
    found = compatibility(
        [job(d, name=str(at)) for at, d in enumerate(duties)],
        capacity_bytes_s=C,
        angles=100,
    )
    assert found.score == pytest.approx(best)
    assert found.worst == pytest.approx(worst)
    assert found.unshifted == pytest.approx(worst)  # all start at once
    assert found.exhaustive == (len(duties) < 3)


def test_half_and_half_are_shifted_by_half_a_period() -> None:
    found = compatibility([job(0.5), job(0.5)], capacity_bytes_s=C)
    assert found.shifts_s == pytest.approx((0.0, 0.5))
    found = compatibility([job(0.5), job(0.5, start=0.25)], capacity_bytes_s=C)
    assert found.shifts_s == pytest.approx((0.0, 0.25))


def test_the_shift_leaves_the_same_room_on_both_sides() -> None:
    """Two bursts of a fifth: any shift from .2 to .8 is good, and .5 is the safest."""
    found = compatibility([job(0.2), job(0.2)], capacity_bytes_s=C, angles=100)
    assert found.shifts_s[1] == pytest.approx(0.5, abs=0.006)


def test_a_job_of_half_the_period_appears_twice() -> None:
    """Bursts of a quarter of 1 s and of a quarter of 2 s fit beside each other."""
    slow, fast = job(0.25, period_s=2.0), job(0.25, period_s=1.0)
    found = compatibility([slow, fast], capacity_bytes_s=C)
    assert found.repeats == (1, 2)
    assert found.perimeter_s == 2.0
    assert found.score == pytest.approx(1.0)
    assert 0 <= found.shifts_s[1] < 1.0
    # a burst of .5 s of each second and one of 1 s of two: one of two overlaps
    found = compatibility(
        [job(0.5, period_s=2.0), job(0.5, period_s=1.0)], capacity_bytes_s=C
    )
    assert found.score == pytest.approx(0.75)
    assert found.worst == pytest.approx(0.75)


def test_reference_shifts_of_two_bursts() -> None:
    """Equal periods 10, on 4; periods 40 and 60, on 10 and on 20."""
    on = 1.0 * (np.arange(10) < 4)
    both = [on + np.roll(on, shift) for shift in (0, 2, 4, 6, 8)]
    assert score(both, capacity_bytes_s=1.0) == pytest.approx([0.6, 0.8, 1, 1, 0.8])
    found = compatibility(
        [job(0.25, period_s=40.0), job(1 / 6, period_s=60.0)],
        capacity_bytes_s=C,
        tolerance=1e-9,
    )
    assert (found.score, found.worst) == pytest.approx((1.0, 0.916667), abs=2e-3)


def test_the_score_may_be_negative() -> None:
    found = compatibility([job(1.0)] * 4, capacity_bytes_s=C)
    assert found.score == found.worst == -2.0
    assert float(score(np.full(8, 3.0), capacity_bytes_s=1.0)) == -1.0


def test_unified_circle() -> None:
    assert unify([0.04, 0.06], tolerance=1e-9)[0] == pytest.approx(0.12)
    assert unify([0.04, 0.06, 0.08], tolerance=1e-9)[1] == (6, 4, 3)
    _, repeats, deviation = unify([0.1003, 0.1998], tolerance=0.01)
    assert repeats == (2, 1)
    assert 0 < deviation < 0.003
    with pytest.raises(FabricError, match="larger tolerance"):
        unify([1.0, np.pi], tolerance=1e-6)
    with pytest.raises(FabricError, match="without a rhythm"):
        unify([1.0, float("nan")])


@given(
    periods=st.lists(st.floats(0.01, 10), min_size=1, max_size=4),
    tolerance=st.floats(0.01, 0.1),
)
def test_a_circle_keeps_its_tolerance(periods: list[float], tolerance: float) -> None:
    try:
        perimeter, repeats, deviation = unify(periods, tolerance=tolerance)
    except FabricError:
        # two of much the same length always meet; three need not
        assert len(periods) > 2 or max(periods) / min(periods) > 2
        return
    own = np.array(perimeter) / repeats
    assert (np.abs(own / periods - 1) <= tolerance * 1.001).all()
    assert deviation <= tolerance * 1.001


@given(
    duties=st.lists(st.floats(0.05, 0.95), min_size=2, max_size=3),
    start=st.floats(0, 1),
)
def test_shifts_reach_the_score_and_none_is_worse_than_the_worst(
    duties: list[float], start: float
) -> None:
    jobs = [job(d, start=start * at) for at, d in enumerate(duties)]
    found = compatibility(jobs, capacity_bytes_s=C, angles=60)
    assert found.worst - 1e-9 <= found.unshifted <= found.score + 1e-9 <= 1 + 1e-9
    rates = [around(j, repeats=1, angles=found.angles) for j in jobs]
    turned = [
        np.roll(r, round(s * found.angles))
        for r, s in zip(rates, found.shifts_s, strict=True)
    ]
    again = float(score(np.sum(turned, axis=0), capacity_bytes_s=C))
    assert again == pytest.approx(found.score)
    # no arrangement serves more than the link carries, or than is asked for
    assert found.score <= 2 - max(1.0, np.sum(rates) / C / found.angles) + 1e-9


def test_a_local_search_finds_what_fits() -> None:
    """Eight jobs of an eighth each: too many shifts to try all of them."""
    jobs = [job(1 / 8, name=str(at)) for at in range(8)]
    found = compatibility(jobs, capacity_bytes_s=C, angles=64)
    assert not found.exhaustive
    assert found.score == pytest.approx(1.0)
    assert found.unshifted == pytest.approx(1 - 7 / 8)
    assert found.worst == pytest.approx(1 - 7 / 8)


def test_the_mean_rate_is_kept_around_the_circle() -> None:
    one = Job(name="a", period_s=1.0, rate_bytes_s=np.array([1.0, 0.0, 5.0]))
    for angles in (1, 3, 7, 360):
        assert around(one, repeats=1, angles=angles).mean() == pytest.approx(2.0)


@pytest.mark.parametrize("rates", [[], [-1.0], [[1.0]], [float("nan")]])
def test_impossible_jobs(rates: object) -> None:
    with pytest.raises(FabricError, match="bins of time"):
        Job(name="a", period_s=1.0, rate_bytes_s=np.array(rates))
