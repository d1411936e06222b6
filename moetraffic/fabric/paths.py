"""Shortest paths between switches: single path, ECMP hashing, and even splitting.

A *pair* is an ingress switch and an egress switch.  Path length is the sum of the link
costs.  At each switch the links that lie on a shortest path to the egress switch are
its *choices*, in the order of the topology's links.

References
----------
C. Hopps, "Analysis of an Equal-Cost Multi-Path Algorithm", RFC 2992 (2000): hash-
threshold: the hash range is divided evenly among the next hops.
G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014, figure 17: the mixing function, used here as the hash of each switch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from moetraffic.arrays import Float64, Int64, UInt64
from moetraffic.errors import FabricError

from .topology import Topology

MOST_STEPS = 60_000_000
"""Maximum number of path steps held in memory at once (about 2 GB)."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Equal-cost next-hop links from each switch to each egress switch."""

    exits: Int64  # [T] egress switches, increasing
    links: Int64  # [N, T, D] next-hop links: the first `count` valid, then -1
    count: Int64  # [N, T] number of next hops; 0 at the egress switch
    group: Int64  # [N, T] identifier of the set of next-hop links
    head: Int64  # [L] switch at the head of each link, -1 for a host


def choices(topology: Topology, entry: Int64, leaving: Int64) -> Choices:
    """Compute the equal-cost next-hop links from each switch to each egress switch.

    ``entry`` and ``leaving`` are indices into ``topology.switches`` of pairs, ``[n]``.

    Raises
    ------
    FabricError
        If no path leads from one to the other.
    """
    exits = np.unique(np.concatenate((entry, leaving)))
    number = {name: at for at, name in enumerate(topology.switches)}
    size = len(number)
    head = np.array([number.get(b, -1) for _, b in topology.links], np.int64)
    tail = np.array([number.get(a, -1) for a, _ in topology.links], np.int64)
    inner = np.flatnonzero((head >= 0) & (tail >= 0))
    inner = inner[np.argsort(tail[inner], kind="stable")]
    cost = np.array([topology.graph.edges[topology.links[e]]["cost"] for e in inner])
    # Step 1: distance of every switch to each egress switch, along reversed links.
    backwards = csr_array(
        (cost.astype(np.float64), (head[inner], tail[inner])), shape=(size, size)
    )
    distance = dijkstra(backwards, indices=exits).T  # [N, T]
    apart = np.flatnonzero(np.isinf(distance[entry, np.searchsorted(exits, leaving)]))
    if len(apart):
        ends = (topology.switches[at[apart[0]]] for at in (entry, leaving))
        raise topology.no_path(*ends)
    # Step 2: a link lies on a shortest path if it cuts the distance by its cost.
    with np.errstate(invalid="ignore"):
        nearer = distance[tail[inner]] - distance[head[inner]]  # [I, T]
    on = nearer == cost[:, None]
    # Step 3: number the shortest-path links of each switch.
    begins = np.searchsorted(tail[inner], np.arange(size))
    passed = np.concatenate((np.zeros((1, len(exits)), np.int64), on.cumsum(axis=0)))
    place = passed[:-1] - passed[begins[tail[inner]]]
    at, to = np.nonzero(on)
    most = int(place[at, to].max(initial=0)) + 1
    table = np.full((size, len(exits), most), -1, np.int64)
    table[tail[inner[at]], to, place[at, to]] = inner[at]
    _, group = np.unique(table.reshape(-1, most), axis=0, return_inverse=True)
    return Choices(
        exits=exits,
        links=table,
        count=np.asarray((table >= 0).sum(axis=2), np.int64),
        group=group.reshape(size, len(exits)).astype(np.int64),
        head=head,
    )


def flow_keys(
    source: Int64, destination: Int64, number: int, *, seed: int = 0
) -> UInt64:
    """Compute the hash key of the ``number``-th flow of each rank pair, ``[n]``."""
    key = (source.astype(np.uint64) << np.uint64(32)) | destination.astype(np.uint64)
    salt = mixed((seed + 0x9E3779B97F4A7C15) % 2**64)
    return mixed(mixed(mixed(key) ^ np.uint64(number)) ^ salt)


def mixed(value: npt.ArrayLike) -> UInt64:
    """Hash 64-bit integers with the finalizer of SplitMix64.

    Examples
    --------
    >>> int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0xE220A8397B1DCDAF
    True
    """
    z = np.asarray(value, np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def single_paths(
    found: Choices, entry: Int64, leaving: Int64, key: UInt64 | None = None
) -> tuple[Int64, Int64, Int64]:
    """Route each pair of switches, ``[n]`` ingress and egress, on one shortest path.

    Each switch hashes ``key``, ``[n]`` of :func:`flow_keys`, again to choose the next
    hop (RFC 2992); without keys it is the first.  Returns index of the pair, link, and
    set of equal-cost links (-1 if only one link), one row per pair and link, unordered.
    """
    row, at = np.arange(len(entry)), entry.copy()
    exit_at = np.searchsorted(found.exits, leaving)
    taken: list[tuple[Int64, Int64, Int64]] = []
    while True:
        going = at != leaving[row]
        row, at = row[going], at[going]
        if not len(row):
            break
        to = exit_at[row]
        number = found.count[at, to]
        chosen = np.zeros(len(row), np.int64)
        if key is not None:
            here = mixed(key[row] ^ mixed(at.astype(np.uint64) + np.uint64(1)))
            share = (here >> np.uint64(32)) * number.astype(np.uint64)
            chosen = (share >> np.uint64(32)).astype(np.int64)
        link = found.links[at, to, chosen]
        taken.append((row, link, np.where(number > 1, found.group[at, to], -1)))
        at = found.head[link]
    rows, links, groups = zip(*(taken or [(row, row, row)]), strict=True)
    return np.concatenate(rows), np.concatenate(links), np.concatenate(groups)


def all_paths(
    found: Choices, entry: Int64, leaving: Int64
) -> tuple[Int64, Int64, Float64]:
    """Split each pair of switches evenly over the next hops at each switch.

    The result is the mean of ECMP over its hashes: index of the pair, link, and
    fraction of the pair's traffic on the link, one row per pair and link.  A link may
    occur more than once; its shares add up.
    """
    row, at = np.arange(len(entry)), entry.copy()
    share = np.ones(len(entry))
    exit_at = np.searchsorted(found.exits, leaving)
    taken: list[tuple[Int64, Int64, Float64]] = []
    steps = 0
    while True:
        going = at != leaving[row]
        row, at, share = row[going], at[going], share[going]
        if not len(row):
            break
        # Step 1: split each pair at each switch evenly over its next hops.
        to = exit_at[row]
        number = found.count[at, to]
        steps += int(number.sum())
        if steps > MOST_STEPS:
            raise FabricError(
                f"all shortest paths together have at most {MOST_STEPS:,} links, but "
                f"those of {len(entry):,} pairs have more: route by ecmp or shortest"
            )
        begins = number.cumsum() - number
        chosen = np.arange(int(number.sum())) - begins.repeat(number)
        link = found.links[at.repeat(number), to.repeat(number), chosen]
        row, share = row.repeat(number), (share / number).repeat(number)
        taken.append((row, link, share))
        # Step 2: merge shares of a pair that reach the same switch, to bound the row
        # count.
        size = len(found.head) + 1
        where, inverse = np.unique(row * size + found.head[link], return_inverse=True)
        share = np.bincount(inverse, share, minlength=len(where)).astype(np.float64)
        row, at = where // size, where % size
    rows, links, shares = zip(*(taken or [(row, row, share)]), strict=True)
    return np.concatenate(rows), np.concatenate(links), np.concatenate(shares)
