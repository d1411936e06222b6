"""States by trial: what samples of the fitted states do to the load, put right.

States move in logarithms, and loads are what was seen: exp bends one into the other,
the more the farther states move.  So the fitted states are drawn, many paths at once,
and their loads' mean, variance, skewness and tails around each knot are held against
the captured ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .dynamics import Dynamics, Steps
from .inclusion import inclusion, weights_of
from .latent import Seen
from .local_memory import kernel

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

PATHS = 48
"""Drawn at once."""

TRIES = 15

APART = 0.025
"""Moments that are looked at are so far apart, as a share of the run's age."""

LIMIT = 0.5
"""By which the limit grows with a tail too heavy."""

MOST_LIMIT = (0.0, 3.0)
"""From none to two values."""

BEND = 0.3
"""By which the bend grows with a skewness too large."""

MOST_BEND = (0.0, 1.0)
"""From exp to a straight line."""

STEP = (0.5, 1.6)
"""By how much a variance changes in one try, at least and at most."""

TRUST = 12.0
"""Iterations at which an expert's own variance counts for half."""


def tried(dynamics: Dynamics, look: Seen, load: Float64, *, k: int) -> Dynamics:
    """The states whose loads are and vary as the captured ones.

    Parameters
    ----------
    dynamics
        As fitted, without a coupling of layers.
    look
        With the noise of states.
    load
        ``[n, L, E]`` probability that a token holds an expert, captured.
    k
        Experts of a token.
    """
    count = len(load)
    d = dynamics
    # loads of samples change slowly with age: they are looked at less often later
    when = _moments(count)
    nearest = np.abs(np.subtract.outer(np.arange(count), when)).argmin(axis=1)
    kernels = np.array([kernel(count, knot) for knot in d.knots])  # [K, n]
    middle = np.array([inclusion(np.exp(d.trend(t)), k) for t in range(count)])
    few = np.zeros((len(kernels), len(when)))
    np.add.at(few.T, nearest, kernels.T)
    noise = look.noise * look.answer**2
    mean = np.einsum("kt,tle->kle", kernels, load)
    raw = [(load - middle) ** power for power in range(1, 5)]
    # what loads are off on average is the trend's, and no movement
    wanted, cubes, fourth = _central(kernels, raw)
    chance = np.einsum("kt,tle->kle", kernels, noise)
    wanted = np.maximum(wanted - chance, 0.02 * wanted)
    trust = 1 / (kernels**2).sum(axis=1)
    trust = (trust / (trust + TRUST))[:, None, None]
    wanted_skew = _skew(wanted, cubes, mean)
    # the fourth cumulant of normal noise is 0
    fourth = fourth - 6 * wanted * chance - 3 * chance**2
    wanted_tail = _tail(wanted, fourth, mean)
    # where chance is most of what is seen, tails are not
    sure = (wanted / mean).sum(axis=2) > 2 * (chance / mean).sum(axis=2)
    for at in range(TRIES):
        # what is put right together disturbs each other: in ever smaller steps
        pace = min(1.0, 5 / (at + 1))
        drawn = _loads(d, middle, k, when)
        got, cubes, fourth = _central(few, drawn)
        got_mean = np.einsum("kt,tle->kle", few, drawn[0])
        got_mean += np.einsum("kt,tle->kle", kernels, middle)
        by_layer = (wanted / mean).sum(axis=2) / np.maximum(
            (got / mean).sum(axis=2), 1e-15
        )
        by_layer = np.clip(by_layer, *STEP)[:, :, None] ** pace
        alone = np.clip(wanted / np.maximum(got, 1e-15), *STEP) ** pace / by_layer
        scale = d.scale * np.sqrt(np.maximum(alone, 1e-3)) ** trust
        unit = np.sqrt((scale**2 * mean).sum(axis=2) / mean.sum(axis=2))
        more = _skew(got, cubes, mean) - wanted_skew
        bend = np.clip(d.bend + pace * BEND * more, *MOST_BEND)
        heavier = np.where(sure, _tail(got, fourth, mean) - wanted_tail, 0.0)
        limit = np.clip(d.limit + pace * LIMIT * heavier, *MOST_LIMIT)
        level = np.log(weights_of(mean, k) / weights_of(got_mean, k))
        d = replace(
            d,
            bend=bend,
            limit=limit,
            scale=scale / unit[:, :, None],
            sd=d.sd * np.sqrt(by_layer),
            shift=d.shift + pace * np.clip(level, -0.5, 0.5),
        )
    return d


def _central(
    kernels: Float64, raw: Sequence[Float64]
) -> tuple[Float64, Float64, Float64]:
    """Central moments 2 to 4, ``[K, L, E]``, of raw ones 1 to 4, ``[n, L, E]`` each."""
    one, two, three, four = (np.einsum("kt,tle->kle", kernels, x) for x in raw)
    return (
        two - one**2,
        three - 3 * one * two + 2 * one**3,
        four - 4 * one * three + 6 * one**2 * two - 3 * one**4,
    )


def _tail(square: Float64, fourth: Float64, mean: Float64) -> Float64:
    """Fourth moment over that of normal loads so large, ``[K, L]``, all together."""
    least = 3 * ((square / mean) ** 2).sum(axis=2)
    return np.asarray((fourth / mean**2).sum(axis=2) / np.maximum(least, 1e-15))


def _skew(square: Float64, cube: Float64, mean: Float64) -> Float64:
    """Skewness ``[K, L]`` of the loads, all experts together."""
    second = (square / mean).sum(axis=2)
    third = (cube / mean**1.5).sum(axis=2)
    experts = np.sqrt(mean.shape[2])
    return np.asarray(third / np.maximum(second, 1e-15) ** 1.5 * experts)


def _moments(count: int) -> Int64:
    """Iterations that are looked at, ascending, ever farther apart."""
    out = [0]
    while out[-1] < count - 1:
        out.append(min(out[-1] + max(1, int(APART * out[-1])), count - 1))
    return np.array(out)


def _loads(d: Dynamics, middle: Float64, k: int, when: Int64) -> Sequence[Float64]:
    """Loads less a middle: mean, square, cube and 4th power at moments, [m, L, E]."""
    rng = np.random.default_rng(0)
    _, size = d.sizes(0)
    shape = (*size.shape, PATHS)
    steps = Steps(d, np.zeros(shape))
    out = np.empty((4, len(when), *middle.shape[1:]))
    at = 0
    for t in range(int(when[-1]) + 1):
        if t:
            steps.take(t, rng.standard_normal(shape))
        if t < when[at]:
            continue
        _, size = d.sizes(t)
        moved = (steps.unit * size[..., None]).sum(axis=1)
        state = d.trend(t)[..., None] + d.bent(moved, t)
        state -= state.max(axis=1, keepdims=True)
        drawn = inclusion(np.exp(state).transpose(2, 0, 1), k)  # [PATHS, L, E]
        apart = drawn - middle[t]
        for power in range(1, 5):
            out[power - 1, at] = (apart**power).mean(axis=0)
        at += 1
    return list(out)
