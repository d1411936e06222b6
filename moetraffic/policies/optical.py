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
Bytes that the plan does not carry are never dropped.

References
----------
H. Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks", CoNEXT 2015:
the model of a delay before each matching, and of a packet switch beside the circuits.
X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905: circuits that are held.
C. Amponsah, V. Addanki, HotOptics 2026, arXiv 2605.26845: matchings that serve whole
pairs (:func:`max_weight_matchings`).
W. M. Mellette et al., "RotorNet", SIGCOMM 2017: two hops where there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.fabric.topology import at_least, positive
from moetraffic.spelling import check_choice
from moetraffic.units import bit_rate, duration

from .service import Service, crossing, line_bytes

RESTS = ("packets", "replan")
"""How bytes are sent that a plan does not carry: by the packet switch, at the same time
as the circuits; or by matchings computed for these bytes after the plan."""

MOST_PASSES = 1000
"""Passes of a cyclic plan, after which the rest is planned again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matchings:
    """Circuit configurations in the order in which they are established."""

    receivers: Int64  # [K, W]: port i sends to receivers[k, i]; -1 or i: idle
    room: Float64  # [K] bytes for which the circuits of a configuration are held
    cyclic: bool = False  # whether the rest is sent by further passes
    relayed: bool = False  # whether ports send over others where there is room


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldCircuits:
    """Circuits that are held during an exchange; each works in both directions."""

    number: Int64  # [W, W] symmetric: parallel circuits between two ports


def max_weight_matchings(
    demand: npt.ArrayLike, *, most: int | None = None
) -> Matchings:
    """Serve whole pairs by maximum-weight matchings, without slack.

    Each configuration is the matching with the largest remaining bytes of ``demand``
    ``[W, W]``, and is held for the largest of its entries, so that every pair is served
    once.  There are at most ``most``; None: all bytes are served.

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
        _, to = linear_sum_assignment(-left)
        # circuits without forecast bytes stay established, and may carry others
        receivers.append(np.where(to == row, -1, to))
        room.append(float(left[row, to].max()))
        left[row, to] = 0.0
    return Matchings(
        receivers=np.array(receivers, np.int64).reshape(len(room), len(left)),
        room=np.array(room, np.float64),
    )


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
            at_least(0, getattr(self, name), name)
        check_choice("the way to send the rest", self.rest, RESTS, FabricError)
        if self.rest == "packets" and not self.packet_bytes_s:
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
        return number * self.delay_s - min(self.window_s, self.delay_s) * (number > 0)

    def described(self) -> str:
        """Describe rates and delay."""
        circuits = f"{self.circuits} circuits a port of" * (self.circuits > 1)
        rate = self.packet_bytes_s
        packets = f"packets {bit_rate(rate)}" if rate else "no packets"
        return (
            f"{circuits or 'circuits'} {bit_rate(self.rate_bytes_s)}, "
            f"{duration(self.delay_s)}, {packets}"
        )

    def reference(self) -> str:
        """Name what the bound counts."""
        if self.packet_bytes_s:
            return "bytes over circuit and packet rates"
        if self.circuits > 1:
            return "bytes over capacity, no reconfiguration"
        return "bytes and fewest reconfigurations"

    def bound(self, demand: npt.ArrayLike) -> float:
        r"""Compute a lower bound on the completion time, seconds.

        Circuits alone, one each port: :math:`\phi / C + \nu \delta`, with the largest
        line sum :math:`\phi` and the most nonzero entries :math:`\nu` of a line, as
        every matching serves one of them.  With a packet switch or several circuits a
        port: :math:`\phi` over all rates of a port.

        Examples
        --------
        >>> switch = OpticalSwitch(rate_bytes_s=1, delay_s=2)
        >>> switch.bound([[0, 8, 2], [2, 0, 8], [8, 2, 0]])
        14.0
        """
        matrix = crossing(demand)
        seconds = line_bytes(matrix) / (self.port_bytes_s + self.packet_bytes_s)
        if self.packet_bytes_s or self.circuits > 1:
            return seconds
        return seconds + self.exposed_s(int(line_bytes((matrix > 0).astype(float))))

    def check(self, plan: object, forecast: Float64) -> str:
        """Describe why a plan cannot be established; empty if it can."""
        ranks = len(forecast)
        if isinstance(plan, HeldCircuits):
            number = np.asarray(plan.number)
            if number.shape != (ranks, ranks) or number.dtype.kind not in "iu":
                return f"held circuits are [{ranks}, {ranks}] integers"
            own = number.diagonal().any()
            if (number < 0).any() or (number != number.T).any() or own:
                return "held circuits join two different ports, and are symmetric"
            if not self.packet_bytes_s:
                return (
                    "held circuits leave pairs to a packet switch, but there is none: "
                    "give --packets 50Gbps"
                )
            most = number.sum(axis=1).max()
            if most > self.circuits:
                return (
                    f"a port has {self.circuits} circuits at most, but one has {most}"
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
        ordered = np.sort(to, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if twice.any():
            term = int(twice.any(axis=1).argmax())
            return f"configuration {term} has two circuits to one receiver"
        return ""

    def serve(
        self, truth: npt.ArrayLike, plan: Matchings | HeldCircuits, last: object = None
    ) -> Service:
        """Serve the true bytes of an exchange ``[W, W]`` by a plan made without them.

        ``planned_bytes + rest_bytes`` of the service is the demand; the diagonal is no
        part of it.  The plan has no objection of :meth:`check`.
        """
        left = crossing(truth)
        total = float(left.sum())
        if not total:
            return Service(completion_s=0.0, demand_bytes=0.0, planned_bytes=0.0)
        if isinstance(plan, HeldCircuits):
            # pairs with circuits use these, at the same time others use packets
            joined = plan.number > 0
            shares = np.divide(left, plan.number, out=np.zeros_like(left), where=joined)
            beside = np.where(joined, 0.0, left)
            number, rest = int(joined.any()), float(beside.sum())
            seconds = self.exposed_s(number) + float(shares.max()) / self.rate_bytes_s
            if rest:
                seconds = max(seconds, line_bytes(beside) / self.packet_bytes_s)
        else:
            run = _Pass(left, self)
            run.serve(plan)
            rest = now = run.left_bytes()
            before = np.inf
            passes = 1
            while plan.cyclic and 0 < now < before and passes < MOST_PASSES:
                run.serve(plan)
                before, now, passes = now, run.left_bytes(), passes + 1
            if now and self.rest == "packets":
                packets_s = line_bytes(run.left + run.relayed) / self.packet_bytes_s
                run.last_s = max(run.last_s, packets_s)
            elif now:
                run.left += run.relayed
                run.relayed[:] = 0
                run.serve(max_weight_matchings(run.left))
            seconds, number = run.last_s, run.reconfigurations
        return Service(
            completion_s=seconds,
            demand_bytes=total,
            planned_bytes=total - rest,
            rest_bytes=rest,
            reconfigurations=number,
        )


class _Pass:
    """Clock and remaining bytes while configurations follow each other."""

    def __init__(self, left: Float64, switch: OpticalSwitch) -> None:
        self.left = left  # [W, W] bytes at their sources, changed in place
        self.relayed = np.zeros_like(left)  # [W, W] bytes at other ports, by receiver
        self.switch = switch
        self.clock_s = self.last_s = 0.0
        self.reconfigurations = 0
        self._standing: Int64 | None = None

    def left_bytes(self) -> float:
        """Return the bytes that have not arrived."""
        return float(self.left.sum() + self.relayed.sum())

    def serve(self, plan: Matchings) -> None:
        """Serve remaining bytes by one pass of a plan; stop when there are none."""
        rate = self.switch.port_bytes_s
        pairs = np.count_nonzero(self.left)  # with remaining bytes
        for to, room in zip(plan.receivers, plan.room, strict=True):
            if not (self.left_bytes() if plan.relayed else pairs):
                return
            if self._standing is None or (to != self._standing).any():
                before = self.switch.exposed_s(self.reconfigurations)
                self.reconfigurations += 1
                self.clock_s += self.switch.exposed_s(self.reconfigurations) - before
                self._standing = to
            ports = np.flatnonzero(to >= 0)
            ends = ports, to[ports]
            free = np.full(len(ports), float(room))
            if plan.relayed:  # second hops first: their bytes have waited longest
                second = np.minimum(self.relayed[ends], free)
                self.relayed[ends] -= second
                free -= second
            moved = np.minimum(self.left[ends], free)
            self.left[ends] -= moved
            pairs -= np.count_nonzero((moved > 0) & (self.left[ends] == 0))
            if plan.relayed:
                moved = moved + second + self._first_hops(*ends, free - moved, room)
            if moved.any():
                self.last_s = self.clock_s + float(moved.max()) / rate
            self.clock_s += float(room) / rate

    def _first_hops(
        self, ports: Int64, to: Int64, free: Float64, room: float
    ) -> Float64:
        """Move what a slot of the next cycle cannot carry to ports that have room.

        RotorNet's load balancing: port i offers its bytes beyond one slot to the port
        that it is connected to, which takes what its own slot to the receiver can carry
        beside its own bytes.  Returns the bytes that each port sent, ``[n]``.
        """
        beyond = np.maximum(self.left[ports] - room, 0)  # [n, W] by receiver
        spare = np.maximum(room - self.left[to] - self.relayed[to], 0)
        row = np.arange(len(ports))
        spare[row, to] = spare[row, ports] = 0
        taken = np.minimum(beyond, spare)
        total = taken.sum(axis=1)
        scale = np.divide(free, total, out=np.ones_like(total), where=total > free)
        taken *= scale[:, None]
        self.left[ports] -= taken
        self.relayed[to] += taken
        return np.asarray(taken.sum(axis=1))
