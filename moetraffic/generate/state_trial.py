"""States by trial: what samples of the fitted states do to the load, put right.

States move in logarithms, and loads are what was seen: exp bends one into the other,
the more the farther states move.  So the fitted states are drawn, many paths at once,
and their loads' mean, variance, skewness and tails around each knot are held against
the captured ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .dynamics import Dynamics, Steps
from .inclusion import inclusion, weights_of
from .latent import Seen
from .local_memory import kernel

Float64 = npt.NDArray[np.float64]

PATHS = 48
"""Drawn at once."""

TRIES = 8

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
    kernels = np.array([kernel(count, knot) for knot in d.knots])  # [K, n]
    middle = np.array([inclusion(np.exp(d.trend(t)), k) for t in range(count)])
    noise = look.noise * look.answer**2
    mean = np.einsum("kt,tle->kle", kernels, load)
    wanted = np.einsum("kt,tle->kle", kernels, (load - middle) ** 2)
    wanted = np.maximum(
        wanted - np.einsum("kt,tle->kle", kernels, noise), 0.02 * wanted
    )
    trust = 1 / (kernels**2).sum(axis=1)
    trust = (trust / (trust + TRUST))[:, None, None]
    cubes = np.einsum("kt,tle->kle", kernels, (load - middle) ** 3)
    wanted_skew = _skew(wanted, cubes, mean)
    # the fourth cumulant of normal noise is 0
    fourth = np.einsum("kt,tle->kle", kernels, (load - middle) ** 4)
    chance = np.einsum("kt,tle->kle", kernels, noise)
    fourth = fourth - 6 * wanted * chance - 3 * chance**2
    wanted_tail = _tail(wanted, fourth, mean)
    # where chance is most of what is seen, tails are not
    sure = (wanted / mean).sum(axis=2) > 2 * (chance / mean).sum(axis=2)
    for _ in range(TRIES):
        drawn_mean, square, cube, fourth = _loads(d, middle, k)
        fourth = np.einsum("kt,tle->kle", kernels, fourth)
        cubes = np.einsum("kt,tle->kle", kernels, cube)
        got_mean = np.einsum("kt,tle->kle", kernels, drawn_mean)
        got = np.einsum("kt,tle->kle", kernels, square)
        by_layer = (wanted / mean).sum(axis=2) / np.maximum(
            (got / mean).sum(axis=2), 1e-15
        )
        by_layer = np.clip(by_layer, *STEP)[:, :, None]
        alone = np.clip(wanted / np.maximum(got, 1e-15), *STEP) / by_layer
        scale = d.scale * np.sqrt(np.maximum(alone, 1e-3)) ** trust
        unit = np.sqrt((scale**2 * mean).sum(axis=2) / mean.sum(axis=2))
        more = _skew(got, cubes, mean) - wanted_skew
        bend = np.clip(d.bend + BEND * more, *MOST_BEND)
        heavier = np.where(sure, _tail(got, fourth, mean) - wanted_tail, 0.0)
        limit = np.clip(d.limit + LIMIT * heavier, *MOST_LIMIT)
        level = np.log(weights_of(mean, k) / weights_of(got_mean, k))
        d = replace(
            d,
            bend=bend,
            limit=limit,
            scale=scale / unit[:, :, None],
            sd=d.sd * np.sqrt(by_layer),
            shift=d.shift + np.clip(level, -0.5, 0.5),
        )
    return d


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


def _loads(
    d: Dynamics, middle: Float64, k: int
) -> tuple[Float64, Float64, Float64, Float64]:
    """Mean loads; their distance to a middle squared, cubed, to the 4th; [n, L, E]."""
    rng = np.random.default_rng(0)
    _, size = d.sizes(0)
    shape = (*size.shape, PATHS)
    steps = Steps(d, np.zeros(shape))
    mean, square, cube, fourth = (np.empty_like(middle) for _ in range(4))
    for t in range(len(middle)):
        if t:
            _, size = d.sizes(t)
            steps.take(t, rng.standard_normal(shape))
        moved = (steps.unit * size[..., None]).sum(axis=1)
        state = d.trend(t)[..., None] + d.bent(moved, t)
        state -= state.max(axis=1, keepdims=True)
        drawn = inclusion(np.exp(state).transpose(2, 0, 1), k)  # [PATHS, L, E]
        mean[t] = drawn.mean(axis=0)
        apart = drawn - middle[t]
        square[t], cube[t] = (apart**2).mean(axis=0), (apart**3).mean(axis=0)
        fourth[t] = (apart**4).mean(axis=0)
    return mean, square, cube, fourth
