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
    again = of(directions, link=7, node="ExchangeBackward")
    assert again == ("backward", 7)


def test_a_recomputed_forward_records_or_runs_below_a_checkpoint() -> None:
    directions = Directions()
    # the checkpoint's own node was made last when its forward called
    of(directions, in_backward=False, link=7)
    assert of(directions, grad=True, link=3, node="MulBackward0")[0] == "recompute"
    again = of(directions, link=7, node="CheckpointFunctionBackward")
    assert again == ("recompute", -1)


def test_a_saved_tensor_computed_once_more_is_no_backward() -> None:
    again = of(Directions(), link=4, node="MmBackward0")
    assert again == ("recompute", -1)
    # a reducer works below autograd's own nodes
    assert of(
        Directions(), "all_reduce", link=4, node="torch::autograd::AccumulateGrad"
    ) == ("backward", -1)
    unlinked = of(Directions(), link=4, node="ExchangeBackward")
    assert unlinked == ("backward", -1)


def test_what_the_program_says_comes_first() -> None:
    directions = Directions()
    again = of(directions, phase="combine", node="XBackward")
    assert again == ("recompute", -1)
    gradient = of(directions, phase="combine_grad", grad=True, link=2)
    assert gradient == ("backward", 2)


def test_a_thread_without_autograd_calls_for_any_pass() -> None:
    outside = {"in_backward": False, "grad": True}
    unknown = ("", -1)
    assert of(Directions(), **outside, link=-1, trains=False) == unknown
    assert of(Directions(), **outside, link=3, trains=False) == unknown
    # inside an autograd function it computes a forward pass itself
    inside = {"in_backward": False, "grad": False}
    assert of(Directions(), **inside, link=3, trains=False)[:2] == ("forward", 3)
    assert of(Directions(), **outside, link=-1, trains=True)[0] == "forward"
    # what the program says of it is known
    named = of(Directions(), **outside, phase="combine_grad", trains=False)
    assert named == ("backward", -1)
