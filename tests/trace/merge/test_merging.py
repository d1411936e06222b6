"""Merging says what is missing and where ranks contradict each other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.errors import CaptureError
from moetraffic.trace import (
    PHASES,
    ROUTING,
    Group,
    Meta,
    Site,
    Trace,
)
from moetraffic.trace.merge.merging import merge, merge_into
from moetraffic.trace.model import CLOCK, PLACEMENT
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
    rank_folder,
    read_segment,
    write_segment,
)

WINDOW, WINDOWS, ROW = 4, 3, 32
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


def make(rank: int, index: int) -> Segment:
    """A window of a rank: a routing and four exchanges a step."""
    steps = range(index * WINDOW, (index + 1) * WINDOW)
    events = np.zeros(5 * WINDOW, EVENT)
    splits, demand = [], []
    for at, step in enumerate(steps):
        counts = demand_of(step)
        between = counts.reshape(2, 2, 2).sum(axis=2) * ROW
        demand.append([counts[rank], np.zeros(4)])
        splits.append([between[rank], between[:, rank]])
        for place in range(5):
            row = events[5 * at + place]
            row["iteration"], row["site"] = step, place
            row["sequence"] = -1 if place == 0 else 4 * step + place - 1
            row["issue"], row["end"] = 100 * step + place, 100 * step + place + 1
            row["payload"] = at
            row["transposed"] = place in (2, 4)
    table = np.zeros(WINDOW, STEP)
    table["iteration"], table["loss"], table["tokens"] = steps, 1.0, 16
    placements = np.zeros(4, PLACEMENT)
    placements["layer"], placements["expert"] = 1, range(4)
    placements["rank"] = [0, 0, 1, 1]
    return Segment(
        rank=rank,
        index=index,
        final=index == WINDOWS - 1,
        node="node",
        meta=META,
        groups=(Group(kind="ep", ranks=(0, 1)),),
        sites=SITES,
        events=events,
        steps=table,
        kinds=("train",) * WINDOW,
        splits={2: np.array(splits, np.int64)},
        demand={4: np.array(demand, np.int32)},
        placements=placements,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Segments of two ranks, three windows each."""
    there = tmp_path / "run.h5.segments"
    for rank in (0, 1):
        rank_folder(there, rank).mkdir(parents=True)
        for index in range(WINDOWS):
            write_segment(make(rank, index), there)
    return there


def segment(folder: Path, rank: int, index: int) -> Path:
    return rank_folder(folder, rank) / f"segment-{index:06d}.h5"


def changed(folder: Path, rank: int, index: int, **fields: Any) -> None:
    write_segment(replace(make(rank, index), **fields), folder)


def test_segments_are_read_as_they_were_written(folder: Path) -> None:
    there, told = read_segment(segment(folder, 1, 2)), make(1, 2)
    assert (there.meta.world, there.final, there.node) == (2, True, "node")
    assert there.sites == told.sites
    assert np.array_equal(there.events, told.events)
    assert np.array_equal(there.splits[2], told.splits[2])
    assert np.array_equal(there.demand[4], told.demand[4])


def test_a_whole_folder_is_merged_and_removed(folder: Path, tmp_path: Path) -> None:
    merged = merge_into(folder, tmp_path / "run.h5", force=False)
    assert (merged.missing, merged.contradictions) == ((), ())
    assert not folder.exists()
    with Trace.open(tmp_path / "run.h5") as trace:
        assert trace.meta.complete
        routed = trace.find(operation=ROUTING)
        assert np.array_equal(
            trace.demand(routed), np.array([demand_of(i) for i in range(12)])
        )
        # the exchanges of a layer share their matrices
        assert trace.panels["call_2/wire"].shape[0] == 12
        assert [s.phase for s in trace.sites] == ["", *PHASES]


def test_a_lost_window_is_named_and_its_rows_are_absent(folder: Path) -> None:
    segment(folder, 1, 1).unlink()
    merged = merge(folder)
    assert merged.missing == ("rank 1 lacks its windows [1]",)
    trace = merged.trace
    routed = trace.find(operation=ROUTING)
    present = trace.present(routed)
    assert present[:, 0].all()
    assert present[:, 1].tolist() == [True] * 4 + [False] * 4 + [True] * 4
    assert np.isnan(trace.steps.loss[4:8, 1]).all()
    assert (trace.steps.tokens[4:8, 1] == -1).all()


def test_a_damaged_segment_is_left_out_and_named(folder: Path) -> None:
    path = segment(folder, 0, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    merged = merge(folder)
    told = "; ".join(merged.missing)
    assert f"a segment is left out: {path} is damaged" in told
    assert "rank 0 was not closed: its record ends after iteration 7, 4 before" in told


def test_a_rank_that_recorded_nothing_is_named(folder: Path) -> None:
    shutil.rmtree(rank_folder(folder, 1))
    merged = merge(folder)
    assert merged.missing == ("rank 1 recorded nothing",)
    trace = merged.trace
    assert len(trace.complete(trace.find(operation=ROUTING))) == 0


def test_what_was_sent_and_not_received_is_a_contradiction(
    folder: Path, tmp_path: Path
) -> None:
    splits = make(1, 0).splits[2].copy()
    splits[2, 1, 0] += 64  # rank 1 says it received more from rank 0 in iteration 2
    changed(folder, 1, 0, splits={2: splits})
    merged = merge_into(folder, tmp_path / "run.h5", force=False)
    sent = int(demand_of(2)[0, 2:].sum()) * ROW
    assert (
        f"iteration 2, layer 1, dispatch: rank 0 sent {sent} bytes to rank 1, which "
        f"received {sent + 64} (1 such pairs)"
    ) in merged.contradictions
    assert folder.exists()  # there is something to look into


def test_an_exchange_that_is_no_transpose_is_a_contradiction(folder: Path) -> None:
    for rank in (0, 1):
        events = make(rank, 1).events.copy()
        # the combine of iteration 6 sends the matrix of iteration 5
        row = events[(events["iteration"] == 6) & (events["site"] == 2)]
        row["payload"] = 1
        events[(events["iteration"] == 6) & (events["site"] == 2)] = row
        changed(folder, rank, 1, events=events)
    merged = merge(folder)
    assert merged.contradictions == (
        "layer 1, combine, micro-batch 0: differs from the dispatch matrix in 1 of 12 "
        "iterations, the first is 6",
        "layer 1, combine, micro-batch 0: the bytes are not (demand - dropped) x 32, "
        "though dispatch is dropless",
    )
    found = merged.trace.find(phase="combine")
    five, six = merged.trace.wire(found)[[5, 6]]
    assert np.array_equal(five, six)


def test_bytes_that_follow_no_routing_are_a_contradiction(folder: Path) -> None:
    demand = make(0, 0).demand[4].copy()
    demand[1, 0, 0] += 1
    changed(folder, 0, 0, demand={4: demand})
    merged = merge(folder)
    assert len(merged.contradictions) == 4
    assert all("are not (demand - dropped) x 32" in c for c in merged.contradictions)


def test_ranks_that_count_differently_are_a_contradiction(folder: Path) -> None:
    events = make(1, 2).events.copy()
    events["sequence"][events["site"] > 0] += 1
    changed(folder, 1, 2, events=events)
    (said,) = merge(folder).contradictions
    assert (
        "rank 1 counts it as collective 33 of its group, another member as 32" in said
    )


def test_a_segment_under_another_name_is_left_out(folder: Path) -> None:
    shutil.copy(segment(folder, 0, 1), segment(folder, 1, 1))
    merged = merge(folder)
    assert any("says that it is window 1 of rank 0" in m for m in merged.missing)
    assert "rank 1 lacks its windows [1]" in merged.missing


def test_many_that_are_missing_are_told_in_one_sentence(folder: Path) -> None:
    for rank in (0, 1):
        for index in range(WINDOWS):
            meta = replace(META, world=40)
            if rank:
                segment(folder, rank, index).unlink()
            else:
                late = replace(make(0, index), meta=meta, index=index + 7)
                write_segment(late, folder)
                segment(folder, 0, index).unlink()
    assert merge(folder).missing == (
        "ranks 1 to 39 recorded nothing",
        "rank 0 lacks its windows [0 to 6]",
    )


def test_a_damaged_segment_is_kept_where_nothing_else_is(
    folder: Path, tmp_path: Path
) -> None:
    for rank in (0, 1):
        for index in range(WINDOWS):
            none = make(rank, index)
            nothing = {"steps": none.steps[:0], "kinds": (), "events": none.events[:0]}
            changed(folder, rank, index, **nothing)
    segment(folder, 1, 1).write_bytes(segment(folder, 1, 1).read_bytes()[:-100])
    with pytest.raises(CaptureError, match="neither a step nor a collective"):
        merge_into(folder, tmp_path / "run.h5", force=False)
    assert segment(folder, 1, 1).exists()


def test_segments_of_two_captures_are_refused(folder: Path) -> None:
    write_segment(replace(make(0, 1), index=9), folder)
    with pytest.raises(CaptureError, match="rank 0 ended iteration 4 twice"):
        merge(folder)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="holds no whole segment"):
        merge(tmp_path)
    with pytest.raises(CaptureError, match="does not exist"):
        merge(tmp_path / "nothing")


def test_what_ended_a_capture_is_told(folder: Path, tmp_path: Path) -> None:
    workload = '{"training": {"iterations": 40}}'
    meta = replace(META, workload=workload)
    for rank in (0, 1):
        changed(folder, rank, 2, ended="interrupted by SIGINT", meta=meta)
    merged = merge_into(folder, tmp_path / "run.h5", force=False)
    assert merged.remarks == (
        "ranks 0, 1 were interrupted by SIGINT after 12 of 40 iterations",
    )
    assert merged.missing == ()
    assert not folder.exists()  # all that was recorded is in the trace
    with Trace.open(tmp_path / "run.h5") as trace:
        assert (trace.meta.complete, trace.meta.missing) == (False, *merged.remarks)


def test_a_step_that_did_not_end_is_told(folder: Path) -> None:
    told = make(1, 2)
    short = {"steps": told.steps[:-1], "kinds": told.kinds[:-1]}
    changed(folder, 1, 2, ended="ended by ValueError", left_out="1 x loss (x)", **short)
    assert merge(folder).remarks == (
        "rank 1 was ended by ValueError after 11 iterations, and its record of "
        "iteration 11 is incomplete",
        "rank 1 left out 1 x loss (x)",
    )


@pytest.mark.parametrize(
    ("left_out", "complete"),
    [
        ("2 x step kind (it is one of (a, b), not 7), 1 x loss (x)", True),
        ("1 x loss (it is one number, not a tensor of (2,)), 1 x routing (x)", False),
        ("1 x call of barrier (x)", False),
        ("1 x token count (x); iterations from 3 on, because its segments", False),
        ("messages of which the other rank is unknown", False),
    ],
)
def test_values_of_steps_that_are_left_out_are_no_missing_traffic(
    folder: Path, left_out: str, complete: bool
) -> None:
    changed(folder, 1, 2, left_out=left_out)
    merged = merge(folder)
    assert merged.remarks == (f"rank 1 left out {left_out}",)
    assert merged.trace.meta.complete == complete


def test_a_lost_end_is_measured_by_the_window(folder: Path) -> None:
    segment(folder, 1, 2).unlink()
    changed(folder, 1, 1, window=8)
    assert merge(folder).missing == (
        "rank 1 was not closed: its record ends after iteration 7, 4 before the last "
        "of all, and up to 8 later steps are lost",
    )


def test_a_trace_named_after_its_segments_is_replaced_by_force(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    path.write_text("mine")
    assert main(["merge", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["merge", str(folder), "--force"]) == 0
    with Trace.open(path) as trace:
        assert trace.meta.complete


def test_a_capture_without_a_step_replaces_nothing(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.h5"
    path.write_text("mine")
    for rank in (0, 1):
        for index in range(WINDOWS):
            none = make(rank, index)
            changed(folder, rank, index, steps=none.steps[:0], kinds=())
    with pytest.raises(CaptureError, match="holds no step that has ended"):
        merge_into(folder, path, force=True)
    assert path.read_text() == "mine"
    assert folder.exists()
    for rank in (0, 1):
        for index in range(WINDOWS):
            none = make(rank, index)
            nothing = {"steps": none.steps[:0], "kinds": (), "events": none.events[:0]}
            changed(folder, rank, index, **nothing)
    with pytest.raises(CaptureError, match="neither a step nor a collective"):
        merge_into(folder, path, force=True)
    assert path.read_text() == "mine"
    assert not folder.exists()


def whole_and_present(folder: Path, there: set[tuple[int, int]]) -> None:
    """What is there is in the trace, and what is not is absent, not zero."""
    for rank, index in np.ndindex(2, WINDOWS):
        if (rank, index) not in there:
            segment(folder, rank, index).unlink()
    if not there:
        with pytest.raises(CaptureError, match="holds no whole segment"):
            merge(folder)
        return
    merged = merge(folder)
    trace = merged.trace
    windows = sorted({index for _, index in there})
    steps = [i * WINDOW + n for i in windows for n in range(WINDOW)]
    assert trace.steps.iteration.tolist() == steps
    for rank in (0, 1):
        mine = {i for r, i in there if r == rank}
        told = [step // WINDOW in mine for step in steps]
        assert ((trace.steps.tokens[:, rank] == 16) == told).all()
        assert ((trace.steps.tokens[:, rank] == -1) != told).all()
        routed = trace.find(operation=ROUTING)
        assert trace.present(routed)[:, rank].tolist() == told
        for at, step in enumerate(steps):
            if told[at]:
                counts = trace.demand(routed[at : at + 1])[0, rank]
                assert (counts == demand_of(step)[rank]).all()
    assert trace.meta.complete == (len(there) == 2 * WINDOWS)
    assert bool(merged.missing) != trace.meta.complete


SUBSETS = [
    {(r, i) for n, (r, i) in enumerate(np.ndindex(2, WINDOWS)) if chosen >> n & 1}
    for chosen in range(1 << 2 * WINDOWS)
]


@pytest.mark.parametrize("there", SUBSETS[::9])
def test_ragged_ends_are_absent(there: set[tuple[int, int]], folder: Path) -> None:
    whole_and_present(folder, there)


@pytest.mark.slow
@pytest.mark.parametrize("there", SUBSETS)
def test_whatever_is_lost_is_absent(there: set[tuple[int, int]], folder: Path) -> None:
    whole_and_present(folder, there)


@pytest.mark.parametrize("jump", [-(10**18), -1, 10**18])
def test_a_clock_that_jumps(jump: int, folder: Path, tmp_path: Path) -> None:
    """A clock that is set in the middle of a window, and one that runs backwards."""
    for rank in (0, 1):
        told = make(rank, 1)
        events, steps = told.events.copy(), told.steps.copy()
        events["issue"][7:] += jump
        events["end"] = events["issue"] - 5
        steps["start"], steps["end"] = 10, 10 + jump
        knots = np.array([(rank, 0, 0, 1), (rank, jump, -jump, 10**15)], CLOCK)
        changed(folder, rank, 1, events=events, steps=steps, clocks=knots)
    merge_into(folder, tmp_path / "run.h5", force=False)
    with Trace.open(tmp_path / "run.h5") as trace:
        assert trace.meta.complete
        every = trace.find(operation="all_to_all")
        issue, _, end = trace.times(every, own_clock=True)
        window = np.isin(trace.occurrences.iteration[every], range(4, 8))
        assert (end[window] - issue[window] == -5).all()
        assert (end[~window] - issue[~window] == 1).all()
        # the order of a rank's calls still has its iterations in their order
        order = trace.order(0)
        assert sorted(order.tolist()) == list(range(len(trace.occurrences)))
        assert (np.diff(trace.occurrences.iteration[order]) >= 0).all()
        trace.times(every)
