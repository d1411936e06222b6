"""Every received byte can be traced to its sender; no mix-up passes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from moetraffic.replay import payload
from moetraffic.replay.plan.operations import KINDS

RANKS = (1, 4, 6, 9)  # world ranks of a group
PERIOD = payload.PERIOD


def plan_of(kind: str, rank: int, operation: int, sizes: list[int]) -> tuple[Any, Any]:
    """A plan of one operation of the group, and the program of a rank."""
    ends = {"sender": {operation: RANKS[1]}, "receiver": {operation: RANKS[0]}}
    plan = SimpleNamespace(groups=[RANKS], **ends)
    program = SimpleNamespace(
        rank=rank,
        operation=[operation],
        kind=[KINDS.index(kind)],
        group=[0],
        sends=lambda _: np.array(sizes),
        receives=lambda _: np.array(sizes),
    )
    return plan, program


def sent(source: int, operation: int, sizes: list[int]) -> list[np.ndarray]:
    """What a source sends to each rank of the group."""
    out = torch.zeros(sum(sizes), dtype=torch.uint8)
    plan, program = plan_of("all_to_all", source, operation, sizes)
    payload.fill(plan, program, 0, (out, out[:0]))
    return np.split(out.numpy(), np.cumsum(sizes)[:-1])


def exchanged(destination: int, operation: int, sizes: list[int]) -> list[np.ndarray]:
    """What a correct all-to-all brings one rank, a part a source."""
    to = RANKS.index(destination)
    wanted = [[0] * len(RANKS) for _ in RANKS]
    for row, size in zip(wanted, sizes, strict=True):
        row[to] = size
    return [
        sent(source, operation, row)[to]
        for source, row in zip(RANKS, wanted, strict=True)
    ]


class Wrong:
    """A wrong byte, as its description has it."""

    def __init__(self, source: int, text: str) -> None:
        self.source, self.text = source, text
        said = re.match(r"byte (\d+) of (\d+) is 0x(..) instead of 0x(..): (.*)", text)
        assert said is not None
        self.offset, self.length = int(said[1]), int(said[2])
        self.found, self.expected = int(said[3], 16), int(said[4], 16)
        self.note = said[5]
        owner = re.search(r"rank (\d+)", self.note)
        self.owner = int(owner[1]) if owner else None

    def __str__(self) -> str:
        return self.text


def check(
    parts: list[np.ndarray], destination: int, operation: int, sizes: list[int]
) -> Wrong | None:
    received = torch.from_numpy(np.concatenate(parts))
    plan, program = plan_of("all_to_all", destination, operation, sizes)
    wrong = payload.find_wrong(plan, program, 0, received)
    return wrong and Wrong(*wrong)


sizes_of_parts = st.lists(st.integers(0, 300), min_size=4, max_size=4)
operations = st.integers(0, 1 << 40)
members = st.sampled_from(RANKS)
places = st.integers(0, 3)


@given(sizes=sizes_of_parts, operation=operations, destination=members)
def test_what_was_sent_is_what_is_expected(sizes, operation, destination):
    parts = exchanged(destination, operation, sizes)
    assert check(parts, destination, operation, sizes) is None


@given(
    size=st.integers(8, 300),
    operation=operations,
    destination=members,
    a=places,
    b=places,
)
def test_two_senders_swapped_are_found_and_named(size, operation, destination, a, b):
    assume(a != b)
    sizes = [size] * 4
    parts = exchanged(destination, operation, sizes)
    parts[a], parts[b] = parts[b], parts[a]
    wrong = check(parts, destination, operation, sizes)
    first, other = sorted((a, b))
    assert wrong is not None
    assert wrong.source == RANKS[first]
    if wrong.offset + 8 <= size:
        assert wrong.owner == RANKS[other]
        assert f"rank {RANKS[other]}'s bytes for rank {destination}" in wrong.note


@given(
    sizes=st.lists(st.integers(8, 300), min_size=4, max_size=4),
    operation=operations,
    destination=members,
    other=members,
    at=places,
)
def test_bytes_meant_for_another_rank_are_found(
    sizes, operation, destination, other, at
):
    assume(destination != other)
    parts = exchanged(destination, operation, sizes)
    parts[at] = exchanged(other, operation, sizes)[at]
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    assert wrong.source == RANKS[at]
    if wrong.offset + 8 <= wrong.length:
        assert wrong.owner == RANKS[at]
        assert f"bytes for rank {other}" in wrong.note


@given(
    size=st.integers(40, 300),
    shift=st.integers(1, 24),
    operation=operations,
    destination=members,
    at=places,
)
def test_a_shift_is_found_and_measured(size, shift, operation, destination, at):
    sizes = [size] * 4
    parts = exchanged(destination, operation, sizes)
    longer = exchanged(destination, operation, [size + shift] * 4)[at]
    parts[at] = longer[shift:]
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    assert wrong.source == RANKS[at]
    assert wrong.offset < 8
    assert wrong.owner == RANKS[at]
    assert wrong.note.endswith(f"bytes of offset {wrong.offset + shift}")


@given(
    sizes=st.lists(st.integers(9, 300), min_size=4, max_size=4),
    received=st.integers(0, 300),
    back=st.integers(1, 20),
    operation=st.integers(100, 1 << 40),
    destination=members,
    at=places,
)
def test_a_stale_tail_is_found(sizes, received, back, operation, destination, at):
    """A sender sent less, and the rest is of an operation before."""
    received = min(received, sizes[at] - 8)
    parts = exchanged(destination, operation, sizes)
    stale = exchanged(destination, operation - back, sizes)[at]
    parts[at] = np.concatenate([parts[at][:received], stale[received:]])
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    assert wrong.source == RANKS[at]
    assert wrong.offset >= received
    if wrong.offset + 8 <= sizes[at]:
        assert wrong.owner == RANKS[at]
        assert f"{back} operations before" in wrong.note


@given(
    sizes=st.lists(st.integers(1, 300), min_size=4, max_size=4),
    missing=st.integers(8, 300),
    operation=operations,
    destination=members,
    at=places,
)
def test_a_truncated_message_is_found(sizes, missing, operation, destination, at):
    """The buffer was filled beforehand, so what did not arrive shows."""
    sizes[at] += missing
    parts = exchanged(destination, operation, sizes)
    parts[at][-missing:] = payload.UNTOUCHED
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    assert wrong.source == RANKS[at]
    assert wrong.offset >= sizes[at] - missing
    assert wrong.owner is None
    if wrong.offset + 8 <= sizes[at]:
        assert wrong.note == "nothing was received there"


@given(
    sizes=st.lists(st.integers(1, 300), min_size=4, max_size=4),
    operation=operations,
    destination=members,
    at=places,
    offset=st.integers(0, 299),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_is_found_at_its_offset(
    sizes, operation, destination, at, offset, bit
):
    offset %= sizes[at]
    parts = exchanged(destination, operation, sizes)
    parts[at][offset] ^= 1 << bit
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    assert (wrong.source, wrong.offset) == (RANKS[at], offset)
    assert wrong.found == wrong.expected ^ (1 << bit)
    assert f"byte {offset} of {sizes[at]}" in str(wrong)


def test_long_messages_do_not_repeat_with_the_period():
    size = 3 * PERIOD + 5
    parts = exchanged(4, 5, [size, 0, 0, 0])
    assert check(parts, 4, 5, [size, 0, 0, 0]) is None
    for gone in (1, 4096, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD):
        moved = [np.concatenate([parts[0][gone:], parts[0][:gone]]), *parts[1:]]
        wrong = check(moved, 4, 5, [size, 0, 0, 0])
        assert wrong is not None, gone
        # eight bytes on both sides of a block's end are in no table
        assert wrong.owner == (None if gone == PERIOD - 1 else 1)


SUMS = ["uint8", "int32", "int64", "bfloat16", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", SUMS)
@pytest.mark.parametrize("kind", ["all_reduce", "reduce", "reduce_scatter"])
def test_sums_are_exact_in_their_element_type_in_any_order(kind, dtype):
    count = PERIOD + 40  # a multiple of the members
    count -= count % len(RANKS)
    given, empty = [], torch.zeros(0, dtype=getattr(torch, dtype))
    for rank in RANKS:
        plan, program = plan_of(kind, rank, 7, [])
        own = torch.zeros(count, dtype=getattr(torch, dtype))
        both = (own, empty) if kind == "reduce_scatter" else (empty, own)
        payload.fill(plan, program, 0, both)
        given.append(own)
    forward, backward = given[0].clone(), given[-1].clone()
    for own in given[1:]:
        forward += own
    for own in given[-2::-1]:
        backward += own
    assert torch.equal(forward, backward)
    assert len(forward.unique()) > 20
    for index, rank in enumerate(RANKS):
        plan, program = plan_of(kind, rank, 7, [])
        share = count // len(RANKS)
        low, high = (index * share, (index + 1) * share)
        if kind != "reduce_scatter":
            low, high = 0, count
        part = forward[low:high].clone()
        assert payload.find_wrong(plan, program, 0, part) is None
        part[3] += 1
        wrong = payload.find_wrong(plan, program, 0, part)
        assert (wrong is None) == (kind == "reduce" and rank != RANKS[0])
        if wrong is not None:
            assert wrong[1].startswith("element 3 of the sum of 4 ranks is ")


def test_sums_over_many_members_stay_exact_or_are_not_compared():
    assert payload.modulus(torch.bfloat16, 2) == 129
    assert payload.modulus(torch.bfloat16, 256) == 2  # zeros and ones
    assert payload.modulus(torch.bfloat16, 257) == 0
    assert (
        payload.modulus(torch.float32, 1024) == payload.modulus(torch.int32, 9) == 256
    )


def test_every_window_of_eight_bytes_tells_its_sender():
    every = np.concatenate([payload.table(r)[: PERIOD + 7].numpy() for r in range(16)])
    windows = np.lib.stride_tricks.sliding_window_view(every, 8)
    values = np.ascontiguousarray(windows).view("<u8").ravel()
    whole = np.arange(len(values)) % (PERIOD + 7) < PERIOD
    assert len(np.unique(values[whole])) == 16 * PERIOD


def test_operations_within_a_period_start_at_different_places():
    starts = {payload.place(3, k, 0) for k in range(PERIOD)}
    assert len(starts) == PERIOD


def test_tables_are_the_same_everywhere():
    assert payload.table(0)[:8].numpy().tobytes().hex() == "ebda23e282421150"


def test_foreign_bytes_have_no_owner():
    parts = exchanged(4, 7, [64] * 4)
    parts[2][:] = np.arange(64, dtype=np.uint8)
    wrong = check(parts, 4, 7, [64] * 4)
    assert wrong is not None
    assert wrong.source == RANKS[2]
    assert wrong.owner is None
    assert wrong.note == "no rank of the group sends such bytes"
