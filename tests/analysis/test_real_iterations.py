"""Numbers of iterations are their time: gaps are said, and spacings are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic import Trace, analyze, generate_trace
from moetraffic.analysis.exchange import elapsed
from moetraffic.errors import AnalysisError
from moetraffic.policies.trace_series import byte_series
from moetraffic.report.summary.answer import conclusions
from moetraffic.trace.iterations import regular_stretch


def of_shares(shares: np.ndarray, seed: int, **given: Any) -> Trace:
    """A run of shares ``[T, E]`` on 4 ranks of 512 tokens."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(512, np.repeat(shares[:, None], 4, 1))[:, None]
    return Trace.from_arrays(counts, k=1, row_bytes=1024, **given)


def periodic(seed: int, kept: np.ndarray) -> Trace:
    """A period of 10 iterations, of which some are kept."""
    rng = np.random.default_rng(seed)
    phase, level = rng.random(8) * 6.28, rng.normal(size=8) / 2
    t = np.arange(300)[:, None]
    x = np.exp(level + 0.6 * np.sin(2 * np.pi * t / 10 + phase))
    numbers = np.flatnonzero(kept)
    return of_shares((x / x.sum(1, keepdims=True))[kept], seed, iterations=numbers)


@pytest.mark.parametrize("seed", [11, 12])
def test_a_period_is_in_iterations_where_some_are_missing(seed: int) -> None:
    kept = np.random.default_rng(seed).random(300) >= 0.1
    found = analyze(periodic(seed, kept), parts="claims", threads=1)
    (claim,) = (c for c in found.claims if c.name == "periodic")
    assert claim.stated
    assert claim.figure == pytest.approx(10, rel=0.01)
    assert claim.used == kept.sum()
    data, *_ = conclusions(found)
    assert "iterations are missing in between" in data
    (others,) = (c for c in found.claims if c.name == "mean-reverting")
    assert others.used < kept.sum()


def test_one_of_five_iterations_is_five_iterations_ahead_of_the_next() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(3500, 8)) * 0.4 * np.sqrt(1 - 0.98**2)
    x = lfilter([1], [1, -0.98], noise, axis=0)[2000::5] + rng.normal(size=8) * 0.6
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    trace = of_shares(shares, 3, iterations=np.arange(300) * 5)
    found = analyze(trace, parts="claims,forecasts,limits", threads=1)
    load = next(s for s in found.exchanges[0].subjects if s.name == "expert_load")
    assert load.forecasts is not None
    assert [h.horizon for h in load.forecasts.horizons] == [5, 10, 25, 50]
    assert [v.lead_iterations for v in load.forecasts.verdicts] == [5, 10, 25, 50]
    assert "predictable 5 iterations ahead" in " ".join(conclusions(found))
    reverting = next(c for c in found.claims if c.name == "mean-reverting")
    # half a deviation is left after ln 2 / -ln 0.98 = 34 iterations, not 7
    assert 20 < reverting.figure < 60
    assert any(note.startswith("limits unavailable") for note in found.notes)
    with pytest.raises(AnalysisError, match="horizons are 5 iterations or a multiple"):
        analyze(trace, parts="forecasts", horizons=[1, 5], threads=1)


def test_evaluations_between_training_steps_are_no_gap() -> None:
    trace = periodic(1, np.ones(300, bool))
    kinds = ["train"] * 300
    kinds[100] = kinds[200] = "evaluation"
    trace = trace.replaced(steps=replace(trace.steps, kind=tuple(kinds)))
    assert np.array_equal(elapsed(trace, trace.iterations), np.arange(298))
    found = analyze(trace, parts="claims", threads=1)
    assert not found.gaps


def test_the_longest_part_without_a_gap_is_found() -> None:
    assert regular_stretch(np.array([3])) == (slice(0, 1), 1)
    assert regular_stretch(np.array([0, 1, 2, 9, 10])) == (slice(0, 3), 1)
    assert regular_stretch(np.array([0, 5, 15, 20, 25, 40])) == (slice(2, 5), 5)


def test_a_policy_is_told_of_iterations_that_are_apart() -> None:
    apart = Trace.from_arrays(np.ones((40, 1, 4, 4), int), iterations=np.arange(40) * 5)
    missing = Trace.from_arrays(
        np.ones((40, 1, 4, 4), int), iterations=np.r_[0:30, 33:43]
    )
    assert "5 apart" in byte_series(apart).notes[0]
    assert "are missing" in byte_series(missing).notes[0]


def test_no_generator_is_fitted_to_iterations_that_are_apart() -> None:
    apart = periodic(2, np.arange(300) % 5 == 0)
    with pytest.raises(AnalysisError, match="are 5 apart or have gaps"):
        generate_trace(apart)
