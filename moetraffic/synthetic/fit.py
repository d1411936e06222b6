"""Fit a surrogate to token counts: moments first, then calibration by samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.analysis.measures import entropy, total_variation
from moetraffic.arrays import Float64, Int64, Integer

from .shares import log_weights
from .surrogate import ARRAYS, LEAST_BEND, Surrogate, at_times, sample

FIRST_WINDOW, GROWTH, LONGEST_WINDOW = 20, 1.4, 60
"""Iterations between knots: training changes fast at first."""

LAGS = 40
"""Lags in iterations of the autocorrelation."""

SMOOTHING = 0.6
"""Deviation of the weights of iterations around a knot, over the window's length."""

FACTORS = 8
"""Factors that the ranks' shares of all layers have in common."""

ROWS = 4096
"""Most rows that the factors of a window are computed from."""

ROUNDS, DAMPING = 8, 0.3
"""Of the calibration by samples."""

MOST_BEND = 10.0


def fit(
    runs: Sequence[Integer],
    k: int,
    *,
    ep: int = 1,
    tick: Callable[[int], None] = lambda done: None,
) -> Surrogate:
    """Fit to the token counts of one run, or of several reruns together.

    Parameters
    ----------
    runs
        ``[T, L, R, E]`` token copies each, of which the first iterations that all have
        are used.  Each row sums to k times the tokens of a rank.
    k
        Experts of a token.
    ep
        Ranks that hold as many consecutive experts each.
    tick
        Receives how many runs are fitted.
    """
    length = min(len(run) for run in runs)
    fitted = []
    for run in runs:
        fitted.append(calibrated(_fitted(run[:length], k, ep), run[:length]))
        tick(len(fitted))
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(m, name) for m in fitted]) for name in ARRAYS
    }
    return replace(fitted[0], **arrays)


def windows(iterations: int) -> Int64:
    """Borders of the windows around the knots, from 0 to ``iterations``."""
    borders, width = [0], float(FIRST_WINDOW)
    while borders[-1] < iterations:
        width = min(width, LONGEST_WINDOW)
        borders.append(min(iterations, borders[-1] + round(width)))
        width *= GROWTH
    if len(borders) > 2 and borders[-1] - borders[-2] < FIRST_WINDOW:
        borders.pop(-2)
    return np.array(borders)


def _fitted(counts: Integer, k: int, ep: int) -> Surrogate:
    """Fit to a run, by moments of its log-weights and rows."""
    total, layers, ranks, experts = counts.shape
    tokens = int(counts[0, 0, 0].sum()) // k
    borders = windows(total)
    knots, width = (borders[:-1] + borders[1:] - 1) / 2, np.diff(borders)
    times = np.arange(total)

    def means(values: Float64) -> Float64:
        out = np.add.reduceat(values, borders[:-1], axis=0)
        return np.asarray(out / width.reshape(-1, *[1] * (values.ndim - 1)))

    # Step 1: levels, from the mean shares of windows
    least = 0.5 / (ranks * tokens)  # half a token copy
    pi = counts.mean(axis=2) / tokens  # [T, L, E]
    share = means(pi)
    level = log_weights(share, k, least / width[:, None, None])
    moved = log_weights(pi, k, least) - at_times(knots, level, times)

    # Step 2: dispersion of the rows, by window, load and expert
    spread = np.maximum(pi * (1 - pi), least)
    if ranks > 1:
        squares = ((counts / tokens - pi[:, :, None]) ** 2).sum(axis=2) / (ranks - 1)
    else:  # one rank shows no differences: those of counting are left
        squares = spread / tokens
    ratio = tokens * means(squares) / np.maximum(means(spread), least)  # [K, L, E]
    dispersion, slope, own = _regressed(
        np.log(np.maximum(ratio, 1e-3)),
        np.log(share * experts / k + 1e-6),
        share * (1 - share) + 1e-12,
    )

    # Step 3: movement, without what the rows' noise adds to it
    slopes = np.maximum(pi if k == 1 else pi * (1 - pi), least)  # of a share by x
    noise = np.repeat(ratio, width, axis=0) * spread / tokens / ranks / slopes**2
    # the logarithm of a cell with few copies varies less than its relative error
    noise = np.minimum(noise, 1.0)
    weight = share.mean(axis=0)  # noise of cold experts is known badly
    weight /= weight.sum(axis=1, keepdims=True)
    power = means(((moved**2 - noise) * weight).sum(axis=2))  # [K, L]
    power = np.maximum(power, 1e-3 * np.abs(power.mean(axis=0)) + 1e-9)
    amplitude = 0.5 * np.log(power)
    scale = np.exp(at_times(knots, amplitude, times))[..., None]
    relative, noise = moved / scale, noise / scale**2
    lags = min(LAGS, total // 2)
    near = np.exp(-0.5 * ((times - knots[:, None]) / (SMOOTHING * width[:, None])) ** 2)
    auto = np.empty((len(knots), layers, lags))
    for lag in range(lags):
        product = relative[lag:] * relative[: total - lag] - (noise if not lag else 0)
        around = near[:, : total - lag]
        around = around / np.maximum(around.sum(axis=1, keepdims=True), 1e-9)
        auto[..., lag] = around @ (product * weight).sum(axis=2)
    auto[..., 0] = np.maximum(auto[..., 0], 1.005 * np.abs(auto[..., 1:]).max(axis=-1))
    auto[..., 0] = np.maximum(auto[..., 0], 1e-9)
    amplitude = amplitude + 0.5 * np.log(auto[..., 0])
    auto *= (1 - np.arange(lags) / lags) / auto[..., :1]

    # Step 4: factors of the rows in units of their deviation, window by window
    unit = np.sqrt(np.maximum(means(squares), least**2) * (1 - 1 / max(ranks, 2)))
    rows = (counts / tokens - pi[:, :, None]) / np.repeat(unit, width, 0)[:, :, None]
    factors = [
        _loadings(part.swapaxes(1, 2).reshape(len(part) * ranks, -1))
        for part in np.split(rows, borders[1:-1])
    ]
    return Surrogate(
        k=k,
        tokens=tokens,
        ranks=ranks,
        ep=ep,
        borders=borders,
        level=level[None],
        amplitude=amplitude[None],
        autocorrelation=auto[None],
        bend=np.full((1, layers), np.log(LEAST_BEND)),
        dispersion=dispersion[None],
        slope=slope[None],
        own=own[None],
        factors=np.stack(factors).reshape(1, len(knots), layers, experts, -1),
    )


def _regressed(
    y: Float64, x: Float64, weight: Float64
) -> tuple[Float64, Float64, Float64]:
    """Regress y on x, with a constant for each knot and one for each expert.

    All are ``[K, L, E]``; returns the constants ``[K, L]`` of knots, the slopes ``[L]``
    and the constants ``[L, E]`` of experts.
    """

    def mean(values: Float64) -> Float64:
        return np.asarray((values * weight).sum(axis=2) / weight.sum(axis=2))

    away_y, away_x = y - mean(y)[..., None], x - mean(x)[..., None]
    squares = (weight * away_x**2).sum(axis=(0, 2))
    slope = (weight * away_x * away_y).sum(axis=(0, 2)) / np.maximum(squares, 1e-9)
    slope = np.clip(slope, -1, 1)
    rest = (weight * (away_y - slope[:, None] * away_x)).sum(axis=0)
    own = np.clip(rest / weight.sum(axis=0), -2, 2)
    return mean(y) - slope * mean(x), slope, own


def _loadings(rows: Float64) -> Float64:
    """Loadings ``[cells, Q]`` of the strongest factors of rows ``[n, cells]``.

    By randomized subspace iteration (N. Halko et al., SIAM Review 53, 2011).
    """
    rows = rows[:: -(-len(rows) // ROWS)]
    count = min(FACTORS, *rows.shape)
    basis = np.random.default_rng(0).standard_normal((rows.shape[1], count + 8))
    for _ in range(4):
        basis, _ = np.linalg.qr(rows.T @ (rows @ basis))
    _, size, vectors = np.linalg.svd(rows @ basis, full_matrices=False)
    loading = (basis @ vectors.T * size / np.sqrt(len(rows)))[:, :count]
    norm = np.sqrt((loading**2).sum(axis=1, keepdims=True))
    return np.asarray(loading * np.minimum(1, 0.99 / np.maximum(norm, 1e-9)))


# ---- calibration ---------------------------------------------------------------------


def moments(counts: Integer) -> dict[str, Float64]:
    """Moments ``[L]`` of counts ``[T, L, R, E]`` that the calibration fits."""
    load = counts.sum(axis=2) / counts[0, 0].sum()
    rows = counts / counts[0, 0, 0].sum()
    return {
        # of a single expert none
        "skew": np.nan_to_num(1 - entropy(load)).mean(axis=0),
        "peak": load.max(axis=2).mean(axis=0) * load.shape[2],
        "change": total_variation(load[1:], load[:-1]).mean(axis=0),
        "change over 10": total_variation(load[10:], load[:-10]).mean(axis=0),
        # as the change: a few rows far off do not count for more
        "rows": total_variation(rows, load[:, :, None]).mean(axis=(0, 2)),
    }


def calibrated(model: Surrogate, counts: Integer) -> Surrogate:
    """Correct a model of one run until samples have the moments of its counts.

    Each moment corrects the parameter that it depends on most, by a damped step.
    """
    wanted = moments(counts)
    for seed in range(ROUNDS):
        made = moments(sample(model, iterations=len(counts), seed=seed).counts())
        apart = {
            name: DAMPING * np.log(np.maximum(wanted[name], 1e-9) / np.maximum(x, 1e-9))
            for name, x in made.items()
        }
        change, later = apart["change"], apart["change over 10"]
        # entropy lacks in proportion to the square of the spread
        spread = apart["skew"] / 2
        bend = np.exp(model.bend - 3 * apart["peak"])
        auto = model.autocorrelation.copy()
        most = np.abs(auto[..., 1:]).max(axis=-1)
        slower = np.minimum(np.exp(later - change), 0.995 / np.maximum(most, 1e-9))
        auto[..., 1:] *= slower[..., None]
        model = replace(
            model,
            level=model.level * np.exp(spread)[:, None],
            # only a part of the change is movement, and the rest is due to rows
            amplitude=model.amplitude + spread + change + later,
            autocorrelation=auto,
            bend=np.log(np.clip(bend, LEAST_BEND, LEAST_BEND + MOST_BEND)),
            dispersion=model.dispersion + 2 * apart["rows"],
        )
    return model
