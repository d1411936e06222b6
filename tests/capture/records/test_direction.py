"""Forward, backward and recomputed calls are told apart by what autograd does."""

from __future__ import annotations

from typing import Any

from moetraffic.capture.records.call_direction import Directions


def of(directions: Directions, operation: str = "all_to_all", **given: Any) -> Any:
    known = {"in_backward": True, "grad": False, "link": -1, "node": "", "phase": ""}
    return directions.of(operation, **{**known, **given})


def test_a_call_outside_the_engine_is_forward() -> None:
    assert of(Directions(), in_backward=False, link=7) == ("forward", 7)


def test_a_node_that_called_forward_calls_backward() -> None:
    directions = Directions()
    of(directions, in_backward=False, link=7)
    assert of(directions, link=7, node="ExchangeBackward") == ("backward", 7)


def test_a_recomputed_forward_records_or_runs_below_a_checkpoint() -> None:
    directions = Directions()
    # the checkpoint's own node was made last when its forward called
    of(directions, in_backward=False, link=7)
    assert of(directions, grad=True, link=3, node="MulBackward0")[0] == "recompute"
    again = of(directions, link=7, node="CheckpointFunctionBackward")
    assert again == ("recompute", -1)


def test_a_saved_tensor_computed_once_more_is_no_backward() -> None:
    assert of(Directions(), link=4, node="MmBackward0") == ("recompute", -1)
    # a reducer works below autograd's own nodes
    assert of(
        Directions(), "all_reduce", link=4, node="torch::autograd::AccumulateGrad"
    )[0] == ("backward")
    assert of(Directions(), link=4, node="ExchangeBackward") == ("backward", -1)


def test_what_the_program_says_comes_first() -> None:
    directions = Directions()
    assert of(directions, phase="combine", node="XBackward")[0] == "recompute"
    assert of(directions, phase="combine_grad", grad=True, link=2) == ("backward", 2)
