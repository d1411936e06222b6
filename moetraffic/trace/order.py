"""One order of a trace's operations that suits all ranks.

Where several ranks of a trace are mapped to one, it does what each of them did, and
ranks that wait for each other follow one order.  That order keeps the order of every
rank: it is a topological one.  Iterations come one after the other.  Where the orders
of ranks contradict each other (streams, messages of a pipeline), the call whose mean
position is first goes first.  In one order of all calls no ring of waits exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.trace import Trace


def common_order(trace: Trace, occurrences: Int64) -> Int64:
    """Return the position of each occurrence in an order that suits all ranks.

    ``occurrences`` are ``[n]``, ascending; the result is a permutation of 0 to n - 1,
    ``[n]`` int64, ascending by iteration.
    """
    when = trace.occurrences.iteration[occurrences]
    iterations = np.unique(when)
    # Step 1: each rank's sequences of sites, each distinct one once
    known: dict[bytes, int] = {}
    sequences: list[Int64] = []
    sequence = np.full((len(iterations), trace.meta.world), -1, np.int64)
    for rank, calls in _orders(trace, occurrences):
        sites = trace.occurrences.site[calls].astype(np.int64)
        edges = np.searchsorted(trace.occurrences.iteration[calls], iterations)
        for number, part in enumerate(np.split(sites, edges[1:])):
            key = known.setdefault(part.tobytes(), len(sequences))
            if key == len(sequences):
                sequences.append(part)
            sequence[number, rank] = key
    # Step 2: an order of sites for each kind of iteration
    place = np.zeros(len(occurrences), np.int64)
    kinds, kind = np.unique(sequence, axis=0, return_inverse=True)
    site = trace.occurrences.site[occurrences]
    kind_of_call = kind.ravel()[np.searchsorted(iterations, when)]
    for number, row in enumerate(kinds):
        calls = np.flatnonzero(kind_of_call == number)
        order = merged([sequences[s] for s in np.unique(row)])
        position = np.full(len(trace.sites), len(order), np.int64)
        position[order] = np.arange(len(order))
        place[calls] = position[site[calls]]
    # Step 3: by iteration, then by that order
    out = np.empty(len(occurrences), np.int64)
    out[np.lexsort((site, place, when))] = np.arange(len(occurrences))
    return out


def _orders(trace: Trace, occurrences: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each rank, and the occurrences in the order in which it issued them.

    Times are read once for all ranks; where some are unknown, sites give the order.
    """
    parts = []
    width = trace.width[trace.occurrences.site[occurrences]]
    for size in np.unique(width).tolist():
        of = occurrences[width == size]
        issue, _, _ = trace.times(of, own_clock=True)
        row, member = np.nonzero(trace.present(of))
        ranks = trace.members(of)[row, member]
        parts.append((ranks, of[row], issue[row, member]))
    if not parts:
        return
    rank, calls, issued = (np.concatenate(p) for p in zip(*parts, strict=True))
    unknown = np.isin(rank, rank[issued == UNKNOWN_TIME])
    issued = np.where(unknown, trace.occurrences.site[calls], issued)
    order = np.lexsort((calls, issued, trace.occurrences.iteration[calls], rank))
    edges = np.searchsorted(rank[order], np.arange(1, trace.meta.world))
    yield from enumerate(np.split(calls[order], edges))


def merged(sequences: Sequence[Int64]) -> Int64:
    """One sequence ``[m]`` of all items that keeps the order of each sequence ``[n]``.

    An item is in a sequence at most once.  Where they contradict each other, the item
    whose mean place is first goes first.

    Examples
    --------
    >>> merged([np.array([3, 1]), np.array([2, 1, 5]), np.array([3, 5])]).tolist()
    [2, 3, 1, 5]
    """
    places: dict[int, list[float]] = {}
    after: dict[int, set[int]] = {}
    before: dict[int, int] = {}
    for sequence in sequences:
        items = sequence.tolist()
        for at, item in enumerate(items):
            places.setdefault(item, []).append((at + 0.5) / len(items))
            after.setdefault(item, set())
            before.setdefault(item, 0)
        for one, then in pairwise(items):
            if then not in after[one]:
                after[one].add(then)
                before[then] += 1
    mean = {item: sum(of) / len(of) for item, of in places.items()}
    waiting = sorted(before, key=lambda i: (mean[i], i))
    ready = [(mean[i], i) for i, n in before.items() if n == 0]
    heapq.heapify(ready)
    following = iter(waiting)
    out: dict[int, None] = {}  # a set in the order of insertion
    while len(out) < len(before):
        if ready:
            item = heapq.heappop(ready)[1]
        else:  # a ring: begin it with the item of the first mean position
            item = next(i for i in following if i not in out)
        if item in out:
            continue
        out[item] = None
        for then in after[item]:
            before[then] -= 1
            if before[then] == 0 and then not in out:
                heapq.heappush(ready, (mean[then], then))
    return np.array([*out], np.int64)
