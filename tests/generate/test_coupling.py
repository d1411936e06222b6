"""A layer that follows the one before is told so, however chance hides both."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.generate.coupling import couplings
from moetraffic.generate.latent import Seen

SHAPE = (3000, 3, 6)


def looked_at(coupling: float, noise: float, *, seed: int) -> tuple[np.ndarray, Seen]:
    """States ``[n, L, E]`` seen as means of 4 rows whose deviations layers share."""
    rng = np.random.default_rng(seed)
    apart = lfilter([0.3], [1.0, -0.9], rng.standard_normal(SHAPE), axis=0)
    for layer in range(1, SHAPE[1]):
        apart[:, layer] += coupling * apart[:, layer - 1]
    rows = np.sqrt(noise) * rng.standard_normal((SHAPE[0], 4, 1, SHAPE[2]))
    rows = rows + np.sqrt(noise) * rng.standard_normal((SHAPE[0], 4, *SHAPE[1:]))
    mean = rows.mean(axis=1)
    rows = rows - mean[:, None]
    nothing = np.ones(SHAPE)
    weight = np.random.default_rng(seed).dirichlet(np.full(SHAPE[2], 9.0), SHAPE[1])
    return apart + mean, Seen(
        state=apart + mean,
        noise=(rows**2).sum(axis=1) / 12,
        rows=rows,
        counting=nothing,
        answer=nothing,
        own=nothing,
        share=nothing / SHAPE[2],
        weight=weight,
    )


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_coupling_is_told_and_what_rows_share_is_none(noise: float) -> None:
    apart, look = looked_at(0.5, noise, seed=1)
    value, reach = couplings(apart, look, alone=1.0)
    assert value == pytest.approx([0.0, 0.5, 0.5], abs=0.05)
    assert (reach[0, 1:] < 0.5).all()
    assert (reach[1, 1:] > 0.5).all()


def test_layers_that_share_rows_only_do_not_follow() -> None:
    apart, look = looked_at(0.0, 2.0, seed=2)
    assert couplings(apart, look, alone=1.0)[0].tolist() == [0.0, 0.0, 0.0]
