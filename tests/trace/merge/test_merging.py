"""Merging says what is missing and where ranks contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import CaptureError
from moetraffic.trace import PHASES, ROUTING, Group, Meta, Site, Trace
from moetraffic.trace.merge.merging import NothingRecorded, merge_records
from moetraffic.trace.merge.rank_record import CALL, STEP, RankRecord, narrow
from moetraffic.trace.model import CLOCK, PLACEMENT, DroppedForm

STEPS, ROW = 12, 32
META = Meta(world=2, ep=2, dp=2, experts=4, k=1, dispatch="dropless")
SITES = (
    Site(group=0, operation=ROUTING, layer=1, experts=4),
    *(
        Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            layer=1,
            direction="backward" if "grad" in phase else "forward",
            dtype="float32",
            row_bytes=ROW,
        )
        for phase in PHASES
    ),
)


def demand_of(iteration: int) -> Any:
    """``[rank, expert]`` token copies."""
    return np.random.default_rng(iteration).integers(0, 9, (2, 4))


def make(rank: int, count: int = STEPS, **fields: Any) -> RankRecord:
    """The record of a rank: a routing and four exchanges a step."""
    calls = np.zeros(5 * count, CALL)
    splits, demand = [], []
    for step in range(count):
        counts = demand_of(step)
        between = counts.reshape(2, 2, 2).sum(axis=2) * ROW
        demand.append([counts[rank], np.zeros(4)])
        splits.append([between[rank], between[:, rank]])
        for place in range(5):
            row = calls[5 * step + place]
            row["iteration"], row["site"], row["payload"] = step, place, step
            row["sequence"] = -1 if place == 0 else 4 * step + place - 1
            row["issue"], row["end"] = 100 * step + place, 100 * step + place + 1
            row["transposed"] = place in (2, 4)
    table = np.zeros(count, STEP)
    table["iteration"], table["kind"] = range(count), "train"
    table["loss"], table["tokens"] = 1.0, 16
    placements = np.zeros(4, PLACEMENT)
    placements["layer"], placements["expert"] = 1, range(4)
    placements["rank"] = [0, 0, 1, 1]
    record = RankRecord(
        rank=rank,
        node="node",
        meta=META,
        groups=(Group(kind="ep", ranks=(0, 1)),),
        sites=SITES,
        calls=calls,
        steps=table,
        splits={2: narrow(np.array(splits, np.int64))},
        demand={4: narrow(np.array(demand, np.int64))},
        placements=placements,
    )
    return replace(record, **fields)


def calls_of(rank: int, **columns: Any) -> Any:
    """The calls of a rank, with changed columns."""
    calls = make(rank).calls.copy()
    for name, values in columns.items():
        calls[name] = values
    return calls


def missing_of(*records: RankRecord) -> tuple[str, ...]:
    merged = merge_records(records, "run")
    assert merged.trace.meta.complete is False
    assert merged.trace.meta.missing == "; ".join([*merged.remarks, *merged.missing])
    return merged.missing


# ---- what is there -----------------------------------------------------------------


def test_whole_records_are_a_complete_trace() -> None:
    records = [make(0), make(1)]
    merged = merge_records(records, "run")
    assert (merged.missing, merged.contradictions, merged.remarks) == ((), (), ())
    trace = merged.trace
    assert trace.meta.complete
    demand = trace.demand(trace.find(operation=ROUTING))
    assert demand.dtype == np.int32
    assert np.array_equal(demand, np.array([demand_of(i) for i in range(STEPS)]))
    # the exchanges of a layer share their matrices
    assert trace.panels["call_2/wire"].shape[0] == STEPS
    assert [s.phase for s in trace.sites] == ["", *PHASES]
    # records are not changed
    again = merge_records(records, "run").trace
    assert np.array_equal(again.demand(again.find(operation=ROUTING)), demand)


def test_ranks_may_store_bytes_and_copies_in_different_types() -> None:
    wide = make(1)
    splits, demand = wide.splits[2].astype(np.int64), wide.demand[4].astype(np.int32)
    demand[3, 0, 2] += 1 << 20
    splits[3, 0, 1] += ROW << 20
    splits[3, 1, 1] += ROW << 20
    mixed = replace(wide, splits={2: splits}, demand={4: demand})
    merged = merge_records([make(0), mixed], "run")
    assert merged.contradictions == ()
    assert merged.trace.panels["call_2/wire"].shape[0] == STEPS
    sent = merged.trace.matrix(3, 1, "dispatch", of="wire", unit="tokens").values
    assert sent[1, 1] == demand_of(3)[1, 2:].sum() + (1 << 20)


def test_dropped_copies_and_samples_are_those_of_each_rank() -> None:
    """The ranks sample different numbers of tokens, one with fewer experts."""
    dropped = make(0).demand[4].copy()
    dropped[5, 1, 3] = 2
    ids = [
        np.tile(np.arange(tokens * k).reshape(tokens, k) % 4, (STEPS, 1, 1))
        for tokens, k in ((3, 2), (5, 1))
    ]
    meta = replace(META, dispatch="")
    records = [
        make(0, meta=meta, demand={4: dropped}, chosen={4: ids[0].astype(np.int16)}),
        make(1, meta=meta, chosen={4: ids[1].astype(np.int16)}),
    ]
    trace = merge_records(records, "run").trace
    routed = trace.find(operation=ROUTING)
    assert (trace.sites[0].dropped, trace.sites[0].token_sample) == (
        DroppedForm.STORED,
        5,
    )
    lost = trace.dropped(routed)
    assert (lost.sum(), lost[5, 0, 3]) == (2, 2)
    chosen = trace.chosen(routed)
    assert chosen.shape == (STEPS, 2, 5, 2)
    assert (chosen[:, 0, :3] == ids[0]).all()
    assert (chosen[:, 0, 3:] == -1).all()
    assert (chosen[:, 1, :, :1] == ids[1]).all()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("label", ["", "router"])
def test_drops_that_no_router_reports_follow_from_the_bytes(
    before: bool, label: str
) -> None:
    """What a hook reads may be what is left after the capacity."""

    def unreported(rank: int) -> RankRecord:
        demand = make(rank).demand[4].copy()
        demand[:, 1] = -2 if before else -1
        sites = (replace(SITES[0], label=label), *SITES[1:])
        return make(rank, demand={4: demand}, sites=sites)

    trace = merge_records([unreported(0), unreported(1)], "run").trace
    after = label and not before
    form = DroppedForm.UNCOUNTED if after else DroppedForm.NONE
    assert trace.sites[0].dropped == form


# ---- what is missing ---------------------------------------------------------------


def test_lost_calls_are_counted_and_the_rest_of_their_iteration_is_absent() -> None:
    """Three calls of iteration 4 were lost after its routing."""
    calls = np.delete(make(1).calls, range(21, 24))
    gap = make(1, calls=calls, gaps=(21,), lost_calls=3)
    merged = merge_records([make(0), gap], "run")
    assert merged.missing == ("rank 1 could not write 3 calls",)
    assert merged.contradictions == ()
    trace = merged.trace
    assert trace.present(trace.find(operation=ROUTING))[:, 1].all()
    for phase in PHASES:
        there = trace.present(trace.find(phase=phase))[:, 1]
        assert np.flatnonzero(~there).tolist() == [4]


def test_what_a_killed_rank_lost_is_stated() -> None:
    killed = make(1, count=8, closed=False)
    none = "rank 1 was killed: its record ends after iteration 7, only the step under "
    assert missing_of(make(0), killed) == (f"{none}way is lost",)
    for lost, steps in ((1, "1 later step"), (5, "5 later steps")):
        assert missing_of(make(0), replace(killed, lost_steps=lost)) == (
            "rank 1 was killed: its record ends after iteration 7, "
            f"{steps} and the one under way are lost",
        )
    began = make(1, closed=False, calls=make(1).calls[:3], steps=make(1).steps[:0])
    assert missing_of(make(0), began) == (
        "rank 1 was killed: its record ends before its first step, only the step under "
        "way is lost",
    )


def test_other_gaps_are_stated() -> None:
    assert missing_of(make(0), make(1, recording=True, closed=False)) == (
        "rank 1 still records",
    )
    assert missing_of(make(0), make(1, lost_steps=2)) == (
        "rank 1 could not write 2 steps",
    )
    damage = "a.log is damaged at byte 9: its later records are lost"
    assert missing_of(make(0), make(1, damage=damage)) == (damage,)


def test_a_rank_that_recorded_nothing_is_named() -> None:
    merged = merge_records([make(0)], "run")
    assert merged.missing == ("rank 1 recorded nothing",)
    assert merged.contradictions == ()
    trace = merged.trace
    assert len(trace.complete(trace.find(operation=ROUTING))) == 0


def test_many_that_are_missing_are_told_in_one_sentence() -> None:
    assert missing_of(make(0, meta=replace(META, world=40))) == (
        "ranks 1 to 39 recorded nothing",
    )


def test_records_of_too_few_ranks_are_refused() -> None:
    with pytest.raises(CaptureError, match="too few ranks: run has 12 steps"):
        merge_records([make(0, meta=replace(META, world=1 << 20))], "run")


@pytest.mark.parametrize("ends", [(12, 5), (0, 12), (3, 3), (1, 11)])
def test_ragged_ends_are_absent(ends: tuple[int, int]) -> None:
    """What is there is in the trace, and what is not is absent, not zero."""
    records = [make(rank, end, closed=False) for rank, end in enumerate(ends)]
    trace = merge_records(records, "run").trace
    steps = np.arange(max(ends))
    assert trace.steps.iteration.tolist() == steps.tolist()
    routed = trace.find(operation=ROUTING)
    for rank, end in enumerate(ends):
        assert (trace.steps.tokens[:, rank] == np.where(steps < end, 16, -1)).all()
        assert (np.isnan(trace.steps.loss[:, rank]) == (steps >= end)).all()
        assert trace.present(routed)[:, rank].tolist() == (steps < end).tolist()
        for step in range(end):
            counts = trace.demand(routed[step : step + 1])[0, rank]
            assert (counts == demand_of(step)[rank]).all()
    assert not trace.meta.complete


def test_nothing_is_merged_where_nothing_is_recorded() -> None:
    none = {"calls": make(0).calls[:0], "steps": make(0).steps[:0]}
    with pytest.raises(NothingRecorded, match="neither a step nor a collective"):
        merge_records([make(0, **none), make(1, **none)], "run")
    # a log that cannot be read may hold some
    with pytest.raises(CaptureError) as raised:
        merge_records([make(0, **none), make(1, damage="x", **none)], "run")
    assert not isinstance(raised.value, NothingRecorded)


# ---- how ranks ended, and what they omitted ----------------------------------------


def test_what_ended_a_capture_is_told() -> None:
    workload = '{"training": {"iterations": 40}}'
    ended = {
        "ended": "interrupted by SIGINT",
        "meta": replace(META, workload=workload),
    }
    merged = merge_records([make(0, **ended), make(1, **ended)], "run")
    assert merged.remarks == (
        "ranks 0, 1 were interrupted by SIGINT after 12 of 40 iterations",
    )
    assert merged.missing == ()
    meta = merged.trace.meta
    assert (meta.complete, meta.missing) == (False, *merged.remarks)


def test_a_step_that_did_not_end_is_told() -> None:
    fields = {"ended": "ended by ValueError", "omitted": {"loss": 1}}
    short = make(1, steps=make(1).steps[:-1], reasons={"loss": "it is x"}, **fields)
    assert merge_records([make(0), short], "run").remarks == (
        "rank 1 was ended by ValueError after 11 iterations, and its record of "
        "iteration 11 is incomplete",
        "rank 1 left out 1 x loss (it is x)",
    )


@pytest.mark.parametrize(
    ("omitted", "stated", "complete"),
    [
        ({"step kind": 2, "loss": 1}, "2 x step kind (x), 1 x loss (x)", True),
        ({"loss": 1, "routing": 1}, "1 x loss (x), 1 x routing (x)", False),
        ({"call of barrier": 1}, "1 x call of barrier (x)", False),
        ({"token count": 1}, "1 x token count (x)", True),
    ],
)
def test_values_of_steps_that_are_left_out_are_no_missing_traffic(
    omitted: dict[str, int], stated: str, complete: bool
) -> None:
    lacking = make(1, omitted=omitted, reasons=dict.fromkeys(omitted, "x"))
    merged = merge_records([make(0), lacking], "run")
    assert merged.remarks == (f"rank 1 left out {stated}",)
    assert merged.trace.meta.complete == complete


def test_iterations_after_the_maximum_size_are_stated() -> None:
    merged = merge_records([make(rank, stopped_at=12) for rank in (0, 1)], "run")
    assert merged.remarks == (
        "ranks 0, 1 each left out iterations from 12 on, because of the maximum size",
    )
    assert (merged.missing, merged.trace.meta.complete) == ((), False)


# ---- contradictions ----------------------------------------------------------------


def test_what_was_sent_and_not_received_is_a_contradiction() -> None:
    splits = make(1).splits[2].copy()
    splits[2, 1, 0] += 64  # rank 1 says it received more from rank 0 in iteration 2
    merged = merge_records([make(0), make(1, splits={2: splits})], "run")
    sent = int(demand_of(2)[0, 2:].sum()) * ROW
    assert (
        f"iteration 2, layer 1, dispatch: rank 0 sent {sent} bytes to rank 1, which "
        f"received {sent + 64} (1 such pairs)"
    ) in merged.contradictions


def test_an_exchange_that_is_no_transpose_is_a_contradiction() -> None:
    payload = make(0).calls["payload"].copy()
    payload[5 * 6 + 2] = 5  # the combine of iteration 6 sends the matrix of iteration 5
    merged = merge_records(
        [make(rank, calls=calls_of(rank, payload=payload)) for rank in (0, 1)], "run"
    )
    assert merged.contradictions == (
        "layer 1, combine, micro-batch 0: differs from the dispatch matrix in 1 of 12 "
        "iterations, the first is 6",
        "layer 1, combine, micro-batch 0: the bytes are not (demand - dropped) x 32, "
        "though dispatch is dropless",
    )
    combines = merged.trace.find(phase="combine")
    five, six = merged.trace.wire(combines)[[5, 6]]
    assert np.array_equal(five, six)


def test_bytes_that_follow_no_routing_are_a_contradiction() -> None:
    demand = make(0).demand[4].copy()
    demand[1, 0, 0] += 1
    merged = merge_records([make(0, demand={4: demand}), make(1)], "run")
    assert len(merged.contradictions) == 4
    assert all("are not (demand - dropped) x 32" in c for c in merged.contradictions)


def test_ranks_that_count_differently_are_a_contradiction() -> None:
    calls = make(1).calls.copy()
    calls["sequence"][(calls["iteration"] >= 8) & (calls["site"] > 0)] += 1
    (said,) = merge_records([make(0), make(1, calls=calls)], "run").contradictions
    assert (
        "rank 1 counts it as collective 33 of its group, another member as 32" in said
    )


def test_records_of_two_captures_are_refused() -> None:
    twice = make(0).steps.copy()
    twice["iteration"][9] = 4
    with pytest.raises(CaptureError, match="rank 0 ended iteration 4 twice"):
        merge_records([make(0, steps=twice), make(1)], "run")


@pytest.mark.parametrize("jump", [-(10**18), -1, 10**18])
def test_a_clock_that_jumps(jump: int, tmp_path: Path) -> None:
    """A clock that is set within an iteration, and one that runs backwards."""
    records = []
    for rank in (0, 1):
        calls, steps = make(rank).calls.copy(), make(rank).steps.copy()
        calls["issue"][27:40] += jump
        calls["end"][20:40] = calls["issue"][20:40] - 5
        steps["start"][4:8], steps["end"][4:8] = 10, 10 + jump
        knots = np.array([(rank, 0, 0, 1), (rank, jump, -jump, 10**15)], CLOCK)
        records.append(make(rank, calls=calls, steps=steps, clocks=knots))
    merge_records(records, "run").trace.save(tmp_path / "run.h5")
    with Trace.open(tmp_path / "run.h5") as trace:
        assert trace.meta.complete
        every = trace.find(operation="all_to_all")
        issue, _, end = trace.times(every, own_clock=True)
        changed = np.isin(trace.occurrences.iteration[every], range(4, 8))
        assert (end[changed] - issue[changed] == -5).all()
        assert (end[~changed] - issue[~changed] == 1).all()
        # the order of a rank's calls still has its iterations in their order
        order = trace.order(0)
        assert sorted(order.tolist()) == list(range(len(trace.occurrences)))
        assert (np.diff(trace.occurrences.iteration[order]) >= 0).all()
        trace.times(every)
