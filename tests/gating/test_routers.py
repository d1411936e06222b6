"""Top-k and Switch: what they keep, and what each option means."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.gating import (
    Routing,
    SwitchRouter,
    TopKRouter,
    build,
    capacity,
)
from moetraffic.patterns import Gating


class Case(NamedTuple):
    gating: Gating
    tokens: int
    hidden: int
    experts: int
    seed: int

    def router(self) -> torch.nn.Module:
        torch.manual_seed(self.seed)
        router = build(self.gating, self.hidden, self.experts)
        with torch.no_grad():
            next(router.parameters()).normal_(std=1.0)  # skewed enough to drop
        return router

    def tokens_th(self) -> torch.Tensor:
        torch.manual_seed(self.seed + 1)
        return torch.randn(self.tokens, self.hidden)

    def routing(self) -> Routing:
        routing = self.router()(self.tokens_th())
        assert isinstance(routing, Routing)
        return routing


@st.composite
def cases(draw: st.DrawFn) -> Case:
    experts = draw(st.integers(1, 9))
    router = draw(st.sampled_from(("switch", "topk")))
    gating = Gating(
        router=router,
        k=1 if router == "switch" else draw(st.integers(1, experts)),
        dispatch=draw(st.sampled_from(("padded", "dropped", "dropless"))),
        capacity_factor=draw(st.sampled_from((0.3, 1.0, 1.25, 4.0))),
    )
    return Case(
        gating,
        tokens=draw(st.integers(1, 40)),
        hidden=draw(st.integers(1, 12)),
        experts=experts,
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=10, deadline=None)
@given(cases())
def test_shapes_and_ranges(case: Case) -> None:
    routing, k = case.routing(), case.gating.k
    copies = k * case.tokens
    for values in (routing.token, routing.expert, routing.weight, routing.kept):
        assert values.shape == (copies,)
    assert routing.token.dtype == routing.expert.dtype == torch.int64
    assert routing.kept.dtype == torch.bool
    assert (routing.tokens, routing.experts) == (case.tokens, case.experts)
    assert 0 <= int(routing.expert.min()) <= int(routing.expert.max()) < case.experts
    assert routing.auxiliary_loss.shape == routing.z_loss.shape == ()
    assert 0 < routing.auxiliary_loss.item() <= case.experts * (1 + 1e-5)


@settings(max_examples=10, deadline=None)
@given(cases())
def test_a_token_chooses_k_distinct_experts(case: Case) -> None:
    for experts in case.routing().expert_tk.tolist():
        assert len(set(experts)) == case.gating.k


@settings(max_examples=10, deadline=None)
@given(cases())
def test_copies_are_conserved_and_capacity_is_kept(case: Case) -> None:
    routing, gating = case.routing(), case.gating
    assert int(routing.demand().sum()) == gating.k * case.tokens
    assert torch.equal(routing.load() + routing.dropped(), routing.demand())
    if gating.dispatch == "dropless":
        assert routing.capacity is None
        assert int(routing.dropped().sum()) == 0
        return
    limit = capacity(gating.capacity_factor, gating.k, case.tokens, case.experts)
    assert routing.capacity == limit
    assert torch.equal(routing.load(), routing.demand().clamp(max=limit))
    # priority in token order: whoever was dropped came after all that were kept
    for expert in range(case.experts):
        mine = routing.expert == expert
        kept, dropped = mine & routing.kept, mine & ~routing.kept
        if dropped.any():
            assert routing.token[kept].max() < routing.token[dropped].min()


@settings(max_examples=10, deadline=None)
@given(cases())
def test_weights_are_probabilities(case: Case) -> None:
    weight = case.routing().weight.view(-1, case.gating.k)
    assert (weight > 0).all()
    total = weight.sum(-1)
    assert (total <= 1 + 1e-5).all()
    if case.gating.k > 1:  # renormalized
        torch.testing.assert_close(total, torch.ones_like(total))
    assert (weight.diff(dim=-1) <= 0).all()  # the most probable first


@settings(max_examples=10, deadline=None)
@given(cases())
def test_the_same_tokens_are_routed_alike(case: Case) -> None:
    router, x = case.router(), case.tokens_th()
    first, second = router(x), router(x)
    assert torch.equal(first.expert, second.expert)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.kept, second.kept)


@settings(max_examples=10, deadline=None)
@given(cases())
def test_gradients_are_finite(case: Case) -> None:
    router, x = case.router(), case.tokens_th().requires_grad_()
    parts = {
        "weight": lambda r: (r.weight * torch.arange(1, 1 + len(r.weight))).sum(),
        "auxiliary_loss": lambda r: r.auxiliary_loss,
        "z_loss": lambda r: r.z_loss,
    }
    for name, part in parts.items():
        router.zero_grad()
        x.grad = None
        part(router(x)).backward()
        for found in (next(router.parameters()).grad, x.grad):
            assert found is not None, name
            assert torch.isfinite(found).all(), name


@pytest.mark.parametrize(
    "gating", [Gating(router="switch", k=1), Gating(k=1), Gating()]
)
@pytest.mark.parametrize("part", ["weight", "auxiliary_loss", "z_loss"])
def test_every_output_teaches_the_router(gating: Gating, part: str) -> None:
    case = Case(gating, tokens=30, hidden=6, experts=4, seed=3)
    router = case.router()
    values = getattr(router(case.tokens_th()), part).reshape(-1)
    (values * torch.arange(1, len(values) + 1)).sum().backward()
    assert next(router.parameters()).grad.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_single_precision_whatever_comes_in(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    router = TopKRouter(16, 4, k=2)
    x = torch.randn(8, 16).to(dtype)
    exact = router(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = router(x)
    assert routing.weight.dtype == torch.float32
    assert torch.equal(routing.weight, exact.weight)


def test_switch_keeps_the_probability_as_the_weight() -> None:
    router = SwitchRouter(2, 2)
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    routing = router(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    assert routing.expert.tolist() == [0, 1]
    expected = torch.tensor([[2.0, 0.0], [0.0, 1.0]]).softmax(-1).diag()
    torch.testing.assert_close(routing.weight, expected)


def test_switch_is_top_1_without_renormalization() -> None:
    torch.manual_seed(1)
    switch, top = (
        SwitchRouter(8, 4, capacity_factor=1.0),
        TopKRouter(8, 4, k=1, capacity_factor=1.0),
    )
    top.load_state_dict(switch.state_dict())
    x = torch.randn(20, 8)
    a, b = switch(x), top(x)
    assert torch.equal(a.expert, b.expert)
    assert torch.equal(a.kept, b.kept)
    torch.testing.assert_close(a.weight, b.weight)
    torch.testing.assert_close(a.auxiliary_loss, b.auxiliary_loss)


def test_renormalized_weights_are_the_softmax_of_the_chosen_logits() -> None:
    torch.manual_seed(2)
    router, x = TopKRouter(8, 6, k=3), torch.randn(10, 8)
    chosen = router.logits(x).topk(3).values.softmax(-1)
    torch.testing.assert_close(router(x).weight.view(-1, 3), chosen)
    plain = TopKRouter(8, 6, k=3, renormalize=False)
    plain.load_state_dict(router.state_dict())
    shares = router.logits(x).softmax(-1).topk(3).values
    torch.testing.assert_close(plain(x).weight.view(-1, 3), shares)


@pytest.mark.parametrize("k", [0, 5])
def test_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(LayoutError, match="choose k between 1 and 4"):
        TopKRouter(8, 4, k=k)
