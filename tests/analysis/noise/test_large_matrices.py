"""Floors of large matrices: closed forms, and exact draws of matrices."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from moetraffic.analysis.noise.floors import matrix_floors
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.noise.oracle import count_variance
from tests.analysis.noise import closed_forms

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(("k", "held"), [(1, 4), (3, 2), (4, 4), (5, 3)])
def test_the_deviation_of_cv_squared_of_ranks_is_exact(k, held):
    """Of two tokens, whose sets of experts are all equally likely."""
    experts = 12
    sets = np.array(list(combinations(range(experts), k))) // held
    copies = (sets[:, :, None] == np.arange(experts // held)).sum(axis=1)
    counts = (copies[:, None] + copies).reshape(-1, experts // held)
    of = counts.var(axis=1) / counts.mean(axis=1) ** 2
    exact = closed_forms.std_cv_squared(2, experts, k, 1, held=held)
    assert exact == pytest.approx(of.std(), rel=1e-9)


def test_floors_of_large_matrices_have_every_measure():
    model = NullModel(experts=128, k=2, sources=128, ranks=128)
    found = matrix_floors(("cv", "sparsity"), np.array([40]), model, received=("gini",))
    # of an expert a rank: 40 tokens that each miss one, or two, of 128 with 2 copies
    one, two = (126 / 128) ** 40, (126 / 128 * 125 / 127) ** 40
    variance = (one * (1 - one) + 126 * (two - one**2)) / (127 * 128)
    assert found["sparsity"].mean[0] == pytest.approx(one)
    assert found["sparsity"].std[0] == pytest.approx(np.sqrt(variance))
    assert found["received.gini"].mean[0] == pytest.approx(
        # of normal variates, whose mean distance is 2 sigma / sqrt(pi)
        np.sqrt(count_variance(40 * 127 / 64, 40 * 127) / np.pi) / (2 * 40 * 127 / 128),
        rel=0.01,
    )
