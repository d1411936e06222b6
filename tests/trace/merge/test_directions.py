"""Forward, backward and recomputed calls are told apart by what autograd does."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.trace.merge.directions import DIRECTION_NAMES, directions
from moetraffic.trace.model import PHASES

FORWARD = {"in_backward": False}


def directions_of(*calls: dict[str, Any]) -> list[tuple[str, int]]:
    """Direction and link of calls: all-to-alls in a backward pass, unless told."""
    known = {"in_backward": True, "grad": False, "link": -1, "node": "", "phase": ""}
    known |= {"exchange": True, "trains": True}
    given = [known | call for call in calls]
    nodes, phases = sorted({c["node"] for c in given} - {""}), ["", *PHASES]
    direction, link = directions(
        **{
            name: np.array([c[name] for c in given])
            for name in ("exchange", "in_backward", "grad", "link", "trains")
        },
        node=np.array([nodes.index(c["node"]) if c["node"] else -1 for c in given]),
        nodes=nodes,
        phase=np.array([phases.index(c["phase"]) for c in given]),
        phases=phases,
    )
    names = [DIRECTION_NAMES[number] for number in direction.tolist()]
    return list(zip(names, link.tolist(), strict=True))


def test_a_call_outside_the_engine_is_forward() -> None:
    assert directions_of({**FORWARD, "link": 7}) == [("forward", 7)]


def test_a_node_that_called_forward_calls_backward() -> None:
    ahead = {**FORWARD, "link": 7}
    again = {"link": 7, "node": "ExchangeBackward"}
    assert directions_of(ahead, again) == [("forward", 7), ("backward", 7)]
    # a number that a later forward call has is another node's
    assert directions_of(again, ahead)[0] == ("backward", -1)


def test_a_recomputed_forward_records_or_runs_below_a_checkpoint() -> None:
    # the checkpoint's own node was made last when its forward called
    ahead = {**FORWARD, "link": 7}
    recorded = {"grad": True, "link": 3, "node": "MulBackward0"}
    below = {"link": 7, "node": "CheckpointFunctionBackward"}
    again = [("recompute", -1), ("recompute", -1)]
    assert directions_of(ahead, recorded, below)[1:] == again


def test_a_saved_tensor_computed_once_more_is_no_backward() -> None:
    again = {"link": 4, "node": "MmBackward0"}
    assert directions_of(again) == [("recompute", -1)]
    # a reducer works below autograd's own nodes
    reducer = {"link": 4, "node": "torch::autograd::AccumulateGrad", "exchange": False}
    assert directions_of(reducer) == [("backward", -1)]
    unlinked = {"link": 4, "node": "ExchangeBackward"}
    assert directions_of(unlinked) == [("backward", -1)]


def test_what_the_program_says_comes_first() -> None:
    again = {"phase": "combine", "node": "XBackward"}
    gradient = {"phase": "combine_grad", "grad": True, "link": 2}
    assert directions_of(again, gradient) == [("recompute", -1), ("backward", 2)]


def test_a_thread_without_autograd_calls_for_any_pass() -> None:
    outside = {**FORWARD, "grad": True}
    other = {**outside, "trains": False}
    # inside an autograd function it computes a forward pass itself
    inside = {**FORWARD, "link": 3, "trains": False}
    # what the program says of it is known
    named = {**other, "phase": "combine_grad"}
    assert directions_of(other, {**other, "link": 3}, inside, outside, named) == [
        *(("", -1), ("", -1), ("forward", 3), ("forward", -1), ("backward", -1))
    ]
