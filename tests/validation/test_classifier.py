"""The classifier learns what there is to learn, and no more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moetraffic.errors import AnalysisError
from moetraffic.validation.classifier import two_sample_auc, windows
from moetraffic.validation.features import count_features


def test_of_noise_nothing_is_learned() -> None:
    rng = np.random.default_rng(0)
    found = [
        two_sample_auc([rng.normal(size=(40, 6))], [rng.normal(size=(40, 6))])
        for _ in range(12)
    ]
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("what", ["mean", "variance"])
def test_a_shift_and_a_wider_scatter_are_learned(what: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 100, 3))
    b = b + 2.0 if what == "mean" else b * 3.0
    assert two_sample_auc([a], [b]) > 0.85


def test_on_held_out_pairs_what_pairs_have_in_common_is_learned() -> None:
    rng = np.random.default_rng(2)
    level = 5 * rng.normal(size=(4, 1, 3))  # seeds differ much more than twins
    real = list(level + rng.normal(size=(4, 60, 3)))
    twins = list(level + rng.normal(size=(4, 60, 3)))
    assert 0.4 < two_sample_auc(twins, real) < 0.6
    wider = list(level + rng.normal(size=(4, 60, 3)) * np.array([1.0, 1.0, 1.0]))
    for run in wider:
        run[:, 0] += 4.0
    assert two_sample_auc(wider, real) > 0.6


def test_windows_of_a_run(simulated: Callable[..., np.ndarray]) -> None:
    run = count_features(simulated(0))
    found = windows(run)
    assert found.shape[0] == 12
    assert np.isfinite(found).all()
    # the first feature is the mean of the busiest expert's load
    assert found[3, 0] == pytest.approx(run.ordered[30:40, 0, 0].mean())


def test_what_cannot_be_tried_is_refused() -> None:
    few = np.zeros((9, 2))
    with pytest.raises(AnalysisError, match="longer runs"):
        two_sample_auc([few], [few])
    with pytest.raises(AnalysisError, match="pairs of runs"):
        two_sample_auc([np.zeros((40, 2))], [])
