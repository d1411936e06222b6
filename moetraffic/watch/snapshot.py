"""Snapshot of a run in progress: state, and statistics of its last steps by layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.analysis.noise.floors import GRID, skew_floors
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.skew.collapse import Collapse, collapse
from moetraffic.analysis.skew.measures import max_over_mean, means_of_known, ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.tables import ShownAsTables
from moetraffic.trace.model import Source

from .step_rows import LayerRows, StepRows

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
    collapse: Collapse | None  # None where the load of experts is unknown

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
    idle_s: float  # time since the newest segment was written; NaN: unknown
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


def layer_snapshot(number: int, rows: LayerRows, k: int) -> LayerSnapshot:
    """Compute the statistics of one layer from its rows of the last n steps.

    ``k`` is the number of experts per token; 0: unknown.
    """
    load = rows.load
    steps, cells = load.shape
    unknown = np.full(steps, np.nan)
    imbalance, floor, spread = unknown, unknown, unknown
    copies = load.sum(axis=1)
    if cells > 1:
        imbalance = np.asarray(max_over_mean(load), np.float64)
    model = None
    if rows.of == "expert" and 1 <= k <= cells and cells > 1:
        model = NullModel(experts=cells, k=k)
        tokens = np.rint(copies / k).astype(np.int64)
        if tokens.any():
            found = skew_floors(("max_over_mean",), tokens, model, most=GRID)
            moments = found["max_over_mean"]
            floor, spread = moments.mean, moments.std
    return LayerSnapshot(
        layer=number,
        of=rows.of,
        source=rows.source,
        load=load,
        imbalance=imbalance,
        floor=floor,
        floor_std=spread,
        dropped_share=ratio(rows.dropped, copies),
        bytes=rows.bytes,
        local_bytes=rows.local_bytes,
        time_share=rows.busy,
        hot=_hot(load.sum(axis=0), model),
        collapse=(
            collapse(load.sum(axis=0), k=k)
            if rows.of == "expert" and copies.any()
            else None
        ),
    )


def layers_of(rows: StepRows) -> tuple[LayerSnapshot, ...]:
    """Compute the statistics of all layers of the last steps."""
    return tuple(
        layer_snapshot(number, each, rows.k) for number, each in rows.layers.items()
    )


def _hot(total: Int64, model: NullModel | None) -> tuple[int, ...]:
    """Name the most loaded cells, if above the noise floor where that is known."""
    if len(total) < 2 or not total.any():
        return ()
    ratio = total / total.mean()
    least = 1.0
    if model is not None:
        tokens = np.array(round(int(total.sum()) / model.k))
        found = skew_floors(("max_over_mean",), tokens, model)["max_over_mean"]
        least = float(found.mean + SIGNIFICANT * found.std)
    order = np.argsort(-total, kind="stable")[:HOT].tolist()
    return tuple(cell for cell in order if ratio[cell] > least)


def mean(values: Float64) -> float:
    """Average the known values; NaN without any."""
    return float(means_of_known(values)) if len(values) else float("nan")
