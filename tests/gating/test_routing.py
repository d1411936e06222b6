from __future__ import annotations

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.gating import Routing


def token_choice(capacity: int | None = None) -> Routing:
    return Routing.token_choice(
        expert=torch.tensor([[0, 1], [0, 2], [0, 1]]),
        weight=torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]]),
        experts=4,
        capacity=capacity,
        auxiliary_loss=torch.tensor(1.0),
        z_loss=torch.tensor(0.0),
    )


def test_token_choice_is_a_list_token_by_token() -> None:
    routing = token_choice()
    assert routing.token.tolist() == [0, 0, 1, 1, 2, 2]
    assert routing.expert.tolist() == [0, 1, 0, 2, 0, 1]
    assert routing.kept.all()
    assert (routing.tokens, routing.experts, routing.k) == (3, 4, 2)


def test_views_by_token_are_the_choices() -> None:
    routing = token_choice(capacity=2)
    assert routing.expert_tk.tolist() == [[0, 1], [0, 2], [0, 1]]
    assert routing.weight_tk[1].tolist() == pytest.approx([0.7, 0.3])
    assert routing.kept_tk.tolist() == [[True, True], [True, True], [False, True]]


def test_demand_counts_what_was_dropped_too() -> None:
    routing = token_choice(capacity=2)
    assert routing.demand().tolist() == [3, 2, 1, 0]
    assert routing.dropped().tolist() == [1, 0, 0, 0]
    assert routing.load().tolist() == [2, 2, 1, 0]
    assert routing.demand().dtype == torch.int64


def test_expert_choice_fits_the_type() -> None:
    # each of 2 experts takes 2 of 3 tokens: token 0 twice, token 2 never
    routing = Routing(
        token=torch.tensor([0, 1, 0, 1]),
        expert=torch.tensor([0, 0, 1, 1]),
        weight=torch.ones(4),
        kept=torch.ones(4, dtype=torch.bool),
        tokens=3,
        experts=2,
        auxiliary_loss=torch.tensor(0.0),
        z_loss=torch.tensor(0.0),
        capacity=2,
    )
    assert routing.demand().tolist() == [2, 2]
    with pytest.raises(LayoutError, match=r"\[T, K\] view .* k is None"):
        routing.expert_tk  # noqa: B018 - reading it is the test
