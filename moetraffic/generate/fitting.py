r"""Fit trend, autocorrelation, coupling of layers and rank differences to token counts.

In steps, each by what identifies it without the others: rows' differences within an
iteration tell the documents and the noise of an iteration's mean; spectra, less that
noise, tell the coupling and the memories; least squares with these tell the trend.  A
run that is not steady from the beginning is fitted in windows that double.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .alike_ranks import at_most_apart, drawn_apart, with_noise_of
from .coupling import couplings
from .dynamics import Dynamics
from .far_start import Missed, missed, refined
from .inclusion import inclusion
from .latent import Seen, seen
from .layer_memory import LayerMemory, fit_layer
from .local_memory import between, fit_local
from .memories import MOST_MEMORIES
from .row_fitting import calibrated, fit_rows
from .rows import RowSpread
from .state_trial import tried
from .trend import Trend, fit_trend

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

SHORTEST = 32
"""Iterations that a fit needs."""

FIRST_WINDOW = 10
"""Iterations of the first window, and the fewest of any."""

GROWTH = 1.25
"""Age at the end of a window over that at its beginning."""

KNOT_GROWTH = 1.08
"""As GROWTH, of what is known at knots: swings come and go."""

ROWS = 64
"""Deviations of rows that a window has at least."""

ROW_GROWTH = 1.2
"""As GROWTH, of the windows of rows: directions of documents turn fast."""

STEADY_WINDOW = 200
"""Iterations of the first window of rows where training was steady."""

CALM = 1.6
"""Ratio to the run's second half up to which movement and size count as settled."""

SLOW = 0.25
"""Longest time scale in a window, as a share of it."""

LEAST_FREE = 0.05
"""Of a layer's experts, the share that moves where one has all the load."""

ENOUGH = 0.25
"""Precision of a state, over that at the run's end, that tells its memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """95% intervals of the fitted parameters; NaN if unavailable."""

    phi: Float64  # [2, L, J] of the last knot
    tau: Float64  # [2, L]
    level: Float64  # [2, L, E]
    start: Float64  # [2, L, E]
    coupling: Float64  # [2, L]
    variance: Float64  # [2, L] of rows, mean over experts and time


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """Parameters fitted to token counts."""

    dynamics: Dynamics
    rows: RowSpread
    bounds: Bounds
    settled: int  # iteration from which on training was steady


def fit_counts(
    counts: Int32, *, k: int, tokens: int, correct_noise: bool = True
) -> Fitted:
    """Fit all parameters except the rhythm.

    Parameters
    ----------
    counts
        ``[n, L, R, E]`` int32; rows of all micro-batches of a layer side by side.
    k, tokens
        Experts of a token, tokens of a row.
    correct_noise
        False takes the chance of documents and counting for movement of the states,
        to show what that does.
    """
    look = seen(counts, k=k, tokens=tokens)
    count, layers, _ = look.state.shape
    mean = counts.mean(axis=2) / tokens
    bare = look
    alone = at_most_apart(look, mean, tokens=tokens)
    look = replace(look, noise=look.noise * alone)
    # Step 1: trend by least squares, and whether what is left is steady
    plain = [fit_trend(look.state[:, layer]) for layer in range(layers)]
    copies = tokens * counts.shape[2]
    trends = [
        refined(trend, look, layer, k=k, copies=copies)
        for layer, trend in enumerate(plain)
    ]
    over = [
        missed(trend, look, layer, k=k, copies=copies)
        for layer, trend in enumerate(trends)
    ]
    settled = settled_from(over)
    steady = not settled
    if not steady:
        trends = plain
        alone = drawn_apart(bare, mean, tokens=tokens)
        look = with_noise_of(bare, alone)
    # what starts far off is seen too badly to tell memories, which the rest tells
    near = near_from(over) if steady else 0
    apart = (look.state - _curves(trends, count))[near:]
    # Step 2: the coupling of layers, and each layer's own part
    coupling, reach = np.zeros(layers), np.full((2, layers), np.nan)
    if steady:
        coupling, reach = couplings(apart, look, alone=alone)
    own, noise = _decoupled(apart, look, coupling)
    if not correct_noise:
        noise = np.zeros_like(noise)
    # Step 3: memories, of the whole run, or of what is left around each knot
    edges = [0, count - near] if steady else _edges(count)
    last = [
        fit_layer(
            own[edges[-2] :, layer],
            noise[edges[-2] :, layer],
            look.weight[layer],
            # what is slower is in the trend
            slowest=0.0 if steady else (count - edges[-2]) * SLOW,
        )
        for layer in range(layers)
    ]
    # Step 4: trend once more, knowing how what is left hangs together
    if steady:
        trends = [
            refined(trend, look, layer, k=k, copies=copies, memories=m.memories)
            for layer, (trend, m) in enumerate(zip(trends, last, strict=True))
        ]
    windows = edges if steady else _edges(count, KNOT_GROWTH)
    knots = np.array([near + (a + b) / 2 for a, b in pairwise(windows)])
    local = None
    memory = {
        "phi": np.array([[m.phi for m in last]]),
        "sd": np.array([[m.sd for m in last]]),
        "scale": np.array([[m.scale for m in last]]),
    }
    shift = np.zeros((1, *look.state.shape[1:]))
    if not steady:
        apart = look.state - _curves(trends, count)
        shift, left = between(apart, knots)
        moved = mean - inclusion(np.exp(look.state - left), k)
        local = fit_local(left, noise, look.share, moved, look.answer, knots)
    bins = _row_edges(count, counts.shape[2], steady=steady)
    rows, wide = fit_rows(look, edges=bins, k=k, tokens=tokens)
    rows = calibrated(rows, look, edges=bins, k=k, tokens=tokens)
    rows = replace(rows, apart=np.array([alone]))
    dynamics = Dynamics(
        start=np.stack([t.start for t in trends]),
        level=np.stack([t.level for t in trends]),
        tau=np.array([t.tau for t in trends]),
        coupling=coupling,
        knots=knots,
        shift=shift,
        **(memory if local is None else local.placed()),
    )
    if local is not None:
        dynamics = tried(dynamics, look, mean, local.alike, k=k)
    return Fitted(
        dynamics=dynamics,
        rows=rows,
        bounds=_bounds(trends, last, reach, wide),
        settled=settled,
    )


def settled_from(left: list[Missed]) -> int:
    """The iteration from which on states move as fast and as far as at the end.

    Parameters
    ----------
    left
        What the trend of each layer leaves over.
    """
    count = len(left[0].apart)
    far, fast = np.empty((count, len(left))), np.empty((count - 1, len(left)))
    for layer, x in enumerate(left):
        # of a layer whose load a few experts have, so few deviations are seen
        free = np.maximum(1 - (x.load**2).sum(axis=1), LEAST_FREE)
        far[:, layer] = (x.load * (x.apart**2 - x.noise)).sum(axis=1) / free
        steps = np.diff(x.apart, axis=0) ** 2 - x.noise[1:] - x.noise[:-1]
        fast[:, layer] = (x.load[1:] * steps).sum(axis=1) / free[1:]
    for at in _edges(count // 2):
        until = min(max(2 * at, FIRST_WINDOW), count)
        if all(
            _steady(series[at:until], series[count // 2 :]) for series in (far, fast)
        ):
            # a trend that is not quite an exponential is no other regime
            return at if at > max(2 * FIRST_WINDOW, count // 40) else 0
    return count // 2


def near_from(left: list[Missed]) -> int:
    """The iteration from which on states are seen as later on, at most the middle.

    Parameters
    ----------
    left
        What the trend of each layer leaves over.
    """
    count = len(left[0].precision)
    known = np.array([x.precision / x.precision[-1] for x in left])
    unknown = np.flatnonzero((known < ENOUGH).any(axis=(0, 2)))
    return min(int(unknown[-1]) + 1, count // 2) if len(unknown) else 0


def _steady(here: Float64, rest: Float64) -> bool:
    """Whether every layer's mean is that of the rest, as far as chance can tell."""
    blocks = np.array([part.mean(axis=0) for part in np.array_split(rest, 8)])
    mean = np.maximum(rest.mean(axis=0), 0.0)
    share = np.sqrt(max(1.0, len(rest) / 8 / len(here)))
    slack = 6 * blocks.std(axis=0) * share
    now = here.mean(axis=0)
    return bool(((now <= CALM * mean + slack) & (now >= mean / CALM - slack)).all())


def _edges(count: int, growth: float = GROWTH) -> list[int]:
    """Borders of windows that grow with the run's age."""
    edges = [0]
    while edges[-1] < count:
        edges.append(max(edges[-1] + FIRST_WINDOW, int(growth * edges[-1])))
    if count - edges[-2] < edges[-2] - edges[-3] if len(edges) > 2 else False:
        del edges[-2]
    return [*edges[:-1], count]


def _row_edges(count: int, rows: int, *, steady: bool) -> list[int]:
    """Borders of windows that grow, each with enough rows to tell what they share."""
    least = max(FIRST_WINDOW, -(-ROWS // max(rows - 1, 1)))
    if steady:
        least = max(least, STEADY_WINDOW)
    edges = [0]
    while edges[-1] < count:
        edges.append(max(edges[-1] + least, int(ROW_GROWTH * edges[-1])))
    if len(edges) > 2 and count - edges[-2] < (edges[-2] - edges[-3]) / 2:
        del edges[-2]
    return [*edges[:-1], count]


def _curves(trends: list[Trend], count: int) -> Float64:
    return np.stack([t.curve(count) for t in trends], axis=1)


def _decoupled(
    apart: Float64, look: Seen, coupling: Float64
) -> tuple[Float64, Float64]:
    """Each layer's own deviation ``[n, L, E]``, and the variance of its error."""
    first = len(look.noise) - len(apart)
    own, noise = apart.copy(), look.noise[first:].copy()
    rows = look.rows.shape[1]
    for layer in np.flatnonzero(coupling):
        b, by = coupling[layer], look.weight[layer]
        before = apart[:, layer - 1]
        own[:, layer] -= b * (before - (before @ by)[:, None])
        if rows > 1:
            before = look.rows[first:, :, layer - 1]
            mixed = look.rows[first:, :, layer] - b * (
                before - (before @ by)[..., None]
            )
            noise[:, layer] = (mixed**2).sum(axis=1) / (rows - 1) / rows
        else:
            noise[:, layer] += b**2 * look.noise[first:, layer - 1]
    return own, noise


def _bounds(
    trends: list[Trend],
    last: list[LayerMemory],
    coupling: Float64,
    variance: Float64,
) -> Bounds:
    phi = np.full((2, len(last), MOST_MEMORIES), np.nan)
    for layer, memory in enumerate(last):
        phi[:, layer, memory.slots] = memory.memories.phi_low, memory.memories.phi_high

    def around(name: str) -> Float64:
        middle = np.stack([getattr(t, name) for t in trends])
        error = np.stack([getattr(t, f"{name}_error") for t in trends])
        return np.stack([middle - 1.96 * error, middle + 1.96 * error])

    return Bounds(
        phi=phi,
        tau=np.array([t.tau_bounds for t in trends]).T,
        level=around("level"),
        start=around("start"),
        coupling=coupling,
        variance=variance,
    )
