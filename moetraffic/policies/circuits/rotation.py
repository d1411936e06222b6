"""Rotation: the shifts of all ports in turn, whatever the traffic is (oblivious)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import Matchings, OpticalSwitch, crossing

MOST_CYCLES = 16
"""Cycles of the longest rotation that :func:`slot_bytes` considers."""


@dataclass(frozen=True, kw_only=True)
class Rotation:
    r"""Cycle through the W - 1 shifts, the same time each.

    A cycle of slots of s bytes takes :math:`(W - 1)(s / C + \delta)`, and the exchange
    as many cycles as its largest entry has slots: without delay
    :math:`(W - 1) \max D / C`.  Only the length of a slot depends on the past, by the
    size of the largest entries, never on where they are.

    References
    ----------
    W. M. Mellette et al., "RotorNet", SIGCOMM 2017 (direct paths only).
    """

    name: str = "rotation"
    family: str = "circuits"
    forecasts: bool = False
    slot: float | None = None  # bytes; None: slot_bytes of the past

    def plan(self, view: View) -> Matchings:
        """Plan one cycle; it is repeated until all bytes are sent."""
        slot = slot_bytes(view.past, view.network) if self.slot is None else self.slot
        ports = np.arange(view.ranks)
        shifts = np.arange(1, view.ranks)[:, None]
        return Matchings(
            receivers=(ports + shifts) % view.ranks,
            room=np.full(len(shifts), float(slot)),
            cyclic=True,
        )


def slot_bytes(past: Float64, switch: OpticalSwitch) -> float:
    """Compute the slot with which past exchanges would have completed first, bytes.

    ``past``: ``[n, W, W]`` bytes; only the largest entry of each matrix is used.

    It is the largest entry of an average exchange over 1 to MOST_CYCLES.
    """
    largest = np.array([crossing(one).max(initial=0.0) for one in past])
    if not largest.any():
        return 1.0
    # up to three times the mean: one cycle, also for exchanges above the mean
    factors = [3.0, 2.0, 1.5, *(1 / n for n in range(1, MOST_CYCLES + 1))]
    slots = largest.mean() * np.array(factors)
    cycles = np.ceil(largest / slots[:, None]).mean(axis=1)
    seconds = cycles * (slots / switch.port_bytes_s + switch.delay_s)
    return float(slots[np.argmin(seconds)])
