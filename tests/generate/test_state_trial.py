"""States by trial: each expert's loads lean and spread as the captured ones do."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.generate.dynamics import Dynamics, Steps, bounded
from moetraffic.generate.latent import seen
from moetraffic.generate.local_memory import partial_of
from moetraffic.generate.state_trial import tried

COUNT, RANKS, EXPERTS, TOKENS, KNOT = 1200, 8, 8, 512, 1000.0
ORDER = 6
PHI = 0.5
BEND = np.array([1.5, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0])
"""Two experts dip, where the logarithms of the others' loads swing evenly."""


def states(bend: np.ndarray) -> Dynamics:
    cells = np.zeros((1, 1, EXPERTS))
    alike = np.broadcast_to(PHI ** np.arange(ORDER + 1), (1, 1, EXPERTS, ORDER + 1))
    return Dynamics(
        start=cells[0],
        level=cells[0],
        tau=np.ones(1),
        coupling=np.zeros(1),
        knots=np.array([KNOT]),
        shift=cells,
        phi=np.zeros((1, 1, 1)),
        sd=np.full((1, 1, 1), 0.35),
        scale=cells + 1,
        partial=partial_of(alike),
        balance=cells + 1 / EXPERTS,
        bend=cells + bend,
        limit=cells,
    )


def loads(d: Dynamics, seed: int) -> np.ndarray:
    """``[COUNT, L, E]``, k = 1."""
    rng = np.random.default_rng(seed)
    steps = Steps(d, rng.standard_normal((1, 1, EXPERTS)))
    out = np.empty((COUNT, 1, EXPERTS))
    for t in range(COUNT):
        steps.take(t, rng.standard_normal((1, 1, EXPERTS)))
        x = np.exp(bounded(d.trend(t) + d.bent(d.deviation(steps.unit, t), t)))
        out[t] = x / x.sum(axis=1, keepdims=True)
    return out


def skewness(load: np.ndarray) -> np.ndarray:
    x = load[800:, 0] - load[800:, 0].mean(axis=0)
    return np.asarray((x**3).mean(axis=0) / (x**2).mean(axis=0) ** 1.5)


@pytest.mark.slow
def test_experts_that_dip_do_so_in_samples_and_others_do_not() -> None:
    rng = np.random.default_rng(4)
    true = loads(states(BEND), 1)
    counts = rng.multinomial(TOKENS, np.repeat(true, RANKS, axis=1))[:, None]
    look = seen(counts.astype(np.int32), k=1, tokens=TOKENS)
    alike = np.broadcast_to(PHI ** np.arange(ORDER + 1), (1, 1, EXPERTS, ORDER + 1))
    plain = states(np.zeros(EXPERTS))
    fitted = tried(plain, look, counts.mean(axis=2) / TOKENS, alike, k=1)
    wanted, got, before = (
        np.mean([skewness(loads(d, seed)) for seed in range(4)], axis=0)
        for d in (states(BEND), fitted, plain)
    )
    dips, others = [0, 4], [1, 2, 3, 5, 6, 7]
    assert (before - wanted)[dips].mean() > 1.0  # so much is to be put right
    assert np.abs((got - wanted)[dips]).max() < 0.35
    assert abs((got - wanted)[others].mean()) < 0.35
    spread = loads(fitted, 9)[800:].std(axis=0) / loads(states(BEND), 9)[800:].std(
        axis=0
    )
    assert (np.abs(np.log(spread)) < 0.3).all()
