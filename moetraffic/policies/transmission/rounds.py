"""All flows at once, and shifted rounds; bytes divided over permutations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.policies.circuits.birkhoff import birkhoff
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import crossing
from moetraffic.policies.service.packet_network import Rounds


@dataclass(frozen=True, kw_only=True)
class AllAtOnce:
    """Send all flows at the same time, as NCCL's grouped sends and receives."""

    name: str = "all-at-once"
    family: str = "transmission"
    forecasts: bool = False
    routing: str = "ecmp"

    def plan(self, view: View) -> Rounds:
        """Return one round."""
        return Rounds(shares=np.ones((1, view.ranks, view.ranks)), routing=self.routing)


@dataclass(frozen=True, kw_only=True)
class ShiftedRounds:
    """Send to rank i + k in round k, so that no receiver has two senders.

    The spread-out algorithm of MPI libraries; a round lasts as long as its largest
    transfer.
    """

    name: str = "shifted-rounds"
    family: str = "transmission"
    forecasts: bool = False
    routing: str = "ecmp"

    def plan(self, view: View) -> Rounds:
        """Return W - 1 rounds."""
        rank = np.arange(view.ranks)
        ahead = (rank[None, :] - rank[:, None]) % view.ranks
        shares = ahead == np.arange(1, view.ranks)[:, None, None]
        return Rounds(shares=shares.astype(np.float64), routing=self.routing)


def round_shares(matrix: npt.ArrayLike) -> Float64:
    """Divide the bytes of each pair over the permutations of a decomposition.

    ``matrix``: ``[n, n]`` bytes, rounded to whole ones.

    ``[K + 1, n, n]``: the share of each pair's bytes in each round, shortest
    permutation first; those of a pair sum to 1.  Pairs without bytes are in the last
    round.
    """
    left = crossing(np.rint(matrix))
    whole = left.copy()
    found = birkhoff(left)
    parts = []
    for to, room in zip(found.receivers, found.room, strict=True):
        ports = np.flatnonzero(to >= 0)
        sent = np.zeros_like(left)
        sent[ports, to[ports]] = np.minimum(left[ports, to[ports]], room)
        left -= sent
        parts.append(np.divide(sent, whole, out=sent, where=whole > 0))
    order = np.argsort(found.room, kind="stable")
    return np.array([*(parts[k] for k in order), np.where(whole > 0, 0.0, 1.0)])
