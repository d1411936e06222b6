"""Forecast of the disk space that a running capture needs, from its segments."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.units import byte_size, duration

from .segment import PATTERN, read_segment
from .store import CLOSED, RANKS

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class DiskForecast:
    """Disk space that the segments of all ranks need, measured on one rank."""

    ranks: int
    iterations: int  # measured ones, also those that are not recorded
    bytes_per_iteration: float  # of all ranks
    iteration_s: float  # seconds
    free_bytes: int  # of the disk of the segments

    @property
    def bytes_per_hour(self) -> float:
        """Bytes of all ranks in an hour."""
        return self.bytes_per_iteration * HOUR_S / self.iteration_s

    def sentence(self, iterations: int = 0) -> str:
        """Describe the forecast, for a run of a number of iterations if it is known."""
        need = self.bytes_per_iteration * iterations
        found = (
            f"segments take {byte_size(self.bytes_per_iteration)} an iteration of all "
            f"{self.ranks} ranks ({self.iterations} iterations measured), "
            f"{byte_size(self.bytes_per_hour)} an hour at "
            f"{duration(self.iteration_s)} an iteration"
        )
        if iterations:
            found += f", {byte_size(need)} for {iterations} iterations"
        hours = self.free_bytes / self.bytes_per_hour
        found += f"; {byte_size(self.free_bytes)} are free, enough for {hours:.3g} h"
        if need > self.free_bytes or (not iterations and hours < 1):
            found += ": limit the capture with --max-size or --every"
        return found


def disk_forecast(folder: Path) -> DiskForecast | None:
    """Forecast the disk space of a capture from its last two segments of one rank.

    None until there are two segments with at least two steps and their times, and once
    a rank has closed its capture.
    """
    for own in sorted(folder.glob(RANKS)):
        if (own / CLOSED).exists():
            return None
        paths = sorted(own.glob(PATTERN))[-2:]
        try:
            segments = [read_segment(path) for path in paths]
            size = sum(path.stat().st_size for path in paths)
            free = shutil.disk_usage(folder).free
        except (OSError, TraceError):
            return None  # merged at this moment
        steps = np.concatenate([s.steps for s in segments]) if segments else None
        if len(segments) < 2 or steps is None or len(steps) < 2:
            continue
        iterations = int(steps["iteration"].max() - steps["iteration"].min())
        spent = (int(steps["end"].max()) - int(steps["end"].min())) / 1e9
        if iterations < 1 or spent <= 0:
            continue
        # between the ends of n + 1 recorded steps, n are recorded
        share = (len(steps) - 1) / len(steps)
        ranks = segments[0].meta.world
        return DiskForecast(
            ranks=ranks,
            iterations=iterations,
            bytes_per_iteration=size * share / iterations * ranks,
            iteration_s=spent / iterations,
            free_bytes=free,
        )
    return None
