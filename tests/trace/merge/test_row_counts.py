"""Rows of dispatches are compared with the routing of their own micro-batch, or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moetraffic.trace.merge.merging import merge_segments
from moetraffic.trace.model import DroppedForm
from moetraffic.trace.segments.segment import Segment
from tests.trace.merge.test_merging import META, ROW, WINDOW, WINDOWS, demand_of, make

Table = npt.NDArray[Any]
LOST = 3  # copies of each expert and rank that are routed and not sent


def routed_more(rank: int, index: int) -> Segment:
    """A window of a rank whose router chooses more copies than are sent."""
    whole = make(rank, index)
    demand = whole.demand[4].copy()
    demand[:, 0] += LOST
    demand[:, 1] = -1
    return replace(whole, demand={4: demand}, meta=replace(META, dispatch=""))


def said(segments: list[Segment]) -> list[str]:
    trace = merge_segments(segments, "run").trace
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


def routed_twice(events: Table) -> Table:
    """A second routing in iteration 5, and none of its dispatch."""
    return np.repeat(events, 1 + ((events["iteration"] == 5) & (events["site"] == 0)))


def one_dispatch_less(events: Table) -> Table:
    return events[~((events["iteration"] == 5) & (events["site"] == 1))]


EVERY = set(range(WINDOW * WINDOWS))


@pytest.mark.parametrize("change", [routed_twice, one_dispatch_less])
@pytest.mark.parametrize("ranks", [{0, 1}, {1}])
def test_iterations_without_a_pair_are_left_out(
    change: Callable[[Table], Table], ranks: set[int]
) -> None:
    segments = [routed_more(r, i) for r in (0, 1) for i in range(WINDOWS)]
    (all_of_them,) = said(segments)
    assert all_of_them.startswith(sentence(EVERY))
    changed = [
        replace(s, events=change(s.events)) if s.rank in ranks else s for s in segments
    ]
    (others,) = said(changed)
    assert others.startswith(sentence(EVERY - {5}))


def test_iterations_without_all_records_are_left_out() -> None:
    (found,) = said(
        [
            routed_more(rank, index)
            for rank in (0, 1)
            for index in range(WINDOWS)
            if (rank, index) != (1, 2)
        ]
    )
    assert found.startswith(sentence(EVERY - {8, 9, 10, 11}))


def test_evaluation_steps_are_left_out_unless_there_are_no_others() -> None:
    segments = [routed_more(r, i) for r in (0, 1) for i in range(WINDOWS)]
    kinds = ("train", "evaluation", "train", "train")
    (found,) = said([replace(s, kinds=kinds) for s in segments])
    assert found.startswith(sentence(EVERY - {1, 5, 9}))
    (found,) = said([replace(s, kinds=("evaluation",) * WINDOW) for s in segments])
    assert found.startswith(sentence(EVERY))


def test_a_dispatch_that_is_always_in_two_parts_is_not_compared() -> None:
    """Each part with the routing of another micro-batch would be false."""

    def halved(events: Table) -> Table:
        return np.repeat(events, 1 + (events["site"] == 1))

    segments = [routed_more(r, i) for r in (0, 1) for i in range(WINDOWS)]
    assert said([replace(s, events=halved(s.events)) for s in segments]) == []


def test_rows_of_an_element_or_in_equal_parts_are_not_compared() -> None:
    segments = [routed_more(r, i) for r in (0, 1) for i in range(WINDOWS)]
    small = [
        replace(s, sites=tuple(replace(x, row_bytes=8) for x in s.sites))
        for s in segments
    ]
    assert said(small) == []
    even = [replace(s, splits={2: np.full_like(s.splits[2], 640)}) for s in segments]
    assert said(even) == []


def test_equal_parts_that_follow_the_demand_contradict_no_dispatch_mode() -> None:
    """They may be padded, so drops stay unknown; but they are those of the demand."""

    def even(rank: int, index: int) -> Segment:
        whole = make(rank, index)
        demand = np.full_like(whole.demand[4], 4)
        demand[:, 1] = -1
        splits = np.full_like(whole.splits[2], 8 * ROW)
        return replace(whole, demand={4: demand}, splits={2: splits})

    segments = [even(r, i) for r in (0, 1) for i in range(WINDOWS)]
    assert segments[0].meta.dispatch == "dropless"
    merged = merge_segments(segments, "run")
    assert merged.contradictions == ()
    (form,) = {s.dropped for s in merged.trace.sites if s.operation == "routing"}
    assert form == DroppedForm.UNKNOWN
