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
    LAGS,
    SERIES,
    changes,
    count_features,
    sampling_noise,
    trace_features,
)


def test_even_counts_have_the_exact_figures() -> None:
    run = count_features(np.full((3, 2, 4, 4), 8))
    exact = {
        "entropy": 1.0,
        "max over mean": 1.0,
        "line efficiency": 1.0,
        "inter-host share": 2 / 3,  # (R - G) / (R - 1), 2 of 4 ranks a host
        "row entropy spread": 0.0,
        "empty cells": -((1 - 1 / 4) ** 32),  # none is, of multinomial rows some are
    }
    for name, value in exact.items():
        assert run.series[name] == pytest.approx(np.full((3, 2), value)), name
    assert run.series["row dispersion"].max() < -10  # far below chance's 0
    assert (run.shape, run.tokens, run.layers) == ((4, 4), 128, (0, 1))
    change = run.series[f"change over {LAGS[0]}"]
    assert np.isnan(change[0]).all()
    assert (change[1:] == 0).all()


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
        assert one.series[name] == pytest.approx(other.series[name], nan_ok=True)
    assert one.ordered == pytest.approx(other.ordered)


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
    assert count_features(same).series["row coupling"].mean() > 0.95
    apart = rng.multinomial(2000, rng.dirichlet([1.0] * 4, (300, 2, 6)))
    assert abs(count_features(apart).series["row coupling"].mean()) < 0.05
    assert np.isnan(count_features(apart[:, :1]).series["row coupling"]).all()


def test_spectrum_counts_the_directions_in_which_rows_differ() -> None:
    one = np.tile([[12, 4, 4], [4, 12, 4], [8, 8, 4], [8, 8, 4]], (3, 1, 1, 1))
    assert count_features(one).series["row spectrum"] == pytest.approx(1)
    two = np.tile([[12, 4, 8, 8], [4, 12, 8, 8], [8, 8, 12, 4], [8, 8, 4, 12]], (3, 1))
    found = count_features(two.reshape(3, 1, 4, 4)).series
    assert found["row spectrum"] == pytest.approx(2)
    # the same rows in each iteration
    assert found["row persistence"] == pytest.approx(1)


@given(st.integers(2, 12), st.floats(0.2, 5), st.integers(20, 2000))
@settings(max_examples=10, deadline=None)
def test_the_change_of_a_constant_load_is_its_sampling_noise(
    experts: int, alpha: float, copies: int
) -> None:
    rng = np.random.default_rng(experts)
    load = rng.dirichlet([alpha + 1] * experts)
    drawn = rng.multinomial(copies, load, (2000, 1)) / copies
    expected = float(sampling_noise(load[None, None], copies)[0, 0])
    for values in changes(drawn).values():
        assert np.nanmean(values) == pytest.approx(expected, rel=0.08)


def test_windows_of_a_long_run_change_nothing(
    simulated: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = simulated(5, iterations=23)
    whole = count_features(counts)
    monkeypatch.setattr(module, "CELLS", 2 * 4 * 6 * 5)
    parts = count_features(counts)
    assert (whole.load == parts.load).all()
    for name in SERIES:
        assert np.array_equal(whole.series[name], parts.series[name], equal_nan=True)


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
