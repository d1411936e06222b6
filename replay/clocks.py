"""Clock offsets of the ranks of a replay, on rank 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.capture.clock_offset import measure_offset
from moetraffic.launch.board import Cause
from moetraffic.trace.model import CLOCK

from .agree import Meeting
from .failure import RankError


def measure(meeting: Meeting, moment: str) -> npt.NDArray[Any]:
    """Measure the clock offsets of all ranks to rank 0; every rank must call it.

    Measured before and after a pass, they give the drift of each clock during it, which
    :func:`moetraffic.trace.clock.to_common` interpolates.  ``moment`` names the
    measurement, and is used once.  ``[R]`` of type CLOCK on rank 0, ``[0]`` elsewhere.

    Raises
    ------
    RankError
        If the clock of a host could not be read: times of its ranks would be compared
        with those of others that are hours apart.
    """
    own, _ = measure_offset(meeting.store, meeting.rank, meeting.world, moment)
    gathered = meeting.gather(f"clocks of {moment}", own)
    for rank, rows in enumerate(gathered):
        if not len(rows):
            raise RankError(
                f"and rank 0 could not compare their clocks (host {meeting.hosts[rank]}"
                "): allow connections between the hosts on any port",
                rank=rank,
                operation="the measurement of clocks",
                cause=Cause.MISMATCH,
            )
    return np.concatenate([np.zeros(0, CLOCK), *gathered])
