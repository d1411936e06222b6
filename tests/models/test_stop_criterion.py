from __future__ import annotations

import numpy as np
import pytest
import torch

from moetraffic.capture.annotate import ShardRouting, shard_routing
from moetraffic.models import stop_criterion
from moetraffic.models.stop_criterion import SteadyLoad


def told(layer: int, load: list[int], slot: int = 0) -> None:
    shard_routing(
        ShardRouting(
            layer=layer,
            slot=slot,
            first=0,
            demand=torch.tensor([load]),
            dropped=torch.zeros(1, len(load), dtype=torch.int64),
            row_bytes=4,
            dtype="float32",
            padded=0,
        )
    )


def ends_after(skews: np.ndarray, least: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Steps until a load that is so skewed counts as steady; 0 for never."""
    monkeypatch.setattr(stop_criterion, "LEAST_STEPS", least)
    rng = np.random.default_rng(0)
    with SteadyLoad() as steady:
        for step, skew in enumerate(skews, 1):
            for layer in (1, 3):
                for slot in (0, 1):
                    extra = int(1000 * skew + rng.integers(0, 20))
                    told(layer, [1000 + extra, 1000, 1000, 1000], slot)
            if steady():
                assert set(steady.curves) == {1, 3}
                assert len(steady.curves[1]) == step  # micro-batches are one step
                return step
    return 0


def test_a_load_that_settles_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settles = 5 * np.exp(-np.arange(400) / 15)
    assert 200 <= ends_after(settles, 200, monkeypatch) <= 300


def test_a_load_that_keeps_drifting_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends_after(np.linspace(5, 0, 400), 100, monkeypatch) == 0


def test_a_routing_that_is_not_a_shard_of_ours_is_not_heard() -> None:
    steady = SteadyLoad()
    with steady:
        pass
    told(1, [1, 2])
    assert not steady()
    assert steady.curves == {}
