"""Every received byte can be traced to its sender; no mix-up passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moetraffic.replay.execution import payload

RANKS = (1, 4, 6, 9)  # world ranks of a group
PERIOD = payload.PERIOD


def sent(source: int, operation: int, sizes: list[int]) -> list[np.ndarray]:
    """What a source sends to each rank of the group."""
    out = np.full(sum(sizes), payload.UNTOUCHED, np.uint8)
    payload.fill(
        out, source=source, destinations=RANKS, operation=operation, sizes=sizes
    )
    return np.split(out, np.cumsum(sizes)[:-1])


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
) -> payload.WrongByte | None:
    return payload.verify(
        np.concatenate(parts),
        destination=destination,
        sources=RANKS,
        operation=operation,
        sizes=sizes,
    )


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
    (part,) = (p for p in sent(1, 5, [0, 3 * PERIOD + 5, 0, 0]) if len(p))
    assert not np.array_equal(part[:PERIOD], part[PERIOD : 2 * PERIOD])
    for gone in (1, 4096, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD):
        moved = np.concatenate([part[gone:], part[:gone]])
        wrong = payload.verify(
            moved, destination=4, sources=[1], operation=5, sizes=[len(part)]
        )
        assert wrong is not None, gone
        # eight bytes on both sides of a block's end are in no table
        assert wrong.owner == (None if gone == PERIOD - 1 else 1)
    assert (
        payload.verify(part, destination=4, sources=[1], operation=5, sizes=[len(part)])
        is None
    )


@pytest.mark.parametrize(
    ("first", "size"), [(0, 10), (PERIOD - 1, 3), (2 * PERIOD - 5, 200_000), (7, 0)]
)
def test_a_part_of_a_sum_is_that_part(first, size):
    whole = np.zeros(first + size, np.uint8)
    for source in RANKS:
        own = np.empty(first + size, np.uint8)
        payload.fill(
            own,
            source=source,
            destinations=[source],
            operation=5,
            sizes=[first + size],
        )
        whole += own
    part = payload.summed(sources=RANKS, operation=5, first=first, size=size)
    np.testing.assert_array_equal(part, whole[first:])


def test_every_window_of_eight_bytes_tells_its_sender():
    every = np.concatenate([payload.table(r)[: PERIOD + 7] for r in range(16)])
    windows = np.lib.stride_tricks.sliding_window_view(every, 8)
    values = np.ascontiguousarray(windows).view("<u8").ravel()
    whole = np.arange(len(values)) % (PERIOD + 7) < PERIOD
    assert len(np.unique(values[whole])) == 16 * PERIOD


def test_operations_within_a_period_start_at_different_places():
    starts = {payload._place(3, k, 0) for k in range(PERIOD)}
    assert len(starts) == PERIOD


def test_tables_are_the_same_everywhere_and_cannot_be_written():
    assert payload.table(0)[:8].tobytes().hex() == "ebda23e282421150"
    with pytest.raises(ValueError, match="read-only"):
        payload.table(0)[0] = 1


def test_foreign_bytes_have_no_owner():
    parts = exchanged(4, 7, [64] * 4)
    parts[2][:] = np.arange(64, dtype=np.uint8)
    wrong = check(parts, 4, 7, [64] * 4)
    assert wrong is not None
    assert wrong.source == RANKS[2]
    assert wrong.owner is None
    assert wrong.note == "no rank of the group sends such bytes"
