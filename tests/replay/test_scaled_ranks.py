"""Real ranks move the scaled bytes: the trace of the replay says so."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import ReplayError
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.dispatchers import redispatch
from moetraffic.trace.what_if.rescale import Scaling
from tests.trace.what_if.test_dispatchers import routed


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


@pytest.mark.slow
def test_groups_that_meet_keep_an_order_that_all_ranks_share(
    toy_file, replay_with, tmp_path
):
    trace, out = toy_file(world=4, groups=[(0, 1), (2, 3)]), tmp_path / "met.h5"
    summary = replay_with(trace, out=out, scaling=Scaling(fold="2:strided"))
    with Trace.open(trace) as whole, Trace.open(out) as met:
        for group in (0, 1):  # each is on ranks 0 and 1
            after, before = (
                run.wire(run.find(phase="dispatch", group=group))
                for run in (met, whole)
            )
            np.testing.assert_array_equal(after, before)
    assert summary.data["ranks"] == 2


@pytest.mark.slow
def test_a_shared_trace_moves_as_many_bytes_on_more_ranks(
    toy_file, replay_with, tmp_path
):
    trace, out = toy_file(world=2), tmp_path / "shared.h5"
    replay_with(trace, out=out, scaling=Scaling(expand="3"), layers=(3,))
    before, _ = wires(trace)
    after, world = wires(out)
    assert world == 3
    with Trace.open(trace) as whole:
        at = whole.find(phase="dispatch")
        deep = np.array([whole.sites[s].layer == 3 for s in whole.occurrences.site[at]])
    blocks = np.add.reduceat(np.add.reduceat(after, [0, 2], axis=1), [0, 2], axis=2)
    np.testing.assert_array_equal(blocks, before[deep])


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


@pytest.mark.slow
def test_another_dispatcher_moves_the_same_routing(replay_with, tmp_path):
    trace, _ = routed(7)
    trace.save(tmp_path / "routed.h5")
    out = tmp_path / "deduplicated.h5"
    scaling = Scaling(dispatcher="deduplicated", ranks_per_node=2)
    summary = replay_with(tmp_path / "routed.h5", out=out, scaling=scaling)
    assert summary.data["verified"] == "full"
    made = redispatch(trace, "deduplicated", ranks_per_node=2)
    with Trace.open(out) as found:
        for phase in ("dispatch", "combine", "combine_grad", "dispatch_grad"):
            want, sent = (t.find(phase=phase, kind=None) for t in (made, found))
            assert made.wire(want).sum() == found.wire(sent).sum() > 0
        labels = {found.sites[s].label for s in found.occurrences.site}
        assert {"inter-node", "intra-node"} <= labels
