r"""Packet network: plans of rounds and routing, max-min fair service, LP optimum.

The flows of a round have max-min fair rates (:mod:`.fluid`): the fairness of ideal
congestion control, which is not optimal; rounds are separated by barriers.
Rates in proportion to the bytes of the flows are the alternative (:data:`RATES`).

References
----------
F. Shahrokhi, D. W. Matula, "The maximum concurrent flow problem", J. ACM 37 (1990) 318:
the LP of :func:`optimum_seconds`.
M. Chowdhury, Y. Zhong, I. Stoica, "Efficient Coflow Scheduling with Varys", SIGCOMM
2014: rates with which all flows end together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, diags_array, hstack, identity, kron

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.fabric import ROUTINGS, Topology, route
from moetraffic.fabric.loads import rank_bytes_s
from moetraffic.fabric.topology import slot_name

from .fluid import bottleneck_seconds, fluid_seconds
from .optical import Service, crossing

RATES = ("fair", "proportional")
"""How flows share links: equally (max-min fair), or in proportion to their bytes, so
that all flows of a link end together (as in Varys, SIGCOMM 2014)."""

MOST_LP_RANKS = 64
"""Maximum ranks of the linear program."""

LEAST_ROOM = 1e-12
"""Share of the bytes that a slower link carries in the linear program, at least."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PacketNetwork:
    """A topology with ranks on its hosts."""

    topology: Topology
    slots: Int64  # [W] slot of each rank
    optimum: bool = False  # whether the bound is the LP optimum, not ports and cuts
    # [W, W] distinct tokens over token copies of two-level hops (distinct_tokens)
    distinct: Float64 | None = None
    _routes: dict[str, csr_array] = field(default_factory=dict, repr=False)
    _parts: dict[tuple[int, ...], PacketNetwork] = field(
        default_factory=dict, repr=False
    )

    def part(self, ranks: tuple[int, ...]) -> PacketNetwork:
        """Return the same network with some ranks only, such as a pipeline stage's."""
        if ranks == tuple(range(len(self.slots))):
            return self
        if ranks not in self._parts:
            mine = np.array(ranks)
            distinct = self.distinct
            self._parts[ranks] = PacketNetwork(
                topology=self.topology,
                slots=self.slots[mine],
                optimum=self.optimum,
                distinct=None if distinct is None else distinct[np.ix_(mine, mine)],
            )
        return self._parts[ranks]

    def rank_grid(self) -> Int64:
        """Return the ranks of each host in the order of their slots, ``[H, g]``.

        Raises
        ------
        FabricError
            If hosts have different numbers of ranks.
        """
        host = self.slots // self.topology.hosts.ranks
        each = np.unique(host, return_counts=True)[1]
        if len(set(each.tolist())) > 1:
            raise FabricError(
                "relays inside hosts need as many ranks on each, but hosts have "
                f"{each.min()} to {each.max()}: give another network"
            )
        return np.argsort(self.slots, kind="stable").reshape(len(each), -1)

    def shares(self, routing: str | csr_array) -> csr_array:
        """Return the share of each rank pair's bytes on each link, ``[W*W, L]``."""
        if not isinstance(routing, str):
            return routing
        if routing not in self._routes:
            found = route(self.topology, self.slots, routing=routing)
            self._routes[routing] = found.matrix.astype(np.float64)
        return self._routes[routing]

    @cached_property
    def balance(self) -> csr_array:
        """What leaves (1) and enters (-1) each node by each link, ``[L, N]``."""
        nodes = {name: at for at, name in enumerate(self.topology.graph.nodes)}
        ends = np.array([[nodes[a], nodes[b]] for a, b in self.topology.links])
        row = np.arange(len(ends)).repeat(2)
        sign = np.tile([1.0, -1.0], len(ends))
        return csr_array((sign, (row, ends.ravel())), shape=(len(ends), len(nodes)))

    @cached_property
    def ports_and_cuts(self) -> csr_array:
        """Seconds that a byte of a rank pair takes of each port and cut, ``[W*W, n]``.

        Those of :func:`moetraffic.fabric.rank_bound` and
        :func:`moetraffic.fabric.cut_bounds`, kept for many matrices.
        """
        out, back = rank_bytes_s(self.topology, self.slots)
        every = np.ones((len(out), 1))
        parts = [
            csr_array(kron(diags_array(1 / out), every)),
            csr_array(kron(every, diags_array(1 / back))),
        ]
        host = self.slots // self.topology.hosts.ranks
        for cut in (cut for cuts in self.topology.cuts.values() for cut in cuts):
            within = np.isin(host, cut.hosts)
            for crosses, room in zip(
                (np.outer(within, ~within), np.outer(~within, within)),
                self.topology.crossing(cut),
                strict=True,
            ):
                if crosses.any():
                    parts.append(csr_array(crosses.reshape(-1, 1) / room))
        return csr_array(hstack(parts, format="csr"))

    @cached_property
    def nodes(self) -> Int64:
        """Node of each rank, ``[W]`` in the order of the graph."""
        every = {name: at for at, name in enumerate(self.topology.graph.nodes)}
        size = self.topology.hosts.ranks
        return np.array([every[slot_name(*divmod(int(s), size))] for s in self.slots])


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """Shares of each pair's bytes that are sent in successive rounds, and routing."""

    shares: Float64  # [K, W, W]; sums over rounds are 1 off the diagonal
    routing: str | csr_array  # one of moetraffic.fabric.ROUTINGS, or [W*W, L] shares
    rates: str = "fair"  # one of RATES


def rounds_violations(plan: object, ranks: int, network: PacketNetwork) -> str:
    """Describe why rounds are impossible on a network; empty if they are possible."""
    if not isinstance(plan, Rounds):
        return f"a plan of transmission is Rounds or Hops, not {type(plan)}"
    if plan.rates not in RATES:
        return f"rates are one of {', '.join(RATES)}, not {plan.rates!r}"
    if isinstance(plan.routing, str):
        if plan.routing not in ROUTINGS:
            return f"routing is one of {', '.join(ROUTINGS)}, not {plan.routing!r}"
    elif why := _path_violations(plan.routing, ranks, network):
        return why
    shares = np.asarray(plan.shares)
    if shares.ndim != 3 or shares.shape[1:] != (ranks, ranks):
        return f"shares are [K, {ranks}, {ranks}], but the shape is {shares.shape}"
    between = ~np.eye(ranks, dtype=bool)
    if not (shares >= 0).all() or not np.allclose(shares.sum(axis=0)[between], 1):
        return "shares are 0 or more, and those of a pair sum to 1 over the rounds"
    return ""


def _path_violations(given: object, ranks: int, network: PacketNetwork) -> str:
    size = (ranks * ranks, len(network.topology.links))
    if not isinstance(given, csr_array) or given.shape != size:
        return f"routing by shares is a csr_array [{size[0]}, {size[1]}]"
    source, target = np.divmod(np.arange(ranks * ranks), ranks)
    pair = np.flatnonzero(source != target)
    leaves = csr_array(given[pair] @ network.balance)
    ends = csr_array(
        (
            np.tile([1.0, -1.0], len(pair)),
            (
                np.arange(len(pair)).repeat(2),
                network.nodes[np.stack((source[pair], target[pair]), 1).ravel()],
            ),
        ),
        shape=leaves.shape,
    )
    if (given.data < 0).any() or abs(leaves - ends).max() > 1e-6:
        return (
            "the shares of a pair are 0 or more, and all bytes that enter a node other "
            "than its two ranks leave it"
        )
    return ""


def serve_rounds(
    demand: npt.ArrayLike, plan: Rounds, network: PacketNetwork
) -> Service:
    """Serve the true bytes of an exchange round by round.

    Parameters
    ----------
    demand
        ``[W, W]`` bytes; the diagonal is ignored.
    plan
        Without :func:`rounds_violations`.

    Returns
    -------
    Service
        All bytes are planned ones.
    """
    truth = crossing(demand)
    shares, capacity = network.shares(plan.routing), network.topology.capacity
    last_s = fluid_seconds if plan.rates == "fair" else bottleneck_seconds
    seconds = sum(
        last_s((truth * part).ravel(), shares, capacity) for part in plan.shares
    )
    total = float(truth.sum())
    return Service(
        completion_s=float(seconds),
        demand_bytes=total,
        planned_bytes=total,
        rest_bytes=0.0,
    )


def packet_bound(demand: npt.ArrayLike, network: PacketNetwork) -> float:
    """Compute a lower bound on completion, seconds: ports and cuts, or the LP.

    Hosts of several ranks are bounded by all their NICs together, as a rank may send by
    way of others.
    """
    matrix = crossing(demand)
    if network.optimum:
        return optimum_seconds(matrix, network)
    return float((matrix.ravel() @ network.ports_and_cuts).max(initial=0.0))


def optimum_seconds(demand: npt.ArrayLike, network: PacketNetwork) -> float:
    r"""Compute the least completion time over all routings by a linear program.

    Minimize T with flows :math:`f_{sl}` of the bytes of each source s on each link l:
    what a rank receives of s is its demand, all other nodes conserve flow, and
    :math:`\sum_s f_{sl} \le C_l T`.

    Parameters
    ----------
    demand
        ``[W, W]`` bytes; the diagonal is ignored.
    network
        At most MOST_LP_RANKS ranks.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    FabricError
        If there are more ranks.
    """
    matrix = crossing(demand)
    ranks, total = len(matrix), float(matrix.sum())
    if ranks > MOST_LP_RANKS:
        raise FabricError(
            f"the linear program is for at most {MOST_LP_RANKS} ranks, not {ranks}: "
            "use the bound of ports and cuts"
        )
    if not total:
        return 0.0
    # in units of the bytes and of the bound of ports and cuts, T is 1 or more; a link
    # that can carry all bytes in this time is never full
    unit = float((matrix.ravel() @ network.ports_and_cuts).max())
    room = network.topology.capacity * (unit / total)
    full = np.flatnonzero(room < 1)
    scale = np.sqrt(np.maximum(room[full], LEAST_ROOM))
    links, at = len(room), network.nodes
    into = csr_array(-network.balance.T)
    matrix /= total
    sources = np.flatnonzero(matrix.sum(axis=1))
    received = np.zeros((len(sources), into.shape[0]))
    received[:, at] = matrix[sources]
    received[np.arange(len(sources)), at[sources]] -= matrix[sources].sum(axis=1)
    flows = len(sources) * links
    balance: Any = hstack(
        [block_diag([into] * len(sources)), csr_array((received.size, 1))]
    )
    one = csr_array(identity(links, format="csr")[full] / scale[:, None])
    load: Any = hstack([one] * len(sources))
    load = hstack([load, csr_array(-scale[:, None])])
    found = linprog(
        np.append(np.zeros(flows), 1.0),
        A_eq=balance,
        b_eq=received.ravel(),
        A_ub=load,
        b_ub=np.zeros(len(full)),
        bounds=[(0, None)] * flows + [(1, None)],
        method="highs",
    )
    if not found.success:
        raise FabricError(
            f"the linear program of {network.topology.name} has no solution "
            f"({found.message}): use the bound of ports and cuts"
        )
    return float(np.asarray(found.x)[-1]) * unit
