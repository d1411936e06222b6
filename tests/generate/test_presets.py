"""The models that come along: each can be drawn from, as its name says."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.generate import preset_model, preset_names

EXPERTS = {1: 8, 2: 8, 8: 32}


def share_of_hottest(name: str) -> float:
    demand = preset_model(name).sample(iterations=40, seed=3)
    counts = np.concatenate([block for _, block in demand.blocks()])
    load = counts.sum(axis=2, dtype=np.float64)  # [n, L, E]
    return float((load.max(axis=2) / load.mean(axis=2)).mean())


def test_there_are_early_and_late_ones_of_three_ks_balanced_or_not() -> None:
    kinds = ("top1-balanced", "top1-unbalanced", "top2-balanced", "top2-unbalanced")
    kinds = (*kinds, "top8-balanced", "top8-lossfree")
    assert set(preset_names()) == {f"{k}-{p}" for k in kinds for p in ("early", "late")}
    with pytest.raises(LayoutError, match=r"top8-lossfree-late.*not 'top9'"):
        preset_model("top9")


@pytest.mark.parametrize("name", preset_names())
def test_each_rank_of_a_preset_sends_k_times_its_tokens(name: str) -> None:
    model = preset_model(name)
    scene = model.scenario
    assert scene.k == int(name[3])
    assert scene.experts == EXPERTS[scene.k]
    assert name.removesuffix("-early").removesuffix("-late") in scene.source
    demand = model.sample(iterations=12, seed=1, ranks=16)
    for _, counts in demand.blocks():
        assert (counts.sum(axis=3) == scene.k * scene.tokens).all()
        assert counts.max() <= scene.tokens
        assert counts.min() >= 0


@pytest.mark.parametrize("k", [1, 2])
def test_late_balanced_routers_are_more_even_than_unbalanced_ones(k: int) -> None:
    balanced = share_of_hottest(f"top{k}-balanced-late")
    assert balanced < share_of_hottest(f"top{k}-unbalanced-late")
