"""CPU time that other processes use on a host, before and during a replay.

Linux counts in ``/proc/stat`` the time that the processors of a host spend in all
processes (proc(5): user, nice and system; interrupts are counted apart).  Less the CPU
time of the replay's own ranks, it is that of other processes, which slow down ranks
that share the processors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.arrays import Float64

BUSY = 0.1
"""Share of a host's processors used by others, above which a warning is given."""

LOOK_S = 0.25
"""Time for which the load is measured before the start, s."""

_STAT = Path("/proc/stat")
_TICKS = 3  # the first columns: user, nice, system


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """Processors of a host, and how many of them other processes used, on average."""

    node: str
    cores: int
    others: float

    @property
    def busy(self) -> bool:
        """Whether others used more than the share BUSY of the processors."""
        return self.others > BUSY * self.cores

    def warning(self, work: str) -> str:
        """Warn of the load before a replay or another ``work``."""
        return (
            f"this machine is busy (before the {work}, other processes use {self}): "
            "times vary with other processes; wait for them to end"
        )

    def __str__(self) -> str:
        return f"{self.others:.2g} of {self.cores} cores"


def busy_s() -> float:
    """Return CPU time of all processes of this host since its start, s; NaN: unknown.

    Where the file is absent (another system), the load is unknown.
    """
    try:
        words = _STAT.read_text().split("\n", 1)[0].split()
        ticks = sum(map(int, words[1 : 1 + _TICKS]))
    except (OSError, ValueError):
        return float("nan")
    return ticks / os.sysconf("SC_CLK_TCK")


class LoadMeter:
    """Measures CPU time of this host and of this process from its construction on."""

    def __init__(self) -> None:
        self._began = time.monotonic(), busy_s(), time.process_time()

    def read(self) -> Float64:
        """Return elapsed time, CPU time of the host and of this process, ``[3]`` s."""
        now = time.monotonic(), busy_s(), time.process_time()
        return np.subtract(now, self._began)


def host_loads(nodes: Sequence[str], meters: Float64) -> tuple[HostLoad, ...]:
    """Compute the load of each host by processes other than its ranks.

    Parameters
    ----------
    nodes
        ``[R]`` host of each rank.
    meters
        ``[R, 3]`` results of :meth:`LoadMeter.read`.

    Returns
    -------
    tuple of HostLoad
        One per host whose load is known; all hosts are taken to have as many processors
        as this one.
    """
    ranks: Mapping[str, list[int]] = {node: [] for node in nodes}
    for rank, node in enumerate(nodes):
        ranks[node].append(rank)
    cores = os.cpu_count() or 1
    found = []
    for node, mine in ranks.items():
        elapsed, busy, _ = meters[mine].mean(axis=0).tolist()
        others = (busy - float(meters[mine, 2].sum())) / elapsed if elapsed > 0 else 0.0
        if np.isfinite(others):
            found.append(HostLoad(node=node, cores=cores, others=max(0.0, others)))
    return tuple(found)


def load_now(look_s: float = LOOK_S) -> HostLoad | None:
    """Measure the load of this host for a moment; None if unknown."""
    meter = LoadMeter()
    time.sleep(look_s)
    return next(iter(host_loads([""], meter.read()[None])), None)
