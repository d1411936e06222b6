from __future__ import annotations

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.gating import (
    DeepSeekRouter,
    ExpertChoiceRouter,
    Routing,
    balance_loss,
)


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
    assert routing.weight.view(-1, 2)[1].tolist() == pytest.approx([0.7, 0.3])
    assert routing.kept.view(-1, 2).tolist() == [
        [True, True],
        [True, True],
        [False, True],
    ]


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


def test_shards_are_joined_with_what_balances_them() -> None:
    torch.manual_seed(0)
    router, x = DeepSeekRouter(4, 5, k=2, capacity_factor=1.0), torch.randn(12, 4)
    shards = [router(part) for part in x.chunk(3)]
    whole = Routing.joined(shards)
    assert (whole.tokens, whole.k) == (12, 2)
    assert whole.token.tolist() == [t for t in range(12) for _ in range(2)]
    assert whole.probabilities is not None
    assert whole.probabilities.shape == (12, 5)
    assert whole.balanced is not None
    assert whole.balanced.shape == (12, 2)
    assert torch.equal(whole.load(), sum(s.load() for s in shards))
    # the mean of the shards' losses is the loss by sequence, a shard for a sequence
    torch.testing.assert_close(
        balance_loss(whole, "sequence", sequences=3), whole.auxiliary_loss
    )
    none = Routing.joined([ExpertChoiceRouter(4, 5, k=1)(x[:6]) for _ in range(2)])
    assert none.probabilities is None
    assert none.demand().sum() == 2 * 5 * 2  # 5 experts take ceil(6 / 5) tokens
