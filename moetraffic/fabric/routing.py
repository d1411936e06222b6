"""Routing: the share of each rank pair's bytes that each link carries.

A routing is linear: ``loads [n, L] = bytes [n, W*W] @ shares [W*W, L]``, with a sparse
matrix, so that the loads of thousands of byte matrices are one product.  Between
switches, paths are shortest ones by the cost of links; at each switch the links on a
shortest path to the switch where a pair leaves are its *next hops*, in the order of the
network's links.

References
----------
C. Hopps, "Analysis of an Equal-Cost Multi-Path Algorithm", RFC 2992 (2000): hash-
threshold: the hash range is divided evenly among the next hops.
G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014, figure 17: the mixing function, used here as the hash of each switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack, vstack

from moetraffic.arrays import Float64, Int64, UInt64
from moetraffic.errors import FabricError
from moetraffic.spelling import check_choice

from .topology import Network

ROUTINGS = ("ecmp", "ideal", "shortest")
"""Each flow on a shortest path chosen by hash; an even split over the next hops of
every switch, the mean of ECMP over its hashes; always the first shortest path."""

MOST_STEPS = 60_000_000
"""Maximum number of path steps held in memory at once (about 2 GB)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NextHops:
    """Links on shortest paths from each of S switches to each where pairs leave."""

    column: Int64  # [S] column of a switch where pairs leave; -1: of none
    links: Int64  # [S, T, D] the first ``count`` are links, the others -1
    count: Int64  # [S, T]
    group: Int64  # [S, T] number of the set of links
    head: Int64  # [L] switch where a link ends, below 0 in a host


@dataclass(frozen=True, kw_only=True, eq=False)
class Flows:
    """Next hops chosen by ECMP: one row per flow and switch with several next hops."""

    pair: Int64  # [n] s W + d
    group: Int64  # [n] set of equal-cost links
    link: Int64  # [n] chosen link
    sets: Mapping[int, tuple[int, ...]]  # links of each group


@dataclass(frozen=True, kw_only=True, eq=False)
class Routes:
    """Routing of all pairs of ranks; pair s W + d is traffic from rank s to rank d."""

    network: Network
    routing: str  # one of ROUTINGS
    factors: tuple[csr_array, ...]  # their product is the shares
    flows: Flows | None = None  # ECMP only

    @property
    def shares(self) -> csr_array:
        """Share of each rank pair's bytes that each link carries, ``[W*W, L]``."""
        product = self.factors[0]
        for factor in self.factors[1:]:
            product = product @ factor
        return csr_array(product)


def route(
    network: Network, *, routing: str = "ecmp", seed: int = 0, flows: int = 1
) -> Routes:
    """Route all pairs of ranks over a network.

    ``seed`` of the hash and ``flows`` (queue pairs) per pair, of equal bytes, are of
    ECMP.  Shares are integers, hence loads exact, if each pair has a single path.

    Raises
    ------
    FabricError
        If there is no such routing, or a pair has no path.
    """
    check_choice("routing", routing, ROUTINGS, FabricError)
    if flows < 1:
        raise FabricError(
            f"a pair of ranks has 1 or more flows, not {flows}: give 1 or more"
        )
    if flows > 1 and routing != "ecmp":
        raise FabricError(
            f"ECMP hashes several flows a pair, but flows are {flows} with "
            f"{routing}: give --flows with ecmp alone"
        )
    inside, crosses, entry, leaving = network.ends
    shape = inside.shape
    hops = next_hops(network, entry, leaving)
    if routing == "ideal":
        # first factor: links inside hosts, then pairs of switches; second: all links
        size, links = len(hops.links), shape[1]
        kinds, which = np.unique(entry * size + leaving, return_inverse=True)
        row, link, share = _even_split(hops, kinds // size, kinds % size)
        between = csr_array((share, (row, link)), shape=(len(kinds), links))
        to_switches = csr_array(
            (np.ones(len(which)), (crosses, which)), shape=(shape[0], len(kinds))
        )
        same = csr_array((np.ones(links), (np.arange(links),) * 2))
        factors = (
            csr_array(hstack([inside, to_switches], format="csr")),
            csr_array(vstack([same, between], format="csr")),
        )
        return Routes(network=network, routing=routing, factors=factors)
    total, chosen = inside, []
    for number in range(flows):
        keys = flow_keys(
            crosses // network.ranks, crosses % network.ranks, number, seed
        )
        hashed = keys if routing == "ecmp" else None
        row, link, group = _single_paths(hops, entry, leaving, hashed)
        # integer shares for one flow per pair keep the loads exact
        share = np.full(len(row), 1 if flows == 1 else 1 / flows)
        total = total + csr_array((share, (crosses[row], link)), shape=shape)
        some = group >= 0
        chosen.append((crosses[row[some]], group[some], link[some]))
    pair, group, link = map(np.concatenate, zip(*chosen, strict=True))
    used = np.unique(group)
    numbers, where = np.unique(hops.group, return_index=True)
    rows = hops.links.reshape(-1, hops.links.shape[2])[where]
    rows = rows[np.searchsorted(numbers, used)]
    taken = Flows(
        pair=pair,
        group=group,
        link=link,
        sets={
            number: tuple(row[row >= 0].tolist())
            for number, row in zip(used.tolist(), rows, strict=True)
        },
    )
    return Routes(
        network=network,
        routing=routing,
        factors=(csr_array(total),),
        flows=taken if routing == "ecmp" else None,
    )


def next_hops(network: Network, entry: Int64, leaving: Int64) -> NextHops:
    """Find the links on shortest paths between switches where pairs enter and leave.

    ``entry`` and ``leaving`` are numbers of switches, ``[n]``.

    Raises
    ------
    FabricError
        If no path leads from one to the other.
    """
    exits, base = np.unique(leaving), network.first_switch
    size = len(network.nodes) - base
    column = np.full(size, -1)
    column[exits] = np.arange(len(exits))
    works = np.flatnonzero(network.between_switches & (network.capacity > 0))
    works = works[np.argsort(network.tail[works], kind="stable")]
    tail, head = network.tail[works] - base, network.head[works] - base
    cost = network.cost[works]
    # Step 1: distance of every switch to each exit, along reversed links.
    backwards = nx.DiGraph()
    backwards.add_nodes_from(exits.tolist())
    backwards.add_weighted_edges_from(
        zip(head.tolist(), tail.tolist(), cost.tolist(), strict=True)
    )
    distance = np.full((size, len(exits)), np.inf)
    for number, end in enumerate(exits.tolist()):
        lengths = nx.single_source_dijkstra_path_length(backwards, end)
        distance[[*lengths], number] = [*lengths.values()]
    apart = np.flatnonzero(np.isinf(distance[entry, column[leaving]]))
    if len(apart):
        one, other = (network.nodes[base + end[apart[0]]] for end in (entry, leaving))
        raise network.no_path(one, other)
    # Step 2: a link is on a shortest path if it shortens the distance by its cost.
    with np.errstate(invalid="ignore"):
        on = distance[tail] - distance[head] == cost[:, None]  # [I, T]
    # Step 3: number the next hops of each switch.
    begins = np.searchsorted(tail, np.arange(size))
    passed = np.concatenate((np.zeros((1, len(exits)), np.int64), on.cumsum(axis=0)))
    place = passed[:-1] - passed[begins[tail]]
    at, to = np.nonzero(on)
    most = int(place[at, to].max(initial=0)) + 1
    links = np.full((size, len(exits), most), -1, np.int64)
    links[tail[at], to, place[at, to]] = works[at]
    _, group = np.unique(links.reshape(-1, most), axis=0, return_inverse=True)
    return NextHops(
        column=column,
        links=links,
        count=np.asarray((links >= 0).sum(axis=2), np.int64),
        group=group.reshape(size, len(exits)).astype(np.int64),
        head=network.head - base,
    )


def flow_keys(source: Int64, destination: Int64, number: int, seed: int) -> UInt64:
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


def _single_paths(
    hops: NextHops, entry: Int64, leaving: Int64, key: UInt64 | None
) -> tuple[Int64, Int64, Int64]:
    """Route each pair of switches, ``[n]``, on one shortest path.

    Each switch hashes ``key``, ``[n]`` of :func:`flow_keys`, again with a salt of its
    own to choose the next hop; without keys it is the first.  Returns index of the
    pair, link, and set of equal-cost links (-1 if only one link), one row per pair and
    link, unordered.
    """
    row, at = np.arange(len(entry)), entry.copy()
    taken: list[tuple[Int64, Int64, Int64]] = []
    while len(row := row[going := at != leaving[row]]):
        at = at[going]
        to = hops.column[leaving[row]]
        number = hops.count[at, to]
        chosen = np.zeros(len(row), np.int64)
        if key is not None:
            here = mixed(key[row] ^ mixed(at.astype(np.uint64) + np.uint64(1)))
            share = (here >> np.uint64(32)) * number.astype(np.uint64)
            chosen = (share >> np.uint64(32)).astype(np.int64)
        link = hops.links[at, to, chosen]
        taken.append((row, link, np.where(number > 1, hops.group[at, to], -1)))
        at = hops.head[link]
    empty = np.zeros(0, np.int64)
    rows, links, groups = zip(*(taken or [(empty, empty, empty)]), strict=True)
    return np.concatenate(rows), np.concatenate(links), np.concatenate(groups)


def _even_split(
    hops: NextHops, entry: Int64, leaving: Int64
) -> tuple[Int64, Int64, Float64]:
    """Split each pair of switches, ``[n]``, evenly over the next hops of each switch.

    Returns index of the pair, link, and share of the pair's bytes on the link; shares
    of rows of the same pair and link add up.
    """
    row, at = np.arange(len(entry)), entry.copy()
    share = np.ones(len(entry))
    taken: list[tuple[Int64, Int64, Float64]] = []
    steps = 0
    while len(row := row[going := at != leaving[row]]):
        at, share = at[going], share[going]
        # Step 1: split each pair at each switch over its next hops.
        to = hops.column[leaving[row]]
        number = hops.count[at, to]
        steps += int(number.sum())
        if steps > MOST_STEPS:
            raise FabricError(
                f"all shortest paths together have at most {MOST_STEPS:,} links, but "
                f"those of {len(entry):,} pairs have more: route by ecmp or shortest"
            )
        begins = number.cumsum() - number
        chosen = np.arange(int(number.sum())) - begins.repeat(number)
        link = hops.links[at.repeat(number), to.repeat(number), chosen]
        row, share = row.repeat(number), (share / number).repeat(number)
        taken.append((row, link, share))
        # Step 2: merge shares of a pair that reach the same switch, to bound the rows.
        size = len(hops.links)
        where, same = np.unique(row * size + hops.head[link], return_inverse=True)
        share = np.bincount(same, share, minlength=len(where)).astype(np.float64)
        row, at = where // size, where % size
    empty = np.zeros(0, np.int64)
    rows, links, shares = zip(*(taken or [(empty, empty, share[:0])]), strict=True)
    return np.concatenate(rows), np.concatenate(links), np.concatenate(shares)
