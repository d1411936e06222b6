"""Collapsed layers: how often a balanced router is called collapsed, and who is."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.skew.collapse import MOST_FALSE, collapse


def test_the_bound_holds_for_a_balanced_router() -> None:
    """Few tokens, so that chance starves experts at all."""
    for experts, k, tokens in ((4, 1, 12), (8, 1, 24), (8, 2, 16), (16, 2, 24)):
        model = NullModel(experts=experts, k=k)
        drawn = model.draw([tokens], draws=4000)[:, 0]
        found = [collapse(load, k=k) for load in drawn]
        claimed = np.mean([f.starved >= experts / 2 for f in found])
        assert claimed <= found[0].false_claims + 3 / 4000
        assert {f.false_claims for f in found} == {found[0].false_claims}
        # where the bound is too large, nothing is stated
        assert all(f.collapsed is None for f in found) or claimed <= MOST_FALSE


@pytest.mark.parametrize("experts", [8, 64, 256])
def test_what_is_called_collapsed(experts: int) -> None:
    rank = np.arange(1, experts + 1)
    tokens = 400 * experts
    # Zipf's law with exponent 1 is skewed, but no expert is starved by a tenth of all
    healthy = np.rint(tokens * (1 / rank) / (1 / rank).sum())
    assert collapse(healthy, k=1).collapsed is False
    steep = np.rint(tokens * rank**-2.0 / (rank**-2.0).sum())
    assert collapse(steep, k=1).collapsed is (experts >= 64)
    half = np.where(rank <= experts // 2, 2 * tokens // experts, 0)
    assert collapse(half, k=1).collapsed is True
    one_less = half.copy()
    one_less[experts // 2] = tokens // experts
    assert collapse(one_less, k=1).collapsed is False
    assert collapse(one_less, k=1).starved == experts // 2 - 1


def test_what_cannot_be_stated() -> None:
    assert collapse([0, 0]).collapsed is None
    assert collapse([7]).collapsed is None
    assert collapse([5, 5], k=2).collapsed is None  # all experts, always
    assert collapse([90, 10, 0, 0, 0, 0], k=0) == collapse([90, 10, 0, 0, 0, 0], k=1)
