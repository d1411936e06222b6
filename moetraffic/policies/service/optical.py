r"""Optical circuit switch with a reconfiguration delay: plans, service, lower bound.

Every rank has one port; a circuit sends from one port to another at a fixed rate.
Two kinds of plan exist:

:class:`Matchings`
    circuit configurations that follow each other, one after every port's last bytes;
    nothing is sent through circuits during a reconfiguration (all-stop):
    :math:`T = \sum_k t_k + K \delta`;
:class:`HeldCircuits`
    one set of circuits that is held during the whole exchange, as in MixNet.

A configuration is held for its planned time, whatever the true traffic is, because the
plan was made without it.  Completion is the time at which the last byte has arrived.
Bytes that the plan does not carry are never dropped; :data:`RESTS` lists how they are
sent.

References
----------
H. Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks", CoNEXT 2015:
the model of a delay before each matching, and of a packet switch beside the circuits.
X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905: circuits that are held.
C. Amponsah, V. Addanki, HotOptics 2026, arXiv 2605.26845: matchings that serve whole
pairs (:func:`max_weight_matchings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.fabric.topology import at_least, not_negative, positive
from moetraffic.spelling import check_choice

RESTS = ("replan", "repeat", "packets", "packets after")
"""How bytes are sent that a plan does not carry: by matchings computed for these bytes
after the plan (replan); by further passes of the plan, then as before (repeat); by the
packet switch, at the same time as the circuits or after them."""

MOST_PASSES = 1000
"""Passes of a repeated plan, after which the rest is planned again."""


@dataclass(frozen=True, kw_only=True)
class OpticalSwitch:
    """Optical circuit switch, with a packet switch beside it or none.

    Raises
    ------
    FabricError
        If a rate, a time or a number is impossible.
    """

    rate_bytes_s: float  # of one circuit, in each direction
    delay_s: float  # of a reconfiguration
    circuits: int = 1  # that end at a port at the same time
    packet_bytes_s: float = 0.0  # of a port to the packet switch, each direction
    window_s: float = 0.0  # part of the first reconfiguration that compute hides
    rest: str = "replan"  # one of RESTS

    def __post_init__(self) -> None:
        positive(self.rate_bytes_s, "the rate of a circuit")
        at_least(1, self.circuits, "the number of circuits of a port")
        for name in ("delay_s", "packet_bytes_s", "window_s"):
            not_negative(getattr(self, name), name)
        check_choice("the way to send the rest", self.rest, RESTS, FabricError)
        if self.rest.startswith("packets") and not self.packet_bytes_s:
            raise FabricError(
                "packets need a packet switch, but its rate is 0: give --packets "
                "40Gbps, or send the rest by replan"
            )

    @property
    def port_bytes_s(self) -> float:
        """Rate of all circuits of a port together, each direction."""
        return self.rate_bytes_s * self.circuits

    def exposed_s(self, number: int) -> float:
        """Time that a number of reconfigurations takes, less the hidden window."""
        hidden = min(self.window_s, self.delay_s) if number else 0.0
        return number * self.delay_s - hidden

    def with_delay(self, delay_s: float) -> OpticalSwitch:
        """Return the same switch with another reconfiguration delay."""
        return replace(self, delay_s=delay_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class Matchings:
    """Circuit configurations in the order in which they are established."""

    receivers: Int64  # [K, W]: port i sends to receivers[k, i]; -1 or i: idle
    room: Float64  # [K] bytes for which the circuits of a configuration are held
    cyclic: bool = False  # whether the rest is sent by further passes


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldCircuits:
    """Circuits that are held during an exchange; each works in both directions."""

    number: Int64  # [W, W] symmetric: parallel circuits between two ports


@dataclass(frozen=True, kw_only=True)
class Service:
    """How one exchange was served; all bytes are between different ranks."""

    completion_s: float
    demand_bytes: float
    planned_bytes: float  # carried by what the plan provides for
    rest_bytes: float  # carried otherwise
    reconfigurations: int = 0
    moved_experts: int = 0  # that ranks receive for a new placement
    moved_bytes: float = 0.0  # their weights
    loads: tuple[float, ...] = ()  # [W] token copies of each rank, if known

    @property
    def load_imbalance(self) -> float:
        """Maximum over mean tokens of a rank; NaN if unknown."""
        total = sum(self.loads)
        return max(self.loads) * len(self.loads) / total if total else float("nan")


def served_together(groups: Sequence[Service]) -> Service:
    """Join the services of a layer's groups: the layer waits for the slowest one."""
    if len(groups) == 1:
        return groups[0]
    return Service(
        completion_s=max(one.completion_s for one in groups),
        demand_bytes=sum(one.demand_bytes for one in groups),
        planned_bytes=sum(one.planned_bytes for one in groups),
        rest_bytes=sum(one.rest_bytes for one in groups),
        reconfigurations=sum(one.reconfigurations for one in groups),
        moved_experts=sum(one.moved_experts for one in groups),
        moved_bytes=sum(one.moved_bytes for one in groups),
        loads=tuple(load for one in groups for load in one.loads),
    )


def crossing(demand: npt.ArrayLike) -> Float64:
    """Return a copy of a byte matrix ``[W, W]`` without rank-local traffic."""
    matrix = np.array(demand, np.float64)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def line_bytes(demand: Float64) -> float:
    """Return the largest row or column sum of a byte matrix ``[W, W]``."""
    return float(
        max(demand.sum(axis=0).max(initial=0), demand.sum(axis=1).max(initial=0))
    )


def circuit_bound(demand: npt.ArrayLike, switch: OpticalSwitch) -> float:
    r"""Compute a lower bound on the completion time through a switch, seconds.

    Circuits alone, one each port: :math:`\phi / C + \nu \delta`, with the largest line
    sum :math:`\phi` and the most nonzero entries :math:`\nu` of a line, as every
    matching serves one of them.  With a packet switch or several circuits a port:
    :math:`\phi` over all rates of a port.

    ``demand``: ``[W, W]`` bytes.

    Examples
    --------
    >>> switch = OpticalSwitch(rate_bytes_s=1, delay_s=2)
    >>> circuit_bound([[0, 8, 2], [2, 0, 8], [8, 2, 0]], switch)
    14.0
    """
    matrix = crossing(demand)
    seconds = line_bytes(matrix) / (switch.port_bytes_s + switch.packet_bytes_s)
    if switch.packet_bytes_s or switch.circuits > 1:
        return seconds
    busy = matrix > 0
    most = int(max(busy.sum(axis=0).max(initial=0), busy.sum(axis=1).max(initial=0)))
    return seconds + switch.exposed_s(most)


def max_weight_matchings(
    demand: npt.ArrayLike, *, most: int | None = None
) -> Matchings:
    """Serve whole pairs by maximum-weight matchings, without slack.

    Each configuration is the matching with the largest remaining bytes, and is held
    for the largest of its entries, so that every pair is served once.

    Parameters
    ----------
    demand
        ``[W, W]`` bytes; the diagonal is ignored.
    most
        Maximum number of configurations; None: all bytes are served.

    Examples
    --------
    >>> matrix = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
    >>> plan = max_weight_matchings(matrix, most=2)
    >>> plan.receivers.tolist(), plan.room.tolist()
    ([[1, 2, 3, 0], [2, 0, 1, -1]], [7.0, 3.0])
    """
    left = crossing(demand)
    row = np.arange(len(left))
    receivers: list[Int64] = []
    room: list[float] = []
    while left.any() and (most is None or len(room) < most):
        _, chosen = linear_sum_assignment(-left)
        sent = left[row, chosen]
        # circuits without forecast bytes stay established, and may carry others
        receivers.append(np.where(chosen == row, -1, chosen))
        room.append(float(sent.max()))
        left[row, chosen] = 0.0
    return Matchings(
        receivers=np.array(receivers, np.int64).reshape(len(room), len(left)),
        room=np.array(room, np.float64),
    )


def violations(plan: object, ranks: int, switch: OpticalSwitch) -> str:
    """Describe why a plan cannot be established on a switch; empty if it can."""
    if isinstance(plan, HeldCircuits):
        number = np.asarray(plan.number)
        if number.shape != (ranks, ranks) or number.dtype.kind not in "iu":
            return f"held circuits are [{ranks}, {ranks}] integers"
        if (number < 0).any() or (number != number.T).any() or number.diagonal().any():
            return "held circuits join two different ports, and are symmetric"
        if not switch.packet_bytes_s:
            return (
                "held circuits leave pairs to a packet switch, but there is none: give "
                "--packets 50Gbps"
            )
        if (number.sum(axis=1) > switch.circuits).any():
            return (
                f"a port has {switch.circuits} circuits at most, but one has "
                f"{number.sum(axis=1).max()}"
            )
        return ""
    if not isinstance(plan, Matchings):
        return f"a plan of circuits is Matchings or HeldCircuits, not {type(plan)}"
    to, room = np.asarray(plan.receivers), np.asarray(plan.room)
    if to.ndim != 2 or to.shape[1] != ranks or to.dtype.kind not in "iu":
        return f"receivers are [K, {ranks}] integers, but the shape is {to.shape}"
    if room.shape != to.shape[:1] or not (np.isfinite(room) & (room >= 0)).all():
        return "the room is 0 bytes or more for each configuration"
    if ((to < -1) | (to >= ranks)).any():
        return f"receivers are ports 0 to {ranks - 1}, or -1 for idle ones"
    for at, one in enumerate(to):
        used = one[one >= 0]
        if len(np.unique(used)) < len(used):
            return f"configuration {at} has two circuits to one receiver"
    return ""


# ---- service --------------------------------------------------------------------


def serve_circuits(
    demand: npt.ArrayLike, plan: Matchings | HeldCircuits, switch: OpticalSwitch
) -> Service:
    """Serve the true bytes of an exchange by a plan made without them.

    Parameters
    ----------
    demand
        ``[W, W]`` bytes, row sends, column receives; the diagonal is ignored.
    plan
        Without :func:`violations`.
    switch
        Its rates, delay, and how the rest is sent.

    Returns
    -------
    Service
        ``planned_bytes + rest_bytes`` is the demand.
    """
    truth = crossing(demand)
    total = float(truth.sum())
    if not total:
        return Service(
            completion_s=0.0, demand_bytes=0.0, planned_bytes=0.0, rest_bytes=0.0
        )
    if isinstance(plan, HeldCircuits):
        return _held(truth, plan, switch)
    run = _Pass(left=truth, switch=switch)
    run.serve(plan)
    rest = float(run.left.sum())
    if plan.cyclic or switch.rest == "repeat":
        for _ in range(MOST_PASSES - 1):
            before = float(run.left.sum())
            if not before:
                break
            run.serve(plan)
            if float(run.left.sum()) == before:
                break
    last = run.last_s
    if run.left.any() and switch.rest.startswith("packets"):
        seconds = line_bytes(run.left) / switch.packet_bytes_s
        last = max(last, seconds + (switch.rest == "packets after") * run.clock_s)
    elif run.left.any():
        run.serve(max_weight_matchings(run.left))
        last = run.last_s
    return Service(
        completion_s=last,
        demand_bytes=total,
        planned_bytes=total - rest,
        rest_bytes=rest,
        reconfigurations=run.reconfigurations,
    )


class _Pass:
    """Clock and remaining bytes while configurations follow each other."""

    def __init__(self, *, left: Float64, switch: OpticalSwitch) -> None:
        self.left = left  # [W, W] bytes, changed in place
        self.pairs = np.count_nonzero(left)  # with remaining bytes
        self.switch = switch
        self.clock_s = self.last_s = 0.0
        self.reconfigurations = 0
        self._standing: Int64 | None = None
        self._row = np.arange(len(left))

    def serve(self, plan: Matchings) -> None:
        """Serve remaining bytes by one pass of a plan; stop when there are none."""
        rate = self.switch.port_bytes_s
        for to, room in zip(plan.receivers, plan.room, strict=True):
            if not self.pairs:
                return
            if self._standing is None or (to != self._standing).any():
                before = self.switch.exposed_s(self.reconfigurations)
                self.reconfigurations += 1
                self.clock_s += self.switch.exposed_s(self.reconfigurations) - before
                self._standing = to
            ports = self._row[to >= 0]
            moved = np.minimum(self.left[ports, to[ports]], room)
            self.left[ports, to[ports]] -= moved
            if moved.any():
                ended = (moved > 0) & (self.left[ports, to[ports]] == 0)
                self.pairs -= np.count_nonzero(ended)
                self.last_s = self.clock_s + float(moved.max()) / rate
            self.clock_s += float(room) / rate


def _held(truth: Float64, plan: HeldCircuits, switch: OpticalSwitch) -> Service:
    """Serve pairs with circuits by these, at the same time others by packets."""
    joined = plan.number > 0
    each = np.divide(truth, plan.number, out=np.zeros_like(truth), where=joined)
    rest = np.where(joined, 0.0, truth)
    number = int(joined.any())
    seconds = switch.exposed_s(number) + float(each.max()) / switch.rate_bytes_s
    if rest.any():
        seconds = max(seconds, line_bytes(rest) / switch.packet_bytes_s)
    return Service(
        completion_s=seconds,
        demand_bytes=float(truth.sum()),
        planned_bytes=float(truth.sum() - rest.sum()),
        rest_bytes=float(rest.sum()),
        reconfigurations=number,
    )
