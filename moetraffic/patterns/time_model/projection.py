"""Project the time of a run to more GPUs from its time breakdown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError


def projected_speedup(
    compute: npt.ArrayLike, communication: npt.ArrayLike, efficiency: npt.ArrayLike
) -> Float64:
    """Speedup of an iteration from g to n GPUs, what each computes staying the same.

    ``t(g)/t(n) = (r_comp + r_comm)/(r_comp + r_comm/eff)``: Cheng et al.,
    SIGMETRICS'24.  ``eff`` is the network's efficiency on n GPUs over that on g: what a
    rank's communication took there, over what it takes here.  Below 1, n GPUs are
    slower an iteration; their throughput is ``n/g`` times the speedup.

    Parameters
    ----------
    compute, communication
        Times or shares of an iteration on g GPUs, any unit, nothing overlapped.
    efficiency
        Above 0.

    Examples
    --------
    >>> f"{projected_speedup(0.8, 0.2, 0.5):.4f}"
    '0.8333'
    """
    work = np.asarray(compute, np.float64)
    sent = np.asarray(communication, np.float64)
    eff = np.asarray(efficiency, np.float64)
    if (eff <= 0).any() or (work < 0).any() or (sent < 0).any():
        raise LayoutError(
            "a projection has times of at least 0 and an efficiency above 0, but "
            f"{work.min():g}, {sent.min():g} and {eff.min():g}: change them"
        )
    return np.asarray((work + sent) / (work + sent / eff))
