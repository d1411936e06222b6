"""Real ranks move the scaled bytes: the trace of the replay says so."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import ReplayError
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling


def wires(path, phase="dispatch"):
    with Trace.open(path) as trace:
        at = trace.find(phase=phase, kind=None)
        return trace.wire(at), trace.meta.world


def test_a_folded_trace_moves_the_sums_of_its_blocks(toy_file, replay_with, tmp_path):
    trace, out = toy_file(world=4, groups=[(0, 1, 2, 3)]), tmp_path / "folded.h5"
    summary = replay_with(
        trace, out=out, scaling=Scaling(fold="2"), iterations=range(0, 2)
    )
    before, _ = wires(trace)
    after, world = wires(out)
    assert world == summary.data["ranks"] == 2
    assert summary.data["verified"] == "full"
    with Trace.open(trace) as whole:
        early = whole.occurrences.iteration[whole.find(phase="dispatch")] < 2
    blocks = before[early].reshape(-1, 2, 2, 2, 2).sum(axis=(2, 4))
    np.testing.assert_array_equal(after, blocks)


def test_a_missing_rank_is_refused_or_completed_when_asked(
    toy_file, replay_with, tmp_path
):
    trace, out = toy_file(world=3, absent=[(1, 2)]), tmp_path / "whole.h5"
    with pytest.raises(ReplayError, match=r"rank 1 in iteration 2.*--complete-missing"):
        replay_with(trace)
    replay_with(
        trace,
        out=out,
        scaling=Scaling(missing="mean"),
        verify="none",
    )
    after, _ = wires(out)
    before, _ = wires(trace)
    assert len(after) == len(before)
    gone = np.all(after == before, axis=(1, 2))
    assert gone.sum() == len(before) - 2  # dispatch of two layers in iteration 2
    # who left no record can be left out instead
    replay_with(trace, out=tmp_path / "two.h5", scaling=Scaling(ranks="0,2"))
    two, world = wires(tmp_path / "two.h5")
    assert world == 2
    np.testing.assert_array_equal(two, before[:, [0, 2]][:, :, [0, 2]])
