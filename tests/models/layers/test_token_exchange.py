from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

ROWS = [  # ROWS[i][j]: rows from rank i to rank j
    [1, 0, 3, 2],
    [0, 0, 0, 0],  # has nothing to send
    [4, 0, 0, 1],
    [2, 0, 5, 0],  # and rank 1 gets nothing
]


@pytest.fixture(scope="module")
def ranks(run_ranks: Callable[..., list[Any]]) -> list[Any]:
    return run_ranks("exchanging", rows=ROWS, hidden=3)


def block(values: torch.Tensor, splits: list[int], at: int) -> torch.Tensor:
    return torch.split(values, splits)[at]


def test_what_arrives_is_what_was_sent(ranks: list[Any]) -> None:
    for to in range(4):
        expected = [block(ranks[i]["x"], ROWS[i], to) for i in range(4)]
        assert torch.equal(ranks[to]["y"], torch.cat(expected))


def test_the_gradient_returns_to_the_sender(ranks: list[Any]) -> None:
    for source in range(4):
        expected = [
            block(ranks[j]["g"], [ROWS[i][j] for i in range(4)], source)
            for j in range(4)
        ]
        assert torch.equal(ranks[source]["grad"], torch.cat(expected))


def test_backward_is_the_reverse_exchange_at_its_own_phase(ranks: list[Any]) -> None:
    for rank, result in enumerate(ranks):
        forward, backward = result["log"]
        assert (forward["phase"], backward["phase"]) == ("dispatch", "dispatch_grad")
        assert forward["layer"] == backward["layer"] == 5
        assert forward["send"] == backward["receive"] == ROWS[rank]
        assert forward["receive"] == backward["send"]
