"""Rows of dispatches are compared with the routing of their own micro-batch, or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moetraffic.trace.merge.merging import merge_records
from moetraffic.trace.merge.rank_record import RankRecord
from moetraffic.trace.model import DroppedForm
from tests.trace.merge.test_merging import META, ROW, STEPS, demand_of, make

Table = npt.NDArray[Any]
LOST = 3  # copies of each expert and rank that are routed and not sent


def routed_more(rank: int, count: int = STEPS) -> RankRecord:
    """The record of a rank whose router chooses more copies than are sent."""
    demand = make(rank, count).demand[4].copy()
    demand[:, 0] += LOST
    demand[:, 1] = -1
    return make(rank, count, demand={4: demand}, meta=replace(META, dispatch=""))


def said(records: list[RankRecord]) -> list[str]:
    trace = merge_records(records, "run").trace
    (form,) = {s.dropped for s in trace.sites if s.operation == "routing"}
    assert form == DroppedForm.UNKNOWN
    return [part for part in trace.meta.contradiction.split("; ") if part]


def sentence(iterations: set[int]) -> str:
    rows = sum(int(demand_of(i).sum()) for i in iterations)
    copies = rows + LOST * 8 * len(iterations)
    return (
        f"the dispatches of layer 1 send {rows:,} rows, but {copies:,} token copies "
        f"were routed ({1 - rows / copies:.1%} fewer): "
    )


def routed_twice(calls: Table) -> Table:
    """A second routing in iteration 5, and none of its dispatch."""
    return np.repeat(calls, 1 + ((calls["iteration"] == 5) & (calls["site"] == 0)))


def one_dispatch_less(calls: Table) -> Table:
    return calls[~((calls["iteration"] == 5) & (calls["site"] == 1))]


EVERY = set(range(STEPS))


@pytest.mark.parametrize("change", [routed_twice, one_dispatch_less])
@pytest.mark.parametrize("ranks", [{0, 1}, {1}])
def test_iterations_without_a_pair_are_left_out(
    change: Callable[[Table], Table], ranks: set[int]
) -> None:
    records = [routed_more(rank) for rank in (0, 1)]
    (all_of_them,) = said(records)
    assert all_of_them.startswith(sentence(EVERY))
    changed = [
        replace(r, calls=change(r.calls)) if r.rank in ranks else r for r in records
    ]
    (others,) = said(changed)
    assert others.startswith(sentence(EVERY - {5}))


def test_iterations_without_all_records_are_left_out() -> None:
    (found,) = said([routed_more(0), routed_more(1, 8)])
    assert found.startswith(sentence(EVERY - {8, 9, 10, 11}))


def test_evaluation_steps_are_left_out_unless_there_are_no_others() -> None:
    def with_kinds(kinds: list[str]) -> list[RankRecord]:
        records = [routed_more(rank) for rank in (0, 1)]
        for record in records:
            record.steps["kind"] = kinds
        return records

    (found,) = said(with_kinds(["train", "evaluation", "train", "train"] * 3))
    assert found.startswith(sentence(EVERY - {1, 5, 9}))
    (found,) = said(with_kinds(["evaluation"] * STEPS))
    assert found.startswith(sentence(EVERY))


def test_a_dispatch_that_is_always_in_two_parts_is_not_compared() -> None:
    """Each part with the routing of another micro-batch would be false."""

    def halved(record: RankRecord) -> RankRecord:
        parts = np.repeat(record.calls, 1 + (record.calls["site"] == 1))
        return replace(record, calls=parts)

    assert said([halved(routed_more(rank)) for rank in (0, 1)]) == []


def test_rows_of_an_element_or_in_equal_parts_are_not_compared() -> None:
    records = [routed_more(rank) for rank in (0, 1)]
    small = [
        replace(r, sites=tuple(replace(x, row_bytes=8) for x in r.sites))
        for r in records
    ]
    assert said(small) == []
    even = [replace(r, splits={2: np.full_like(r.splits[2], 640)}) for r in records]
    assert said(even) == []


def test_equal_parts_that_follow_the_demand_contradict_no_dispatch_mode() -> None:
    """They may be padded, so drops stay unknown; but they are those of the demand."""

    def even(rank: int) -> RankRecord:
        whole = make(rank)
        demand = np.full_like(whole.demand[4], 4)
        demand[:, 1] = -1
        splits = np.full_like(whole.splits[2], 8 * ROW)
        return replace(whole, demand={4: demand}, splits={2: splits})

    merged = merge_records([even(0), even(1)], "run")
    assert merged.trace.meta.dispatch == "dropless"
    assert merged.contradictions == ()
    (form,) = {s.dropped for s in merged.trace.sites if s.operation == "routing"}
    assert form == DroppedForm.UNKNOWN
