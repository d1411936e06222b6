from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from moetraffic.errors import LayoutError
from moetraffic.models import GradientBucket, connect
from moetraffic.models.parallel import gradient_norm
from moetraffic.patterns import ParallelLayout


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_gradients_are_means_and_one_factor_clips_all(
    ep: int, run_ranks: Callable[..., list[Any]]
) -> None:
    ranks = run_ranks("norms", ep=ep)
    # the dense gradient of rank r is r; expert e's is e on each of its 4/ep copies
    dense = torch.full((2,), 1.5)
    experts = torch.arange(8.0) * (4 // ep) / 4
    norm = torch.cat([dense, experts]).norm()
    for rank, result in enumerate(ranks):
        mine = experts.view(ep, -1)[rank % ep]
        for got, expected in zip(result["synced"], (dense, mine), strict=True):
            torch.testing.assert_close(got, expected)
        for got, expected in zip(result["clipped"], (dense, mine), strict=True):
            torch.testing.assert_close(got, expected / norm, rtol=1e-5, atol=0)


def test_a_bucket_collects_gradients_without_copies() -> None:
    a, b = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))
    bucket = GradientBucket([a, b])
    for times in (1, 2):  # accumulates
        (2 * a.sum() + 3 * b.sum()).backward()
        assert bucket.flat.tolist() == [2.0 * times] * 6 + [3.0 * times] * 4
    bucket.zero()
    assert a.grad is not None
    assert a.grad.abs().sum() == 0


def test_norm_of_one_process() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    buckets = GradientBucket([a]), GradientBucket([b])
    buckets[0].flat.fill_(3)
    buckets[1].flat.fill_(4)
    assert gradient_norm(*buckets, connect(ParallelLayout())).item() == 5


def test_too_few_ranks_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"4 x 1 x 1 x 1 = 4 and 1 were started"):
        connect(ParallelLayout(dp=4))


def test_placement_is_contiguous() -> None:
    groups = connect(ParallelLayout())
    assert groups.placement(3) == (0, 0, 0)
    assert groups.by_kind() == {"world": None, "ep": None, "edp": None}
