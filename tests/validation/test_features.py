"""A trace_features says what is exact, and does not know the experts' names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.validation import features as module
from moetraffic.validation.features import (
    SERIES,
    autocorrelation,
    count_features,
    hot_overlap,
    layer_coupling,
    trace_features,
)


def test_even_counts_have_the_exact_figures() -> None:
    run = count_features(np.full((3, 2, 4, 4), 8))
    exact = {
        "entropy": 1.0,
        "max over mean": 1.0,
        "line efficiency": 1.0,
        "inter-host share": 2 / 3,  # (R - G) / (R - 1), 2 of 4 ranks a host
        "change": 0.0,
    }
    for name, value in exact.items():
        assert run.series[name] == pytest.approx(np.full((3, 2), value)), name
    assert run.series["row dispersion"].max() < -10  # far below chance's 0
    assert (run.shape, run.tokens, run.layers) == ((4, 4), 128, (0, 1))
    assert np.isnan(autocorrelation(run.load[:, 0], 2)).all()
    assert np.isnan(layer_coupling(run.load)).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_experts_have_no_names(simulated: Callable[..., np.ndarray], seed: int) -> None:
    counts = simulated(seed, iterations=12, experts=4)
    # experts of a rank change places: who holds what remains
    order = np.arange(4)
    if seed % 2:
        order = np.array([1, 0, 3, 2])
    one = count_features(counts, width=2)
    other = count_features(counts[..., order], width=2)
    for name in SERIES:
        assert one.series[name] == pytest.approx(other.series[name])
    assert one.coupling == pytest.approx(other.coupling)
    assert one.ordered == pytest.approx(other.ordered)
    for curve in (autocorrelation, hot_overlap):
        assert curve(one.load[:, 1], 5) == pytest.approx(curve(other.load[:, 1], 5))
    assert layer_coupling(one.load) == pytest.approx(layer_coupling(other.load))


def test_dispersion_of_a_multinomial_is_one_and_of_a_dirichlet_more(
    simulated: Callable[..., np.ndarray],
) -> None:
    rng = np.random.default_rng(0)
    plain = count_features(rng.multinomial(200, [0.2] * 5, (400, 1, 8)))
    assert np.exp(plain.series["row dispersion"]).mean() == pytest.approx(1, abs=0.05)
    # Dirichlet rows of concentration c: 1 + (N - 1)/(c + 1) times as much
    c, n = 19.0, 200
    rows = rng.dirichlet([c / 5] * 5, (400, 1, 8))
    wide = np.exp(count_features(rng.multinomial(n, rows)).series["row dispersion"])
    assert wide.mean() == pytest.approx(1 + (n - 1) / (c + 1), rel=0.1)


def test_coupling_of_rows_tells_alike_from_independent_layers() -> None:
    rng = np.random.default_rng(1)
    rows = rng.dirichlet([1.0] * 4, (300, 1, 6))
    same = rng.multinomial(2000, np.repeat(rows, 2, axis=1)[..., ::-1])
    assert count_features(same).coupling.mean() > 0.95
    apart = rng.multinomial(2000, rng.dirichlet([1.0] * 4, (300, 2, 6)))
    assert abs(count_features(apart).coupling.mean()) < 0.05


def test_autocorrelation_of_an_ar1_and_overlap_of_a_cycle() -> None:
    rng = np.random.default_rng(2)
    x = np.zeros((20_000, 2))
    for t in range(1, len(x)):
        x[t] = 0.8 * x[t - 1] + rng.normal(size=2)
    assert autocorrelation(x, 3) == pytest.approx([0.8, 0.64, 0.512], abs=0.03)
    turns = np.tile(np.eye(4), (5, 1))  # expert t mod 4 is hot
    assert hot_overlap(turns, 4).tolist() == [0, 0, 0, 1]


def test_layer_coupling_is_one_for_renamed_experts_and_small_for_independent() -> None:
    rng = np.random.default_rng(3)
    load = rng.normal(size=(4000, 3, 5))
    load[:, 1] = load[:, 0][:, [3, 1, 4, 0, 2]]
    levels, changes = layer_coupling(load)
    assert levels[0] == pytest.approx(1)
    assert changes[0] == pytest.approx(1)
    assert levels[1:].max() < 0.01


def test_windows_of_a_long_run_change_nothing(
    simulated: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = simulated(5, iterations=23)
    whole = count_features(counts)
    monkeypatch.setattr(module, "CELLS", 2 * 4 * 6 * 5)
    parts = count_features(counts)
    assert (whole.load == parts.load).all()
    assert all((whole.series[n] == parts.series[n]).all() for n in SERIES)


def test_of_a_captured_run(captured: Path) -> None:
    with Trace.open(captured) as trace:
        run = trace_features(trace)
        assert run.shape == (4, 8)
        assert run.layers == trace.layers
        assert run.load.shape == (24, 2, 8)
        assert run.load.sum(axis=2) == pytest.approx(1)
        # both micro-batches are in: 2 x 64 tokens x 2 experts x 4 ranks
        assert run.tokens == 2 * 64 * 2 * 4
        matrix = sum(
            trace.matrix(
                7, run.layers[1], "dispatch", unit="tokens", micro_batch=m
            ).values
            for m in (0, 1)
        )
        off = matrix - np.diag(np.diag(matrix))
        line = max(off.sum(axis=0).max(), off.sum(axis=1).max())
        expected = off.sum() / (4 * line)
        assert run.series["line efficiency"][7, 1] == pytest.approx(expected)
        assert len(trace_features(trace, iterations=range(4, 9)).load) == 5
        with pytest.raises(AnalysisError, match="none of"):
            trace_features(trace, layers=[99])


def test_counts_of_another_shape_are_refused() -> None:
    with pytest.raises(AnalysisError, match=r"\[T, L, R, E\]"):
        count_features(np.ones((1, 2, 2, 2), int))
