"""Sends and receives that form all-to-alls, and those that do not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from moetraffic.interop.read.messages import join_messages
from moetraffic.interop.read.rows import Contents, Row
from moetraffic.trace.model import ALL_TO_ALL, Group

Pair = tuple[int, int, int]
"""Source, destination and size of a message."""


def exchanged(
    width: int, rounds: Iterable[Iterable[Pair]], kind: str = "other"
) -> Contents:
    """Rows of both ends of messages, in the order of rounds, as ranks record them."""
    group, contents = Group(kind=kind, ranks=tuple(range(4, 4 + width))), Contents()
    for messages in rounds:
        for source, dest, size in messages:
            for rank in (source, dest):
                row = Row(rank=4 + rank, operation="send_recv", group=group)
                row.peers, row.volume, row.issue = (source, dest), size, size
                contents.rows.append(row)
    return contents


def every_pair(sizes: list[list[int]]) -> list[Pair]:
    return [
        (i, j, size)
        for i, row in enumerate(sizes)
        for j, size in enumerate(row)
        if size >= 0
    ]


UNEVEN = [[-1, 5, 6], [7, -1, 8], [9, 10, -1]]


def test_messages_of_each_pair_are_an_all_to_all() -> None:
    contents = exchanged(
        3, [every_pair(UNEVEN), every_pair([r[::-1] for r in UNEVEN[::-1]])]
    )
    join_messages(contents)
    assert {row.operation for row in contents.rows} == {ALL_TO_ALL}
    own = [row for row in contents.rows if row.rank == 5]
    assert [list(row.sent) for row in own] == [[7, 0, 8], [8, 0, 7]]
    assert [list(row.received) for row in own] == [[5, 0, 10], [10, 0, 5]]
    assert own[0].issue == 5
    assert contents.inferred == [
        "2 all-to-alls, from sends and receives that complete each other"
    ]


RING = [(0, 1, 5), (1, 2, 5), (2, 0, 5)]
PIPELINE = [(0, 1, 5), (1, 2, 5), (2, 1, 5), (1, 0, 5)]


@pytest.mark.parametrize(
    ("width", "rounds", "kind"),
    [
        (3, [RING, RING], "other"),
        (3, [PIPELINE], "other"),
        (3, [every_pair(UNEVEN)], "pp"),
        (2, [[(0, 1, 5), (1, 0, 5)]] * 4, "other"),  # may be a pipeline
    ],
)
def test_rings_and_pipelines_stay_messages(
    width: int, rounds: list[list[Pair]], kind: str
) -> None:
    contents = exchanged(width, rounds, kind)
    before = list(contents.rows)
    join_messages(contents)
    assert contents.rows == before
    assert not contents.inferred


def test_ends_that_differ_stay_messages_for_the_contradiction() -> None:
    contents = exchanged(3, [every_pair(UNEVEN)])
    contents.rows[0].volume = 4
    join_messages(contents)
    assert contents.rows[0].operation == "send_recv"


def test_two_ranks_exchange_unequal_sizes() -> None:
    contents = exchanged(2, [[(0, 1, 5), (1, 0, 6)], [(0, 1, 8), (1, 0, 3)]])
    join_messages(contents)
    assert [list(row.sent) for row in contents.rows if row.rank == 4] == [
        [0, 5],
        [0, 8],
    ]
