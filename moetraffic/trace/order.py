"""One order of a trace's operations that suits all ranks.

Where ranks of a trace meet on one rank, it must do what several did; and ranks that
wait for each other must do it in one order, or none of them goes on.  So all follow one
order that keeps every rank's own: a topological one of what each rank did after what.
Iterations come one after the other; in most the calls are the same, and are put in
order once.  Where ranks issued calls in orders that contradict each other (they did not
wait for each other: streams, messages of a pipeline), the call that its members reached
first, by the mean, goes first.  The replay can do that: in one order of all calls no
rank waits for another in a ring.
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
    """The position of each occurrence in an order that suits all ranks.

    ``occurrences`` are ``[n]``, ascending; the result is a permutation of 0 to n - 1,
    ``[n]`` int64, ascending by iteration.
    """
    count = len(occurrences)
    chosen = np.full(len(trace.occurrences), -1, np.int64)
    chosen[occurrences] = np.arange(count)
    when = trace.occurrences.iteration[occurrences]
    iterations = np.unique(when)
    # Step 1: each rank's sequences of sites, told apart once
    known: dict[bytes, int] = {}
    sequences: list[Int64] = []
    said = np.full((len(iterations), trace.meta.world), -1, np.int64)
    for rank, mine in _orders(trace, occurrences):
        mine = mine[chosen[mine] >= 0]
        sites = trace.occurrences.site[mine].astype(np.int64)
        at = trace.occurrences.iteration[mine]
        edges = np.searchsorted(at, np.append(iterations, np.iinfo(np.int64).max))
        for number, (begin, end) in enumerate(pairwise(edges.tolist())):
            part = sites[begin:end]
            key = part.tobytes()
            if key not in known:
                known[key] = len(sequences)
                sequences.append(part)
            said[number, rank] = known[key]
    # Step 2: an order of sites for each kind of iteration
    place = np.zeros((count,), np.int64)
    kinds, kind = np.unique(said, axis=0, return_inverse=True)
    kind = kind.ravel()
    site = trace.occurrences.site[occurrences]
    which = kind[np.searchsorted(iterations, when)]
    for number, row in enumerate(kinds):
        mine = np.flatnonzero(which == number)
        order = merged([sequences[s] for s in np.unique(row)])
        rank_of = np.full(len(trace.sites), len(order), np.int64)
        rank_of[order] = np.arange(len(order))
        place[mine] = rank_of[site[mine]]
    # Step 3: by iteration, then by that order
    out = np.empty(count, np.int64)
    out[np.lexsort((site, place, when))] = np.arange(count)
    return out


def _orders(trace: Trace, occurrences: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each rank, and the occurrences in the order in which it issued them.

    Times are read once for all ranks, unless some are unknown.
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
    rank, found, issued = (np.concatenate(p) for p in zip(*parts, strict=True))
    if (issued == UNKNOWN_TIME).any():
        for one in range(trace.meta.world):
            yield one, trace.order(one)
        return
    order = np.lexsort((found, issued, trace.occurrences.iteration[found], rank))
    edges = np.searchsorted(rank[order], np.arange(trace.meta.world + 1))
    for one, (begin, end) in enumerate(pairwise(edges.tolist())):
        yield one, found[order[begin:end]]


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
    ready = [(mean[i], i) for i, n in before.items() if n == 0]
    waiting = sorted((i for i, n in before.items() if n), key=lambda i: (mean[i], i))
    heapq.heapify(ready)
    out: list[int] = []
    done: set[int] = set()
    following = iter(waiting)
    while len(out) < len(before):
        if ready:
            item = heapq.heappop(ready)[1]
        else:  # a ring: begin it where most began
            item = next(i for i in following if i not in done)
        if item in done:
            continue
        out.append(item)
        done.add(item)
        for then in after[item]:
            before[then] -= 1
            if before[then] == 0 and then not in done:
                heapq.heappush(ready, (mean[then], then))
    return np.array(out, np.int64)
