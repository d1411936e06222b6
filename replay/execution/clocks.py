"""Estimate clock offsets of ranks to rank 0 from exchanges among all ranks.

An all-to-all in which every rank sends to every other ends on no rank before all have
issued it.  With issue i and end e of rank r on its own clock, and the offset c of this
clock to rank 0's, each exchange implies

    i_0 <= e_r + c      and      i_r + c <= e_0

so that c lies between the largest i_0 - e_r and the smallest e_0 - i_r of several
exchanges: the estimate is the middle, its error half the distance.  Unlike Cristian's
algorithm, this does not assume that both directions take equally long.  Processes
under one kernel share its monotonic clock: their offset is 0.
"""

from __future__ import annotations

import time
import zlib

import numpy as np
import numpy.typing as npt

from moetraffic.capture.clock_offset import identity
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.plan.program import Plan
from moetraffic.trace.model import CLOCK, Int64

from .control import exchange

ROUNDS = 16


def knots(plan: Plan, rank: int, backend: Backend) -> npt.NDArray[np.void]:
    """Measure the clock offsets of all ranks to rank 0; every rank must call it.

    Returns
    -------
    ndarray
        ``[R]`` of type CLOCK on rank 0, which gathers the times, else ``[0]``.
    """
    everyone, world = len(plan.groups), plan.world
    own = np.zeros((ROUNDS, 3), "<i8")
    own[:, 2] = zlib.crc32(identity().encode())
    one = [np.zeros(8, np.uint8)] * world
    for row in range(ROUNDS):
        issue = time.monotonic_ns()
        exchange(backend, everyone, one, [8] * world)
        own[row, :2] = issue, time.monotonic_ns()
    arrive = [own.nbytes if rank == 0 else 0] * world
    received = exchange(backend, everyone, [own, *[own[:0]] * (world - 1)], arrive)
    if rank:
        return np.zeros(0, CLOCK)
    rows = np.stack(
        [t.view("<i8").reshape(ROUNDS, 3).astype(np.int64) for t in received]
    )
    return offsets(rows[:, :, 0], rows[:, :, 1], rows[:, 0, 2])


def offsets(issue: Int64, end: Int64, kernel: Int64) -> npt.NDArray[np.void]:
    """Compute clock offsets to rank 0 from the times of exchanges among all ranks.

    Parameters
    ----------
    issue, end
        ``[R, K]`` int64 ns, each rank's own clock, of K exchanges.
    kernel
        ``[R]`` identifies the clock; equal values are the same clock.

    Returns
    -------
    ndarray
        ``[R]`` of type CLOCK.

    Examples
    --------
    >>> issue = np.array([[0, 10], [1000, 1009]])
    >>> end = np.array([[4, 13], [1005, 1012]])
    >>> offsets(issue, end, np.array([1, 2]))["offset_ns"].tolist()
    [0, -999]
    """
    out = np.zeros(len(issue), CLOCK)
    out["rank"] = np.arange(len(issue))
    out["local_ns"] = end[:, -1]
    for rank in range(1, len(issue)):
        if kernel[rank] == kernel[0]:
            continue
        least = int((issue[0] - end[rank]).max())
        most = int((end[0] - issue[rank]).min())
        out["offset_ns"][rank] = (least + most) // 2
        # rates differ a little, so that bounds of different moments may cross
        out["error_ns"][rank] = max(abs(most - least) + 1, 2) // 2
    return out
