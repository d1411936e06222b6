"""Fit how rows differ: factors of their deviations, over time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .inclusion import inclusion, weights_of
from .inclusion import spread as spread_of
from .latent import Seen
from .rows import MOST_VARIANCE, RowSpread, latent_covariance, multipliers

Float64 = npt.NDArray[np.float64]

FACTORS = 12
"""Most factors that a rank's layers share."""

TRIED = 2000
"""Rows of a trial."""

TRIES = 4


def fit_rows(look: Seen, *, edges: list[int], k: int) -> tuple[RowSpread, Float64]:
    """Factors and variances in each window.

    Parameters
    ----------
    look
        Deviations of rows.
    edges
        Borders of the windows, iterations.
    k
        Experts of a token.

    Returns
    -------
    RowSpread
        Known at the windows' middles.
    float64 array
        ``[2, L]`` 95% interval of the variance, mean over experts and time.
    """
    _, rows, layers, experts = look.rows.shape
    cells = layers * experts
    if rows < 2:
        nothing = np.zeros((1, layers, experts))
        return (
            RowSpread(
                knots=np.zeros(1),
                factors=nothing[..., None][..., :0],
                variance=nothing,
                offset=nothing,
            ),
            np.full((2, layers), np.nan),
        )
    knots, factors, variances = [], [], []
    for first, last in pairwise(edges):
        u = look.rows[first:last].reshape(-1, cells)
        total = u.T @ u / ((last - first) * (rows - 1))
        by_counting = look.counting[first:last].mean(axis=0)
        total -= _counted(by_counting)
        # an expert with less than a copy a row tells nothing of it
        told = by_counting.ravel() < 1.0
        total[~told], total[:, ~told] = 0.0, 0.0
        weight = np.where(
            told, 1 / np.sqrt(np.maximum(by_counting.ravel(), 1e-12)), 1.0
        )
        found, variance = _factors(
            latent_covariance(total, k=k), weight, MOST_VARIANCE[k > 1]
        )
        knots.append((first + last) / 2)
        factors.append(found.reshape(layers, experts, -1))
        variances.append(variance.reshape(layers, experts))
    spread = RowSpread(
        knots=np.array(knots),
        factors=np.stack(factors),
        variance=np.stack(variances),
        offset=np.zeros((len(knots), layers, experts)),
    )
    return spread, _interval(look)


def calibrated(spread: RowSpread, look: Seen, *, edges: list[int], k: int) -> RowSpread:
    """The rows' spread whose samples vary and weigh as the counts do.

    A row's deviation is bent on its way to the counts, the more the hotter an expert;
    what was fitted to first order is tried and put right, a few times over.

    Parameters
    ----------
    spread
        As :func:`fit_rows` gives it, its knots those of the windows.
    look
        What was seen.
    edges
        Borders of the windows.
    k
        Experts of a token.
    """
    _, rows, layers, _ = look.rows.shape
    if rows < 2:
        return spread
    factors, variance = spread.factors.copy(), spread.variance.copy()
    offset = spread.offset.copy()
    for at, (first, last) in enumerate(pairwise(edges)):
        rng = np.random.default_rng(at)
        shared = rng.standard_normal((TRIED, factors.shape[3]))
        state = look.state[first:last].mean(axis=0)
        answer = 1 / look.counting[first:last].mean(axis=0)  # N d
        squares = (look.rows[first:last] ** 2).sum(axis=(0, 1))
        squares /= (last - first) * (rows - 1)
        wanted = ((squares - 1 / answer) * answer).sum(axis=1)  # [L]
        for layer in range(layers):
            target = inclusion(np.exp(state[layer]), k)
            for _ in range(TRIES):
                own = variance[at, layer] - (factors[at, layer] ** 2).sum(axis=1)
                own = np.sqrt(np.maximum(own, 0.0))
                m = multipliers(rng, shared, factors[at, layer], own, k=k)
                holds = inclusion(m * np.exp(state[layer] + offset[at, layer]), k)
                mean = holds.mean(axis=0)
                offset[at, layer] += np.log(weights_of(target, k) / weights_of(mean, k))
                d = spread_of(target)
                got = (holds.var(axis=0) / d**2 * answer[layer]).sum()
                ratio = np.clip(wanted[layer] / max(got, 1e-12), 0.0, 2.0)
                factors[at, layer] *= np.sqrt(ratio)
                variance[at, layer] *= ratio
    return replace(spread, factors=factors, variance=variance, offset=offset)


def _counted(by_counting: Float64) -> Float64:
    """Covariance of the rows' deviations by counting, ``[LE, LE]``.

    Counts of a layer add up, which makes them a little dependent.
    """
    layers, experts = by_counting.shape
    out = np.diag(by_counting.ravel())
    for layer in range(layers):
        part = slice(layer * experts, (layer + 1) * experts)
        out[part, part] -= 1 / (1 / by_counting[layer]).sum()
    return out


def _factors(
    covariance: Float64, weight: Float64, most: float
) -> tuple[Float64, Float64]:
    """The factors ``[C, Q]`` that matter most to the load, and variances ``[C]``.

    Parameters
    ----------
    covariance
        ``[C, C]`` of u.
    weight
        ``[C]`` of each cell: cells with many copies are told better, and count more.
    most
        Largest variance.
    """
    scaled = covariance * np.multiply.outer(weight, weight)
    values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
    keep = min(FACTORS, len(weight))
    values, vectors = values[::-1][:keep], vectors[:, ::-1][:, :keep]
    factors = vectors * np.sqrt(np.maximum(values, 0.0)) / weight[:, None]
    variance = np.maximum(np.diag(covariance), (factors**2).sum(axis=1))
    less = np.sqrt(np.minimum(1.0, most / np.maximum(variance, 1e-12)))
    return factors * less[:, None], np.minimum(variance, most)


def _interval(look: Seen) -> Float64:
    """Of the variance of rows, from how it differs between iterations: ``[2, L]``."""
    rows, experts = look.rows.shape[1], look.rows.shape[3]
    each = (look.rows**2).sum(axis=1) / (rows - 1)  # [n, L, E]
    each = (each - look.counting * (1 - 1 / experts)).mean(axis=2)
    mean = each.mean(axis=0)
    error = each.std(axis=0) / np.sqrt(len(each))
    return np.stack([mean - 1.96 * error, mean + 1.96 * error])
