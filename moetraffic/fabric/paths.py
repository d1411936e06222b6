"""Paths between switches: shortest ones, hashed ones, and all of them evenly.

A *pair* is a switch where traffic enters and one where it leaves.  Paths are shortest
by the links' cost.  At each switch the links that lie on a shortest path to the exit
are its *choices*, in the order of the topology's links.

References
----------
C. Hopps, "Analysis of an Equal-Cost Multi-Path Algorithm", RFC 2992 (2000): hash-
threshold: the range of the hash is divided evenly among the choices.
G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014, figure 17: the mixing function, here the switches' hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from moetraffic.errors import FabricError

from .topology import Topology

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

MOST_STEPS = 60_000_000
"""PathSteps of paths that are held in memory at once: about 2 GB."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """At each switch, the links of shortest paths to each exit."""

    exits: Int64  # [T] switches at which traffic leaves, increasing
    links: Int64  # [N, T, D] links, the first `count` of them; -1 behind
    count: Int64  # [N, T]; 0 at the exit itself
    group: Int64  # [N, T] number of the set of links; equal sets have equal numbers
    head: Int64  # [L] switch at which a link ends, -1 for a host


@dataclass(frozen=True, kw_only=True)
class PathSteps:
    """Links that were taken, a row each, in no particular order."""

    row: Int64  # [n] which of the pairs given
    link: Int64  # [n]
    share: Float64  # [n] of the pair's traffic that takes this link
    group: Int64  # [n] set of links it was chosen from, -1 where there was no choice


def choices(topology: Topology, exits: Int64) -> Choices:
    """Find the links of all shortest paths.

    Parameters
    ----------
    topology
        Any.
    exits
        ``[T]`` switches, as numbers into ``topology.switches``, increasing.

    Returns
    -------
    Choices

    Raises
    ------
    FabricError
        If some switch where traffic may stand cannot reach an exit.
    """
    number = {name: at for at, name in enumerate(topology.switches)}
    size = len(number)
    head = np.array([number.get(b, -1) for _, b in topology.links], np.int64)
    tail = np.array([number.get(a, -1) for a, _ in topology.links], np.int64)
    inner = np.flatnonzero((head >= 0) & (tail >= 0))
    inner = inner[np.argsort(tail[inner], kind="stable")]
    cost = np.array([topology.graph.edges[topology.links[e]]["cost"] for e in inner])
    # Step 1: the distance of every switch to each exit, along reversed links.
    backwards = csr_array(
        (cost.astype(np.float64), (head[inner], tail[inner])), shape=(size, size)
    )
    distance = dijkstra(backwards, indices=exits).T  # [N, T]
    if np.isinf(distance[exits]).any():
        raise FabricError(
            f"every host reaches every other, but {topology.name} has parts that no "
            "link joins: give it spines or global links"
        )
    # Step 2: a link lies on a shortest path if it brings the exit nearer by its cost.
    with np.errstate(invalid="ignore"):
        nearer = distance[tail[inner]] - distance[head[inner]]  # [I, T]
    on = nearer == cost[:, None]
    # Step 3: number the links of a switch that do.
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


def one_path(found: Choices, entry: Int64, leaving: Int64) -> PathSteps:
    """The first of the choices everywhere: one path a pair, the same in every run.

    Parameters
    ----------
    found
        As :func:`choices` gives it.
    entry, leaving
        ``[n]`` switches of each pair.
    """
    return _walk(found, entry, leaving, None)


def hashed_paths(
    found: Choices, entry: Int64, leaving: Int64, flow: UInt64, *, seed: int = 0
) -> PathSteps:
    """ECMP: each switch hashes the flow with a salt of its own (RFC 2992).

    Parameters
    ----------
    found
        As :func:`choices` gives it.
    entry, leaving
        ``[n]`` switches of each flow.
    flow
        ``[n]`` identities, such as those of :func:`flow_keys`.
    seed
        Of the hash, on all switches.
    """
    salt = mixed((seed + 0x9E3779B97F4A7C15) % 2**64)
    return _walk(found, entry, leaving, mixed(flow ^ salt))


def flow_keys(source: Int64, destination: Int64, number: int) -> UInt64:
    """``[n]`` uint64: the identity of the ``number``-th flow between two ranks."""
    key = (source.astype(np.uint64) << np.uint64(32)) | destination.astype(np.uint64)
    return mixed(mixed(key) ^ np.uint64(number))


def mixed(value: npt.ArrayLike) -> UInt64:
    """The finalizer of SplitMix64: every bit of 64 depends on every other.

    Examples
    --------
    >>> int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0xE220A8397B1DCDAF
    True
    """
    z = np.asarray(value, np.uint64)
    with np.errstate(over="ignore"):  # modulo 2^64 is meant
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)


def _walk(
    found: Choices, entry: Int64, leaving: Int64, key: UInt64 | None
) -> PathSteps:
    """Take all pairs along a path each, a switch at a time."""
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
    parts = [np.concatenate(p) for p in zip(*taken, strict=True)] if taken else []
    row, link, group = parts or [np.zeros(0, np.int64)] * 3
    return PathSteps(row=row, link=link, share=np.ones(len(row)), group=group)


def all_paths(found: Choices, entry: Int64, leaving: Int64) -> PathSteps:
    """Spread evenly over the choices at each switch: the mean of ECMP over its hashes.

    Parameters
    ----------
    found
        As :func:`choices` gives it.
    entry, leaving
        ``[n]`` switches of each pair.

    Returns
    -------
    PathSteps
        A link may come more than once in a row; its shares add up.

    Raises
    ------
    FabricError
        If the paths have more than :data:`MOST_STEPS` links together.
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
        # Step 1: every pair at every switch fans out over its choices.
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
        # Step 2: what meets again at a switch goes on together.
        size = len(found.head) + 1
        where, inverse = np.unique(row * size + found.head[link], return_inverse=True)
        share = np.bincount(inverse, share, minlength=len(where)).astype(np.float64)
        row, at = where // size, where % size
    if not taken:
        none = np.zeros(0, np.int64)
        return PathSteps(row=none, link=none, share=np.zeros(0), group=none)
    rows, links, shares = zip(*taken, strict=True)
    return PathSteps(
        row=np.concatenate(rows),
        link=np.concatenate(links),
        share=np.concatenate(shares),
        group=np.full(sum(map(len, rows)), -1),
    )
