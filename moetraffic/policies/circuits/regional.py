"""Regional circuits that are held during an exchange, as in MixNet."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import HeldCircuits, crossing


@dataclass(frozen=True, kw_only=True)
class Regional:
    """Give circuits to the pairs that would need the most time, and hold them.

    References
    ----------
    X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905, algorithm 1; ``stop``
    False is what its public simulator does.
    """

    name: str = "regional"
    family: str = "circuits"
    forecasts: bool = True
    stop: bool = True

    def plan(self, view: View) -> HeldCircuits:
        """Plan the forecast."""
        number = regional(view.forecast, circuits=view.network.circuits, stop=self.stop)
        return HeldCircuits(number=number)


@dataclass(frozen=True, kw_only=True)
class PacketsOnly:
    """Establish no circuit: the baseline of a packet switch alone."""

    name: str = "packets"
    family: str = "circuits"
    forecasts: bool = False

    def plan(self, view: View) -> HeldCircuits:
        """Return no circuits."""
        return HeldCircuits(number=np.zeros((view.ranks, view.ranks), np.int64))


def regional(matrix: npt.ArrayLike, *, circuits: int, stop: bool = True) -> Int64:
    """Assign duplex circuits greedily to the pair of ports with the longest time.

    The time of a pair is its bytes in both directions over its circuits: infinite
    without a circuit, so that every pair gets one before any gets two.  Ties, also
    between infinite times, go to more bytes, then to the lower ports.

    Parameters
    ----------
    matrix
        ``[W, W]`` bytes.
    circuits
        Circuits that end at a port.
    stop
        Whether to end at the first pair without free circuits at both ports; False goes
        on with the next pair.

    Examples
    --------
    >>> matrix = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
    >>> regional(matrix, circuits=1).tolist()
    [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    """
    sent = crossing(matrix)
    both = sent + sent.T
    ranks = len(both)
    number = np.zeros((ranks, ranks), np.int64)
    free = np.full(ranks, circuits)
    one, other = np.nonzero(np.triu(both, 1))
    first = np.lexsort((other, one, -both[one, other]))
    # pairs without a circuit come first; those that have one wait in a heap
    without = iter(zip(one[first].tolist(), other[first].tolist(), strict=True))
    served: list[tuple[float, float, int, int]] = []
    while (pair := next(without, None)) or served:
        i, j = pair or heappop(served)[2:]
        if free[i] and free[j]:
            number[i, j] += 1
            number[j, i] += 1
            free[[i, j]] -= 1
            heappush(served, (-both[i, j] / number[i, j], -both[i, j], i, j))
        elif stop:
            break
    return number
