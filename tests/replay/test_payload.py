"""Every received byte is checked; no mix-up passes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
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


def check(
    parts: list[np.ndarray], destination: int, operation: int, sizes: list[int]
) -> tuple[int, int, str] | None:
    """Source and offset of the first wrong byte, and its description."""
    received = torch.from_numpy(np.concatenate(parts))
    plan, program = plan_of("all_to_all", destination, operation, sizes)
    wrong = payload.find_wrong(plan, program, 0, received)
    if wrong is None:
        return None
    source, text = wrong
    offset = re.match(r"byte (\d+) of \d+ is 0x.. instead of 0x..", text)
    assert offset is not None
    return source, int(offset[1]), text


def swapped(parts, at, destination, operation, sizes):
    parts[at], parts[at - 1] = parts[at - 1], parts[at]


def for_another_rank(parts, at, destination, operation, sizes):
    other = RANKS[RANKS.index(destination) - 1]
    parts[at] = exchanged(other, operation, sizes)[at]


def shifted(parts, at, destination, operation, sizes):
    longer = exchanged(destination, operation, [size + 7 for size in sizes])[at]
    parts[at] = longer[7:]


def stale_tail(parts, at, destination, operation, sizes):
    """A sender sent less, and the rest is of an operation before."""
    stale = exchanged(destination, operation - 1, sizes)[at]
    parts[at] = np.concatenate([parts[at][:20], stale[20:]])


def truncated(parts, at, destination, operation, sizes):
    parts[at][20:] = payload.UNTOUCHED


def flipped_bit(parts, at, destination, operation, sizes):
    parts[at][30] ^= 4


@pytest.mark.parametrize(
    ("harm", "first"),
    [
        *((swapped, 0), (for_another_rank, 0), (shifted, 0)),
        *((stale_tail, 20), (truncated, 20), (flipped_bit, 30)),
    ],
)
@given(
    size=st.integers(40, 300),
    operation=st.integers(100, 1 << 40),
    destination=st.sampled_from(RANKS),
    at=st.integers(1, 3),
)
def test_what_is_not_as_sent_is_found(harm, first, size, operation, destination, at):
    sizes = [size] * 4
    parts = exchanged(destination, operation, sizes)
    assert check(parts, destination, operation, sizes) is None
    harm(parts, at, destination, operation, sizes)
    wrong = check(parts, destination, operation, sizes)
    assert wrong is not None
    source, offset, text = wrong
    assert source == RANKS[at - (harm is swapped)]
    # by chance some bytes are right
    assert first <= offset < first + 8
    assert ("nothing was received there" in text) == (harm is truncated)


@given(sizes=st.lists(st.integers(0, 300), min_size=4, max_size=4))
def test_parts_of_any_size_are_right_if_unchanged(sizes):
    assert check(exchanged(4, 9, sizes), 4, 9, sizes) is None


def test_long_messages_do_not_repeat_with_the_period():
    size = 3 * PERIOD + 5
    parts = exchanged(4, 5, [size, 0, 0, 0])
    assert check(parts, 4, 5, [size, 0, 0, 0]) is None
    for gone in (1, 4096, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD):
        moved = [np.concatenate([parts[0][gone:], parts[0][:gone]]), *parts[1:]]
        assert check(moved, 4, 5, [size, 0, 0, 0]) is not None, gone


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


def test_operations_within_a_period_start_at_different_places():
    starts = {payload.place(3, k, 0) for k in range(PERIOD)}
    assert len(starts) == PERIOD


def test_tables_are_the_same_everywhere():
    assert payload.table(0)[:8].numpy().tobytes().hex() == "ebda23e282421150"
