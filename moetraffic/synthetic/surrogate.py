r"""A surrogate of captured traffic: new token counts with the statistics of runs.

In iteration t the log-weight (:mod:`.shares`) of expert e in layer l is

.. math:: x_t = y_t - \log(1 + b\,\pi(y_t) E/k), \quad y_t = c(t) + a(t)\,z_t

- c(t), the *level*, is that of the run at knots, and linear between them;
- z, the *movement*, is normal with the layer's own autocorrelation at each knot, and
  a(t) its amplitude;
- b bends the log-weights: the hottest experts are closer to each other than normal
  ones are.

The share of a rank has the mean :math:`\pi(x_t)` and the variance :math:`D\,\pi (1 -
\pi)/N` of N tokens.  The dispersion D, 1 for independent tokens, depends on time and on
the load, :math:`\log D = d(t) + s \log(\pi E/k) + r_e`, and with it the correlation
between ranks.  Ranks differ by normal factors, new in each iteration, that all layers
share, because layers route the same tokens.

A sample of one run has its levels under other labels.  One of several reruns has
parameters :math:`\bar p + \sum_i v_i (p_i - \bar p)` with normal v of variance
:math:`(1 + 1/n)/(n - 1)`: of one more run, where parameters are normal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np

from moetraffic.arrays import Float32, Float64, Int32, Int64
from moetraffic.errors import LayoutError

from .chance import Use, generator
from .labels import nested_order
from .shares import bounded, probabilities, rounded, squared_normal

BLOCK = 256
"""Iterations of movement that are drawn together, more than lags of it."""

BLOCK_BYTES = 32 << 20
"""Bytes of counts that are drawn at a time."""

LEAST_BEND = 0.2
"""Added to b, whose logarithm is a parameter."""

SPLIT = 0.3
"""Deviation of the levels of experts that follow one captured expert, of all levels."""

MOST_FACTOR = 10.0


ARRAYS = {
    **dict.fromkeys(("amplitude", "dispersion"), ("run", "knot", "layer")),
    **dict.fromkeys(("bend", "slope"), ("run", "layer")),
    "level": ("run", "knot", "layer", "expert"),
    "autocorrelation": ("run", "knot", "layer", "lag"),
    "own": ("run", "layer", "expert"),
    "factors": ("run", "knot", "layer", "expert", "factor"),
}
"""Arrays of a surrogate and their axes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surrogate:
    """Parameters of n runs: K knots, L layers, E experts, H lags, Q factors."""

    k: int  # experts of a token
    tokens: int  # N of a rank
    ranks: int  # R, rows of all micro-batches
    ep: int  # ranks that hold as many consecutive experts each
    borders: Int64  # [K + 1] iterations of the windows, from 0 to T
    level: Float64  # [n, K, L, E] log-weights, mean 0
    amplitude: Float64  # [n, K, L] logarithm of the movement's standard deviation
    autocorrelation: Float64  # [n, K, L, H]
    bend: Float64  # [n, L] logarithm of LEAST_BEND + b
    dispersion: Float64  # [n, K, L] d
    slope: Float64  # [n, L] s
    own: Float64  # [n, L, E] r
    factors: Float64  # [n, K, L, E, Q] loadings; their squares sum to below 1

    @property
    def iterations(self) -> int:
        """Iterations T that it was fitted to."""
        return int(self.borders[-1])

    @property
    def knots(self) -> Float64:
        """Centers of the windows ``[K]``."""
        return np.asarray((self.borders[:-1] + self.borders[1:] - 1) / 2)


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Changes to what was fitted; the defaults change nothing."""

    skew: float = 1.0  # of all logarithms of weights
    drift: float = 1.0  # speed at which the load moves
    rank_imbalance: float = 1.0  # of differences between ranks beyond those of counting
    period: int = 0  # iterations after which the movement repeats; 0: never
    hand_over: int = 0  # iterations after which another expert is hottest; 0: fitted

    def __post_init__(self) -> None:
        """Raise LayoutError for a value that is out of range."""
        for name in ("skew", "drift", "rank_imbalance"):
            value = getattr(self, name)
            if not 0 <= value <= MOST_FACTOR or (name == "drift" and value == 0):
                raise LayoutError(
                    f"{name.replace('_', '-')} is a factor from 0 to {MOST_FACTOR:g}, "
                    f"drift above 0, but {value:g} was given: change "
                    f"--{name.replace('_', '-')}"
                )
        if self.period not in (0, *range(2, BLOCK + 1)) or self.hand_over < 0:
            raise LayoutError(
                f"a period is from 2 to {BLOCK} iterations and a hand-over after 1 or "
                f"more, but {self.period} and {self.hand_over} were given: change them"
            )


def sample(
    model: Surrogate,
    *,
    iterations: int,
    seed: int,
    ranks: int | None = None,
    experts: int | None = None,
    k: int | None = None,
    ep: int | None = None,
    knobs: Knobs | None = None,
) -> Sample:
    """Sample token counts; None: as fitted.

    Other experts have the quantiles of the captured levels, and each follows a captured
    expert.  More ranks are more rows like the captured ones.
    """
    size = model.level.shape[3] if experts is None else experts
    width = (model.ep if experts is None else 1) if ep is None else ep
    return Sample(
        model=model,
        run=_drawn_run(model, seed, size, width),
        iterations=iterations,
        seed=seed,
        ranks=model.ranks if ranks is None else ranks,
        k=model.k if k is None else k,
        knobs=knobs or Knobs(),
    )


def _drawn_run(model: Surrogate, seed: int, experts: int, ep: int) -> SimpleNamespace:
    """Draw the parameters of a run: those of ARRAYS, without the first axis."""
    rng = generator(seed, Use.RUN)
    runs, _, layers, fitted = model.level.shape
    size = np.sqrt((1 + 1 / runs) / max(runs - 1, 1))
    v = size * rng.standard_normal(runs)

    def blended(values: Float64) -> Float64:
        middle = values.mean(axis=0)
        return np.asarray(middle + np.tensordot(v, values - middle, axes=1))

    # Step 1: levels in ascending order, of other experts their quantiles
    values = blended(np.sort(model.level, axis=3))
    if experts != fitted:
        quantile = (np.arange(experts) + 0.5) / experts * fitted - 0.5
        below = np.clip(quantile, 0, fitted - 1).astype(int)
        above, share = (
            np.minimum(below + 1, fitted - 1),
            np.clip(quantile - below, 0, 1),
        )
        values = (1 - share) * values[..., below] + share * values[..., above]
    # Step 2: each expert follows a captured one: itself, or under another label if
    # there is one run only, which does not show what reruns have in common
    follows = np.empty((layers, experts), np.int64)
    for layer in range(layers):
        follows[layer] = np.arange(experts) * fitted // experts
        if experts != fitted:
            follows[layer] = rng.permutation(rng.permutation(fitted)[follows[layer]])
        elif runs == 1:
            follows[layer] = nested_order(experts, ep, rng)
    # Step 3: order of the experts, in which reruns differ by expert
    mean = model.level.mean(axis=0)
    w = size * rng.standard_normal((runs, layers, fitted))
    order = mean + np.einsum("nle,nkle->kle", w, model.level - mean)
    order = np.take_along_axis(order, follows[None], axis=2)
    if experts != fitted:
        order = order + SPLIT * order.std() * rng.standard_normal((layers, experts))
    run = {name: blended(getattr(model, name)) for name in ARRAYS}
    base = int(rng.integers(runs))
    run["level"] = np.take_along_axis(np.sort(values), _places(order), axis=2)
    run["own"] = np.take_along_axis(model.own[base], follows, axis=1)
    run["factors"] = np.take_along_axis(
        model.factors[base], follows[None, :, :, None], axis=2
    )
    return SimpleNamespace(**run)


def _places(values: Float64) -> Int64:
    """Place of each value in ascending order along the last axis."""
    return values.argsort(axis=-1, kind="stable").argsort(axis=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Token counts of a sample, which are drawn when they are read."""

    model: Surrogate
    run: SimpleNamespace  # drawn parameters, by the names in ARRAYS
    iterations: int
    seed: int
    ranks: int  # R, rows of all micro-batches
    k: int
    knobs: Knobs

    repeats_from = -1  # no iteration repeats another

    def counts(self) -> Int32:
        """All counts ``[T, L, R, E]``."""
        return np.concatenate(list(self.blocks()))

    def blocks(self) -> Iterator[Int32]:
        """The counts in the order of iterations, ``[b, L, R, E]`` each.

        They do not depend on the number of threads.
        """
        shape = (self.run.level.shape[1], self.ranks, self.run.level.shape[2])
        step = max(1, BLOCK_BYTES // (4 * int(np.prod(shape))))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for first in range(0, self.iterations, BLOCK):
                count = min(BLOCK, self.iterations - first)
                rows = self._rows(np.arange(first, first + count))
                for begin in range(0, count, step):
                    part = np.arange(begin, min(begin + step, count))
                    out = np.empty((len(part), *shape), np.int32)
                    iterations = (first + part).tolist()
                    draw = partial(self._draw, rows)
                    list(pool.map(draw, out, part.tolist(), iterations))
                    yield out

    def _levels(self, times: Int64) -> Float64:
        """Levels ``[b, L, E]``; the order of experts changes as fast as asked for.

        After the captured iterations it changes backward and forward again.
        """
        knots, last = self.model.knots, self.model.knots[-1]
        level = at_times(knots, self.run.level, times)
        when = self.knobs.drift * times
        if when[-1] > last or self.knobs.drift != 1:
            turned = last - np.abs(when % max(2 * last, 1) - last)
            order = _places(at_times(knots, self.run.level, turned))
            level = np.take_along_axis(np.sort(level, axis=2), order, axis=2)
        if self.knobs.hand_over:
            rng = generator(self.seed, Use.HAND_OVER)
            heirs = rng.permuted(
                np.tile(np.arange(level.shape[2]), (level.shape[1], 1)), axis=1
            )
            number = times // self.knobs.hand_over % level.shape[2]
            heir = heirs.T[number][..., None]  # [b, L, 1]
            hottest = self.run.level.mean(axis=0).argmax(axis=1)[None, :, None]
            hot = np.broadcast_to(hottest, heir.shape)
            own, other = (np.take_along_axis(level, of, axis=2) for of in (hot, heir))
            np.put_along_axis(level, hot, other, axis=2)
            np.put_along_axis(level, heir, own, axis=2)
        return level * self.knobs.skew

    def _rows(self, times: Int64) -> Rows:
        """What the rows of a block of iterations are drawn from."""
        model, run, knots, k = self.model, self.run, self.model.knots, self.k
        experts = run.level.shape[2]
        amplitude = np.exp(at_times(knots, run.amplitude, times)) * self.knobs.skew
        y = self._levels(times) + amplitude[..., None] * self._movement(times)
        bend = np.maximum(np.exp(run.bend) - LEAST_BEND, 0)[:, None]
        x = y - np.log1p(bend * probabilities(y, k) * experts / k)
        pi: Float64 = np.asarray(probabilities(x, k), np.float64)
        dispersion = at_times(knots, run.dispersion, times)[..., None] + run.own
        dispersion += run.slope[:, None] * np.log(pi * experts / k + 1e-6)
        dispersion = np.exp(np.clip(dispersion, -3, 6))
        dispersion += (self.knobs.rank_imbalance**2 - 1) * np.maximum(dispersion - 1, 0)
        variance = dispersion * pi * (1 - pi) / model.tokens
        center, scale = squared_normal(pi, variance)
        window = np.searchsorted(model.borders, times, side="right") - 1
        factors = run.factors.swapaxes(2, 3)
        return Rows(
            center=center.astype(np.float32),
            scale=scale.astype(np.float32),
            window=np.minimum(window, len(knots) - 1),
            factors=np.ascontiguousarray(factors, np.float32),
            rest=np.sqrt(1 - (run.factors**2).sum(axis=3)).astype(np.float32),
        )

    def _movement(self, times: Int64) -> Float64:
        """Normal movement ``[b, L, E]`` of variance 1.

        White noise of three blocks is filtered to the spectrum of each knot.
        """
        auto, drift = self.run.autocorrelation, self.knobs.drift
        count, layers, lags = auto.shape
        block = 0 if self.knobs.period else int(times[0]) // BLOCK
        lag = np.arange(min(int(np.ceil(lags / drift)), BLOCK)) * drift
        auto = at_times(
            np.arange(lags), np.moveaxis(auto, 2, 0), np.minimum(lag, lags - 1)
        )
        full = np.zeros((3 * BLOCK, count, layers))
        full[: len(lag)] = auto
        full[len(full) - len(lag) + 1 :] = auto[:0:-1]
        power = np.maximum(np.fft.rfft(full, axis=0).real, 0)
        power *= len(full) / 2 / np.maximum(power.sum(axis=0), 1e-9)
        shape = (BLOCK, *self.run.level.shape[1:])
        white = [
            generator(self.seed, Use.MOVEMENT, number).standard_normal(shape)
            for number in range(block, block + 3)
        ]
        spectrum = np.fft.rfft(np.concatenate(white), axis=0)
        weights = at_times(self.model.knots, np.eye(count), times)  # [b, K]
        out = np.zeros((len(times), *shape[1:]))
        period = self.knobs.period
        rows = BLOCK + (times % period if period else np.arange(len(times)))
        for knot in np.flatnonzero(weights.any(axis=0)):
            filtered = np.sqrt(power[:, knot])[..., None] * spectrum
            own = np.fft.irfft(filtered, len(full), axis=0)[rows]
            out += weights[:, knot, None, None] * own
        return out

    def _draw(self, rows: Rows, out: Int32, at: int, iteration: int) -> None:
        """Fill the counts ``[L, R, E]`` of an iteration."""
        factors, rest = rows.factors[rows.window[at]], rows.rest[rows.window[at]]
        rng = generator(self.seed, Use.RANKS, iteration)
        shared = rng.standard_normal((self.ranks, factors.shape[1]), np.float32)
        for layer, into in enumerate(out):
            rng = generator(self.seed, Use.COUNTS, iteration, layer)
            shares = rng.standard_normal(into.shape, np.float32)
            shares *= rest[layer]
            # no BLAS: it would sum in another order on other machines and threads
            shares += np.einsum("rq,qe->re", shared, factors[layer])
            shares += rows.center[at, layer]
            np.maximum(shares, 0, out=shares)
            shares *= shares
            shares *= rows.scale[at, layer]
            np.clip(shares, 1e-7, 1, out=shares)
            shares = bounded(shares, self.k)
            copies = self.k * self.model.tokens
            into[:] = rounded(shares, copies, rng.random(self.ranks))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Distribution of the rows of b iterations: squares of censored normals."""

    center: Float32  # [b, L, E] means of normals of variance 1
    scale: Float32  # [b, L, E] of the squares
    window: Int64  # [b] of the factors
    factors: Float32  # [K, L, Q, E] loadings
    rest: Float32  # [K, L, E] deviation that is a cell's own


def at_times(
    knots: Float64 | Int64, values: Float64, times: Float64 | Int64
) -> Float64:
    """Interpolate ``[K, ...]`` at knots linearly at times, constant beyond the ends."""
    place = np.interp(times, knots, np.arange(len(knots)))
    low = np.minimum(place.astype(int), max(len(knots) - 2, 0))
    high = np.minimum(low + 1, len(knots) - 1)
    share = (place - low).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray((1 - share) * values[low] + share * values[high])
