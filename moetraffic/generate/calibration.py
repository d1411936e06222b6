"""Calibrate a traffic model by simulated moments.

The model is sampled at the size of the capture, and in each window and layer the
sample's moments are held against the capture's.  Each moment corrects what it depends
on most, by a damped step; corrections are a product of one of the window and one of the
layer, so few numbers are fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from . import windows
from .constants import CONSTANTS
from .dynamics import Dynamics
from .rows import RowVariation

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

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
    free = np.maximum(1 - (load**2).sum(axis=2), 1e-9)
    square = (apart**2).sum(axis=3)
    found["tail"] = square.std(axis=2) / np.maximum(square.mean(axis=2), 1e-12)
    found["rows"] = (apart**2).sum(axis=(2, 3)) / (ranks - 1) / free
    if counts.shape[1] > 1:
        found["coupling"] = _coupling(apart)
    return found


def _coupling(apart: Float64) -> Float64:
    """Mean correlation ``[n, L]`` of the rows' inner products with other layers'."""
    layers, ranks = apart.shape[1:3]
    inner = apart @ apart.swapaxes(2, 3)
    one, other = np.triu_indices(ranks, 1)
    pairs = inner[..., one, other]
    pairs -= pairs.mean(axis=2, keepdims=True)
    pairs /= np.maximum(np.linalg.norm(pairs, axis=2, keepdims=True), 1e-12)
    with_all = (pairs * pairs.sum(axis=1, keepdims=True)).sum(axis=2)
    return np.asarray((with_all - 1) / (layers - 1), np.float64)


def calibrated(
    dynamics: Dynamics,
    rows: RowVariation,
    counts: Int32,
    sampler: Sampler,
    tick: Callable[[int], None] | None = None,
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
    tick
        Called with the number of rounds that are done.
    """
    borders = windows.edges(len(counts))
    spans = windows.widened(borders, CONSTANTS.calibration_window)
    target = _windowed(counts, spans)
    fast = dynamics.damping * np.cos(dynamics.frequency) < CONSTANTS.fast
    for number in range(CONSTANTS.rounds):
        found = _windowed(sampler(dynamics, rows, number), spans)
        ratio = {name: _ratio(target[name], found[name]) for name in target}
        # smaller steps later: each sample has chance of its own
        damping = CONSTANTS.damping / (1 + number / 4)
        dynamics, rows = _corrected(dynamics, rows, ratio, fast, damping)
        if tick is not None:
            tick(number + 1)
    return dynamics, rows


def _windowed(counts: Int32, spans: list[slice]) -> dict[str, Float64]:
    """Means of the moments over windows, ``[K, L]``."""
    found = {}
    for name, values in moments(counts).items():
        last = len(values)
        found[name] = np.stack(
            [
                values[min(s.start, last - 5) : min(s.stop, last)].mean(axis=0)
                for s in spans
            ]
        )
    return found


def _ratio(target: Float64, found: Float64) -> Float64:
    """Target over found ``[K, L]``, as a product of a window's and a layer's."""
    most = CONSTANTS.most_ratio
    log = np.log(np.clip(target / np.maximum(found, 1e-9), 1 / most, most))
    by_both = log.mean(axis=0, keepdims=True) + log.mean(axis=1, keepdims=True)
    return np.asarray(np.exp(by_both - log.mean()))


def _corrected(
    d: Dynamics,
    rows: RowVariation,
    ratio: dict[str, Float64],
    fast: npt.NDArray[np.bool_],
    damping: float,
) -> tuple[Dynamics, RowVariation]:
    # entropy lacks in proportion to the square of the spread
    spread = ratio["skew"] ** (damping / 2)
    movement = np.where(
        fast,
        (ratio["change"] ** (2 * damping))[..., None],
        (ratio["change 10"] ** (2 * damping))[..., None],
    )
    bend = np.maximum((d.saturation + 0.2) * ratio["peak"] ** (-3 * damping) - 0.2, 0)
    d = replace(
        d,
        level=d.level * spread[..., None],
        variance=d.variance * movement * spread[..., None] ** 2,
        saturation=np.minimum(bend, 10.0),
    )
    if "rows" in ratio:
        size = ratio["rows"] ** (damping / 2)
        rows = replace(
            rows,
            factors=rows.factors * size[..., None, None],
            own=rows.own * size[..., None],
        )
        moved = rows.tail + damping * np.log(ratio["tail"]).mean(axis=1)
        rows = replace(rows, tail=np.clip(moved, 0.0, CONSTANTS.most_tail))
    if "coupling" in ratio:
        moved = rows.alignment + damping * np.log(ratio["coupling"])
        rows = replace(rows, alignment=np.clip(moved, 0.0, 1.0))
    return d, rows
