r"""Paths of least congestion for a byte matrix, with a lower bound on all routings.

Even splitting over shortest paths can load one link of a torus far more than others,
because it avoids longer ways.  Here the paths between switches are chosen for a matrix:
minimize the transfer time :math:`\max_l x_l / C_l` of the most loaded link by the
Frank-Wolfe method on a smooth maximum (softmax).  Its direction sends every pair along
a shortest path under the link lengths :math:`y_l = p_l / C_l` with the softmax weights
p, and linear programming duality makes the same lengths a bound:

.. math:: T \ge \sum_{s,d} D_{sd} \, \mathrm{dist}_y(s, d) / \sum_l C_l y_l .

References
----------
F. Shahrokhi, D. W. Matula, "The maximum concurrent flow problem", J. ACM 37 (1990) 318:
exponential link lengths, shortest paths, and the bound.
M. Jaggi, "Revisiting Frank-Wolfe", ICML 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.special import logsumexp, softmax

from moetraffic.arrays import Float64, Int64

from .loads import byte_matrices
from .paths import all_paths, choices
from .routing import host_links
from .topology import Topology, explicit

STEPS = np.geomspace(1e-4, 1.0, 49)
"""Candidate shares of the bytes that a step moves to other paths."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BalancedPaths:
    """Paths of all pairs of ranks that balance the links for one matrix."""

    matrix: csr_array  # [W*W, L] share of each rank pair's bytes on each link
    seconds: float  # transfer time of the most loaded link
    bound_s: float  # that no routing between the switches undercuts


def balance_paths(
    topology: Topology,
    slots: npt.ArrayLike,
    demand: npt.ArrayLike,
    *,
    gap: float = 0.02,
    most: int = 300,
) -> BalancedPaths:
    """Choose paths between switches for a byte matrix, and bound all routings.

    Parameters
    ----------
    topology
        Network topology; links of hosts and NICs are as its forwarding has them.
    slots
        ``[W]`` slot of each rank.
    demand
        ``[W, W]`` bytes; pairs without bytes are split evenly over shortest paths.
    gap
        Distance to the bound at which the search ends, as a share of the bound.
    most
        Maximum number of steps.

    Examples
    --------
    >>> from moetraffic.fabric import Hosts, torus
    >>> ring = torus(Hosts(number=4, nic_bytes_s=1.0), shape=(4,))
    >>> one_pair = np.zeros((4, 4))
    >>> one_pair[0, 1] = 6.0  # 1 link directly, 3 the other way round
    >>> found = balance_paths(ring, range(4), one_pair)
    >>> round(found.seconds, 1), round(found.bound_s, 1)
    (3.0, 3.0)
    """
    placed = explicit(np.asarray(slots).tolist(), topology.hosts)
    ranks, links = len(placed), len(topology.links)
    sent = np.asarray(byte_matrices(demand, ranks), np.float64).ravel()
    ends = host_links(topology, placed)
    size = len(topology.switches)
    kinds, which = np.unique(ends.entry * size + ends.leaving, return_inverse=True)
    source, target = kinds // size, kinds % size
    amount = np.zeros(len(kinds))
    np.add.at(amount, which, sent[ends.crosses])
    inside = csr_array(ends.inside.astype(np.float64))
    fixed = sent @ inside
    search = _Search(topology, source, target)
    # Step 1: start with even splitting over shortest paths.
    row, link, part = all_paths(
        choices(topology, np.unique(np.concatenate((source, target)))), source, target
    )
    shares = csr_array((part, (row, link)), shape=(len(kinds), links))
    load = fixed + amount @ shares
    bound = 0.0
    # Step 2: move a share of all bytes to the shortest paths under the link lengths.
    for _ in range(most if amount.any() else 0):
        seconds = load / topology.capacity
        worst = float(seconds.max())
        left = max(worst / bound - 1 if bound else 1.0, gap)
        sharp = 2 * np.log(links) / (left * worst)
        weight = softmax(sharp * seconds)
        length = weight / topology.capacity
        distance, paths = search.shortest(length)
        bound = max(bound, float(amount @ distance + fixed @ length))
        if worst <= bound * (1 + gap):
            break
        other = fixed + amount @ paths
        mixed = np.outer(1 - STEPS, load) + np.outer(STEPS, other)
        smooth = logsumexp(sharp * mixed / topology.capacity, axis=1)
        step = STEPS[np.argmin(smooth)]
        shares = csr_array((1 - step) * shares + step * paths)
        load = (1 - step) * load + step * other
    to_switches = csr_array(
        (np.ones(len(which)), (ends.crosses, which)), shape=(ranks**2, len(kinds))
    )
    return BalancedPaths(
        matrix=csr_array(inside + to_switches @ shares),
        seconds=float((load / topology.capacity).max(initial=0.0)),
        bound_s=max(bound, float((fixed / topology.capacity).max(initial=0.0))),
    )


class _Search:
    """Shortest paths between pairs of switches under changing link lengths."""

    def __init__(self, topology: Topology, source: Int64, target: Int64) -> None:
        number = {name: at for at, name in enumerate(topology.switches)}
        self._inner = np.flatnonzero(topology.between_switches)
        ends = [topology.links[at] for at in self._inner]
        self._tail = np.array([number[a] for a, _ in ends], np.int64)
        self._head = np.array([number[b] for _, b in ends], np.int64)
        self._link = np.full((len(number),) * 2, -1)
        self._link[self._tail, self._head] = self._inner
        self._sources, self._from = np.unique(source, return_inverse=True)
        self._source, self._target = source, target
        self._links = len(topology.links)

    def shortest(self, length: Float64) -> tuple[Float64, csr_array]:
        """Return lengths ``[n]`` and links ``[n, L]`` of the shortest paths."""
        size = len(self._link)
        # a zero would be no link for scipy
        weight = np.maximum(length[self._inner], 1e-12 * length.max())
        graph = csr_array((weight, (self._tail, self._head)), shape=(size, size))
        distance, before = dijkstra(
            graph, indices=self._sources, return_predecessors=True
        )
        row, at = np.arange(len(self._source)), self._target.copy()
        rows, taken = [], []
        while len(row):
            going = at != self._source[row]
            row, at = row[going], at[going]
            last = before[self._from[row], at]
            rows.append(row)
            taken.append(self._link[last, at])
            at = last
        every = np.concatenate(rows) if rows else row
        paths = csr_array(
            (np.ones(len(every)), (every, np.concatenate(taken) if taken else every)),
            shape=(len(self._source), self._links),
        )
        return distance[self._from, self._target], paths
