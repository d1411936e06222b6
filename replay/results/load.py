"""CPU time that other processes use on a host, before and during a replay.

Linux counts in ``/proc/stat`` the time that the processors of a host spend in all
processes (proc(5): user, nice and system).  Less the CPU time of the replay's own
ranks, it is that of other processes, which slow down ranks that share the processors.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Float64

BUSY = 0.1
"""Share of a host's processors used by others, above which a warning is given."""

STAT = Path("/proc/stat")


def reading() -> Float64:
    """Return elapsed time, CPU time of the host and of this process, ``[3]`` s."""
    try:
        words = STAT.read_text().split(maxsplit=4)[1:4]  # user, nice, system
        host = sum(map(int, words)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):  # another system: the load is unknown
        host = math.nan
    return np.array([time.monotonic(), host, time.process_time()])


def load_rows(nodes: Sequence[str], meters: Float64) -> list[dict[str, Any]]:
    """List the processors of each host, and how many of them other processes used.

    ``nodes`` ``[R]`` is the host of each rank, ``meters`` ``[R, 3]`` are differences of
    two readings.  Hosts of unknown load are left out; all are taken to have as many
    processors as this one.
    """
    rows = []
    for node in dict.fromkeys(nodes):
        of_host = meters[[n == node for n in nodes]]
        elapsed, busy, _ = of_host.mean(axis=0).tolist()
        others = (busy - float(of_host[:, 2].sum())) / elapsed
        if math.isfinite(others):
            cores = os.cpu_count() or 1
            rows.append({"host": node, "cores": cores, "others": max(0.0, others)})
    return rows


def busy(row: Mapping[str, Any]) -> bool:
    """Return whether others used more than the share BUSY of a host's processors."""
    return bool(row["others"] > BUSY * row["cores"])


def load_now(seconds: float = 0.25) -> str:
    """Return a warning if this host is busy, measured for a moment; "" if not."""
    before = reading()
    time.sleep(seconds)
    rows = load_rows([""], (reading() - before)[None])
    if not (rows and busy(rows[0])):
        return ""
    others, cores = rows[0]["others"], rows[0]["cores"]
    return (
        f"this machine is busy: other processes use {others:.2g} of its {cores} cores, "
        "so that times vary; wait for them to end"
    )
