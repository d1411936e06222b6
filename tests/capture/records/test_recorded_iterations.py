"""Iterations are recorded whole or not at all, and keep their numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.arrays import Int64
from moetraffic.capture.annotate import CallContext
from moetraffic.capture.record_format import CALL, OPERATIONS, OPTIMIZER, PAUSE, STEP
from moetraffic.capture.records.committer import Committer
from moetraffic.capture.records.encoder import Encoder
from moetraffic.trace.merge.merging import merge_segments
from moetraffic.trace.model import ALL_TO_ALL, Meta
from moetraffic.trace.segments.segment import Segment

Calls = dict[int, list[tuple[int, ...]]]


class Kept:
    """A writer that keeps segments in memory, of one byte each."""

    unrecorded = 0

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def write(self, segment: Segment) -> None:
        self.segments.append(segment)

    def size(self) -> int:
        return len(self.segments)


def words_of(encoder: Encoder, record: tuple[Any, ...]) -> Int64:
    words: list[int] = []
    encoder.encode(record, words)
    return torch.tensor(words).numpy()


def recorded(
    program: str, *, every: int = 1, most_bytes: int = 0, window: int = 4
) -> tuple[Calls, list[int], list[Segment]]:
    """Bytes of the calls by iteration, the iterations that ended, and the segments.

    ``f`` and ``b`` are all-to-alls of a forward and a backward pass, ``c`` an
    all-reduce, ``o`` an optimizer step, ``s`` one that the program marks, ``p`` a pause
    and ``r`` its end.
    """
    about = {
        "meta": Meta(world=2, every=every).as_dict(),
        **{"rank": 0, "node": "", "placement": {}, "window": window, "begun": 0},
        "most_bytes": most_bytes,
    }
    writer, encoder = Kept(), Encoder()
    committer = Committer(about, writer, pause_s=0.0)  # type: ignore[arg-type]
    committer.receive({"group": {"name": "g", "kind": "ep", "ranks": [0, 1]}})
    for number, letter in enumerate(program):
        record: tuple[Any, ...]
        if letter in "fbc":
            name = "all_reduce" if letter == "c" else ALL_TO_ALL
            splits: list[int] = [] if letter == "c" else [number, 1]
            # fmt: off
            record = (
                CALL, number, number, OPERATIONS.index(name), "g", CallContext(),
                torch.float32, 1, int(letter == "b"), 0, -1, None,
                (-1, -1, number if letter == "c" else 0, (number + 1,), (number + 1,),
                 splits, splits),
            )
            # fmt: on
        elif letter == "o":
            record = (OPTIMIZER, number, False, False)
        elif letter == "s":
            record = (STEP, number, -1, -1, None)
        else:
            record = (PAUSE, letter == "p")
        words = words_of(encoder, record)
        for definition in encoder.definitions():
            committer.receive(definition)
        committer.take(words)
    committer.close(final=True)
    calls: Calls = defaultdict(list)
    steps: list[int] = []
    for segment in writer.segments:
        steps += segment.steps["iteration"].tolist()
        for event in segment.events:
            operation = segment.sites[event["site"]].operation
            row = (int(event["payload"]),)
            if operation == ALL_TO_ALL:
                row = tuple(segment.splits[2][event["payload"], 0].tolist())
            calls[int(event["iteration"])].append((int(event["issue"]), *row))
    return calls, steps, writer.segments


@given(
    blocks=st.lists(
        st.sampled_from(["fb", "fbc", "cfbc", "ffbb"]), min_size=3, max_size=12
    ),
    end=st.sampled_from(["s", "o", "oc", "oco", "ooc"]),
    every=st.integers(1, 4),
    window=st.sampled_from([1, 4, 100]),
)
def test_every_nth_iteration_is_as_without_sampling(
    blocks: list[str], end: str, every: int, window: int
) -> None:
    program = "".join(block + end for block in blocks)
    whole, steps, _ = recorded(program, window=window)
    calls, kept, _ = recorded(program, every=every, window=window)
    assert kept == [n for n in steps if n % every == 0]
    assert calls == {n: rows for n, rows in whole.items() if n % every == 0}


@pytest.mark.parametrize("end", "so")
def test_a_pause_is_of_whole_iterations(end: str) -> None:
    one = "fbc" + end
    for program, want in (
        (one + "p" + one + one + "r" + one, [0, 3]),
        # within an iteration, whose rest belongs to it, and in one of the pause
        (one[:2] + "p" + one[2:] + one[:1] + "r" + one[1:] + one, [0, 2]),
    ):
        calls, steps, _ = recorded(program)
        assert steps == sorted(calls) == want
        assert {len(rows) for rows in calls.values()} == {3}


def test_the_maximum_size_ends_the_record_and_is_stated() -> None:
    program = "fbs" * 40
    whole, _, _ = recorded(program)
    calls, steps, segments = recorded(program, most_bytes=3)
    end = sum(len(segment.steps) for segment in segments[:3])
    assert 3 <= end < 40
    assert steps == list(range(end))
    assert calls == {n: whole[n] for n in range(end)}
    # stated with the next call, also for a rank that is killed later
    assert segments[3].left_out.startswith(f"iterations from {end} on, because")
    # nothing is left out of a run that ends as the size is reached
    _, steps, segments = recorded("fbs" * end, most_bytes=3)
    assert steps == list(range(end))
    assert not segments[-1].left_out


def test_iterations_that_may_hold_skipped_steps_are_named() -> None:
    """No known scaler skipped the step: the calls of two steps are one iteration."""
    for program, said in (("fbo" * 3 + "fbfbo" + "fbo" * 3, True), ("fbo" * 7, False)):
        _, steps, segments = recorded(program, window=100)
        schedule = merge_segments(segments, "here").trace.meta.schedule
        assert ("(evaluations, skipped steps): 3" in schedule) == said, schedule
        assert steps == list(range(7))
