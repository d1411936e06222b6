"""Memory around a knot: of each expert, less chance, and such as a process has."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import toeplitz

from moetraffic.generate import local_memory
from moetraffic.generate.dynamics import coefficients
from moetraffic.generate.local_memory import ORDER, fit_local, partial_of, with_spectrum

STEPS = 400


def series(phi: np.ndarray, sd: np.ndarray, seed: int = 0) -> np.ndarray:
    """AR(1) of E experts, ``[STEPS, E]``."""
    rng = np.random.default_rng(seed)
    x = np.zeros((STEPS, len(phi)))
    x[0] = rng.standard_normal(len(phi))
    for t in range(1, STEPS):
        new = rng.standard_normal(len(phi))
        x[t] = phi * x[t - 1] + np.sqrt(1 - phi**2) * new
    return x * sd


def first_lag(partial: np.ndarray) -> np.ndarray:
    return np.asarray(partial[..., 0])


def test_autocovariances_of_a_process_stay_as_they_are_but_for_chance() -> None:
    true = 0.9 ** np.arange(ORDER + 1)
    seen = true.copy()
    seen[0] += 0.5
    assert with_spectrum(seen, 0.5) == pytest.approx(true, rel=0.01)


def test_what_no_process_has_becomes_the_nearest_that_one_has() -> None:
    smooth = np.exp(-0.5 * (np.arange(ORDER + 1) / 8) ** 2)
    seen = smooth.copy()
    seen[0] += 0.5
    seen[1] -= 0.02  # by chance
    got = with_spectrum(seen, 0.5)
    assert np.linalg.eigvalsh(toeplitz(got))[0] > 0
    # a part of white noise would do as well, but is farther from what is true
    known = np.r_[1.0, seen[1:]]
    hole = -np.linalg.eigvalsh(toeplitz(known))[0]
    assert hole > 0
    white = known / np.r_[1.0, np.full(ORDER, 1 + hole)]
    assert np.abs(got - smooth).max() < 0.8 * np.abs(white - smooth).max()


def test_experts_that_swing_and_experts_that_are_calm_keep_their_own_memory() -> None:
    phi = np.r_[np.full(4, -0.7), np.full(4, 0.95)]
    sd = np.r_[np.full(4, 0.5), np.full(4, 0.05)]
    apart = series(phi, sd)[:, None]
    share = np.full(apart.shape, 1 / 8)
    answer = share * (1 - share)
    noise = np.full(apart.shape, 1e-4)
    rng = np.random.default_rng(1)
    apart = apart + np.sqrt(noise) * rng.standard_normal(apart.shape)
    found = fit_local(
        apart, noise, share, apart * answer, answer, np.array([STEPS / 2])
    )
    lag = first_lag(partial_of(found.alike))[0, 0]
    assert lag[:4] == pytest.approx(-0.7, abs=0.12)
    assert (lag[4:] > 0.8).all()
    assert found.balance.sum(axis=2) == pytest.approx(1)


def test_coefficients_of_each_expert_are_those_of_its_partial_autocorrelations() -> (
    None
):
    partial = np.array([[[0.5, -0.3], [-0.8, 0.0]]])  # [L, E, P]
    weights, left = coefficients(partial)
    assert weights == pytest.approx(np.array([[[0.65, -0.3], [-0.8, 0.0]]]))
    assert left == pytest.approx(np.array([[0.75 * 0.91, 0.36]]))


def test_a_window_that_is_short_beside_the_memory_makes_it_look_hardly_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phi = np.full(16, 0.97)
    sd = np.full(16, 0.5)
    apart = series(phi, sd, seed=3)[:, None]
    share = np.full(apart.shape, 1 / 16)
    answer = share * (1 - share)
    noise = np.full(apart.shape, 1e-9)

    def off() -> float:
        """By how much autocorrelations are too small, lag 6."""
        knots = np.array([STEPS / 2])
        found = fit_local(apart, noise, share, apart * answer, answer, knots)
        return float(0.97**6 - found.alike[0, 0, :, 6].mean())

    right = off()
    # about the mean of a window, part of what a state does is lost
    monkeypatch.setattr(local_memory, "TURNS", 0)
    assert abs(right) < 0.6 * off()
