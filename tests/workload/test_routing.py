"""What can be said of routing before anything is built: names, options, rules."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import ROUTERS, Gating, ModelShape, Training, Workload
from moetraffic.workload.routing import (
    BALANCE_SCOPES,
    RouterOption,
    broken_rules,
    known_routers,
)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_has_a_workload_in_each_of_its_forms(name: str) -> None:
    spec = ROUTERS[name]
    assert spec.name == name
    assert spec.text
    assert spec.source
    defaults = {o.name: o.default for o in spec.options if o.default is not None}
    for form in spec.dispatch:
        for scope in BALANCE_SCOPES:
            gating = Gating(
                router=name,
                k=spec.k or 3,
                dispatch=form,
                capacity_factor=spec.capacity_factor or 1.25,
                balance_scope=scope,
                options=defaults,
            )
            work = Workload(gating=gating)
            assert Workload.from_json(work.to_json()) == work


@pytest.mark.parametrize(
    ("gating", "said"),
    [
        ({"router": "magic"}, "the router is one of deepseek, expert-choice, "),
        ({"k": 0}, "k must be at least 1, but is 0: give --k"),
        ({"k": 9}, "k is 9 and there are 8 experts: lower --k"),
        ({"dispatch": "express"}, "padded, dropped, dropless, not 'express'"),
        ({"dispatch": "padded", "capacity_factor": 0.0}, "above 0, but is 0"),
        ({"dispatch": "dropped", "capacity_factor": -1.0}, "above 0, but is -1"),
        ({"dispatch": "dropped", "capacity_factor": float("nan")}, "but is nan"),
        ({"dispatch": "dropped", "capacity_factor": float("inf")}, "but is inf"),
        ({"balance_scope": "world"}, "micro_batch, sequence, global, not 'world'"),
        ({"router": "switch"}, "Switch has k 1 alone, but k is 2"),
        ({"router": "gshard", "k": 1}, "has k 2 alone, but k is 1"),
        ({"router": "fairscale"}, "the dispatch form padded, not dropless"),
        ({"router": "fairscale-top2"}, "padded or dropped, not dropless"),
        (
            {"router": "fairscale", "dispatch": "padded"},
            "the capacity factor 1 alone, but it is 1.25: set --capacity-factor 1",
        ),
        ({"options": {"groups": 2}}, "topk has the options softmax, renormalize, not"),
        (
            {"router": "expert-choice", "options": {"seed": 1}},
            "expert-choice has no options, not 'seed'",
        ),
        (
            {"options": {"softmax": "after", "renormalize": False}},
            "renormalize is false and softmax is after",
        ),
        (
            {"router": "deepseek", "options": {"groups": 3}},
            "there are 8 experts in 3 groups",
        ),
        (
            {"router": "deepseek", "options": {"groups": 2, "top_groups": 3}},
            "there are 2 groups and top_groups is 3",
        ),
        (
            {"router": "deepseek", "k": 3, "options": {"groups": 4}},
            "these hold 2 experts and k is 3",
        ),
        (
            {"router": "deepseek", "options": {"groups": 0}},
            "groups is a whole number of at least 1, but is 0",
        ),
        (
            {"router": "deepseek", "options": {"bias_rate": -0.1}},
            "bias_rate is a number of at least 0, but is -0.1",
        ),
    ],
)
def test_what_cannot_be_gets_one_sentence(gating: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Workload(gating=Gating(**gating))
    sentence = str(caught.value)
    assert said in sentence
    assert "\n" not in sentence
    rule, colon, remedy = sentence.partition(": ")
    assert colon
    assert rule
    assert remedy


def test_fairscales_gate_wants_tokens_that_divide() -> None:
    gating = Gating(router="fairscale-top2", dispatch="padded", capacity_factor=1.0)
    with pytest.raises(LayoutError, match="there are 99 tokens and 8 experts"):
        Workload(
            gating=gating,
            model=ModelShape(sequence=33),
            training=Training(micro_batch=3),
        )


def test_fairscales_layer_wants_real_ranks() -> None:
    sizes = {"experts": 4, "tokens": 16}
    for router, virtual, count in (
        ("fairscale", False, 0),
        ("fairscale", True, 1),
        ("fairscale-top2", True, 0),
    ):
        gating = Gating(router=router, dispatch="padded", capacity_factor=1.0)
        broken = broken_rules(gating, **sizes, virtual=virtual)
        assert len(broken) == count, router
    with pytest.raises(LayoutError, match="training is virtual: use --router fairsc"):
        Workload(
            gating=Gating(router="fairscale", dispatch="padded", capacity_factor=1.0),
            training=Training(virtual=True),
        )


@pytest.mark.parametrize(
    ("option", "fits", "does_not"),
    [
        (
            RouterOption(name="a", kind=float, default=1.0, text="", least=0, most=2),
            [0, 2, 0.5],
            [-1, 2.1, True, "1", float("nan"), None],
        ),
        (
            RouterOption(name="a", kind=int, default=1, text="", least=1),
            [1, 10**9],
            [0, 1.0, True, "1"],
        ),
        (
            RouterOption(name="a", kind=float, default=1.0, text=""),
            [-5],
            [float("inf"), float("-inf")],
        ),
        (RouterOption(name="a", kind=bool, default=None, text=""), [True], [1, "true"]),
        (
            RouterOption(name="a", kind=str, default="b", text="", choices=("b", "c")),
            ["c"],
            ["d", 1, True],
        ),
    ],
)
def test_an_option_accepts_its_kind_and_range(
    option: RouterOption, fits: list[Any], does_not: list[Any]
) -> None:
    assert all(option.accepts(value) for value in fits)
    assert not any(option.accepts(value) for value in does_not)
    assert option.rule.startswith("is ")


@pytest.mark.slow
def test_names_are_known_without_torch() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from moetraffic.patterns import Workload; Workload();"
            "sys.exit(any(m in sys.modules for m in ('torch', 'fairscale')))",
        ],
        check=False,
    )
    assert ran.returncode == 0
    assert set(ROUTERS) <= set(known_routers())
