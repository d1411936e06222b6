from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.gating import load_balancing_loss, router_z_loss


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
