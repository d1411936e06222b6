"""Fit how rows differ: factors of their deviations, over time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .inclusion import counts, inclusion, weights_of
from .latent import Seen
from .row_coupling import coupling_of, shares_for, turned
from .rows import MOST_VARIANCE, RowSpread, latent_covariance, multipliers

Float64 = npt.NDArray[np.float64]

FACTORS = 12
"""Most factors that a rank's layers share."""

TRIED = 2000
"""Rows of a trial."""

TRIES = 6


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
    for first, last in pairwise(edges):
        # in shares, over the mean squared answer: iterations in which an expert gets
        # little tell little of it
        answer = look.answer[first:last]
        u = look.rows[first:last] * answer[:, None]
        unit = np.sqrt((answer**2).mean(axis=0)).ravel()
        u = u.reshape(-1, cells) / unit
        total = u.T @ u / ((last - first) * (rows - 1))
        by_counting = (answer.mean(axis=0).ravel() / unit**2 / tokens).reshape(
            layers, experts
        )
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
    _, rows, layers, _ = look.rows.shape
    if rows < 2:
        return spread
    factors, variance = spread.factors.copy(), spread.variance.copy()
    offset = spread.offset.copy()
    for at, (first, last) in enumerate(pairwise(edges)):
        rng = np.random.default_rng(at)
        shared = rng.standard_normal((TRIED, factors.shape[3]))
        when = np.linspace(first, last - 1, TRIED).astype(np.int64)
        rng.shuffle(when)
        answer = look.answer[first:last]
        squares = ((look.rows[first:last] * answer[:, None]) ** 2).sum(axis=(0, 1))
        squares /= (last - first) * (rows - 1)
        middle = answer.mean(axis=0)
        chance = (1 - 1 / len(middle[0])) / tokens
        wanted = squares / middle - chance  # [L, E]
        trust = np.maximum(wanted, 0.0) / (np.maximum(wanted, 0.0) + chance)
        real = look.rows[first:last] * answer[:, None]
        state = look.state[when]

        sample = partial(
            _coupled,
            factors=factors[at],
            weight=middle,
            variance=variance[at],
            state=state,
            shared=shared,
            rows=rows,
            k=k,
            tokens=tokens,
        )
        turn = shares_for(coupling_of(real), sample)
        factors[at] = turned(factors[at], middle, turn)
        for layer in range(layers):
            state = look.state[when, layer]  # [TRIED, E]
            target = inclusion(np.exp(state), k)
            whole = target.mean(axis=0)
            for _ in range(TRIES):
                own = variance[at, layer] - (factors[at, layer] ** 2).sum(axis=1)
                own = np.sqrt(np.maximum(own, 0.0))
                m = multipliers(rng, shared, factors[at, layer], own, k=k)
                holds = inclusion(m * np.exp(state + offset[at, layer]), k)
                mean = holds.mean(axis=0)
                offset[at, layer] += np.log(weights_of(whole, k) / weights_of(mean, k))
                got = ((holds - target) ** 2).mean(axis=0) / middle[layer]
                whole_ratio = wanted[layer].sum() / max(got.sum(), 1e-12)
                alone = np.maximum(wanted[layer], 0.0) / np.maximum(got, 1e-12)
                alone = np.clip(alone / max(whole_ratio, 1e-12), 0.25, 4.0)
                ratio = np.clip(whole_ratio, 0.0, 2.0) * alone ** trust[layer]
                most = MOST_VARIANCE[k > 1] / np.maximum(variance[at, layer], 1e-12)
                ratio = np.minimum(ratio, most)
                factors[at, layer] *= np.sqrt(ratio)[:, None]
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


def _interval(look: Seen) -> Float64:
    """Of the variance of rows, from how it differs between iterations: ``[2, L]``."""
    rows, experts = look.rows.shape[1], look.rows.shape[3]
    each = (look.rows**2).sum(axis=1) / (rows - 1)  # [n, L, E]
    each = (each - look.counting * (1 - 1 / experts)).mean(axis=2)
    mean = each.mean(axis=0)
    error = each.std(axis=0) / np.sqrt(len(each))
    return np.stack([mean - 1.96 * error, mean + 1.96 * error])


def _coupled(
    turn: Float64,
    *,
    factors: Float64,
    weight: Float64,
    variance: Float64,
    state: Float64,
    shared: Float64,
    rows: int,
    k: int,
    tokens: int,
) -> Float64:
    """Coupling of layers ``[L]`` in samples, so many rows at a moment's state."""
    factors = turned(factors, weight, turn)
    rng = np.random.default_rng(0)
    moments = len(shared) // rows
    used = moments * rows
    state = np.repeat(state[:moments], rows, axis=0)
    out = np.empty((used, *variance.shape))
    for layer in range(len(variance)):
        own = variance[layer] - (factors[layer] ** 2).sum(axis=1)
        own = np.sqrt(np.maximum(own, 0.0))
        m = multipliers(rng, shared[:used], factors[layer], own, k=k)
        weights = m * np.exp(state[:, layer] - state[:, layer].max())
        weights /= weights.sum(axis=1, keepdims=True)
        out[:, layer] = counts(rng, weights, k, tokens)
    return coupling_of(out.reshape(moments, rows, *variance.shape) / tokens)


def drawn_apart(look: Seen, load: Float64, *, tokens: int) -> float:
    """How much the mean over ranks varies, over what independent ranks would give.

    Parameters
    ----------
    look
        Deviations of rows.
    load
        ``[n, L, E]`` the mean row's share of its tokens: states move as well, so it
        changes from iteration to iteration at least as much as ranks' means do.
    tokens
        Of a row.

    Returns
    -------
    float
        At most 1; of the half of the run in which states are calmest, the second.
    """
    count, rows, _, experts = look.rows.shape
    if rows < 2:
        return 1.0
    late = slice(count // 2, None)
    answer = look.answer[late]
    middle = answer.mean(axis=0)
    moved = (np.diff(load[late], axis=0) ** 2).mean(axis=0) / 2
    between = ((look.rows[late] * answer[:, None]) ** 2).sum(axis=1).mean(axis=0)
    between /= (rows - 1) * rows
    counting = (experts - 1) / tokens / rows
    tops = (moved / middle).sum(axis=1) - counting
    bottoms = (between / middle).sum(axis=1) - counting
    if (bottoms <= counting / 10).any():
        return 1.0
    return float(np.clip((tops / bottoms).min(), 0.0, 1.0))
