"""Per-iteration rows: loads, sampled cells and measures of each iteration's matrices.

A row depends on its own iteration alone, so rows do not depend on the length of the
windows, the number of threads or machines, or the order of reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.kernels import MatrixStatistics, matrix_statistics
from moetraffic.arrays import Int64

from .exchange import Rows, Source, Window
from .network_statistics import network_rows

SKEW = ("normalized_entropy", "max_over_mean", "cv", "gini")
"""Skew measures computed of loads and matrices."""

MEASURED = (
    *SKEW,
    "entropy",
    "sparsity",
    "mutual_information",
    "conditional_entropy",
    "line_efficiency",
)
"""Measures computed of every matrix."""

SAMPLED_VALUES = 1 << 21
"""Maximum cell values over all iterations kept for the forecasts of a matrix."""

MOST_CELLS = 4096


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sample of matrix cells tracked over time."""

    index: Int64  # [C] into the row-major cells, without the diagonal where it is off
    of: int  # number of cells


@lru_cache(maxsize=64)
def sample(cells: int, iterations: int) -> Sample:
    """Choose the matrix cells to track over time: all, or a random sample.

    It is drawn without replacement, the same for the same arguments.
    """
    fit = min(MOST_CELLS, max(64, SAMPLED_VALUES // max(1, iterations)))
    if cells <= fit:
        return Sample(index=np.arange(cells), of=cells)
    drawn = np.random.default_rng(0).choice(cells, fit, replace=False)
    return Sample(index=np.sort(drawn).astype(np.int64), of=cells)


def samples(source: Source) -> dict[str, Sample]:
    """Choose the tracked cells of an exchange's demand and wire matrices."""
    width, total = len(source.ranks), len(source.iterations)
    return {
        "demand": sample(width * source.experts, total),
        "wire": sample(width * (width - 1), total),
    }


def observe(source: Source, window: Window, *, cells: bool = True) -> Rows:
    """Compute the per-iteration rows of a window of matrices.

    ``cells``: Whether cells are tracked over time; else C is 0.

    Returns
    -------
    Rows
        ``demand.load`` ``[n, E]`` and ``demand.sent`` ``[n, W]`` int64 token copies;
        ``wire.sent`` and ``wire.received`` ``[n, W]`` int64 bytes to and from other
        ranks; ``wire.bottleneck`` ``[n]``, and ``wire.unit`` ``[n]`` bytes of a copy, 1
        where they follow no demand; those of :func:`.skew.capacity.capacity_rows`;
        ``demand.cells`` and ``wire.cells`` ``[n, C]`` of :func:`samples`; and of
        every measure ``demand.<measure>`` and ``wire.<measure>`` ``[n]`` float64, the
        wire's without the diagonal.
    """
    rows: Rows = dict(window.capacity)
    followed = {
        name: chosen.index if cells else chosen.index[:0]
        for name, chosen in samples(source).items()
    }
    found: dict[str, MatrixStatistics] = {}
    if window.demand is not None:
        demand = window.demand
        found["demand"] = of = matrix_statistics(demand)
        rows["demand.load"], rows["demand.sent"] = of.received, of.sent
        flat = demand.reshape(len(demand), -1)
        rows["demand.cells"] = flat.take(followed["demand"], axis=1)
    if window.wire is not None and len(source.ranks) > 1:
        wire, unit = window.wire, window.wire_unit
        found["wire"] = of = matrix_statistics(wire, diagonal=False)
        rows["wire.sent"], rows["wire.received"] = of.sent * unit, of.received * unit
        rows["wire.unit"] = np.full(len(wire), unit, np.int64)
        rows["wire.bottleneck"] = of.bottleneck * unit
        rows["wire.cells"] = _wire_cells(wire, followed["wire"]) * unit
        rows |= network_rows(source, window.first, wire)
    for name, of in found.items():
        rows |= {f"{name}.{measure}": getattr(of, measure) for measure in MEASURED}
    return rows


def _wire_cells(wire: npt.NDArray[np.generic], index: Int64) -> Int64:
    """Take cells of matrices ``[n, W, W]`` by their index without the diagonal."""
    # without the first cell, each run of W + 1 cells ends on the diagonal
    at = 1 + index + index // wire.shape[1]
    return np.asarray(wire.reshape(len(wire), -1).take(at, axis=1), np.int64)


def observe_loads(source: Source, window: Window) -> Rows:
    """Compute the rows of a window that claims need, without matrix statistics.

    Returns
    -------
    Rows
        ``demand.load``, ``demand.sent``, ``demand.cells`` and the rows of
        :func:`.skew.capacity.capacity_rows` or, without demand,
        ``wire.sent``, ``wire.received``, ``wire.unit`` and ``wire.cells``, as of
        :func:`observe`.
    """
    followed = samples(source)
    if window.demand is not None:
        flat = window.demand.reshape(len(window.demand), -1)
        return window.capacity | {
            "demand.load": window.demand.sum(axis=1, dtype=np.int64),
            "demand.sent": window.demand.sum(axis=2, dtype=np.int64),
            "demand.cells": flat.take(followed["demand"].index, axis=1),
        }
    if window.wire is None or window.wire.shape[1] < 2:
        return {}
    wire, unit = window.wire, window.wire_unit
    own = np.diagonal(wire, axis1=1, axis2=2)
    return {
        "wire.sent": (wire.sum(axis=2, dtype=np.int64) - own) * unit,
        "wire.received": (wire.sum(axis=1, dtype=np.int64) - own) * unit,
        "wire.unit": np.full(len(wire), unit, np.int64),
        "wire.cells": _wire_cells(wire, followed["wire"].index) * unit,
    }


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate the rows of consecutive windows."""
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
