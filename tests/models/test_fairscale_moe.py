"""fairscale's MOELayer against our layer around the same gate, on 2 real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from moetraffic.capture.annotate import NO_CONTEXT
from moetraffic.errors import LayoutError
from moetraffic.gating import FairscaleTop2Router, SwitchRouter
from moetraffic.models.layers.fairscale_moe import FairscaleMixture
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload

Run = Callable[..., list[Any]]
RANKS = 2


def work(router: str) -> str:
    return Workload(
        model=ModelShape(
            layers=2, hidden=16, heads=2, sequence=16, experts=4, moe_every=1
        ),
        gating=Gating(router=router, dispatch="padded", capacity_factor=1.0),
        layout=Layout(dp=RANKS, ep=RANKS),
        training=Training(iterations=3, micro_batch=2, warmup=0),
    ).to_json()


@pytest.fixture(scope="module")
def ran(run_ranks: Run) -> list[dict[str, Any]]:
    workloads = {router: work(router) for router in ("fairscale", "fairscale-top2")}
    results: list[dict[str, Any]] = run_ranks("fairscale", RANKS, workloads=workloads)
    return results


def sent(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (call["layer"], call["phase"], call["shape"], call["send"])
        for call in result["log"]
        if call["operation"] == "all_to_all"
    ]


def halves(result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our layer's results and fairscale's."""
    return result["MixtureOfExperts"], result["FairscaleMixture"]


@pytest.mark.slow
def test_output_and_gradients_are_those_of_our_layer(ran: list[dict[str, Any]]) -> None:
    for result in ran:
        ours, theirs = halves(result["middle"])
        assert ours["y"].abs().sum() > 0
        torch.testing.assert_close(theirs["y"], ours["y"], rtol=1e-4, atol=1e-4)
        assert set(theirs["gradients"]) == set(ours["gradients"])
        for name, gradient in ours["gradients"].items():
            assert gradient.abs().sum() > 0, name
            torch.testing.assert_close(
                theirs["gradients"][name], gradient, rtol=1e-3, atol=1e-3
            )


@pytest.mark.slow
def test_its_all_to_alls_stand_at_layer_and_phase(ran: list[dict[str, Any]]) -> None:
    experts, tokens, hidden = 2 * RANKS, 4 * RANKS, 8
    capacity = 2 * tokens // experts
    for result in ran:
        _, theirs = halves(result["middle"])
        calls = sent(theirs)
        assert [(layer, phase) for layer, phase, *_ in calls] == [
            (3, "dispatch"),
            (3, "combine"),
            (3, "combine_grad"),
            (3, "dispatch_grad"),
        ]
        # padded: as many bytes in each phase, evenly split, whatever is routed
        for _, _, shape, send in calls:
            assert torch.Size(shape).numel() == experts * capacity * hidden
            assert send is None
        assert theirs["place"] == NO_CONTEXT


@pytest.mark.slow
def test_demand_is_what_the_dispatch_mask_says(ran: list[dict[str, Any]]) -> None:
    for result in ran:
        ours, theirs = halves(result["middle"])
        (said,) = [c for c in theirs["log"] if c["operation"] == "routing"]
        assert said == {
            "operation": "routing",
            "layer": 3,
            "demand": theirs["demand"].tolist(),
            "dropped": None,
        }
        assert torch.equal(theirs["demand"], ours["demand"])
        # reported before anything is sent
        assert theirs["log"].index(said) == 0


@pytest.mark.slow
def test_an_input_without_gradient_has_no_dispatch_grad(
    ran: list[dict[str, Any]],
) -> None:
    for result in ran:
        ours, theirs = halves(result["first"])
        phases = [phase for _, phase, *_ in sent(theirs)]
        assert phases == ["dispatch", "combine", "combine_grad"]
        assert theirs["place"] == NO_CONTEXT
        # float64 outside, float32 on the wire
        torch.testing.assert_close(theirs["y"], ours["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_model_trains_as_with_our_layer_around_the_gate(
    ran: list[dict[str, Any]],
) -> None:
    ahead = [(m, p) for m in (0, 1) for p in ("dispatch", "combine")]
    back = [(m, f"{p}_grad") for m in (1, 0) for p in ("combine", "dispatch")]
    for result in ran:
        a, b = result["trained"]["fairscale"], result["trained"]["fairscale-top2"]
        assert a["losses"] == pytest.approx(b["losses"], rel=1e-4)
        assert len(set(a["losses"])) == 3
        for trained in (a, b):
            phases = [(layer, phase) for layer, phase, *_ in sent(trained)]
            assert phases == 3 * (ahead + back)


def test_what_it_cannot_be_is_refused() -> None:
    sizes = {"experts": 4, "hidden": 8, "width": 8, "layer": 0}
    with pytest.raises(LayoutError, match="router fairscale and the dispatch form"):
        FairscaleMixture(SwitchRouter(8, 4), dispatch="padded", **sizes)
    with pytest.raises(LayoutError, match="not FairscaleTop2Router and dropless"):
        FairscaleMixture(FairscaleTop2Router(8, 4), dispatch="dropless", **sizes)
    with pytest.raises(LayoutError, match="there is none: start ranks"):
        FairscaleMixture(FairscaleTop2Router(8, 4), dispatch="padded", **sizes)
