from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.gating import (
    ExpertChoiceRouter,
    TopKRouter,
    balance_counts,
    balance_loss,
    global_balance_loss,
    load_balancing_loss,
    load_error_sign,
    router_z_loss,
    sequence_balance_loss,
)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_uniform_router_has_auxiliary_loss_one(k: int) -> None:
    tokens, experts = 16, 4
    probabilities = torch.full((tokens, experts), 1 / experts)
    balanced = torch.arange(tokens * k).view(tokens, k) % experts
    assert load_balancing_loss(probabilities, balanced).item() == pytest.approx(1)
    # equal probabilities give 1 whatever was chosen: sum f_i / E * E
    assert load_balancing_loss(probabilities, balanced * 0).item() == pytest.approx(1)


def test_a_collapsed_router_has_the_number_of_experts() -> None:
    probabilities = torch.zeros(10, 8)
    probabilities[:, 3] = 1
    chosen = torch.full((10, 1), 3)
    assert load_balancing_loss(probabilities, chosen).item() == pytest.approx(8)


def test_auxiliary_loss_by_hand() -> None:
    probabilities = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]])
    chosen = torch.tensor([[0], [0], [1]])
    f, p = (2 / 3, 1 / 3), (1.4 / 3, 1.6 / 3)
    expected = 2 * (f[0] * p[0] + f[1] * p[1])
    assert load_balancing_loss(probabilities, chosen).item() == pytest.approx(expected)


def test_auxiliary_gradient_pushes_away_from_the_loaded_expert() -> None:
    logits = torch.zeros(6, 3, requires_grad=True)
    chosen = torch.tensor([[0], [0], [0], [0], [1], [2]])
    load_balancing_loss(logits.softmax(-1), chosen).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 0] > 0).all()
    assert (logits.grad[:, 1:] < 0).all()


@given(tokens=st.integers(1, 30), experts=st.integers(1, 12), seed=st.integers(0, 99))
def test_auxiliary_loss_of_the_most_probable_expert_is_between_one_and_all(
    tokens: int, experts: int, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    p = torch.randn(tokens, experts, generator=draws, dtype=torch.float64).softmax(-1)
    loss = load_balancing_loss(p, p.argmax(-1, keepdim=True)).item()
    assert 0 <= loss <= experts + 1e-9


@pytest.mark.parametrize("experts", [1, 2, 8])
def test_z_loss_of_zero_logits(experts: int) -> None:
    z = router_z_loss(torch.zeros(5, experts)).item()
    assert z == pytest.approx(log(experts) ** 2)


def test_z_loss_by_hand() -> None:
    logits = torch.tensor([[log(3.0), log(1.0)], [log(5.0), log(3.0)]])
    expected = (log(4) ** 2 + log(8) ** 2) / 2
    assert router_z_loss(logits).item() == pytest.approx(expected)


def test_no_tokens_cost_nothing() -> None:
    none = torch.zeros(0, 4)
    assert load_balancing_loss(none, torch.zeros(0, 1, dtype=torch.int64)).item() == 0
    assert router_z_loss(none).item() == 0


def distribution(tokens: int, experts: int, seed: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, experts, generator=draws, dtype=torch.float64)
    return logits.softmax(-1)


@given(
    sequences=st.integers(1, 5),
    length=st.integers(1, 7),
    k=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_sequence_loss_is_the_mean_of_the_sequences(
    sequences: int, length: int, k: int, seed: int
) -> None:
    p = distribution(sequences * length, 4, seed)
    chosen = p.topk(k).indices
    parts = [
        load_balancing_loss(p[i * length :][:length], chosen[i * length :][:length])
        for i in range(sequences)
    ]
    torch.testing.assert_close(
        sequence_balance_loss(p, chosen, sequences), torch.stack(parts).mean()
    )


def test_a_batch_may_be_balanced_though_no_sequence_is() -> None:
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    chosen = p.argmax(-1, keepdim=True)
    assert load_balancing_loss(p, chosen).item() == pytest.approx(1)
    assert sequence_balance_loss(p, chosen, 2).item() == pytest.approx(2 * 0.9)


@given(ranks=st.integers(1, 5), tokens=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_global_losses_of_ranks_have_the_mean_of_the_whole(
    ranks: int, tokens: int, seed: int
) -> None:
    p = distribution(ranks * tokens, 4, seed)
    chosen = p.topk(2).indices
    counts = torch.bincount(chosen.flatten(), minlength=4)
    parts = [global_balance_loss(mine, counts) for mine in p.chunk(ranks)]
    whole = load_balancing_loss(p, chosen)
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_a_routing_has_the_loss_of_its_scope() -> None:
    torch.manual_seed(0)
    routing = TopKRouter(4, 3, k=2)(torch.randn(6, 4))
    p, chosen = routing.probabilities, routing.expert_tk
    assert p is not None
    assert balance_counts(routing).equal(routing.demand())
    assert balance_loss(routing, "micro_batch") is routing.auxiliary_loss
    torch.testing.assert_close(
        balance_loss(routing, "sequence", sequences=2),
        sequence_balance_loss(p, chosen, 2),
    )
    counts = torch.tensor([5, 1, 0])
    torch.testing.assert_close(
        balance_loss(routing, "global", counts=counts), global_balance_loss(p, counts)
    )
    # the counts of this micro-batch alone give the micro-batch's loss
    torch.testing.assert_close(
        balance_loss(routing, "global", counts=routing.demand()),
        routing.auxiliary_loss,
    )
    for refused in ("galaxy", "global"):
        with pytest.raises(LayoutError, match="micro_batch, sequence, or global"):
            balance_loss(routing, refused)
    with pytest.raises(LayoutError, match="as many tokens of each"):
        balance_loss(routing, "sequence", sequences=4)


@pytest.mark.parametrize("scope", ["micro_batch", "sequence", "global"])
def test_a_router_without_a_balance_loss_has_none_in_any_scope(scope: str) -> None:
    routing = ExpertChoiceRouter(4, 3, k=1)(torch.randn(6, 4))
    assert balance_loss(routing, scope, sequences=2).item() == 0


def test_load_errors_have_exact_signs() -> None:
    loads = torch.tensor([4, 3, 2, 3])
    assert load_error_sign(loads).tolist() == [-1, 0, 1, 0]
    huge = torch.tensor([2**40, 2**40 + 1, 2**40 - 1])
    assert load_error_sign(huge).tolist() == [0, -1, 1]
