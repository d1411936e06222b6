from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from moetraffic.errors import LayoutError
from moetraffic.models import GradientBucket, ParameterSets, connect
from moetraffic.models.parallelism.gradients import ReplicatedUpdate, gradient_norm
from moetraffic.patterns import Layout, Training


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 4},
        {"dp": 4, "ep": 2},
        {"dp": 4, "ep": 4},
        {"dp": 2, "ep": 2, "tp": 2},
        {"dp": 2, "pp": 2},
        {"tp": 2, "pp": 2},
        {"pp": 3},
    ],
    ids=str,
)
def test_gradients_are_means_and_one_factor_clips_all(
    layout: dict[str, int], run_ranks: Callable[..., list[Any]]
) -> None:
    whole = Layout(**layout)
    dp, ep, tp, pp = whole.dp, whole.ep, whole.tp, whole.pp
    ranks = run_ranks("norms", whole.world, layout=layout)
    # the dense gradient of replica r is r; expert e's is e on each of its copies; the
    # tied one of stage s is s + 1
    dense = torch.full((2,), (dp - 1) / 2)
    split = torch.arange(4.0)
    experts = torch.arange(8.0) / ep
    tied = 1.0 + pp if pp > 1 else 1.0
    a_stage = torch.cat([dense, split, experts]).norm().item()
    # a tied parameter counts once; one that is not tied counts on each stage
    between = sum((1.0 + s) ** 2 for s in range(1, pp - 1))
    norm = (pp * a_stage**2 + tied**2 + between) ** 0.5
    for result in ranks:
        ep_rank, tp_rank, stage = result["place"]
        inner = 0 < stage < pp - 1
        expected = [
            dense,
            split.view(tp, -1)[tp_rank],
            experts.view(ep, tp, -1)[ep_rank, tp_rank],
            torch.tensor([1.0 + stage if inner else tied]),
        ]
        for got, right in zip(result["reduced"], expected, strict=True):
            torch.testing.assert_close(got, right)
        for got, right in zip(result["clipped"], expected, strict=True):
            torch.testing.assert_close(got, right / norm, rtol=1e-5, atol=0)


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
    shares = ParameterSets(replicated=[a], split=[], experts=[b])
    groups = connect(Layout())
    updates = ReplicatedUpdate(nn.Module(), shares, groups, Training())
    updates.dense.flat.fill_(3)
    updates.experts.flat.fill_(4)
    assert gradient_norm(updates, groups).item() == 5


def test_too_few_ranks_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"4 x 1 x 1 x 1 = 4 and 1 were started"):
        connect(Layout(dp=4))


def test_placement_is_contiguous() -> None:
    groups = connect(Layout())
    assert groups.placement(3) == (0, 0, 0)
    kinds = ("world", "dp", "ep", "edp", "tp", "pp", "embedding")
    assert groups.by_kind() == dict.fromkeys(kinds)
