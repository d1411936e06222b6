"""Matrices that are equal in all iterations, a fact that no test has to decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis import Analysis, analyze
from moetraffic.report.summary.answer import answer
from moetraffic.trace import PHASES, Trace


def forecasts(found: Analysis) -> str:
    return next((str(one) for one in answer(found) if one.topic == "Forecasts"), "")


def routed(iterations: int = 40) -> np.ndarray:
    rng = np.random.default_rng()
    return rng.multinomial(64, [1 / 8] * 8, (iterations, 2, 1, 4))


@pytest.mark.parametrize("parts", [["claims"], ["claims", "skew"]])
def test_padded_layers_send_the_same_in_every_iteration(parts: list[str]) -> None:
    """Whatever they route; of one layer of two, as all its calls have one matrix."""
    trace = Trace.from_arrays(routed(), k=1, row_bytes=2)
    padded = np.array([s.phase in PHASES and s.layer == 1 for s in trace.sites])
    every = trace.occurrences
    one = np.where(padded[every.site], 0, every.matrix)
    same = trace.replaced(occurrences=replace(every, matrix=one))
    found = analyze(same, parts=parts)
    assert [e.unchanging for e in found.exchanges] == [(), ("wire",)]
    text = "wire matrix of dispatch the same in every iteration (measured; layer 1)"
    assert text in forecasts(found)


def test_one_moved_token_makes_a_matrix_change() -> None:
    demand = np.tile(routed(1), (40, 1, 1, 1, 1))
    found = analyze(Trace.from_arrays(demand, k=1), parts=["claims"])
    assert [e.unchanging for e in found.exchanges] == [("demand",)] * 2
    text = "demand matrix the same in every iteration (measured)"
    assert text in forecasts(found)
    demand[7, 0, 0, 0, :2] += [1, -1] if demand[7, 0, 0, 0, 1] else [-1, 1]
    found = analyze(Trace.from_arrays(demand, k=1), parts=["claims"])
    assert [e.unchanging for e in found.exchanges] == [(), ("demand",)]


def test_what_never_varies_is_measured_and_not_tested() -> None:
    """Only the loads themselves are: that they differ needs no variation."""
    skew = np.random.default_rng().multinomial(64, np.arange(1, 9) / 36, (1, 2, 1, 4))
    for demand in (routed(1), skew):
        trace = Trace.from_arrays(np.tile(demand, (40, 1, 1, 1, 1)), k=1)
        found = analyze(trace, parts=["claims"], horizons=[1])
        tested = {claim.name for claim in found.claims if not claim.untested}
        assert tested == {"imbalanced", "skewed", "collapsed"}
        rows = found.to_frame().set_index("statistic").value
        assert np.isnan(rows["claim.converged.stated"]).all()
        assert np.isnan(rows["claim.predictable.stated"]).all()
        lines = [str(one) for one in answer(found)]
        assert "Movement: load the same in every iteration (measured)." in lines
        assert not any("predictable" in one or "converged" in one for one in lines)


def test_an_expert_that_never_receives_a_token_is_skew() -> None:
    """Of loads that never vary, and of noisy ones."""
    shares = np.array([1, 1, 1, 0, 1, 1, 1, 1]) / 7
    noisy = np.random.default_rng().multinomial(448, shares, (40, 1, 1, 4))
    constant = np.broadcast_to((448 * shares).round().astype(int), noisy.shape)
    for demand in (noisy, constant):
        found = analyze(Trace.from_arrays(demand, k=1), parts=["claims"], horizons=[1])
        stated = {claim.name for claim in found.claims if claim.stated}
        assert {"imbalanced", "skewed"} <= stated
        assert any("starved: expert 3" in str(one) for one in answer(found))


def test_one_iteration_shows_no_repetition() -> None:
    (one, _) = analyze(Trace.from_arrays(routed(1), k=1), parts=["claims"]).exchanges
    assert one.unchanging == ()
