"""Snapshot of a run in progress: state, and statistics of its last steps by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis.load import collapsed, starved
from moetraffic.analysis.measures import max_mean, means_of_known, ratio
from moetraffic.analysis.noise import balanced
from moetraffic.arrays import Float64, Int64
from moetraffic.tables import ShownAsTables
from moetraffic.trace.model import Source

from .step_rows import LayerRow, StepRow

HOT = 3
"""Largest number of hot experts that a snapshot names."""

SIGNIFICANT = 2.0
"""Standard deviations above the noise floor from which on an expert is hot."""


@dataclass(frozen=True, kw_only=True)
class LayerSnapshot:
    """Load and all-to-alls of one layer in the last n steps; NaN where unknown."""

    layer: int  # -1: all-to-alls of unknown layers
    of: str  # "expert" (token copies), "rank" (bytes), or "" if no load is known
    source: Source  # how the layer and its phases were determined, the weakest
    load: Int64  # [n, C] of each expert or rank
    imbalance: Float64  # [n] max/mean of the load
    floor: Float64  # [n] noise floor of the imbalance, its mean under a balanced router
    floor_std: Float64  # [n] and its standard deviation
    dropped_share: Float64  # [n] of the token copies, dropped over capacity
    bytes: Float64  # [n] sent by all-to-alls, rank-local ones included
    local_bytes: Float64  # [n] of these, to the rank itself
    time_share: Float64  # [n] of the step in the layer's all-to-alls, mean of the ranks
    hot: tuple[int, ...]  # hot experts of the n steps, most loaded first
    starved: int  # experts with less than a tenth of the mean load of the n steps
    collapsed: bool | None  # whether these are half of all; None: unknown

    @property
    def total(self) -> Int64:
        """Load of all n steps, ``[C]``."""
        return np.asarray(self.load.sum(axis=0), np.int64)

    @property
    def ratio(self) -> Float64:
        """Load of all n steps relative to the mean, ``[C]``."""
        total = self.total
        mean = total.mean() if total.any() else np.nan
        return np.asarray(total / mean, np.float64)


@dataclass(frozen=True, kw_only=True)
class Snapshot(ShownAsTables):
    """State of a run, and statistics of its last n complete steps.

    A step is complete when all ranks seen have ended it.
    """

    path: Path  # of the trace that the run will become
    state: str  # waiting, recording, closed (all ranks have ended) or merged
    world: int  # ranks of the run; 0: unknown
    ranks: tuple[int, ...]  # seen
    closed: tuple[int, ...]  # of these, no longer recording
    ahead: int  # steps that the furthest rank has ended after the last complete one
    idle_s: float  # time since a log was last written; NaN: unknown
    log_bytes: float  # bytes of the logs of all ranks, per step; NaN: unknown
    iteration: Int64  # [n] training iterations, increasing
    duration_s: Float64  # [n] of a step, mean of the ranks
    loss: Float64  # [n] mean of the ranks
    bytes: Float64  # [n] sent by all-to-alls of all layers, rank-local ones included
    local_bytes: Float64  # [n] of these, to the rank itself
    time_share: Float64  # [n] of the step in any all-to-all, mean of the ranks
    layers: tuple[LayerSnapshot, ...]  # by number
    notes: tuple[str, ...]  # what is missing or unknown, a sentence each

    @property
    def ended(self) -> bool:
        """Whether nothing more will be recorded."""
        return self.state in ("closed", "merged")


def step_columns(rows: Sequence[StepRow]) -> dict[str, Any]:
    """Return the columns of a snapshot that are of all layers together."""
    names = ("duration_s", "loss", "bytes", "local_bytes", "time_share")
    columns = {name: column(rows, name) for name in names}
    return {"iteration": np.array([r.iteration for r in rows], np.int64), **columns}


def column(rows: Sequence[StepRow] | Sequence[LayerRow], name: str) -> Float64:
    """Return a value of all rows, ``[n]``."""
    return np.array([getattr(row, name) for row in rows], np.float64)


def layer_snapshots(rows: Sequence[StepRow], k: int) -> tuple[LayerSnapshot, ...]:
    """Compute the statistics of all layers; ``k`` is experts per token, 0: unknown."""
    numbers = sorted({number for row in rows for number in row.layers})
    return tuple(layer_snapshot(number, rows, k) for number in numbers)


def layer_snapshot(number: int, steps: Sequence[StepRow], k: int) -> LayerSnapshot:
    """Compute the statistics of one layer.

    It is unknown in a step where it is absent, or has another number of experts or
    another kind of load than in the last one.
    """
    rows = [step.layers.get(number) for step in steps]
    present = [row for row in rows if row is not None]
    newest = next((row for row in reversed(present) if row.of), present[-1])
    source = min(row.source for row in present)
    absent = LayerRow(of="", source=source, load=np.zeros_like(newest.load))
    kind = newest.of, len(newest.load)
    same = [r if r and (r.of, len(r.load)) == kind else absent for r in rows]
    load = np.stack([row.load for row in same])
    total, copies, cells = load.sum(axis=0), load.sum(axis=1), load.shape[1]
    counted = newest.of == "expert" and bool(total.any())
    imbalance = floor = spread = np.full(len(rows), np.nan)
    if cells > 1:
        imbalance = np.asarray(max_mean(load), np.float64)
    least = 1.0  # load relative to the mean from which on an expert is hot
    if counted and 1 <= k <= cells and cells > 1:
        # of each step, and of all together
        tokens = np.append(copies, copies.sum()) / k
        expected = balanced(tokens, experts=cells, k=k)["max_mean"]
        noise = balanced(tokens, experts=cells, k=k, deviation=True)["max_mean"]
        floor, spread = expected[:-1], noise[:-1]
        least = float(expected[-1] + SIGNIFICANT * noise[-1])
    largest = np.argsort(-total, kind="stable")[:HOT].tolist()
    return LayerSnapshot(
        layer=number,
        of=newest.of,
        source=source,
        load=load,
        imbalance=imbalance,
        floor=floor,
        floor_std=spread,
        dropped_share=ratio(column(same, "dropped"), copies),
        bytes=column(same, "bytes"),
        local_bytes=column(same, "local_bytes"),
        time_share=column(same, "time_share"),
        hot=tuple(cell for cell in largest if total[cell] > least * total.mean()),
        starved=int(starved(total).sum()) if counted else 0,
        collapsed=collapsed(total, k=k) if counted else None,
    )


def mean(values: Float64) -> float:
    """Average the known values; NaN without any."""
    return float(means_of_known(values)) if len(values) else float("nan")
