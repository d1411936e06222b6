"""Join sends and receives to all-to-alls, and add calls that a rank's file lacks.

NCCL makes an all-to-all of a send and a receive for each peer, and so do programs by
``batch_isend_irecv``.  The messages of a group are divided into rounds.  They are
all-to-alls if each pair of ranks has a message in each round, with the same size at
both ends; those of pipelines and rings are not.  Two ranks have both messages in these,
too: there the two directions must differ in size, or a rank send to itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME, Group

from .rows import UNNUMBERED, Contents, Row

Round = Mapping[int, Sequence[Row]]
"""Messages of a round by the world rank that recorded them."""


def join_messages(contents: Contents) -> None:
    """Replace the messages that form all-to-alls in ``contents.rows``.

    Messages of a group with equal sequence numbers are of one round; without numbers, a
    round ends before a second message of the same pair.  Bytes that neither end
    recorded are unknown.  What ranks keep is 0 where none sends to itself.
    """
    by_group: dict[Group, dict[int, list[Row]]] = {}
    for row in contents.rows:
        width = len(row.group.ranks)
        message = row.operation == "send_recv" and min(row.peers) >= 0
        if message and 1 < width > max(row.peers) and row.group.kind != "pp":
            by_group.setdefault(row.group, {}).setdefault(row.rank, []).append(row)
    instead: dict[int, list[Row]] = {}  # of a message, by identity
    number, lost = 0, Counter[int]()
    for group, by_rank in by_group.items():
        numbered = all(m.sequence >= 0 for own in by_rank.values() for m in own)
        rounds = _rounds(by_rank, numbered=numbered)
        sizes = _sizes(len(group.ranks), rounds, numbered=numbered)
        if not sizes:
            continue
        number += len(rounds)
        itself = any(source == dest for pairs in sizes for source, dest in pairs)
        for rank, messages in by_rank.items():
            made: list[Row] = []  # rounds without a record precede the next one
            for each in rounds:
                own = each.get(rank, ())
                made.append(_joined(messages[0], own, itself=itself))
                instead |= {id(message): [] for message in own}
                if own:
                    instead[id(own[0])] = made
                    made = []
        for pairs in sizes:
            for pair, ends in pairs.items():
                both = {group.ranks[member] for member in pair} & by_rank.keys()
                lost.update(both - ends.keys())
    rows = contents.rows
    contents.rows = [made for row in rows for made in instead.get(id(row), [row])]
    contents.inferred += [
        f"{number} all-to-alls, from sends and receives that complete each other"
    ] * bool(number)
    contents.missing += [
        f"sends and receives of rank {rank} that its peers alone recorded: {count}"
        for rank, count in sorted(lost.items())
    ]


def _rounds(by_rank: Mapping[int, Sequence[Row]], *, numbered: bool) -> list[Round]:
    """Divide the messages of a group into rounds; one to itself has two records."""
    rounds: defaultdict[int, dict[int, list[Row]]] = defaultdict(dict)
    for rank, messages in by_rank.items():
        number, seen = 0, Counter[tuple[int, int]]()
        for message in messages:
            source, dest = message.peers
            if seen[source, dest] > (source == dest):
                number, seen = number + 1, Counter()
            seen[source, dest] += 1
            place = rounds[message.sequence if numbered else number]
            place.setdefault(rank, []).append(message)
    return [rounds[number] for number in sorted(rounds)]


def _sizes(
    width: int, rounds: Sequence[Round], *, numbered: bool
) -> list[dict[tuple[int, int], dict[int, int]]]:
    """Return the sizes of messages by pair and recording rank; none: no all-to-alls.

    Rounds that are numbered may lack records, of small or lost messages, but no pair
    lacks all.
    """
    pairs, every = set(permutations(range(width), 2)), []
    for messages in rounds:
        sizes: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for rank, own in messages.items():
            for message in own:
                if message.volume >= 0:
                    sizes[message.peers][rank] = message.volume
        agree = all(len(set(ends.values())) == 1 for ends in sizes.values())
        if not (agree and (numbered or pairs <= sizes.keys())):
            return []
        every.append(sizes)
    if not pairs <= set().union(*every):
        return []
    if numbered or width > 2 or any((0, 0) in sizes for sizes in every):
        return [*every]
    uneven = [set(s[0, 1].values()) != set(s[1, 0].values()) for s in every]
    return [*every] if 2 * sum(uneven) > len(uneven) else []


def _joined(first: Row, messages: Sequence[Row], *, itself: bool) -> Row:
    """Join a rank's messages of a round to its part of an all-to-all.

    ``first`` is a message of the rank; ``itself``: whether ranks send to themselves.
    """
    ranks = first.group.ranks
    own = ranks.index(first.rank)
    sent, received = [-1] * len(ranks), [-1] * len(ranks)
    if not itself:
        sent[own] = received[own] = 0
    for message in messages:
        source, dest = message.peers
        if source == own:
            sent[dest] = message.volume
        if dest == own:
            received[source] = message.volume
    joint = replace(
        messages[0] if messages else first,
        operation=ALL_TO_ALL,
        peers=(-1, -1),
        sent=sent,
        received=received,
        volume=-1,
        row_bytes=-1,
        sequence=UNNUMBERED,
    )
    for name, choose in (("issue", min), ("start", min), ("end", max)):
        times = [getattr(message, name) for message in messages]
        times = [time for time in times if time != UNKNOWN_TIME]
        setattr(joint, name, choose(times, default=UNKNOWN_TIME))
    return joint


def add_lost(contents: Contents) -> None:
    """Add the numbered collectives that peers recorded and a rank did not.

    Their bytes are unknown.  Those after a rank's last record are not added, only told.
    """
    by_group: dict[Group, dict[int, dict[int, Row]]] = {}
    for row in contents.rows:
        if row.peers == (-1, -1) and row.sequence >= 0:
            ranks = by_group.setdefault(row.group, {})
            ranks.setdefault(row.rank, {})[row.sequence] = row
    before: defaultdict[int, list[Row]] = defaultdict(list)  # of a row, by identity
    lost: Counter[int] = Counter()
    for by_rank in by_group.values():
        every = {n: row for own in by_rank.values() for n, row in own.items()}
        for rank, own in by_rank.items():
            numbers = np.array(sorted(own))
            for number in sorted(every.keys() - own.keys()):
                lost[rank] += 1
                later = np.searchsorted(numbers, number)
                if later < len(numbers):
                    call = replace(every[number], rank=rank, volume=-1)
                    call.sent = call.received = [-1] * len(call.sent)
                    call.issue = call.start = call.end = UNKNOWN_TIME
                    before[id(own[int(numbers[later])])].append(call)
    contents.rows = [r for row in contents.rows for r in (*before[id(row)], row)]
    contents.missing += [
        f"collectives that peers of rank {rank} recorded, but not its file: {count}"
        for rank, count in sorted(lost.items())
    ]
