"""Ranks that read more alike than by chance, or less, as all layers show at once."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.generate.alike_ranks import at_most_apart, drawn_apart, with_noise_of
from moetraffic.generate.latent import seen

COUNT, RANKS, LAYERS, EXPERTS, TOKENS = 600, 8, 3, 8, 256


def counts(alpha: float, *, moves: float, layers: int = LAYERS) -> np.ndarray:
    """Rows of documents that show in all layers; their mean varies alpha times."""
    rng = np.random.default_rng(5)
    g = rng.standard_normal((COUNT, RANKS, 4))
    g += (np.sqrt(alpha) - 1) * g.mean(axis=1, keepdims=True)
    factors = 0.3 * rng.standard_normal((4, layers, EXPERTS))
    state: np.ndarray = np.zeros((COUNT, layers, EXPERTS))
    new = rng.standard_normal(state.shape) * np.sqrt(1 - 0.9**2) * moves
    for t in range(1, COUNT):
        state[t] = 0.9 * state[t - 1] + new[t]
    x = state[:, None] + np.einsum("trq,qle->trle", g, factors)
    weights = np.exp(x) / np.exp(x).sum(axis=3, keepdims=True)
    drawn = rng.multinomial(TOKENS, weights)
    return np.asarray(drawn.swapaxes(1, 2), np.int32)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.6])
@pytest.mark.parametrize("moves", [0.02, 0.3])
def test_how_alike_ranks_read_is_found_whatever_the_states_do(
    alpha: float, moves: float
) -> None:
    n = counts(alpha, moves=moves)
    look = seen(n, k=1, tokens=TOKENS)
    found = drawn_apart(look, n.mean(axis=2) / TOKENS, tokens=TOKENS)
    assert found == pytest.approx(alpha, rel=0.2)


def test_of_one_layer_movement_cannot_be_taken_for_documents() -> None:
    n = counts(1.6, moves=0.3, layers=1)
    look = seen(n, k=1, tokens=TOKENS)
    assert drawn_apart(look, n.mean(axis=2) / TOKENS, tokens=TOKENS) == 1.0


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.6])
def test_the_bound_is_at_least_what_is_true_and_at_most_1(alpha: float) -> None:
    n = counts(alpha, moves=0.02)
    look = seen(n, k=1, tokens=TOKENS)
    bound = at_most_apart(look, n.mean(axis=2) / TOKENS, tokens=TOKENS)
    assert min(alpha, 1.0) - 0.1 <= bound <= 1.0


def test_counting_is_a_rank_s_own_chance_whatever_it_reads() -> None:
    look = seen(counts(1.0, moves=0.1), k=1, tokens=TOKENS)
    none = with_noise_of(look, 0.0).noise
    assert (none <= look.counting / RANKS + 1e-15).all()
    more = with_noise_of(look, 2.0).noise
    assert more - none == pytest.approx(2 * (look.noise - none))
