"""Policies of optical circuits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import Decomposition, decompose

from .optical import HeldCircuits, Matchings, OpticalSwitch, max_weight_matchings
from .policy import View
from .series import LayerKey
from .service import crossing, line_bytes

MOST_CYCLES = 16
"""Cycles of the longest rotation that :func:`slot_bytes` considers."""


@dataclass(frozen=True, kw_only=True)
class PacketsOnly:
    """Establish no circuit: the baseline of a packet switch alone."""

    name: str = "packets"
    family: str = "circuits"
    forecasts: bool = False

    def plan(self, view: View) -> HeldCircuits:
        """Return no circuits."""
        return HeldCircuits(number=np.zeros((view.ranks, view.ranks), np.int64))


@dataclass(frozen=True, kw_only=True)
class Rotation:
    r"""Cycle through the W - 1 shifts, the same time each, whatever the traffic is.

    A cycle of slots of s bytes takes :math:`(W - 1)(s / C + \delta)`, and the exchange
    as many cycles as its largest entry has slots: without delay
    :math:`(W - 1) \max D / C`.  With ``two_hops``, ports send what exceeds a slot over
    others that have room: at most about twice the bound on any traffic, where direct
    paths alone may take W - 1 times as long.  Only the length of a slot depends on the
    past, never where the bytes are.

    References
    ----------
    W. M. Mellette et al., "RotorNet", SIGCOMM 2017.
    """

    name: str = "rotation"
    family: str = "circuits"
    forecasts: bool = False
    slot: float | None = None  # bytes; None: by the past
    two_hops: bool = False

    def plan(self, view: View) -> Matchings:
        """Plan one cycle; it is repeated until all bytes are sent."""
        slot = self.slot
        if slot is None:
            size = relayed_slot_bytes if self.two_hops else slot_bytes
            slot = size(view.past, view.network)
        shifts = np.arange(1, view.ranks)[:, None]
        return Matchings(
            receivers=(np.arange(view.ranks) + shifts) % view.ranks,
            room=np.full(len(shifts), float(slot)),
            cyclic=True,
            relayed=self.two_hops,
        )


def slot_bytes(past: Float64, switch: OpticalSwitch) -> float:
    """Compute the slot with which past exchanges would have completed first, bytes.

    It is the largest entry of an average exchange of ``past`` ``[n, W, W]`` over 1 to
    MOST_CYCLES.
    """
    largest = np.array([crossing(sent).max(initial=0.0) for sent in past])
    if not largest.any():
        return 1.0
    # up to three times the mean: one cycle, also for exchanges above the mean
    factors = [3.0, 2.0, 1.5, *(1 / n for n in range(1, MOST_CYCLES + 1))]
    slots = largest.mean() * np.array(factors)
    cycles = np.ceil(largest / slots[:, None]).mean(axis=1)
    seconds = cycles * (slots / switch.port_bytes_s + switch.delay_s)
    return float(slots[np.argmin(seconds)])


def relayed_slot_bytes(past: Float64, switch: OpticalSwitch) -> float:
    """Compute a slot of two-hop rotation, bytes: half of a port's load a cycle.

    A slot lasts as long as a reconfiguration at least, unless one cycle carries all.
    """
    lines = np.mean([line_bytes(crossing(sent)) for sent in past])
    even = float(lines) / max(1, past.shape[1] - 1)
    least = switch.delay_s * switch.port_bytes_s
    return max(even / 2, min(least, 2 * even)) or 1.0


def configurations(plan: Decomposition, terms: int | None = None) -> Matchings:
    """Hold each term for its largest transfer; terms of slack alone are skipped.

    Circuits that a term needs for slack alone stay established: they carry bytes that
    the forecast lacks.
    """
    sent, to = plan.served[:terms], plan.permutations[:terms]
    used = sent.any(axis=1)
    return Matchings(
        receivers=np.where(to == np.arange(to.shape[1]), -1, to)[used],
        room=sent[used].max(axis=1, initial=0).astype(np.float64),
    )


def birkhoff(matrix: npt.ArrayLike) -> Matchings:
    """Plan all terms of a byte matrix ``[W, W]``, which is rounded to whole bytes."""
    return configurations(decompose(np.rint(crossing(matrix)).astype(np.int64)))


@dataclass(frozen=True, kw_only=True)
class Birkhoff:
    """Decompose the forecast into permutations; optimal without delay.

    Each term has the largest smallest entry (max-min); its circuits are all held as
    long as its largest transfer.

    References
    ----------
    C.-S. Chang, W.-J. Chen, H.-Y. Huang, INFOCOM 2000.
    """

    name: str = "birkhoff"
    family: str = "circuits"
    forecasts: bool = True

    def plan(self, view: View) -> Matchings:
        """Plan all terms of the forecast's decomposition."""
        return birkhoff(view.forecast)


@dataclass(kw_only=True)
class StaticMean:
    """Decompose the mean of the past once and never plan again, as a patch panel.

    References
    ----------
    W. Wang et al., "TopoOpt", NSDI 2023, arXiv 2202.00433: one topology a job.
    """

    name: str = "static-mean"
    family: str = "circuits"
    forecasts: bool = False
    plans: dict[LayerKey, Matchings] = field(default_factory=dict)  # by layer

    def plan(self, view: View) -> Matchings:
        """Return the layer's plan, which its first call makes."""
        if view.layer not in self.plans:
            self.plans[view.layer] = birkhoff(view.past.mean(axis=0))
        return self.plans[view.layer]


@dataclass(frozen=True, kw_only=True)
class Solstice:
    """Matchings above a threshold that is halved; stop when packets carry the rest.

    Slack goes to busy entries first (QuickStuff).  The threshold is a power of two; a
    perfect matching of entries above it is held for its smallest entry (BigSlice).
    With a packet switch the plan ends as soon as no line of the forecast's rest needs
    more time there than the circuits have used.

    References
    ----------
    H. Liu et al., CoNEXT 2015.
    """

    name: str = "solstice"
    family: str = "circuits"
    forecasts: bool = True

    def plan(self, view: View) -> Matchings:
        """Plan the forecast."""
        switch, left = view.network, crossing(np.rint(view.forecast))
        terms = decompose(left.astype(np.int64), matching="halving")
        ports, used_s = np.arange(view.ranks), 0.0
        for term, (to, sent) in enumerate(
            zip(terms.permutations, terms.served, strict=True)
        ):
            if line_bytes(left) <= switch.packet_bytes_s * used_s:
                return configurations(terms, term)
            left[ports, to] -= sent
            used_s += float(sent.max()) / switch.port_bytes_s + switch.delay_s
        return configurations(terms)


@dataclass(frozen=True, kw_only=True)
class MaxWeight:
    """Serve the forecast by maximum-weight matchings, without slack.

    Each pair is served once, so that an expert's batch is not cut.

    References
    ----------
    C. Amponsah, V. Addanki, HotOptics 2026, arXiv 2605.26845.
    """

    name: str = "max-weight"
    family: str = "circuits"
    forecasts: bool = True

    def plan(self, view: View) -> Matchings:
        """Plan the forecast."""
        return max_weight_matchings(view.forecast)


@dataclass(frozen=True, kw_only=True)
class Regional:
    """Give circuits to the pairs that would need the most time, and hold them.

    References
    ----------
    X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905, algorithm 1.
    """

    name: str = "regional"
    family: str = "circuits"
    forecasts: bool = True

    def plan(self, view: View) -> HeldCircuits:
        """Plan the forecast."""
        number = regional(view.forecast, circuits=view.network.circuits)
        return HeldCircuits(number=number)


def regional(matrix: npt.ArrayLike, *, circuits: int) -> Int64:
    """Assign duplex circuits greedily to the pair of ports with the longest time.

    The time of a pair of ``matrix`` ``[W, W]`` is its bytes in both directions over its
    circuits: infinite without a circuit, so that every pair gets one before any gets
    two.  Ties go to more bytes, then to the lower ports.  It ends at the first pair
    without free circuits at both ports, of ``circuits`` each.

    Examples
    --------
    >>> matrix = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
    >>> regional(matrix, circuits=1).tolist()
    [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    """
    sent = crossing(matrix)
    both = np.triu(sent + sent.T)
    number, free = np.zeros(both.shape, np.int64), np.full(len(both), circuits)
    while both.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.where(both > 0, both / number, 0)
        pairs = np.where(seconds == seconds.max(), both, 0)
        i, j = np.unravel_index(int(pairs.argmax()), both.shape)
        if not (free[i] and free[j]):
            break
        number[[i, j], [j, i]] += 1
        free[[i, j]] -= 1
    return number
