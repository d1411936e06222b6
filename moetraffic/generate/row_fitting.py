"""Fit the differences between ranks: factors of their deviations, over time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .latent import Seen
from .row_coupling import (
    coupling_of,
    kept_for,
    power_for,
    shares_for,
    sharpened,
    turned,
)
from .row_shares import colder, half_for, squares
from .row_trial import RowTrial, trial_of
from .rows import MOST_VARIANCE, RowSpread

Float64 = npt.NDArray[np.float64]

FACTORS = 12
"""Most factors that a rank's layers share."""

TRIES = 5


def fit_rows(
    look: Seen, *, edges: list[int], k: int, tokens: int
) -> tuple[RowSpread, Float64]:
    """Factors and variances in each window.

    Parameters
    ----------
    look
        Deviations of rows.
    edges
        Borders of the windows, iterations.
    k, tokens
        Experts of a token, tokens of a row.

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
    angles = _angles(look)
    for first, last in pairwise(edges):
        size = look.own[first:last].mean(axis=0)
        u = angles[first:last].reshape(-1, cells)
        total = u.T @ u / ((last - first) * (rows - 1))
        total -= _counted(look.answer[first:last].mean(axis=0)) / tokens
        # an expert with hardly a copy in all rows tells nothing of them
        told = size.ravel() * tokens * rows > 1.0
        total[~told], total[:, ~told] = 0.0, 0.0
        # cells with many copies matter most to the load
        weight = np.sqrt(np.maximum(size.ravel(), 1 / tokens / rows))
        found, variance = _factors(total, weight, MOST_VARIANCE)
        knots.append((first + last) / 2)
        factors.append(found.reshape(layers, experts, -1))
        variances.append(variance.reshape(layers, experts))
    spread = RowSpread(
        knots=np.array(knots),
        factors=np.stack(factors),
        variance=np.stack(variances),
        offset=np.zeros((len(knots), layers, experts)),
    )
    return spread, _interval(angles, tokens)


def calibrated(
    spread: RowSpread, look: Seen, *, edges: list[int], k: int, tokens: int
) -> RowSpread:
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
    k, tokens
        Experts of a token, tokens of a row.
    """
    rows = look.rows.shape[1]
    if rows < 2:
        return spread
    apart = look.rows * look.answer[:, None]
    trials = [
        trial_of(spread, look, at, range(*ends), k=k, tokens=tokens)
        for at, ends in enumerate(pairwise(edges))
    ]

    def sampled(half: Float64) -> Float64:
        """How much less colder experts vary than hotter ones, with such a half."""
        tried = [trial.put_right(half, tries=TRIES) for trial in trials]
        return colder([squares(*trial.seen(half)) for trial in tried])

    # Step 1: how much less cold experts vary
    wanted = colder(
        [
            squares(apart[a:b], look.own[a:b], look.share[a:b])
            for a, b in pairwise(edges)
        ]
    )
    half = half_for(wanted, sampled)
    done = []
    for trial, (first, last) in zip(trials, pairwise(edges), strict=True):
        # Step 2: ranks that are alike in one layer are so in others
        right = trial.put_right(half, tries=TRIES)
        right = _as_alike(right, half, coupling_of(apart[first:last]))
        right = replace(right, trust=0.0 * right.trust)
        # Step 3: what that has changed
        done.append(right.put_right(half, tries=TRIES - 2))
    factors = np.stack([trial.factors for trial in done])
    own = np.stack([trial.own for trial in done])
    return replace(
        spread,
        factors=factors,
        variance=(factors**2).sum(axis=3) + own,
        offset=np.stack([trial.offset for trial in done]),
        half=half,
    )


def _as_alike(trial: RowTrial, half: Float64, goal: Float64) -> RowTrial:
    """Set the correlation of samples between layers, ``[L]``."""

    def coupled(factors: Float64) -> Float64:
        return coupling_of(replace(trial, factors=factors).seen(half)[0])

    factors, size = trial.factors, trial.size
    turn = shares_for(goal, lambda share: coupled(turned(factors, size, share)))
    on_the_way = turned(factors, size, turn)
    power = power_for(goal, lambda x: coupled(sharpened(on_the_way, size, x)))
    sharp = replace(trial, factors=sharpened(on_the_way, size, power))
    kept = kept_for(goal, lambda x: coupling_of(sharp.sharing(x).seen(half)[0]))
    return sharp.sharing(kept)


def _angles(look: Seen) -> Float64:
    """Deviations of rows in angles, ``[n, R, L, E]``, to first order."""
    return np.asarray(
        look.rows * (look.answer / np.sqrt(look.own))[:, None], np.float64
    )


def _counted(answer: Float64) -> Float64:
    """Covariance of angles that one token adds, ``[LE, LE]``.

    Of one layer counts add up, so angles depend on each other; see
    :func:`.inclusion.spread` for the answer ``[L, E]``.
    """
    layers, experts = answer.shape
    out = np.eye(layers * experts)
    for layer, d in enumerate(answer):
        part = slice(layer * experts, (layer + 1) * experts)
        both = np.diag(d) - np.multiply.outer(d, d) / d.sum()
        unit = np.sqrt(np.maximum(np.diag(both), 1e-12))
        out[part, part] = both / np.multiply.outer(unit, unit)
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
    values, vectors = values[::-1], vectors[:, ::-1]
    # chance makes small values large and negative; with the largest that add up to
    # the whole, the whole is right
    whole = max(float(values.sum()), 0.0)
    sums = np.cumsum(values)
    enough = int(np.searchsorted(sums[: int(values.argmin()) + 1] >= whole, True)) + 1
    keep = min(FACTORS, len(weight), enough)
    values = np.maximum(values, 0.0)
    values[keep:] = 0.0
    values = values[: min(FACTORS, len(weight))]
    vectors = vectors[:, : len(values)]
    factors = vectors * np.sqrt(values) / weight[:, None]
    shared = (factors**2).sum(axis=1)
    # what is left is a cell's own, as far as all cells together have any
    own = np.maximum(np.diag(covariance) - shared, 0.0)
    left = max(whole - float(values.sum()), 0.0)
    own *= min(1.0, left / max(float((own * weight**2).sum()), 1e-12))
    variance = shared + own
    less = np.sqrt(np.minimum(1.0, most / np.maximum(variance, 1e-12)))
    return factors * less[:, None], np.minimum(variance, most)


def _interval(angles: Float64, tokens: int) -> Float64:
    """Of the variance of rows, from how it differs between iterations: ``[2, L]``."""
    rows = angles.shape[1]
    each = (angles**2).sum(axis=1).mean(axis=2) / (rows - 1)  # [n, L]
    each -= 1 / tokens
    mean = each.mean(axis=0)
    error = each.std(axis=0) / np.sqrt(len(each))
    return np.stack([mean - 1.96 * error, mean + 1.96 * error])
