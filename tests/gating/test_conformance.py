"""Every built-in router in every dispatch form that it has, by the public check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.gating import Routing, TopKRouter, build, capacity, check_router
from moetraffic.patterns import ROUTERS, Gating
from moetraffic.patterns.workloads.routers import broken_rules

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
    check_router(
        lambda: build(gating, hidden, experts, seed=4, layer=2),
        hidden=hidden,
        experts=experts,
        tokens=tokens,
        k=None if free else gating.k,
        capacity=limit,
        largest_weight=float(scale),
        seed=data.draw(st.integers(0, 1000)),
    )


class Broken(TopKRouter):
    """Top-2 of 4 experts whose routing is changed on the way out."""

    def __init__(self, **change: Any) -> None:
        super().__init__(6, 4, k=2, capacity_factor=1.0)
        self.change = change

    def forward(self, x: torch.Tensor, *, ids: torch.Tensor | None = None) -> Routing:
        routing = super().forward(x)
        made = {n: make(getattr(routing, n)) for n, make in self.change.items()}
        return replace(routing, **made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"expert": lambda e: e * 0}, "must be distinct"),
        ({"expert": lambda e: e + 1}, "expert must be from 0 to 3"),
        ({"expert": lambda e: e.int()}, "expert must be torch.int64"),
        ({"token": lambda t: t.flip(0)}, "listed token by token"),
        ({"k": lambda k: k + 1}, "must say k = 2"),
        ({"tokens": lambda t: t + 1}, "it says 21 and 4"),
        ({"weight": lambda w: w[1:]}, "one shape"),
        ({"weight": lambda w: w * 3}, "between 0 and 1"),
        ({"weight": lambda w: w / 0}, "must be finite"),
        ({"weight": lambda w: w.detach()}, "carry the gradient"),
        ({"kept": lambda k: k | True}, "takes at most 10 copies"),
        ({"kept": lambda k: k & False}, "only a full expert drops"),
        ({"capacity": lambda c: c + 1}, "capacity is 10, but says 11"),
        ({"z_loss": lambda z: -z}, "z_loss must be finite and not negative"),
        ({"z_loss": lambda z: z.expand(2)}, "z_loss must be a scalar"),
        ({"auxiliary_loss": lambda a: a * 9}, "at most the number of experts"),
        ({"probabilities": lambda p: p * 2}, "sum to 1 in each row"),
        ({"probabilities": lambda p: p[1:]}, "probabilities must be [T, E]"),
        ({"weight": lambda w: w * torch.rand(())}, ""),  # drawn alike after a seed
    ],
)
def test_the_check_says_what_is_wrong(change: dict[str, Any], said: str) -> None:
    def check() -> None:
        check_router(
            lambda: Broken(**change),
            hidden=6,
            experts=4,
            tokens=20,
            k=2,
            capacity=10,
        )

    if not said:
        check()
        return
    with pytest.raises(AssertionError) as caught:
        check()
    assert said in str(caught.value)


def test_the_check_finds_a_router_that_forgets_its_seed() -> None:
    draws = torch.Generator().manual_seed(0)

    class Restless(Broken):
        def forward(self, x: torch.Tensor, *, ids: Any = None) -> Routing:
            noise = torch.randn(x.shape, generator=draws)
            return super().forward(x + noise)

    with pytest.raises(AssertionError, match="equal routers, tokens and seeds"):
        check_router(Restless, hidden=6, experts=4, tokens=20, k=2, capacity=10)


def test_the_check_refuses_what_is_no_router() -> None:
    class Plain(torch.nn.Linear):
        def forward(self, x: torch.Tensor, *, ids: Any = None) -> torch.Tensor:
            return super().forward(x)

    with pytest.raises(AssertionError, match="must return a Routing, not a Tensor"):
        check_router(lambda: Plain(6, 4), hidden=6, experts=4, tokens=20)
