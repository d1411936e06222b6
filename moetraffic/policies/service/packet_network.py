r"""Packet network: plans of rounds and routing, max-min fair service, LP optimum.

All flows of a round grow at one rate; those on a full link stop growing, until all are
fixed (progressive filling).  When a flow ends, rates are computed anew.  This is the
fairness of ideal congestion control, and not optimal; rounds are separated by barriers.

References
----------
D. Bertsekas, R. Gallager, "Data Networks" (1992), section 6.5.2: max-min fairness.
F. Shahrokhi, D. W. Matula, "The maximum concurrent flow problem", J. ACM 37 (1990) 318:
the LP of :func:`optimum_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, hstack, identity

from moetraffic.errors import FabricError
from moetraffic.fabric import ROUTINGS, Topology, cut_bounds, port_bound, route
from moetraffic.fabric.topology import slot_name

from .optical import Service, crossing

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

MOST_LP_RANKS = 64
"""Maximum ranks of the linear program."""

ENDED = 1e-9
"""Share of a flow's bytes, or of a link's capacity, that counts as nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PacketNetwork:
    """A topology with ranks on its hosts."""

    topology: Topology
    slots: Int64  # [W] slot of each rank
    optimum: bool = False  # whether the bound is the LP optimum, not ports and cuts
    _routes: dict[str, csr_array] = field(default_factory=dict, repr=False)

    def shares(self, routing: str) -> csr_array:
        """Return the share of each rank pair's bytes on each link, ``[W*W, L]``."""
        if routing not in self._routes:
            found = route(self.topology, self.slots, routing=routing)
            self._routes[routing] = found.matrix.astype(np.float64)
        return self._routes[routing]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """Shares of each pair's bytes that are sent in successive rounds, and routing."""

    shares: Float64  # [K, W, W]; sums over rounds are 1 off the diagonal
    routing: str  # one of moetraffic.fabric.ROUTINGS


def rounds_violations(plan: object, ranks: int) -> str:
    """Describe why rounds are impossible; empty if they are possible."""
    if not isinstance(plan, Rounds):
        return f"a plan of transmission is Rounds, not {type(plan)}"
    if plan.routing not in ROUTINGS:
        return f"routing is one of {', '.join(ROUTINGS)}, not {plan.routing!r}"
    shares = np.asarray(plan.shares)
    if shares.ndim != 3 or shares.shape[1:] != (ranks, ranks):
        return f"shares are [K, {ranks}, {ranks}], but the shape is {shares.shape}"
    between = ~np.eye(ranks, dtype=bool)
    if not (shares >= 0).all() or not np.allclose(shares.sum(axis=0)[between], 1):
        return "shares are 0 or more, and those of a pair sum to 1 over the rounds"
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
    network
        Topology and ranks.

    Returns
    -------
    Service
        All bytes are planned ones.
    """
    truth = crossing(demand)
    shares, capacity = network.shares(plan.routing), network.topology.capacity
    seconds = sum(
        fluid_seconds((truth * part).ravel(), shares, capacity) for part in plan.shares
    )
    total = float(truth.sum())
    return Service(
        completion_s=float(seconds),
        demand_bytes=total,
        planned_bytes=total,
        rest_bytes=0.0,
    )


def packet_bound(demand: npt.ArrayLike, network: PacketNetwork) -> float:
    """Compute a lower bound on completion, seconds: ports and cuts, or the LP."""
    matrix = crossing(demand)
    if network.optimum:
        return optimum_seconds(matrix, network)
    ports = port_bound(network.topology, network.slots, matrix)
    cuts = cut_bounds(network.topology, network.slots, matrix)
    return float(max([ports, *cuts.values()]))


def fluid_seconds(sent: Float64, shares: csr_array, capacity: Float64) -> float:
    """Compute when the last of several flows ends under max-min fairness.

    Parameters
    ----------
    sent
        ``[F]`` bytes of each flow.
    shares
        ``[F, L]`` share of a flow's bytes on each link.
    capacity
        ``[L]`` bytes/s.

    Returns
    -------
    float
        Seconds; flows without a link end at once.

    Examples
    --------
    >>> three = csr_array(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    >>> fluid_seconds(np.ones(3), three, np.ones(2))
    2.0
    """
    some = (sent > 0) & (np.diff(shares.indptr) > 0)
    left, on = sent[some].astype(np.float64), csr_array(shares[some])
    small = left * ENDED
    clock = 0.0
    while len(left):
        rate = fair_rates(on, capacity)
        step = float((left / rate).min())
        clock += step
        left = left - rate * step
        going = left > small
        left, small, on = left[going], small[going], csr_array(on[going])
    return clock


def fair_rates(shares: csr_array, capacity: Float64) -> Float64:
    """Compute the max-min fair rates of flows by progressive filling, ``[F]``.

    Parameters
    ----------
    shares
        ``[F, L]`` share of a flow's bytes on each link; every flow has one.
    capacity
        ``[L]`` bytes/s.
    """
    rate = np.zeros(shares.shape[0])
    growing = np.ones(len(rate), bool)
    room = capacity.astype(np.float64)
    while growing.any():
        used = np.asarray(growing.astype(np.float64) @ shares)
        on = used > 0
        step = float((room[on] / used[on]).min())
        rate[growing] += step
        room = room - step * used
        full = on & (room <= ENDED * capacity)
        growing &= ~(np.asarray(shares @ full.astype(np.float64)) > 0)
    return rate


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
    topology = network.topology
    nodes = {name: at for at, name in enumerate(topology.graph.nodes)}
    links = len(topology.links)
    ends = np.array([[nodes[a], nodes[b]] for a, b in topology.links])
    number = np.arange(links)
    into = csr_array(
        (
            np.concatenate((np.ones(links), -np.ones(links))),
            (np.concatenate((ends[:, 1], ends[:, 0])), np.concatenate((number,) * 2)),
        ),
        shape=(len(nodes), links),
    )
    size = topology.hosts.ranks
    at = [nodes[slot_name(int(s) // size, int(s) % size)] for s in network.slots]
    matrix /= total  # of order 1 for the solver's tolerances
    speed = topology.capacity / topology.capacity.max()
    sources = np.flatnonzero(matrix.sum(axis=1))
    received = np.zeros((len(sources), len(nodes)))
    received[:, at] = matrix[sources]
    received[np.arange(len(sources)), np.array(at)[sources]] -= matrix[sources].sum(
        axis=1
    )
    flows = len(sources) * links
    balance: Any = hstack(
        [block_diag([into] * len(sources)), csr_array((received.size, 1))]
    )
    load: Any = hstack([identity(links)] * len(sources))
    load = hstack([load, csr_array(-speed[:, None])])
    found = linprog(
        np.append(np.zeros(flows), 1.0),
        A_eq=balance,
        b_eq=received.ravel(),
        A_ub=load,
        b_ub=np.zeros(links),
        method="highs",
    )
    if not found.success:
        raise FabricError(
            f"the linear program of {topology.name} has no solution "
            f"({found.message}): use the bound of ports and cuts"
        )
    return float(np.asarray(found.x)[-1]) * total / float(topology.capacity.max())
