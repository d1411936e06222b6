"""Calibrate a traffic model by simulated moments.

The model is sampled at the size of the capture, and in each window and layer the
sample's moments are held against the capture's.  Each moment corrects what it depends
on most, by a damped step; corrections are a product of one of the window and one of the
layer, so few numbers are fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from moetraffic.arrays import Bool, Float64, Int32, Int64

from . import windows
from .constants import CONSTANTS
from .dynamics import Dynamics
from .rows import RowVariation

Sampler = Callable[[Dynamics, RowVariation, int], Int32]
"""(dynamics, rows, seed) -> counts ``[n, L, R, E]``."""


def moments(counts: Int32) -> dict[str, Float64]:
    """Moments ``[n, L]`` of an iteration and layer, of counts ``[n, L, R, E]``."""
    ranks, experts = counts.shape[2:]
    copies = counts.sum(axis=3, keepdims=True)
    load = counts.sum(axis=2) / copies.sum(axis=2)
    found = {
        # 1 - entropy over its maximum
        "skew": 1
        + (load * np.log(np.maximum(load, 1e-12))).sum(axis=2)
        / np.log(max(experts, 2)),
        "peak": load.max(axis=2) * experts,
        "change": np.abs(np.diff(load, axis=0)).sum(axis=2) / 2,
        "change 10": np.abs(load[10:] - load[:-10]).sum(axis=2) / 2,
    }
    if ranks < 3:
        return found
    apart = counts / copies - load[:, :, None]
    # total variation, as the change: a few rows far off do not count for more
    found["rows"] = np.abs(apart).sum(axis=3).mean(axis=2) / 2
    return found


def calibrated(
    dynamics: Dynamics,
    rows: RowVariation,
    counts: Int32,
    sampler: Sampler,
) -> tuple[Dynamics, RowVariation]:
    """Dynamics and rows under which samples have the moments of counts.

    Parameters
    ----------
    dynamics, rows
        As fitted.
    counts
        ``[n, L, R, E]`` of the capture.
    sampler
        Of counts of the same shape.
    """
    borders = windows.edges(len(counts))
    target = _windowed(counts, borders)
    fast = dynamics.damping * np.cos(dynamics.frequency) < CONSTANTS.fast
    for number in range(CONSTANTS.rounds):
        found = _windowed(sampler(dynamics, rows, number), borders)
        ratio = {name: _ratio(target[name], found[name]) for name in target}
        # smaller steps later: each sample has chance of its own
        damping = CONSTANTS.damping / (1 + number / 4)
        dynamics, rows = _corrected(dynamics, rows, ratio, fast, damping)
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


def _ratio(target: Float64, found: Float64) -> Float64:
    """Target over found ``[K, L]``, as a product of a window's and a layer's."""
    ratio = _sums_ratio(target, found, 0) * _sums_ratio(target, found, 1)
    ratio /= _sums_ratio(target, found, None)
    most = CONSTANTS.most_ratio
    return np.asarray(np.clip(ratio, 1 / most, most), np.float64)


def _sums_ratio(target: Float64, found: Float64, axis: int | None) -> Float64:
    sums = (np.maximum(x.sum(axis, keepdims=True), 1e-9) for x in (target, found))
    return np.asarray(np.divide(*sums), np.float64)


def _corrected(
    d: Dynamics,
    rows: RowVariation,
    ratio: dict[str, Float64],
    fast: Bool,
    damping: float,
) -> tuple[Dynamics, RowVariation]:
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
