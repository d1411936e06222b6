"""Birkhoff-von Neumann schedules of a forecast, of the past's mean, and Solstice's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.fabric import Decomposition, decompose
from moetraffic.policies.exchange_series import LayerKey
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import Matchings, crossing, line_bytes


def _decomposed(matrix: npt.ArrayLike, matching: str = "max-min") -> Decomposition:
    return decompose(np.rint(crossing(matrix)).astype(np.int64), matching=matching)


def configurations(found: Decomposition, terms: int | None = None) -> Matchings:
    """Hold each term for its largest transfer; terms of slack alone are skipped.

    Circuits that a term needs for slack alone stay established: they carry bytes that
    the forecast lacks.
    """
    sent = found.served[:terms]
    used = sent.any(axis=1)
    to = found.permutations[:terms]
    return Matchings(
        receivers=np.where(to == np.arange(to.shape[1]), -1, to)[used],
        room=sent[used].max(axis=1, initial=0).astype(np.float64),
    )


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


def birkhoff(matrix: npt.ArrayLike) -> Matchings:
    """Plan all terms of a byte matrix ``[W, W]``, which is rounded to whole bytes."""
    return configurations(_decomposed(matrix))


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
        switch = view.network
        found = _decomposed(view.forecast, "halving")
        if not switch.packet_bytes_s:
            return configurations(found)
        left = crossing(np.rint(view.forecast))
        ports, used_s = np.arange(view.ranks), 0.0
        for term, (to, sent) in enumerate(
            zip(found.permutations, found.served, strict=True)
        ):
            if line_bytes(left) <= switch.packet_bytes_s * used_s:
                return configurations(found, term)
            left[ports, to] -= sent
            used_s += float(sent.max()) / switch.port_bytes_s + switch.delay_s
        return configurations(found)
