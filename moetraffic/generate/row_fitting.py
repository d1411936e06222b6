"""Fit how rows differ: factors of their deviations, over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .inclusion import counts, inclusion, weights_of
from .latent import Seen
from .row_coupling import coupling_of, power_for, shares_for, sharpened, turned
from .rows import MOST_VARIANCE, RowSpread, middle, row_weights

Float64 = npt.NDArray[np.float64]

FACTORS = 12
"""Most factors that a rank's layers share."""

TRIED = 1000
"""Rows of a trial."""

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
    _, rows, layers, _ = look.rows.shape
    if rows < 2:
        return spread
    factors, offset = spread.factors.copy(), spread.offset.copy()
    own = np.maximum(spread.variance - (factors**2).sum(axis=3), 0.0)
    for at, (first, last) in enumerate(pairwise(edges)):
        rng = np.random.default_rng(at)
        shared = rng.standard_normal((TRIED, factors.shape[3]))
        when = np.linspace(first, last - 1, TRIED).astype(np.int64)
        rng.shuffle(when)
        state = look.state[when]
        real = look.rows[first:last] * look.answer[first:last, None]
        size = look.own[first:last].mean(axis=0)
        squares = (real**2).sum(axis=(0, 1)) / ((last - first) * (rows - 1))
        wanted = squares / size - 1 / tokens  # [L, E]
        trust = np.maximum(wanted, 0.0) / (np.maximum(wanted, 0.0) + 1 / tokens)

        def put_right(
            at: int = at,
            shared: Float64 = shared,
            state: Float64 = state,
            wanted: Float64 = wanted,
            size: Float64 = size,
            *,
            trust: Float64,
            tries: int,
        ) -> None:
            for layer in range(layers):
                _put_right(
                    factors[at, layer],
                    own[at, layer],
                    offset[at, layer],
                    shared=shared,
                    state=state[:, layer],
                    wanted=wanted[layer],
                    size=size[layer],
                    trust=trust[layer],
                    k=k,
                    tries=tries,
                )

        put_right(trust=trust, tries=TRIES)
        # Ranks that are alike in one layer are so in others
        sample = partial(
            _coupled,
            own=own[at],
            state=state + offset[at],
            shared=shared,
            rows=rows,
            k=k,
            tokens=tokens,
        )
        factors[at] = _as_alike(factors[at].copy(), size, coupling_of(real), sample)
        put_right(trust=0.0 * trust, tries=TRIES - 2)
    return replace(
        spread,
        factors=factors,
        variance=(factors**2).sum(axis=3) + own,
        offset=offset,
    )


def _as_alike(
    factors: Float64,
    size: Float64,
    goal: Float64,
    sample: Callable[[Float64], Float64],
) -> Float64:
    """Factors ``[L, E, Q]`` turned and sharpened until samples are coupled so."""
    turn = shares_for(goal, lambda share: sample(turned(factors, size, share)))
    on_the_way = turned(factors, size, turn)
    power = power_for(goal, lambda x: sample(sharpened(on_the_way, size, x)))
    return sharpened(on_the_way, size, power)


def _put_right(
    factors: Float64,
    own: Float64,
    offset: Float64,
    *,
    shared: Float64,
    state: Float64,
    wanted: Float64,
    size: Float64,
    trust: Float64,
    k: int,
    tries: int,
) -> None:
    """Change one layer's factors, own variances and offsets in place.

    Parameters
    ----------
    factors, own, offset
        ``[E, Q]``, ``[E]`` variance, ``[E]``.
    shared, state
        ``[TRIED, Q]`` and ``[TRIED, E]`` of a trial.
    wanted
        ``[E]`` variance of rows over p (1 - p).
    size
        ``[E]`` p (1 - p).
    trust
        ``[E]`` how far each expert's own variance is wanted; 0: the layer's.
    k, tries
        Experts of a token; how often.
    """
    rng = np.random.default_rng(0)
    target = inclusion(np.exp(state), k)
    whole = weights_of(target.mean(axis=0), k)
    for _ in range(tries):
        variance = (factors**2).sum(axis=1) + own
        around = middle(state + offset, np.sqrt(variance), k=k)
        drawn = row_weights(rng, shared, factors, np.sqrt(own), around, k=k)
        holds = inclusion(drawn, k)
        offset += np.log(whole / weights_of(holds.mean(axis=0), k))
        got = ((holds - target) ** 2).mean(axis=0) / size
        together = (wanted * size).sum() / max((got * size).sum(), 1e-12)
        alone = np.maximum(wanted, 0.0) / np.maximum(got, 1e-12)
        alone = np.clip(alone / max(together, 1e-12), 0.25, 4.0)
        ratio = np.clip(together, 0.0, 2.0) * alone**trust
        ratio = np.minimum(ratio, MOST_VARIANCE / np.maximum(variance, 1e-12))
        factors *= np.sqrt(ratio)[:, None]
        own *= ratio


def _angles(look: Seen) -> Float64:
    """Deviations of rows in angles, ``[n, R, L, E]``, to first order."""
    return np.asarray(
        look.rows * (look.answer / np.sqrt(look.own))[:, None], np.float64
    )


def _counted(answer: Float64) -> Float64:
    """Covariance of angles by counting a token, ``[LE, LE]``.

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


def _coupled(
    factors: Float64,
    *,
    own: Float64,
    state: Float64,
    shared: Float64,
    rows: int,
    k: int,
    tokens: int,
) -> Float64:
    """Coupling of layers ``[L]`` in samples, so many rows at a moment's state."""
    rng = np.random.default_rng(0)
    moments = len(shared) // rows
    used = moments * rows
    state = np.repeat(state[:moments], rows, axis=0)
    variance = (factors**2).sum(axis=2) + own
    out = np.empty((used, *own.shape))
    for layer in range(len(own)):
        around = middle(state[:, layer], np.sqrt(variance[layer]), k=k)
        weights = row_weights(
            rng, shared[:used], factors[layer], np.sqrt(own[layer]), around, k=k
        )
        weights /= weights.sum(axis=1, keepdims=True)
        out[:, layer] = counts(rng, weights, k, tokens)
    return coupling_of(out.reshape(moments, rows, *own.shape) / tokens)


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
