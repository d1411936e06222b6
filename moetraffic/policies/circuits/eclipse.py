"""Eclipse: circuits chosen by data served per unit of time, the delay included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from moetraffic.arrays import Float64, Int64
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import Matchings, OpticalSwitch, crossing

FEW_ENTRIES = 256
"""Distinct entries up to which each is a candidate duration: all up to 16 ranks."""

MOST_DURATIONS = 32
"""Candidate durations of a configuration with more entries: their quantiles."""


@dataclass(frozen=True, kw_only=True)
class Eclipse:
    """Choose matching and duration of the largest rate including the delay.

    References
    ----------
    S. Bojja Venkatakrishnan, M. Alizadeh, P. Viswanath, "Costly Circuits, Submodular
    Schedules and Approximate Caratheodory Theorems", SIGMETRICS 2016.
    """

    name: str = "eclipse"
    family: str = "circuits"
    forecasts: bool = True
    window_s: float | None = None  # of the plan; None: until all bytes are served

    def plan(self, view: View) -> Matchings:
        """Plan the forecast."""
        return eclipse(view.forecast, view.network, window_s=self.window_s)


def eclipse(
    matrix: npt.ArrayLike, switch: OpticalSwitch, *, window_s: float | None = None
) -> Matchings:
    r"""Plan greedily the matching M and bytes a that maximize the rate of service.

    .. math:: \frac{\sum_{(i,j) \in M} \min(a, D_{ij})}{a / C + \delta}

    Parameters
    ----------
    matrix
        ``[W, W]`` bytes.
    window_s
        Time for the whole plan, reconfigurations included; None: until no bytes are
        left.

    Returns
    -------
    Matchings
        Candidate durations are the entries of the rest (above FEW_ENTRIES
        MOST_DURATIONS quantiles), and the room left in the window.

    Examples
    --------
    >>> matrix = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
    >>> plan = eclipse(matrix, OpticalSwitch(rate_bytes_s=1, delay_s=1), window_s=14)
    >>> plan.receivers.tolist()
    [[1, 2, 3, 0], [2, 3, 1, 0], [3, 2, 0, 1], [2, 0, 1, -1]]
    """
    left = crossing(matrix)
    rate, delay = switch.port_bytes_s, switch.delay_s
    time_left = float("inf") if window_s is None else window_s
    row = np.arange(len(left))
    receivers: list[Int64] = []
    room: list[float] = []
    while left.any() and time_left > delay:
        most = (time_left - delay) * rate
        held, chosen = _best(left, _durations(left, most), rate, delay)
        moved = np.minimum(left[row, chosen], held)
        receivers.append(np.where(chosen == row, -1, chosen))
        room.append(held)
        left[row, chosen] -= moved
        time_left -= held / rate + delay
    return Matchings(
        receivers=np.array(receivers, np.int64).reshape(len(room), len(left)),
        room=np.array(room, np.float64),
    )


def _best(
    left: Float64,
    durations: Float64,
    rate: float,
    delay: float,
) -> tuple[float, Int64]:
    """Find the duration, in bytes, and the matching of the largest rate of service.

    The bytes S(a) that the best matching serves in duration a do not decrease, and
    S(a) / a does not increase.  One matching thus bounds those of all other durations,
    and few are computed; of equal rates the shortest duration is taken.
    """
    row = np.arange(len(left))
    took = durations / rate + delay
    lines = (
        np.minimum(left.max(axis=n), durations[:, None]).sum(axis=1) for n in (0, 1)
    )
    bound = np.minimum(*lines)
    score = np.zeros(len(durations))
    chosen = {}
    while (bound / took).max() >= score.max() * (1 - 1e-12):
        at = int(np.argmax(bound / took))
        part = np.minimum(left, durations[at])
        _, chosen[at] = linear_sum_assignment(-part)
        served = float(part[row, chosen[at]].sum())
        score[at] = served / took[at]
        bound = np.minimum(bound, served * np.maximum(1, durations / durations[at]))
        bound[list(chosen)] = -1.0
    first = int(np.argmax(score >= score.max() * (1 - 1e-12)))
    return float(durations[first]), chosen[first]


def _durations(left: Float64, most: float) -> Float64:
    """List candidate bytes of a configuration, ascending, at most the room left."""
    entries = np.unique(left[left > 0])
    if len(entries) > FEW_ENTRIES:
        at = np.linspace(0, len(entries) - 1, MOST_DURATIONS)
        entries = entries[np.rint(at).astype(np.int64)]
    fitting = entries[entries <= most]
    return np.append(fitting, most) if len(fitting) < len(entries) else fitting
