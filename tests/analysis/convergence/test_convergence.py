"""Convergence: loads and matrices of known course."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.convergence.convergence import convergence_of
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def scene(steps, ranks, experts, tokens, tau, wander, seed=0):
    """Counts ``[T, W, E]``: loads even out with ``tau``, ranks keep their likings.

    The likings go as a random walk; each step's loads are set exactly by
    scaling columns and rows.
    """
    rng = np.random.default_rng(seed)
    liking = 2 * rng.normal(size=(ranks, experts))
    skew = np.linspace(-1, 1, experts)
    moved = np.zeros((ranks, experts))
    counts = []
    for t in range(steps):
        moved = moved + wander * rng.normal(size=moved.shape)
        p = np.exp(liking + moved)
        wanted = np.exp(skew * np.exp(-t / tau))
        wanted /= wanted.sum()
        for _ in range(40):
            p *= wanted / p.mean(axis=0)
            p /= p.sum(axis=1, keepdims=True)
        counts.append([rng.multinomial(tokens, row) for row in p])
    return np.array(counts)


@pytest.fixture(scope="module")
def still():
    counts = scene(120, 8, 8, 2000, 8, 0.0)
    return counts.sum(axis=1), counts.reshape(120, -1)


@pytest.fixture(scope="module")
def wandering():
    counts = scene(90, 8, 8, 2000, 8, 0.15)
    return counts.sum(axis=1), counts.reshape(90, -1)


def test_loads_and_matrix_that_settle_together(still):
    loads, cells = still
    found = convergence_of(loads, cells, at=np.arange(120) * 10)
    assert found.load.converged
    assert found.cells.converged
    # .65 exp(-t/8) is below the noise, .022, from step 27 on
    assert 270 < found.load.settled_at <= 450
    for course in (found.load, found.cells):
        # a skew that fades as exp(-t/8), 10 iterations a step
        assert course.half_life == pytest.approx(80 * np.log(2), rel=0.1)
        assert course.beyond_counting == pytest.approx(1, abs=0.15)
        assert course.drift == pytest.approx(1, abs=0.15)
        late = course.distance[60:] / course.distance_floor[60:]
        assert late.mean() == pytest.approx(1, abs=0.15)
        assert course.distance[0] > 5 * course.distance_floor[0]
    assert found.load.evenness[:30].mean() < 0.97
    assert found.load.evenness[60:].mean() == pytest.approx(1, abs=0.005)


def test_loads_that_even_out_while_the_matrix_wanders_and_stays_sparse(wandering):
    found = convergence_of(*wandering)
    assert found.load.converged
    assert found.cells.converged is False
    assert found.cells.evenness[60:].mean() < found.load.evenness[60:].mean() / 2
    assert found.cells.beyond_counting > 1.3
    assert found.cells.drift > 2
    assert found.load.drift == pytest.approx(1, abs=0.2)


def test_a_jump_late_in_the_run_is_no_convergence():
    rng = np.random.default_rng(1)
    p = np.array([[0.4, 0.3, 0.2, 0.1]] * 80 + [[0.1, 0.3, 0.2, 0.4]] * 20)
    loads = np.array([rng.multinomial(4000, row) for row in p])
    found = convergence_of(loads, loads, at=np.arange(100) * 5)
    assert found.load.changed_at.tolist() == [400]
    assert found.load.converged is False
    assert "iteration 400" in found.load.why


@pytest.mark.parametrize(("t", "e", "c"), [(0, 3, 3), (1, 1, 1), (3, 4, 2), (30, 2, 3)])
def test_nothing_sent_or_nothing_known(t, e, c):
    for filler in (0.0, np.nan):
        found = convergence_of(np.full((t, e), filler), np.full((t, c), filler))
        assert found.load.converged is None
        assert found.load.settled_at == -1
        assert np.isnan(found.load.distance).all()
        assert np.isnan(found.cells.half_life)


def test_holes_are_left_out(still):
    loads, cells = (x.astype(np.float64) for x in still)
    loads[[3, 40]], cells[7] = np.nan, 0
    found = convergence_of(loads, cells)
    assert found.load.converged
    assert np.flatnonzero(np.isnan(found.load.distance)).tolist() == [3, 40]
    assert np.flatnonzero(np.isnan(found.cells.distance)).tolist() == [7]
    assert np.flatnonzero(np.isnan(found.cells.change)).tolist() == [0, 7, 8]


def test_what_must_fit_together():
    with pytest.raises(AnalysisError, match="same steps"):
        convergence_of(np.ones((4, 2)), np.ones((5, 2)))
    with pytest.raises(AnalysisError, match="same steps"):
        convergence_of(np.ones((4, 2)), np.ones((4, 2)), at=[0, 1, 1, 2])
