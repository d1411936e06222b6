"""What was captured is what was sent, and nobody notices that it was captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Trace
from moetraffic.trace.matrix import between_ranks

Seen = Callable[[str], list[dict[str, Any]]]


@pytest.mark.parametrize("scene", ["dropless", "dropped", "padded"])
def test_wire_is_what_an_independent_wrapper_saw(
    stage: Path, seen: Seen, scene: str
) -> None:
    with Trace.open(stage / f"{scene}.h5") as trace:
        compared = 0
        for rank, saw in enumerate(seen(scene)):
            order = trace.order(rank)
            sites = [trace.sites[s] for s in trace.occurrences.site[order]]
            mine = [
                o
                for o, s in zip(order, sites, strict=True)
                if s.operation == ALL_TO_ALL
            ]
            assert len(mine) == len(saw["log"])
            for occurrence, logged in zip(mine, saw["log"], strict=True):
                site = trace.sites[trace.occurrences.site[occurrence]]
                ranks = trace.groups[site.group].ranks
                member = ranks.index(rank)
                (wire,) = trace.wire(np.array([occurrence]))
                assert list(ranks) == logged["ranks"]
                assert wire[member].tolist() == logged["sent"]
                assert wire[:, member].tolist() == logged["received"]
                compared += 1
            # the iteration axis: as many calls by the end of each step as were logged
            iterations = trace.occurrences.iteration[mine]
            calls = np.searchsorted(iterations, np.arange(8), side="right")
            assert calls.tolist() == saw["steps"]
        # padded exchanges no counts: 4 phases, 2 layers, 2 micro-batches, 8 steps
        assert compared == (128 * 2 if scene == "padded" else 160 * 4)


def kept_between_ranks(trace: Trace, iteration: int, layer: int, group: int) -> Any:
    """Bytes of the copies that are not dropped, in an iteration of a layer."""
    routed = trace.find(
        operation=ROUTING,
        direction="forward",
        layer=layer,
        group=group,
        iterations=range(iteration, iteration + 1),
    )
    when = trace.occurrences.iteration[routed]
    copies = between_ranks(trace, layer, group, when, trace.kept(routed))
    row_bytes = {s.row_bytes for s in trace.sites if s.phase and s.layer == layer}
    return copies.sum(axis=0) * row_bytes.pop()


@pytest.mark.parametrize("scene", ["dropless", "dropped"])
def test_wire_equals_kept_demand_in_every_iteration_layer_and_phase(
    stage: Path, scene: str
) -> None:
    with Trace.open(stage / f"{scene}.h5") as trace:
        exchanges = [s for s in trace.sites if s.phase]
        groups = 1 if scene == "dropless" else 2
        assert len(exchanges) == 4 * 2 * 2 * groups
        for group in {s.group for s in exchanges}:
            for layer in trace.layers:
                for iteration in trace.iterations.tolist():
                    sent = {
                        phase: trace.matrix(
                            iteration, layer, phase, group=group, of="wire"
                        ).values
                        for phase in PHASES
                    }
                    kept = kept_between_ranks(trace, iteration, layer, group)
                    assert np.array_equal(sent["dispatch"], kept)
                    assert np.array_equal(sent["combine"], sent["dispatch"].T)
                    assert np.array_equal(sent["combine_grad"], sent["dispatch"])
                    assert np.array_equal(sent["dispatch_grad"], sent["dispatch"].T)


def test_dropped_copies_are_told_and_not_sent(stage: Path) -> None:
    with Trace.open(stage / "dropped.h5") as trace:
        routed = trace.find(operation=ROUTING)
        dropped = trace.dropped(routed)
        demand = trace.demand(routed)
        assert (demand.sum(axis=2) == 2 * 2 * 32).all()
        assert 0 < dropped.sum() < demand.sum()
        # capacity ceil(0.8 x 2 x 64 / 8) = 13 copies of each rank for an expert
        assert (demand - dropped).max() == 13
        assert np.array_equal(dropped, np.maximum(demand - 13, 0))


def test_padded_layers_send_the_same_whatever_is_routed(stage: Path) -> None:
    with Trace.open(stage / "padded.h5") as trace:
        exchanges = trace.find(phase="dispatch", layer=1)
        assert len(np.unique(trace.occurrences.matrix[exchanges])) == 1
        demand = trace.demand(trace.find(operation=ROUTING, layer=1))
        assert len(np.unique(demand.reshape(len(demand), -1), axis=0)) > 1
        # 4 experts a rank, capacity ceil(1.25 x 64 / 8) = 10, 32 floats a row
        assert (trace.wire(exchanges) == 4 * 10 * 32 * 4).all()


def test_capture_changes_no_loss_by_a_bit(seen: Seen) -> None:
    recorded, bare = seen("dropless"), seen("bare")
    assert [r["losses"] for r in recorded] == [b["losses"] for b in bare]
    assert len(bare[0]["losses"]) == 8


def test_steps_and_times_are_kept(stage: Path, seen: Seen) -> None:
    with Trace.open(stage / "dropless.h5") as trace:
        losses = np.array([saw["losses"] for saw in seen("dropless")]).T
        assert np.array_equal(trace.steps.loss, losses)
        assert (trace.steps.tokens == 2 * 2 * 32).all()
        assert trace.steps.kind == ("train",) * 8
        assert (trace.steps.start[1:] == trace.steps.end[:-1]).all()
        exchanges = trace.find(operation=ALL_TO_ALL)
        issue, _, end = trace.times(exchanges)
        assert (end > issue).all()
        # nobody has what a peer has not sent yet, on one clock for all ranks
        assert (end.min(axis=1) >= issue.max(axis=1)).all()
        when = trace.occurrences.iteration[exchanges]
        assert (issue >= trace.steps.start[when]).all()
        assert (end <= trace.steps.end[when]).all()


def test_expert_data_parallel_groups_are_told_apart(stage: Path) -> None:
    with Trace.open(stage / "dropped.h5") as trace:
        by_kind = {(g.kind, g.ranks) for g in trace.groups}
        assert by_kind == {
            ("dp", (0, 1, 2, 3)),
            ("ep", (0, 1)),
            ("ep", (2, 3)),
            ("edp", (0, 2)),
            ("edp", (1, 3)),
        }
        whole = trace.matrix(2, 1, "dispatch", of="wire", space="world").values
        assert whole[:2, 2:].sum() == whole[2:, :2].sum() == 0
        assert whole.sum() > 0
        assert {s.label for s in trace.sites if s.operation == "all_reduce"} == {
            "gradient_sync",
            "expert_gradient_sync",
            "gradient_norm",
        }


def test_groups_of_the_same_ranks_stay_apart(stage: Path) -> None:
    with Trace.open(stage / "equal.h5") as trace:
        assert {(g.kind, g.ranks) for g in trace.groups} == {("world", (0, 1))}
        assert [g.number for g in trace.groups] == [0, 1, 2]
        # those that are made in each step are one
        calls = [(site.group, site.operation) for site in trace.sites]
        assert calls == [(0, "barrier"), (1, "all_to_all"), (2, "all_reduce")]
        assert len(trace.find(operation="barrier")) == 4


def test_every_collective_of_an_own_loop_is_seen(stage: Path, seen: Seen) -> None:
    assert seen("own")[0]["said"] == []
    with Trace.open(stage / "own.h5") as trace:
        found = {}
        for number, site in enumerate(trace.sites):
            of = np.flatnonzero(trace.occurrences.site == number)
            if site.operation == ROUTING:
                continue
            square = site.operation == ALL_TO_ALL
            values = (trace.wire if square else trace.volume)(trace.complete(of))
            group = trace.groups[site.group].kind
            if not len(values):  # one end alone knows of it
                assert site.peers in ((0, 1), (-1, 1))
                continue
            key = (group, site.operation, site.slot)
            if site.operation == "send_recv" and site.peers == (1, 0):
                key = (group, "back", site.slot)
            found[key] = (len(of), values[0].tolist())
        assert found == {
            ("world", "all_to_all", 0): (6, [[2 * 16, 4 * 16], [3 * 16, 3 * 16]]),
            ("world", "all_to_all", 1): (6, [[48, 48], [48, 48]]),
            ("world", "all_to_all", 2): (6, [[48, 48], [48, 48]]),
            ("world", "all_to_all", 3): (6, [[12, 12], [12, 12]]),
            ("dp", "all_reduce", 0): (6, [20, 20]),  # bfloat16
            ("world", "all_reduce", 0): (6, [8, 8]),
            ("world", "broadcast", 0): (6, [12, 12]),
            ("world", "all_gather", 0): (6, [20, 20]),
            ("world", "all_gather", 1): (6, [16, 16]),
            ("world", "reduce_scatter", 0): (6, [32, 32]),
            ("world", "reduce", 0): (6, [28, 28]),
            ("world", "send_recv", 0): (6, [36, 36]),
            ("world", "send_recv", 1): (6, [20, 20]),
            ("world", "back", 0): (6, [20, 20]),
            ("world", "all_reduce", 1): (6, [40, 40]),
            ("world", "all_gather", 2): (6, [40, 40]),
            ("world", "reduce_scatter", 1): (6, [40, 40]),
            ("world", "scatter", 0): (6, [16, 0]),
            ("world", "gather", 0): (6, [8, 8]),
            ("world", "barrier", 0): (6, [0, 0]),
        }
        peers = {s.peers for s in trace.sites if s.operation == "send_recv"}
        assert peers == {(0, 1), (1, 0), (-1, 1)}
        # both groups have the same ranks and yet are counted by themselves
        for kind in ("dp", "world"):
            numbers = [
                number
                for number, s in enumerate(trace.sites)
                if trace.groups[s.group].kind == kind
                and s.operation not in (ROUTING, "send_recv")
            ]
            counts = trace.occurrences.sequence[
                np.isin(trace.occurrences.site, numbers)
            ]
            assert sorted(counts.tolist()) == list(range(len(counts)))
        assert trace.steps.kind == ("train",) * 5 + ("evaluation",)
        assert trace.steps.loss[1].tolist() == [0.5, 0.5]
        assert len(trace.find(operation="barrier")) == 5
        assert len(trace.find(operation="barrier", kind="evaluation")) == 1
        routed = trace.find(operation=ROUTING)
        assert trace.occurrences.iteration[routed].tolist() == [4]
        assert trace.demand(routed).tolist() == [[[4, 2, 1, 1]] * 2]
        assert trace.holder(7, trace.sites[-1].group, 4).tolist() == [0, 0, 1, 1]


@pytest.mark.slow
def test_a_second_recorder_is_refused(long_seen: Seen) -> None:
    for saw in long_seen("refusals"):
        assert "one is running already" in saw["twice"]
        assert "one is running already" in saw["same"]
        assert not saw["installed"]  # close took the hook out, and another went in


@pytest.mark.slow
def test_a_defect_of_ours_does_not_reach_the_training(long_seen: Seen) -> None:
    for rank, saw in enumerate(long_seen("refusals")):
        half = slice(2 * rank, 2 * rank + 2)
        sent = [*np.arange(4.0)[half], *(np.arange(4.0) + 10)[half]]
        assert saw["output"] == sent
        assert len(saw["warnings"]) == 2
        assert all("a defect" in warning for warning in saw["warnings"])


@pytest.mark.slow
def test_a_fake_tensor_is_no_traffic(long_seen: Seen) -> None:
    assert [saw["faked"] for saw in long_seen("refusals")] == [0, 0]


@pytest.mark.slow
def test_a_call_under_a_mode_is_one_call(long_seen: Seen) -> None:
    assert [saw["watched"] for saw in long_seen("refusals")] == [2, 2]


@pytest.mark.slow
def test_a_vanished_folder_is_told_at_the_end(long_seen: Seen) -> None:
    for rank, saw in enumerate(long_seen("refusals")):
        assert len(saw["lost"]) == 1
        assert saw["lost"][0].startswith(f"rank {rank}: ")
        assert saw["lost"][0].endswith("was removed: the records in it are lost")


@pytest.mark.slow
def test_clock_offsets_are_within_their_error(long_seen: Seen) -> None:
    saw = long_seen("clocks")
    for rank, one in enumerate(saw):
        assert [row[0] for row in one["shared"]] == [rank]
        assert [row[2:] for row in one["shared"]] == [[0, 0]]
        ((_, _, offset, error),) = one["asked"]
        if rank == 0:
            assert (offset, error) == (0, 0)
        else:  # they share a clock in truth: the offset is zero
            assert 0 < error < 1_000_000_000
            assert abs(offset) <= error


def program(trace: Trace, iteration: int, operation: str = ALL_TO_ALL) -> list[str]:
    """Phase and direction of rank 0's calls of an iteration, in their order."""
    sites = [
        trace.sites[trace.occurrences.site[o]]
        for o in trace.order(0)
        if trace.occurrences.iteration[o] == iteration
    ]
    return [
        f"{s.phase} {s.direction}".strip() for s in sites if s.operation == operation
    ]


FORWARD = ["dispatch forward", "combine forward"]
BACKWARD = ["combine_grad backward", "dispatch_grad backward"]
AGAIN = ["dispatch recompute", "combine recompute"]


@pytest.mark.slow
def test_anybody_s_layers_are_seen_and_named(long_stage: Path, long_seen: Seen) -> None:
    assert [saw["said"] for saw in long_seen("foreign")] == [[], []]
    with Trace.open(long_stage / "foreign.h5") as trace:
        assert trace.meta.complete
        plain, ddp, saved, reentrant, fsdp, compiled, functional, fused = range(8)
        for step in (plain, ddp, fsdp, compiled):
            assert program(trace, step) == [*FORWARD, *BACKWARD]
        # no module makes these calls
        for step in (functional, fused):
            assert program(trace, step) == ["forward"] * 2 + ["backward"] * 2
        # a checkpoint computes once more what its backward needs, and no more
        assert program(trace, reentrant) == [*FORWARD, *AGAIN, *BACKWARD]
        again = program(trace, saved)
        assert [c for c in again if "recompute" not in c] == [*FORWARD, *BACKWARD]
        assert sum("recompute" in c for c in again) == 1
        assert program(trace, ddp, "all_reduce") == ["backward"]
        assert program(trace, fsdp, "all_gather") == ["forward"]
        assert program(trace, fsdp, "reduce_scatter") == ["backward"]
        # in inference, and in a thread whose result nobody needs
        assert program(trace, 8) == program(trace, 9) == FORWARD
        sent = np.array([[5, 3], [2, 6]]) * 8 * 4
        for step in (plain, ddp, saved, reentrant, fsdp, compiled):
            for phase in PHASES:
                found = trace.matrix(step, 0, phase, of="wire").values
                turned = phase in ("combine", "dispatch_grad")
                times = 1 + program(trace, step).count(f"{phase} recompute")
                assert np.array_equal(found, times * (sent.T if turned else sent))


@pytest.mark.slow
def test_every_end_of_a_foreign_layer_is_known(long_stage: Path) -> None:
    with Trace.open(long_stage / "foreign.h5") as trace:
        exchanges = trace.find(operation=ALL_TO_ALL, kind=None)
        issue, _, end = trace.times(exchanges)
        assert (end > issue).all()


@pytest.mark.slow
def test_a_fork_s_child_leaves_the_record_alone(
    long_stage: Path, long_seen: Seen
) -> None:
    assert all(saw["forked"] for saw in long_seen("foreign"))
    with Trace.open(long_stage / "foreign.h5") as trace:
        assert not (trace.steps.loss == -1).any()


@pytest.mark.slow
def test_steps_that_nobody_marks_are_found(long_stage: Path, long_seen: Seen) -> None:
    assert [saw["said"] for saw in long_seen("unmarked")] == [[], []]
    with Trace.open(long_stage / "unmarked.h5") as trace:
        assert trace.steps.kind == (*["train"] * 3, "evaluation", *["train"] * 3)
        assert "evaluations inferred" in trace.meta.schedule
        assert trace.layers == (0, 1)
        for step, kind in enumerate(trace.steps.kind):
            forward = FORWARD * 2
            whole = [*forward, *BACKWARD * 2]
            assert program(trace, step) == (whole if kind == "train" else forward)
        # what follows the last optimizer belongs to the next step
        reduced = [s.operation == "all_reduce" for s in trace.sites]
        assert np.array(reduced)[trace.occurrences.site].sum() == 12
