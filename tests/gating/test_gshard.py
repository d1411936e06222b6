"""What each option of the GShard router means, and fairscale's limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.gating import FairscaleTop2Router, GShardRouter, TopKRouter


def router(probabilities: list[list[float]], **options: object) -> GShardRouter:
    """A router whose input is the one-hot token number, with these probabilities."""
    p = torch.tensor(probabilities)
    made = GShardRouter(len(p), p.shape[1], **options)  # type: ignore[arg-type]
    with torch.no_grad():
        made.weight.copy_(p.log().t())
    return made


P = [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.7, 0.2, 0.1]]


def test_first_choices_find_room_before_any_second() -> None:
    # capacity ceil(1 x 2 x 3 / 3) = 2: expert 0 has room for the first two tokens
    p = [[0.3, 0.5, 0.2], [0.6, 0.3, 0.1], [0.7, 0.2, 0.1]]
    made = router(p, capacity_factor=1.0, second="always")
    routing = made(torch.eye(3))
    assert routing.expert_tk.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert routing.capacity == 2
    # token 0's second choice, though first in the batch, comes after two first choices
    assert routing.kept.view(-1, 2).tolist() == [
        [True, False],
        [True, True],
        [True, False],
    ]
    torch.testing.assert_close(
        routing.weight.view(-1, 2)[0], torch.tensor([0.625, 0.375])
    )
    kept = router(p, capacity_factor=1.0, second="always", weights="kept")
    weight = kept(torch.eye(3)).weight.view(-1, 2)
    torch.testing.assert_close(weight[0], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(weight[1], torch.tensor([2 / 3, 1 / 3]))


def test_a_token_without_room_anywhere_weighs_nothing() -> None:
    same = [[0.6, 0.4]] * 4
    routing = router(same, capacity_factor=0.25, second="always", weights="kept")(
        torch.eye(4)
    )
    assert routing.kept.view(-1, 2).tolist() == [[True, True]] + [[False, False]] * 3
    assert routing.weight.view(-1, 2)[1:].tolist() == [[0.0, 0.0]] * 3


def test_the_second_is_sent_with_probability_twice_its_share() -> None:
    tokens = 4000
    x = torch.zeros(tokens, 3)
    x[:, 0] = 1
    torch.manual_seed(0)
    routing = router(P)(x)  # g2 = 0.3 / 0.8 = 0.375
    assert routing.k is None
    assert routing.demand()[0] == tokens
    sent = int(routing.demand()[1])
    assert sent / tokens == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / tokens) ** 0.5)
    # the first weighs as much whether the second is sent or not
    first = routing.weight[routing.expert == 0]
    torch.testing.assert_close(first, torch.full_like(first, 0.625))


def test_a_second_that_is_not_sent_takes_no_room() -> None:
    tokens = 400
    x = torch.zeros(tokens, 3)
    x[:, 1] = 1  # g2 = 1/3: two thirds are sent
    torch.manual_seed(1)
    # capacity ceil(0.75 x 2 x 400 / 3) = 200
    routing = router(P, capacity_factor=0.75)(x)
    assert routing.capacity == 200
    demand, load = routing.demand(), routing.load()
    assert 200 < int(demand[1]) < 400
    assert load.tolist() == [200, 200, 0]


def test_equal_shares_are_always_sent() -> None:
    routing = router([[0.45, 0.45, 0.1]] * 50)(torch.eye(50))
    assert len(routing.token) == 100


def test_gumbel_draws_from_the_softmax_without_the_first() -> None:
    tokens = 6000
    x = torch.zeros(tokens, 3)
    x[:, 0] = 1
    torch.manual_seed(2)
    second = router(P, second="gumbel")(x).expert_tk[:, 1]
    counts = torch.bincount(second, minlength=3)
    assert counts[0] == 0
    spread = 5 * (0.6 * 0.4 / tokens) ** 0.5
    assert float(counts[1]) / tokens == pytest.approx(0.6, abs=spread)


@given(st.integers(0, 1000))
def test_always_is_top_2_but_for_priority(seed: int) -> None:
    torch.manual_seed(seed)
    ours, top = GShardRouter(6, 5, second="always"), TopKRouter(6, 5, k=2)
    top.load_state_dict(ours.state_dict())
    x = torch.randn(20, 6)
    a, b = ours(x), top(x)
    assert torch.equal(a.expert, b.expert)
    torch.testing.assert_close(a.weight, b.weight)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LayoutError, match="2 experts are distinct, but there is 1"):
        GShardRouter(4, 1)
    with pytest.raises(LayoutError, match="second is one of proportional"):
        GShardRouter(4, 2, second="never")
    with pytest.raises(LayoutError, match="2 experts are distinct, but there is 1"):
        FairscaleTop2Router(4, 1)
    with pytest.raises(LayoutError, match="there are 9 tokens and 4 experts"):
        FairscaleTop2Router(4, 4)(torch.zeros(9, 4))
