"""``replay_trace`` replays a trace, or its file, on ranks of this host."""

from __future__ import annotations

import pytest

from moetraffic.errors import ReplayError
from moetraffic.replay import make_plan, replay_trace
from moetraffic.trace.trace import Trace


@pytest.mark.slow
def test_a_trace_in_memory_is_replayed_on_2_gloo_ranks(toy, tmp_path):
    trace, out = toy(world=2, iterations=(0, 1)), tmp_path / "out.h5"
    result = replay_trace(trace, ranks=2, output=out, layers=(1,), capacity="10Gbps")
    plan = make_plan(trace, layers=(1,))
    assert (result.ranks, result.operations) == (2, len(plan))
    assert result.rank_bytes == tuple(plan.rank_bytes.tolist())
    assert (result.backend, result.pace, result.verified) == ("gloo", "asap", "full")
    with Trace.open(out) as made:
        assert (make_plan(made).checksum == plan.checksum).all()
    frame = result.to_frame()
    whole = frame[frame["part"] == "all"].iloc[0]
    assert whole["total_bytes"] == result.total_bytes
    assert whole["time_total_s"] > 0
    assert whole["over_bound"] >= 1


def test_errors_are_those_of_the_command_line(toy_file):
    with pytest.raises(ReplayError, match="has 2 and there are 3"):
        replay_trace(toy_file(world=2), ranks=3)
    with pytest.raises(ReplayError, match="the pace is asap"):
        replay_trace(toy_file(world=2), pace="fast")
