"""Within an iteration: identities are exact, later layers told as far as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.analysis.forecast.within_iteration import (
    PAST,
    identities,
    within_iteration,
)
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

pytestmark = pytest.mark.filterwarnings("error")


def shocks(shape, seed):
    noise = np.random.default_rng(seed).normal(size=shape)
    return 100 + 3 * lfilter([1], [1, -0.9], noise, axis=0)


def test_the_four_phases_are_known_with_the_first():
    sent = np.random.default_rng(0).integers(0, 99, size=(48, 4, 4))
    back = sent.transpose(0, 2, 1)
    found = within_iteration(
        sent,
        {"combine": back, "combine_grad": sent, "dispatch_grad": back},
        lead_s={"combine": 0.004, "combine_grad": 0.2},
    )
    assert [s.best for s in found] == ["transposed", "first dispatch", "transposed"]
    assert [s.transposed_share for s in found] == [1, 0, 1]
    assert [s.equal_share for s in found] == [0, 1, 0]
    for sight in found:
        assert sight.skill == 1
        assert sight.mse == 0
        assert sight.hot_recall == pytest.approx(1)
        assert sight.verdict.within == (1, 1, 1, 1)
        assert sight.verdict.horizon == 0
    assert found[0].verdict.lead_s == 0.004
    assert "4 ms before the transfer" in sentence(found[0].verdict)
    assert np.isnan(found[2].verdict.lead_s)


def test_a_phase_that_is_nearly_the_transpose_is_found_out():
    sent = np.random.default_rng(1).integers(0, 99, size=(60, 3, 3))
    back = sent.transpose(0, 2, 1).copy()
    back[5, 0, 1] += 1
    assert identities(sent, back) == (0, 59 / 60)
    (found,) = within_iteration(sent, {"combine": back})
    assert found.best == "transposed"
    assert found.transposed_share == 59 / 60


def test_a_later_layer_is_told_by_the_loads_of_the_first():
    rng = np.random.default_rng(2)
    known = rng.dirichlet(np.full(8, 0.3), size=8).T
    p = rng.dirichlet(np.full(8, 20.0), size=400)
    first = rng.multinomial(20_000, p)
    later = np.stack([rng.multinomial(20_000, row) for row in p @ known.T])
    (found,) = within_iteration(first, {"layer 3": later})
    assert found.best.startswith("regression")
    assert found.skill > 0.7
    assert found.skill_low > 0.6
    # what counting leaves of both, and of a fit of 300 steps
    assert found.mse < 2.5 * 20_000 / 8


def test_a_correction_is_worth_what_the_surprises_share():
    """y's surprise is half x's and half its own: half of its variance is told."""
    rng = np.random.default_rng(3)
    noise_x, own = rng.normal(size=(2, 4000, 1))
    x = 50 + lfilter([1], [1, -0.9], noise_x, axis=0)
    y = 50 + lfilter([1], [1, -0.9], (noise_x + own) / np.sqrt(2), axis=0)
    (found,) = within_iteration(x, {"y": y})
    assert found.best.startswith("regression")
    assert found.past.startswith("ar")
    assert found.history_mse == pytest.approx(1, rel=0.05)
    assert found.skill == pytest.approx(0.5, abs=0.03)
    assert found.skill_low < 0.5 < found.skill_high


def test_what_has_nothing_to_do_with_the_first_is_left_to_the_past():
    (found,) = within_iteration(shocks((2000, 6), 4), {"other": shocks((2000, 6), 5)})
    assert found.best == PAST or abs(found.skill) < 0.02
    assert found.history_mse == pytest.approx(9, rel=0.1)


def test_what_comes_does_not_change_what_was_forecast_of_it():
    """The forecast follows from how the error moves with what came: a parabola."""
    x = shocks((160, 4), 6)
    y = x + shocks((160, 4), 7)
    (before,) = within_iteration(x, {"y": y})
    forecasts = []
    for step in (-40.0, 1.0, 500.0):
        other = y.copy()
        other[-1, 2] += step
        (after,) = within_iteration(x, {"y": other})
        assert after.best == before.best
        moved = (after.mse - before.mse) * before.origins * 4
        forecasts.append(y[-1, 2] - (moved - step**2) / (2 * step))
    assert np.ptp(forecasts) < 1e-6


def test_of_many_cells_some_are_forecast_and_all_compared():
    sent = np.random.default_rng(9).poisson(20, size=(32, 48, 48))
    back = sent.transpose(0, 2, 1).copy()
    (found,) = within_iteration(sent, {"combine": back})
    assert found.cells == 2048
    assert found.best == "transposed"
    assert found.mse == 0
    back[:, 47, 46] += 1
    assert identities(sent, back) == (0, 0)


def test_edges():
    assert np.isnan(identities(np.ones((3, 2)), np.ones((3, 4)))).all()
    assert np.isnan(identities(np.ones((0, 2, 2)), np.ones((0, 2, 2)))).all()
    for shape in ((0, 2, 2), (1, 2, 2), (6, 2, 2), (40, 0)):
        (found,) = within_iteration(np.ones(shape), {"a": np.ones(shape)})
        assert found.reason
        assert "unavailable" in sentence(found.verdict)
    (still,) = within_iteration(np.ones((40, 2, 2)), {"a": np.ones((40, 2, 2))})
    assert still.best == PAST
    assert np.isnan(still.skill)
    (none,) = within_iteration(np.zeros((40, 3)), {"a": np.zeros((40, 2))})
    assert np.isnan(none.verdict.within).all()
    (unknown,) = within_iteration(np.ones((40, 3)), {"a": np.full((40, 3), np.nan)})
    assert "no value" in unknown.reason
    holes = shocks((80, 3), 8)
    holes[70] = np.nan
    (found,) = within_iteration(holes, {"a": holes[:, ::-1]})
    assert np.isfinite(found.mse)
    with pytest.raises(AnalysisError, match="align"):
        within_iteration(np.ones((4, 2)), {"a": np.ones((5, 2))})


def test_real_phases_repeat_the_first_dispatch(captured: Path):
    with Trace.open(captured) as trace:
        layer, later = trace.layers[0], trace.layers[1]
        when = trace.iterations.tolist()

        def matrices(of_layer, phase):
            return np.stack(
                [
                    np.asarray(
                        trace.matrix(
                            i, of_layer, phase, unit="tokens", of="wire"
                        ).values
                    )
                    for i in when
                ]
            )

        first = matrices(layer, "dispatch")
        found = within_iteration(
            first,
            {
                "combine": matrices(layer, "combine"),
                "combine_grad": matrices(layer, "combine_grad"),
                "dispatch_grad": matrices(layer, "dispatch_grad"),
                "next layer": matrices(later, "dispatch"),
            },
        )
    assert [s.transposed_share for s in found[:3]] == [1, 0, 1]
    assert found[1].equal_share == 1
    assert all(s.skill == 1 for s in found[:3])
    assert found[3].equal_share < 1
    assert not found[3].reason
