"""Routing matrices: the share of each rank pair's bytes that each link carries.

A routing is linear: ``link loads [n, L] = bytes [n, W*W] @ matrix [W*W, L]``, with a
sparse matrix, so that the loads of thousands of byte matrices are one product.  If the
routing depends on the ingress and egress switches alone, the matrix is kept as two
factors: pairs of ranks to pairs of switches, and pairs of switches to links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack, vstack

from moetraffic.arrays import Int64
from moetraffic.errors import FabricError
from moetraffic.spelling import check_choice

from .paths import Choices, all_paths, choices, flow_keys, single_paths
from .topology import Topology, bus_name, explicit, nic_name, slot_name

ROUTINGS = ("ecmp", "ideal", "shortest")


@dataclass(frozen=True, kw_only=True)
class Flows:
    """Next hops chosen by ECMP: one row per flow and switch with several next hops."""

    pair: Int64  # [n] s W + d
    group: Int64  # [n] set of equal-cost links
    link: Int64  # [n] chosen link
    sets: Mapping[int, tuple[int, ...]]  # links of each group


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Routing of all pairs of ranks; pair s W + d is traffic from rank s to rank d."""

    topology: Topology
    slots: Int64  # [W] slot of each rank
    routing: str  # one of ROUTINGS
    factors: tuple[csr_array, ...]  # their product is [W*W, L]
    flows: Flows | None = None  # ECMP only

    @property
    def ranks(self) -> int:
        """Number of ranks W."""
        return len(self.slots)

    @property
    def matrix(self) -> csr_array:
        """Share of each rank pair's bytes that each link carries, ``[W*W, L]``."""
        made = self.factors[0]
        for factor in self.factors[1:]:
            made = made @ factor
        return csr_array(made)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Part of a rank pair's path fixed by placement: host links, ingress and egress."""

    inside: csr_array  # [W*W, L] int64, links inside hosts and at NICs
    crosses: Int64  # [C] pairs between different hosts
    entry: Int64  # [C] ingress switch
    leaving: Int64  # [C] egress switch


def route(
    topology: Topology,
    slots: npt.ArrayLike,
    *,
    routing: str = "ecmp",
    seed: int = 0,
    flows: int = 1,
) -> Routes:
    """Compute the routing matrix of all pairs of ranks on a topology.

    Parameters
    ----------
    topology
        Network topology.
    slots
        ``[W]`` slot of each rank, see :mod:`.topology`.
    routing
        ``"shortest"``: one shortest path per pair; ``"ecmp"``: each flow on a shortest
        path chosen by hash; ``"ideal"``: even split over the next hops of every switch.
    seed, flows
        ECMP only: seed of the hash, and flows (queue pairs) per pair, of equal bytes.

    Returns
    -------
    Routes
        With integer shares, hence exact loads, if each pair has a single path.

    Raises
    ------
    FabricError
        If there is no such routing, or a placement is impossible.
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
    placed = explicit(np.asarray(slots).tolist(), topology.hosts)
    ends = host_links(topology, placed)
    ranks, links = len(placed), len(topology.links)
    found = choices(topology, ends.entry, ends.leaving)
    made: tuple[csr_array, ...]
    if routing == "ideal":
        # Step 1: even splitting of each pair of switches that occurs.
        size = len(topology.switches)
        kinds, which = np.unique(ends.entry * size + ends.leaving, return_inverse=True)
        row, link, part = all_paths(found, kinds // size, kinds % size)
        network = csr_array((part, (row, link)), shape=(len(kinds), links))
        # Step 2: columns of the first factor: all links, then pairs of switches.
        to_switches = csr_array(
            (np.ones(len(which)), (ends.crosses, which)),
            shape=(ranks * ranks, len(kinds)),
        )
        same = csr_array((np.ones(links), (np.arange(links),) * 2))
        made = (
            csr_array(hstack([ends.inside, to_switches], format="csr")),
            csr_array(vstack([same, network], format="csr")),
        )
        return Routes(topology=topology, slots=placed, routing=routing, factors=made)
    source, destination = ends.crosses // ranks, ends.crosses % ranks
    total, chosen = ends.inside, []
    for number in range(flows):
        keys = flow_keys(source, destination, number, seed=seed)
        hashed = keys if routing == "ecmp" else None
        row, link, group = single_paths(found, ends.entry, ends.leaving, hashed)
        pair = ends.crosses[row]
        # integer shares for one flow per pair keep the loads exact
        share = np.full(len(pair), 1 if flows == 1 else 1 / flows)
        shape = (ranks * ranks, links)
        total = total + csr_array((share, (pair, link)), shape=shape)
        some = group >= 0
        chosen.append((pair[some], group[some], link[some]))
    pairs, groups, taken = (np.concatenate(p) for p in zip(*chosen, strict=True))
    return Routes(
        topology=topology,
        slots=placed,
        routing=routing,
        factors=(csr_array(total),),
        flows=Flows(pair=pairs, group=groups, link=taken, sets=_sets(found, groups))
        if routing == "ecmp"
        else None,
    )


def _sets(found: Choices, groups: Int64) -> dict[int, tuple[int, ...]]:
    """Map each group that occurs to its equal-cost links."""
    numbers, first = np.unique(found.group, return_index=True)
    rows = found.links.reshape(-1, found.links.shape[2])[first]
    there = set(groups.tolist())
    return {
        int(n): tuple(row[row >= 0].tolist())
        for n, row in zip(numbers, rows, strict=True)
        if int(n) in there
    }


def host_links(topology: Topology, slots: Int64) -> Ends:
    """Compute the host and NIC links and the end switches of each pair of ranks.

    ``slots`` is ``[W]``.  These links do not depend on the routing between switches;
    see :mod:`.topology` for the choice of the NIC.

    Raises
    ------
    FabricError
        If such a link has failed.
    """
    hosts, number = topology.hosts, topology.number_of
    ranks = len(slots)
    switch = {name: at for at, name in enumerate(topology.switches)}
    nic_of = np.array([hosts.nic_of(at) for at in range(hosts.ranks)])
    # Step 1: link indices by host and slot, or by host and NIC.
    out, back, up, down = (np.full((hosts.number, hosts.ranks), -1) for _ in range(4))
    sends, receives, at_switch = (
        np.full((hosts.number, hosts.nics), -1) for _ in range(3)
    )
    for host, at in np.ndindex(out.shape):
        slot, nic, bus = (
            slot_name(host, at),
            nic_name(host, int(nic_of[at])),
            bus_name(host),
        )
        for table, link in (
            *((out, (slot, nic)), (back, (nic, slot))),
            *((up, (slot, bus)), (down, (bus, slot))),
        ):
            table[host, at] = number.get(link, -1)
    for host, at in np.ndindex(sends.shape):
        nic, name = nic_name(host, at), topology.attached(host, at)
        sends[host, at] = number.get((nic, name), -1)
        receives[host, at] = number.get((name, nic), -1)
        at_switch[host, at] = switch.get(name, -1)
    # Step 2: hosts, NICs and switches at the ends of each pair.
    of, own = slots // hosts.ranks, slots % hosts.ranks
    pair = np.arange(ranks * ranks)
    s, d = pair // ranks, pair % ranks
    near = (of[s] == of[d]) & (s != d)
    far = of[s] != of[d]
    entering = np.where(topology.forwarding == "rail", nic_of[own[d]], nic_of[own[s]])
    # rank whose NIC sends: the source itself, or (rail) the peer on the receiver's rail
    fellow = np.where(entering == nic_of[own[s]], own[s], own[d])
    passing = far & (fellow != own[s])
    parts = [
        (pair[near | passing], up[of[s], own[s]][near | passing]),
        (pair[near], down[of[d], own[d]][near]),
        (pair[passing], down[of[s], fellow][passing]),
        (pair[far], out[of[s], fellow][far]),
        (pair[far], sends[of[s], entering][far]),
        (pair[far], receives[of[d], nic_of[own[d]]][far]),
        (pair[far], back[of[d], own[d]][far]),
    ]
    row, taken = (np.concatenate(p) for p in zip(*parts, strict=True))
    if (taken < 0).any():
        one, other = divmod(int(row[taken < 0].min()), ranks)
        raise topology.no_path(f"rank {one}", f"rank {other}")
    inside = csr_array(
        (np.ones(len(row), np.int64), (row, taken)),
        shape=(ranks * ranks, len(topology.links)),
    )
    return Ends(
        inside=inside,
        crosses=pair[far],
        entry=at_switch[of[s], entering][far],
        leaving=at_switch[of[d], nic_of[own[d]]][far],
    )
