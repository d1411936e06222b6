"""Entropy rates: exact chains, a plain search, and the bias at several lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis.forecast.entropy_rate import (
    entropy_rate,
    fano_limit,
    guessed_share,
    lempel_ziv_rate,
    markov_order,
    markov_rate,
    new_lengths,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def flips(n: int, up: float, down: float, seed: int) -> np.ndarray:
    """A binary chain: 0 turns to 1 with ``up``, 1 to 0 with ``down``."""
    draws = np.random.default_rng(seed).random(n).tolist()
    state, out = 0, []
    for draw in draws:
        state = int(draw < up) if state == 0 else int(draw >= down)
        out.append(state)
    return np.array(out)


def searched(symbols: list[int]) -> list[int]:
    """New lengths by trying every earlier place."""
    lengths = []
    for i in range(len(symbols)):
        length = 0
        while i + length < len(symbols) and any(
            symbols[j : j + length + 1] == symbols[i : i + length + 1]
            for j in range(i - length)
        ):
            length += 1
        lengths.append(length + 1)
    return lengths


@pytest.mark.parametrize(
    ("up", "down", "rate", "guess", "fano"),
    [(0.1, 0.1, 0.468996, 0.9, 0.9), (0.1, 0.3, 0.572069, 0.85, 0.864598)],
)
def test_exact_chains(up, down, rate, guess, fano):
    assert fano_limit(rate, 2) == pytest.approx(fano, abs=1e-6)
    found = entropy_rate(flips(50_000, up, down, seed=1))
    assert found.order == 1
    assert found.lz == pytest.approx(rate, rel=0.05)
    assert found.markov == pytest.approx(rate, rel=0.05)
    assert found.markov_guess == pytest.approx(fano, rel=0.02)
    assert found.lz_guess == pytest.approx(fano, rel=0.02)
    assert found.achieved == pytest.approx(guess, rel=0.02)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_new_lengths_are_those_of_a_search(symbols):
    assert new_lengths(np.array(symbols, np.int64)) == searched(symbols)


def test_lempel_ziv_needs_no_names_and_no_alphabet():
    x = np.random.default_rng(0).integers(0, 5, 400)
    assert entropy_rate(x) == entropy_rate(1000 - 7 * x)
    assert lempel_ziv_rate(np.zeros(4, int)) == 1.0  # 4 * 2 / (1 + 2 + 3 + 2)


@given(st.floats(0, 1), st.integers(2, 300))
def test_fano_solves_its_equation(part, symbols):
    share = 1 / symbols + part * (1 - 1 / symbols)
    inside = [p for p in (share, 1 - share) if p > 0]
    bits = -sum(p * np.log2(p) for p in inside) + (1 - share) * np.log2(
        max(symbols - 1, 1)
    )
    # where the curve is flat, near 1/N, the last digits of S decide
    assert fano_limit(bits, symbols) == pytest.approx(share, abs=1e-6)


def test_fano_at_its_ends():
    assert [fano_limit(s, 8) for s in (0, -1, 3, 9)] == [1, 1, 1 / 8, 1 / 8]
    assert [fano_limit(s, 1) for s in (0.0, 2.0)] == [1, 1]
    assert np.isnan(fano_limit(np.nan, 4))


def test_the_correction_takes_off_the_bias_of_counting():
    rng = np.random.default_rng(2)
    runs = [rng.integers(0, 4, 300) for _ in range(60)]
    corrected = np.mean([markov_rate(x, order=1) for x in runs])
    # counting alone takes off 12 / (2 * 299 ln 2): 16 transitions less 4 contexts
    assert corrected == pytest.approx(2, abs=0.006)


@pytest.mark.parametrize(
    ("n", "coin", "chain"), [(100, 1.084, 0.664), (1000, 1.020, 0.491)]
)
def test_lempel_ziv_is_biased_as_documented(n, coin, chain):
    rng = np.random.default_rng(3)
    tossed = [lempel_ziv_rate(rng.integers(0, 2, n)) for _ in range(60)]
    flipped = [lempel_ziv_rate(np.cumsum(rng.random(n) < 0.1) % 2) for _ in range(100)]
    assert np.mean(tossed) == pytest.approx(coin, rel=0.02)
    assert np.mean(flipped) == pytest.approx(chain, rel=0.05)


def test_the_order_is_found():
    rng = np.random.default_rng(4)
    assert markov_order(rng.integers(0, 3, 2000)) == 0
    assert markov_order(flips(2000, 0.1, 0.3, seed=5)) == 1
    x = np.cumsum(rng.random((20_000, 2)) < 0.1, axis=0).ravel() % 2
    # each is the one two steps back, but for 10%
    assert markov_order(x) == 2
    assert markov_rate(x, order=2) == pytest.approx(0.468996, rel=0.05)
    assert markov_rate(x, order=1) > 0.9


def test_guesses_use_the_past_only():
    x = np.arange(60) % 6
    # the first six are new; 0 after 5 is told, as it came first of equals
    assert guessed_share(x, order=1) == pytest.approx(54 / 60)
    noise = np.random.default_rng(6).integers(0, 4, 4000)
    assert guessed_share(noise, order=2) == pytest.approx(0.25, abs=0.03)


def test_short_and_empty_sequences():
    found = entropy_rate(np.zeros(0, np.int64))
    assert found.steps == 0
    assert np.isnan([found.lz, found.markov, found.lz_guess, found.achieved]).all()
    one = entropy_rate([7])
    assert np.isnan(one.lz)
    assert one.markov == 0
    assert one.entropy == 0
    assert entropy_rate([3, 3, 3]).markov_guess == 1
    assert entropy_rate([1, 2]).symbols == 2
    with pytest.raises(AnalysisError, match="integers"):
        entropy_rate([0.5, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "coin", "even"), [(10_000, 1.010, 2.812)])
def test_lempel_ziv_at_length(n, coin, even):
    rng = np.random.default_rng(7)
    runs = 40
    tossed = [lempel_ziv_rate(rng.integers(0, 2, n)) for _ in range(runs)]
    drawn = [lempel_ziv_rate(rng.integers(0, 8, n)) for _ in range(runs)]
    assert np.mean(tossed) == pytest.approx(coin, rel=0.01)
    assert np.mean(drawn) == pytest.approx(even, rel=0.01)
