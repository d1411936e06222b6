"""Data drawn from a known model give its parameters back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moetraffic.generate import TrafficModel
from moetraffic.generate.fitting import Fitted, fit_counts
from moetraffic.generate.inclusion import inclusion, spread

Make = Callable[..., TrafficModel]


def fitted(
    model: TrafficModel, count: int, seed: int, *, correct: bool = True
) -> Fitted:
    demand = model.sample(iterations=count, seed=seed)
    counts = np.concatenate([c for _, c in demand.blocks()])
    scene = model.scenario
    return fit_counts(counts, k=scene.k, tokens=scene.tokens, correct_noise=correct)


def centered_variance(model: TrafficModel) -> np.ndarray:
    """Variance of u ``[L]`` less what shares, which add up, cannot tell."""
    factors, own, _ = model.rows.at(0)
    k = model.scenario.k
    out = []
    for layer, level in enumerate(model.dynamics.level):
        p = inclusion(np.exp(level), k)
        answer, root = spread(p), np.sqrt(p * (1 - p))
        # of the logarithm of a weight by u: of p itself, or of the odds
        slope = root / p if k == 1 else 1 / root
        told = np.diag(answer) - np.multiply.outer(answer, answer) / answer.sum()
        told = told * slope / root[:, None]
        c = factors[layer] @ factors[layer].T + np.diag(own[layer] ** 2)
        out.append(np.diag(told @ c @ told.T).mean())
    return np.array(out)


def slowest(fit: Fitted) -> np.ndarray:
    return np.asarray(fit.dynamics.phi[-1].max(axis=1))


def test_a_few_hundred_iterations_tell_memory_rows_and_trend(known_model: Make) -> None:
    model = known_model(layers=2, far=1.0)
    fit = fitted(model, 700, 1)
    assert fit.settled == 0
    assert slowest(fit) == pytest.approx([0.9, 0.9], abs=0.05)
    low, high = fit.bounds.phi[:, :, -1]
    assert (low < 0.92).all()
    assert (high > 0.88).all()
    assert fit.dynamics.coupling[1] == pytest.approx(0.5, abs=0.15)
    variance = fit.rows.variance.mean(axis=(0, 2))
    assert variance == pytest.approx(centered_variance(model), rel=0.15)
    assert fit.dynamics.tau == pytest.approx([100, 100], rel=0.5)


def test_noise_that_is_not_corrected_hides_memory(known_model: Make) -> None:
    # few tokens and few ranks: chance is most of what is seen
    model = known_model(
        layers=1, ranks=4, tokens=64, sd=0.15, phi=0.95, variance=0.015, far=0.0
    )
    right = fitted(model, 1000, 3)
    wrong = fitted(model, 1000, 3, correct=False)

    def one_step(fit: Fitted) -> float:
        squares = fit.dynamics.sd[-1, 0] ** 2
        return float((squares * fit.dynamics.phi[-1, 0]).sum() / squares.sum())

    assert one_step(right) == pytest.approx(0.95, abs=0.05)
    assert one_step(wrong) < 0.7
    assert (wrong.dynamics.sd**2).sum() > 1.5 * (right.dynamics.sd**2).sum()


def test_experts_of_two_a_token_are_told_too(known_model: Make) -> None:
    model = known_model(layers=1, k=2, far=0.0, coupling=0.0)
    fit = fitted(model, 600, 2)
    assert slowest(fit) == pytest.approx([0.9], abs=0.06)
    variance = fit.rows.variance.mean(axis=(0, 2))
    assert variance == pytest.approx(centered_variance(model), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.7, 0.9, 0.97])
def test_five_thousand_iterations_tell_all_within_a_tenth(
    known_model: Make, phi: float
) -> None:
    model = known_model(phi=phi, layers=3, tau=300.0, far=4.0, sd=0.25)
    fit = fitted(model, 5000, 4)
    assert slowest(fit) == pytest.approx([phi] * 3, rel=0.1)
    assert fit.dynamics.coupling[1:] == pytest.approx([0.5, 0.5], rel=0.1)
    assert fit.dynamics.tau == pytest.approx([300.0] * 3, rel=0.1)
    variance = fit.rows.variance.mean(axis=(0, 2))
    assert variance == pytest.approx(centered_variance(model), rel=0.1)
    for told, true in (
        (
            fit.dynamics.start - fit.dynamics.level,
            model.dynamics.start - model.dynamics.level,
        ),
    ):
        told = told - told.mean(axis=1, keepdims=True)
        true = true - true.mean(axis=1, keepdims=True)
        off = np.linalg.norm(told - true, axis=1) / np.linalg.norm(true, axis=1)
        assert (off < 0.1).all()


@pytest.mark.slow
def test_intervals_cover_the_truth_at_a_thousand(known_model: Make) -> None:
    covered = {"phi": [], "coupling": [], "tau": []}
    for seed in range(12):
        model = known_model(layers=2, tau=100.0, far=2.0, seed=seed)
        bounds = fitted(model, 1000, seed).bounds
        covered["phi"] += ((bounds.phi[0] < 0.9) & (bounds.phi[1] > 0.9))[
            :, -1
        ].tolist()
        covered["coupling"].append(bounds.coupling[0, 1] < 0.5 < bounds.coupling[1, 1])
        covered["tau"] += ((bounds.tau[0] < 100) & (bounds.tau[1] > 100)).tolist()
    for name, hits in covered.items():
        assert np.mean(hits) >= 0.75, (name, hits)
