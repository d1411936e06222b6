"""Memory of states that loads have once they are bent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.generate.bent_memory import state_correlations
from moetraffic.generate.dynamics import Dynamics, Steps, sided
from moetraffic.generate.local_memory import partial_of

EXPERTS = 6
ORDER = 6


def states(
    *, sd: float, bend: float = 0.0, limit: float = 0.0, phi: float = 0.0
) -> Dynamics:
    """One layer around one knot, AR(1) so far."""
    cells = np.zeros((1, 1, EXPERTS))
    partial = np.zeros((1, 1, EXPERTS, ORDER))
    partial[..., 0] = phi
    return Dynamics(
        start=cells[0],
        level=cells[0],
        tau=np.ones(1),
        coupling=np.zeros(1),
        knots=np.zeros(1),
        shift=cells,
        phi=np.zeros((1, 1, 1)),
        sd=np.full((1, 1, 1), sd),
        scale=cells + 1,
        partial=partial,
        bend=cells + bend,
        limit=cells + limit,
    )


def loads(d: Dynamics, count: int = 4000) -> np.ndarray:
    """exp of bent deviations, ``[count, E]``, without the softmax's sum."""
    rng = np.random.default_rng(2)
    steps = Steps(d, rng.standard_normal((1, 1, EXPERTS)))
    out = np.empty((count, EXPERTS))
    for t in range(count):
        steps.take(t, rng.standard_normal((1, 1, EXPERTS)))
        out[t] = np.exp(d.bent(d.deviation(steps.unit, t), t))[0]
    return out


def correlation(x: np.ndarray, lag: int) -> float:
    x = x - x.mean(axis=0)
    return float((x[lag:] * x[:-lag]).sum() / (x**2).sum())


@pytest.mark.parametrize("wanted", [-0.3, 0.5, 0.9])
@pytest.mark.parametrize(
    ("sd", "bend", "limit"), [(0.05, 0.0, 0.0), (0.7, 0.0, 0.0), (0.7, 1.0, 2.0)]
)
def test_bent_loads_have_the_memory_that_is_wanted(
    wanted: float, sd: float, bend: float, limit: float
) -> None:
    d = states(sd=sd, bend=bend, limit=limit)
    alike = np.broadcast_to(wanted ** np.arange(ORDER + 1), (1, 1, EXPERTS, ORDER + 1))
    d = replace(d, partial=partial_of(state_correlations(d, alike)))
    got = loads(d)
    assert correlation(got, 1) == pytest.approx(wanted, abs=0.05)
    assert correlation(got, 2) == pytest.approx(wanted**2, abs=0.06)


def test_a_load_that_swings_far_in_logarithms_cannot_follow_the_same_memory() -> None:
    """Without the table, alternation of -0.3 would be less than half as much."""
    plain = loads(states(sd=1.0, phi=-0.3))
    assert -0.2 < correlation(plain, 1) < 0.0


def test_sided_memory_keeps_its_size_in_the_mean_and_forgets_how_far_it_was() -> None:
    rng = np.random.default_rng(0)
    v = rng.standard_normal(200_000)
    for turn in (0.0, 0.5, 3.0, 15.0):
        s = sided(v, np.asarray(turn))
        assert (s * v).mean() == pytest.approx(1.0, abs=0.02)
    assert sided(np.array([1.0, 4.0]), np.asarray(15.0)) == pytest.approx(
        [1.28, 1.32], abs=0.01
    )
    assert sided(v, np.asarray(0.0)) == pytest.approx(v)


def test_a_steered_load_jumps_by_more_nearly_one_size_than_a_linear_one() -> None:
    def tail(d: Dynamics) -> float:
        step = np.diff(
            np.log(loads(replace(d, limit=d.limit, bend=0 * d.bend))), axis=0
        )
        return float((step**4).mean() / (step**2).mean() ** 2)

    free, bound = (states(sd=0.3, phi=-0.8, limit=b) for b in (0.0, 3.0))
    assert tail(free) == pytest.approx(3.0, abs=0.25)
    assert tail(bound) < 2.0
