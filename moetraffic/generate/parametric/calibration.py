"""Calibrate a traffic model by simulated moments.

The model is sampled at the size of the capture, and in each window and layer the
sample's moments are held against the capture's.  Each moment corrects what it depends
on most, by a damped step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from moetraffic.analysis.measures import entropy, total_variation
from moetraffic.arrays import Bool, Float64, Int32, Int64
from moetraffic.generate.scenario import Scenario

from . import windows
from .constants import CONSTANTS
from .dynamics import Dynamics
from .rows import RowVariation
from .sampling import SampledDemand


def moments(counts: Int32) -> dict[str, Float64]:
    """Moments ``[n, L]`` of an iteration and layer, of counts ``[n, L, R, E]``."""
    ranks, experts = counts.shape[2:]
    load = counts.sum(axis=2) / counts[0, 0].sum()
    found = {
        # of a single expert none
        "skew": np.nan_to_num(1 - entropy(load)),
        "peak": load.max(axis=2) * experts,
        "change": total_variation(load[1:], load[:-1]),
        "change 10": total_variation(load[10:], load[:-10]),
    }
    if ranks > 2:
        # as the change: a few rows far off do not count for more
        found["rows"] = total_variation(counts, load[:, :, None]).mean(axis=2)
    return found


def calibrated(
    dynamics: Dynamics,
    rows: RowVariation,
    counts: Int32,
    scenario: Scenario,
    half: Callable[[], None],
) -> tuple[Dynamics, RowVariation]:
    """Dynamics and rows under which samples have the moments of counts.

    The counts ``[n, L, R, E]`` and the scenario are those of the capture; ``half`` is
    called when half of it is done.
    """
    borders = windows.edges(len(counts))
    target = _windowed(counts, borders)
    fast = dynamics.damping * np.cos(dynamics.frequency) < CONSTANTS.fast
    one = scenario.stacked(counts.shape[2])  # micro-batches are rows as well
    for number in range(CONSTANTS.rounds):
        if number == CONSTANTS.rounds // 2:
            half()
        demand = SampledDemand(
            dynamics=dynamics,
            rows=rows,
            fitted=one,
            scenario=one,
            iterations=len(counts),
            seed=number,
        )
        made = np.concatenate([block for _, block in demand.blocks()])
        found = _windowed(made, borders)
        ratio = {
            name: np.maximum(target[name], 1e-9) / np.maximum(found[name], 1e-9)
            for name in target
        }
        dynamics, rows = _corrected(dynamics, rows, ratio, fast)
    return dynamics, rows


def _windowed(counts: Int32, borders: Int64) -> dict[str, Float64]:
    """Means of the moments over windows, ``[K, L]``."""
    found = {}
    for name, values in moments(counts).items():
        last = len(values)
        found[name] = np.stack(
            [
                values[min(begin, last - 5) : min(end, last)].mean(axis=0)
                for begin, end in pairwise(borders)
            ]
        )
    return found


def _corrected(
    d: Dynamics,
    rows: RowVariation,
    ratio: dict[str, Float64],
    fast: Bool,
) -> tuple[Dynamics, RowVariation]:
    damping = CONSTANTS.damping
    # entropy lacks in proportion to the square of the spread
    spread = ratio["skew"] ** (damping / 2)
    # only a part of the change is movement, and the rest is due to rows: twice the step
    movement = np.where(
        fast,
        (ratio["change"] ** (4 * damping))[..., None],
        (ratio["change 10"] ** (4 * damping))[..., None],
    )
    bend = np.maximum((d.saturation + 0.2) * ratio["peak"] ** (-3 * damping) - 0.2, 0)
    d = replace(
        d,
        level=d.level * spread[..., None],
        variance=d.variance * movement * spread[..., None] ** 2,
        saturation=np.minimum(bend, 10.0),
    )
    if "rows" in ratio:
        rows = rows.scaled(np.exp(damping * np.log(ratio["rows"]).mean(axis=0)))
    return d, rows
