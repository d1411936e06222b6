"""What is particular to expert choice, DeepSeek's, and the hash router."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.gating import (
    Adaptive,
    DeepSeekRouter,
    ExpertChoiceRouter,
    HashRouter,
    SinkhornRouter,
    balance_loss,
    load_balancing_loss,
    sequence_balance_loss,
)


@given(
    tokens=st.integers(1, 24),
    experts=st.integers(2, 6),  # one alone scores 1 for each token: a draw
    factor=st.sampled_from([None, 0.5, 1.0, 2.0]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_expert_choice_is_each_experts_own_ranking(
    tokens: int, experts: int, factor: float | None, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, experts))
    torch.manual_seed(seed)
    router = ExpertChoiceRouter(5, experts, k=k, capacity_factor=factor)
    x = torch.randn(tokens, 5)
    score = router.logits(x).softmax(-1).tolist()
    take = -(-int((factor or 1) * 2) * k * tokens // (2 * experts))
    expected = {}
    for expert in range(experts):
        ranking = sorted(range(tokens), key=lambda t: -score[t][expert])
        for token in ranking[:take]:
            expected[token, expert] = score[token][expert]
    routing = router(x)
    found = zip(
        routing.token.tolist(),
        routing.expert.tolist(),
        routing.weight.tolist(),
        strict=True,
    )
    assert {(t, e): w for t, e, w in found} == expected
    assert routing.demand().tolist() == [min(take, tokens)] * experts
    assert float(routing.auxiliary_loss) == 0


def test_the_bias_selects_but_does_not_weigh() -> None:
    router = DeepSeekRouter(2, 3, k=1, bias_rate=0.1, renormalize=False)
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 0.0]]))
    x = torch.tensor([[1.0, 0.0]])
    scores = router.logits(x).sigmoid()[0].tolist()  # 0.731, 0.622, 0.5
    assert router(x).expert.tolist() == [0]
    router.steps.copy_(torch.tensor([-2, 0, 0]))
    routing = router(x)
    assert routing.expert.tolist() == [1]
    assert routing.weight.tolist() == pytest.approx([scores[1]])
    # balance counts what would be chosen without the bias
    assert routing.balanced is not None
    assert routing.balanced.tolist() == [[0]]
    shares = torch.tensor([scores]) / sum(scores)
    torch.testing.assert_close(routing.probabilities, shares)


def test_the_bias_moves_by_the_sign_of_the_load_error() -> None:
    router = DeepSeekRouter(4, 4, k=2, bias_rate=0.01)
    assert isinstance(router, Adaptive)
    router.after_step(torch.tensor([10, 5, 5, 0]))
    router.after_step(torch.tensor([9, 5, 6, 0]))
    assert router.steps.tolist() == [-2, 0, -1, 2]
    torch.testing.assert_close(router.bias, torch.tensor([-0.02, 0.0, -0.01, 0.02]))
    # and stays exact where a model is converted to half precision
    halved = router.bfloat16()
    assert halved.bias.dtype == torch.float32
    assert halved.steps.tolist() == [-2, 0, -1, 2]


def test_the_bias_balances_a_router_that_does_not_learn() -> None:
    torch.manual_seed(0)
    router = DeepSeekRouter(8, 8, k=2, bias_rate=0.004)
    with torch.no_grad():
        router.weight.normal_()
    x = torch.randn(512, 8) + 0.5
    first = router(x).demand()
    for _ in range(300):
        router.after_step(router(x).demand())
    last = router(x).demand()
    mean = 2 * 512 / 8
    assert float(first.max()) > 1.5 * mean
    assert float(last.max()) < 1.1 * mean


def test_experts_come_from_the_best_groups() -> None:
    def chosen(group_score: str) -> list[int]:
        router = DeepSeekRouter(
            1, 6, k=2, groups=3, top_groups=1, group_score=group_score
        )
        with torch.no_grad():  # groups (3, -3), (1, 1), (0, 0)
            router.weight.copy_(torch.tensor([[3.0, -3, 1, 1, 0, 0]]).t())
        experts: list[int] = sorted(router(torch.ones(1, 1)).expert.tolist())
        return experts

    assert chosen("max") == [0, 1]  # the best single expert
    assert chosen("top2") == [2, 3]  # the best two together


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"groups": 4}, "there are 6 experts in 4 groups"),
        ({"groups": 3, "top_groups": 4}, "top_groups is 4"),
        ({"groups": 3, "top_groups": 1, "k": 3}, "these hold 2 experts and k is 3"),
        ({"score": "cosine"}, "score is one of sigmoid, softmax"),
    ],
)
def test_impossible_groups_are_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        DeepSeekRouter(4, 6, **{"k": 2, **sizes})  # type: ignore[arg-type]


def test_scopes_of_a_deepseek_routing_are_its_own_losses() -> None:
    torch.manual_seed(1)
    router = DeepSeekRouter(6, 5, k=2)
    router.steps.copy_(torch.tensor([300, 0, 0, 0, 0]))  # expert 0 always
    routing = router(torch.randn(12, 6))
    shares, counted = routing.probabilities, routing.balanced
    assert shares is not None
    assert counted is not None
    whole = load_balancing_loss(shares, counted)
    torch.testing.assert_close(balance_loss(routing, "micro_batch"), whole)
    parts = [
        load_balancing_loss(share, chosen)
        for share, chosen in zip(shares.split(4), counted.split(4), strict=True)
    ]
    by_sequence = balance_loss(routing, "sequence", sequences=3)
    torch.testing.assert_close(by_sequence, torch.stack(parts).mean())
    torch.testing.assert_close(by_sequence, sequence_balance_loss(shares, counted, 3))


def test_an_id_has_its_experts_wherever_it_stands() -> None:
    router, x = HashRouter(8, k=2), torch.randn(6, 4)
    ids = torch.tensor([7, 3, 7, 9, 3, 7])
    chosen = router(x, ids=ids).expert_tk.tolist()
    assert chosen[0] == chosen[2] == chosen[5]
    assert chosen[1] == chosen[4]
    assert router(x * 2, ids=ids).expert_tk.tolist() == chosen
    assert router(x, ids=ids).weight.tolist() == [0.5] * 12
    router.reseed(1, 0)
    other = router(x, ids=ids).expert_tk.tolist()
    router.reseed(1, 4)
    assert other != chosen != router(x, ids=ids).expert_tk.tolist() != other


def test_ids_are_spread_evenly() -> None:
    ids = torch.arange(50_000)
    load = HashRouter(10)(torch.zeros(50_000, 1), ids=ids).demand()
    assert float((load - 5000).abs().max()) < 5 * (50_000 * 0.1 * 0.9) ** 0.5


def test_sinkhorn_balances_in_training_alone() -> None:
    torch.manual_seed(0)
    router, x = SinkhornRouter(8, 4), torch.randn(400, 8) + 1
    with torch.no_grad():
        router.weight.normal_()
    balanced = router.train()(x).demand()
    free = router.eval()(x).demand()
    assert int(free.max()) > 200
    assert int(balanced.max()) < 150
    assert torch.equal(free, torch.bincount(router.logits(x).argmax(-1), minlength=4))


def test_sinkhorn_bears_large_logits() -> None:
    router = SinkhornRouter(2, 3, rounds=20)
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[1000.0, 0], [0, 1000], [-500, 3]]))
    routing = router(torch.randn(30, 2))
    assert routing.weight.isfinite().all()
    assert int(routing.demand().sum()) == 30


@pytest.mark.parametrize("made", [ExpertChoiceRouter, DeepSeekRouter, SinkhornRouter])
def test_impossible_k_is_refused(made: type) -> None:
    with pytest.raises(LayoutError, match="k is 5"):
        made(8, 4, k=5)
    with pytest.raises(LayoutError, match="k is 0"):
        HashRouter(4, k=0)
