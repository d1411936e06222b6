"""Every built-in router in every dispatch form that it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.gating import Adaptive, Routing, Seeded, build, capacity
from moetraffic.patterns import ROUTERS, Gating
from moetraffic.workload.routing import broken_rules

FORMS = [(spec.name, form) for spec in ROUTERS.values() for form in spec.dispatch]
ANY_K = {"expert-choice", "fairscale", "fairscale-top2"}  # copies of a token vary
FAIRSCALE = {"fairscale", "fairscale-top2"}  # tokens must divide by experts


@st.composite
def options(draw: st.DrawFn, router: str, experts: int) -> dict[str, Any]:
    """Some of the router's options, at values that fit."""
    chosen: dict[str, Any] = {}
    for option in ROUTERS[router].options:
        if option.choices:
            value: Any = draw(st.sampled_from(option.choices))
        elif option.kind is bool:
            value = draw(st.sampled_from((None, True, False)))
        elif option.name == "groups":
            value = draw(st.sampled_from([g for g in (1, 2, 3) if experts % g == 0]))
        elif option.name == "top_groups":
            value = draw(st.integers(1, chosen["groups"]))
        elif option.name == "seed":
            value = draw(st.integers(0, 9))
        elif option.name in ("exponent", "scale"):
            value = draw(st.sampled_from((0.5, 2.5)))
        elif option.name == "period":
            value = draw(st.integers(0, 2))
        elif option.name == "jitter":
            value = draw(st.sampled_from((0.0, 0.1)))
        else:
            value = None  # the default
        if value is not None:
            chosen[option.name] = value
    if chosen.get("softmax") == "after":
        chosen.pop("renormalize", None)
    return chosen


@st.composite
def cases(draw: st.DrawFn, router: str, form: str) -> tuple[Gating, int, int, int]:
    spec = ROUTERS[router]
    experts = draw(st.integers(max(2, spec.k or 1), 9))
    own = draw(options(router, experts))
    reach = own.get("top_groups", 1) * experts // own.get("groups", 1)
    tokens = draw(st.integers(1, 40))
    if router in FAIRSCALE:
        tokens = experts * draw(st.integers(1, 4))
    gating = Gating(
        router=router,
        k=spec.k or draw(st.integers(1, reach)),
        dispatch=form,
        capacity_factor=spec.capacity_factor
        or draw(st.sampled_from((0.3, 1.0, 1.25, 4.0))),
        options=own,
    )
    return gating, draw(st.integers(1, 12)), experts, tokens


@pytest.mark.parametrize(("router", "form"), FORMS)
@settings(max_examples=max(6, settings().max_examples // 4))
@given(data=st.data())
def test_every_router_passes(router: str, form: str, data: st.DataObject) -> None:
    gating, hidden, experts, tokens = data.draw(cases(router, form))
    assert broken_rules(gating, experts=experts, tokens=tokens) == []
    limit = None
    if form != "dropless":
        limit = capacity(gating.capacity_factor, gating.k, tokens, experts)
        limit = min(limit, tokens) if router == "expert-choice" else limit
    proportional = gating.options.get("second", "proportional") == "proportional"
    free = router in ANY_K or (router == "gshard" and proportional)
    scale = gating.options.get("scale", 1.0)
    seed = data.draw(st.integers(0, 1000))
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draws)
    ids = torch.randint(256, (tokens,), generator=draws)

    def router() -> torch.nn.Module:
        made = build(gating, hidden, experts, seed=4, layer=2)
        torch.default_generator.manual_seed(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_()
        return made

    def route(router: torch.nn.Module, *, training: bool = True) -> Routing:
        torch.default_generator.manual_seed(seed + 1)
        routing: Routing = router.train(training)(x, ids=ids)
        return routing

    k = None if free else gating.k
    for training in (True, False):
        routing = route(router(), training=training)
        check_choices(routing, tokens, experts, k)
        check_capacity(routing, limit)
        check_values(routing, float(scale))
        check_equality(routing, route(router(), training=training))
    trained = router()
    check_gradients(trained, route(trained))
    # equal routers stay equal after reseeding and steps
    pair = [router(), router()]
    for one in pair:
        if isinstance(one, Seeded):
            one.reseed(3, 5)
        if isinstance(one, Adaptive):
            for _ in range(3):
                one.after_step(torch.arange(experts))
    first, second = map(route, pair)
    check_equality(first, second)
    check_choices(first, tokens, experts, k)
    check_capacity(first, limit)


def check_choices(r: Routing, tokens: int, experts: int, k: int | None) -> None:
    """Shapes, dtypes, ranges; distinct experts, and k of each token in order."""
    for values in (r.token, r.expert, r.weight, r.kept):
        assert values.shape == (len(r.token),)
    assert r.token.dtype == r.expert.dtype == torch.int64
    assert r.kept.dtype == torch.bool
    assert r.weight.dtype.is_floating_point
    assert (r.tokens, r.experts, r.k) == (tokens, experts, k)
    assert ((r.token >= 0) & (r.token < tokens)).all()
    assert ((r.expert >= 0) & (r.expert < experts)).all()
    pairs = r.token * r.experts + r.expert
    assert len(pairs.unique()) == len(pairs)
    if k is not None:
        assert torch.equal(r.token, torch.arange(tokens).repeat_interleave(k))


def check_capacity(r: Routing, limit: int | None) -> None:
    """No expert exceeds the capacity, and only full experts drop copies."""
    assert r.capacity == limit
    if limit is None:
        assert r.kept.all()
        return
    assert int(r.load().max()) <= limit
    assert (r.load()[r.dropped() > 0] == limit).all()


def check_values(r: Routing, largest_weight: float) -> None:
    """Weights, losses and probabilities are finite and within their ranges."""
    weight = r.weight.detach()
    assert weight.isfinite().all()
    assert ((weight >= 0) & (weight <= largest_weight * (1 + 1e-5))).all()
    for loss in (r.auxiliary_loss.detach(), r.z_loss.detach()):
        assert loss.shape == ()
        assert 0 <= float(loss) < float("inf")
    assert float(r.auxiliary_loss.detach()) <= r.experts * (1 + 1e-5)
    if r.probabilities is not None:
        shares = r.probabilities.detach()
        assert shares.shape == (r.tokens, r.experts)
        assert (shares >= 0).all()
        torch.testing.assert_close(
            shares.sum(-1), torch.ones(r.tokens), atol=1e-4, rtol=0
        )
    if r.balanced is not None:
        assert r.balanced.shape[:1] == (r.tokens,)
        assert r.balanced.dtype == torch.int64


def check_equality(first: Routing, second: Routing) -> None:
    """A routing is reproducible with its seed."""
    for name in ("token", "expert", "kept", "weight"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def check_gradients(router: torch.nn.Module, r: Routing) -> None:
    """Every trainable parameter has a finite gradient that is not zero."""
    learned = {n: p for n, p in router.named_parameters() if p.requires_grad}
    if not learned:
        return
    assert r.weight.requires_grad
    # factors that differ between copies: with equal ones, the gradient of weights that
    # sum to 1 would vanish
    differing = torch.linspace(1, 2, len(r.weight))
    loss = (r.weight * differing).sum() + r.auxiliary_loss + r.z_loss
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in learned.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
