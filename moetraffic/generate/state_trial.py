"""Correct the fitted states by comparing samples of the load with the capture.

States move in logarithms, and loads are what was seen: exp bends one into the other,
the more the farther states move.  So the fitted states are drawn, many paths at once,
and their loads' mean, variance, skewness and tails around each knot are held against
the captured ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .bent_memory import state_correlations
from .dynamics import Dynamics, Steps, bounded
from .inclusion import inclusion, weights_of
from .latent import Seen
from .local_memory import kernel, partial_of

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

PATHS = 48
"""Drawn at once."""

TRIES = 15

ROUNDS = 2
"""Tries, half as many each, that estimate the spread of sample means."""

LEAST_LOAD = 1e-7
"""Of an expert that got nothing, for its logarithm."""

SURE = 0.5
"""Variance over that by chance, above which tails are told."""

APART = 0.025
"""Moments that are looked at are so far apart, as a share of the run's age."""

LIMIT = 0.5
"""By which the limit grows with a tail too heavy."""

MOST_LIMIT = (0.0, 3.0)
"""From none to two values."""

BEND = 0.3
"""By which the bend grows with a skewness too large."""

MOST_BEND = (-1.0, 3.0)
"""From tails longer than those of exp to those shorter than a straight line's."""

FARTHEST = 0.5
"""Of a skewness or tail, what is put right in one try: a single path may have it."""

OWN_SHAPE = 8.0
"""Iterations at which an expert's own skewness and tail count for half."""

STEP = (0.5, 1.6)
"""By how much a variance changes in one try, at least and at most."""

MOST_SIZE = 6.0
"""Standard deviation of a state: one that moves farther has all or nothing."""

TRUST = 12.0
"""Iterations at which an expert's own variance counts for half."""


def tried(
    dynamics: Dynamics, look: Seen, load: Float64, alike: Float64, *, k: int
) -> Dynamics:
    """The states whose loads are and vary as the captured ones.

    Parameters
    ----------
    dynamics
        As fitted, without a coupling of layers.
    look
        With the noise of states.
    load
        ``[n, L, E]`` probability that a token holds an expert, captured.
    alike
        ``[K, L, E, P + 1]`` autocorrelations of the load around knots.
    k
        Experts of a token.
    """
    count = len(load)
    # loads of samples change slowly with age: they are looked at less often later
    when = _moments(count)
    nearest = np.abs(np.subtract.outer(np.arange(count), when)).argmin(axis=1)
    kernels = np.array([kernel(count, knot) for knot in dynamics.knots])  # [K, n]
    few = np.zeros((len(kernels), len(when)))
    np.add.at(few.T, nearest, kernels.T)
    middle = np.array([inclusion(np.exp(dynamics.trend(t)), k) for t in range(count)])
    goal = _goal(kernels, load, middle, look.noise * look.answer**2, _third(look))
    trial = _Trial(kernels=kernels, few=few, when=when, middle=middle, k=k)
    d = _remembering(trial.put_right(dynamics, goal, TRIES), alike)
    # A stretch of the run has a mean of its own, by chance, and varies around that one:
    # what is there for good is less far apart than the means, and moves farther.
    even = k / load.shape[2]
    spread = goal.mean - even
    for _ in range(ROUNDS):
        slow = trial.wander(d)
        off = (slow + goal.chance).sum(axis=2) / np.maximum(
            (spread**2).sum(axis=2), 1e-15
        )
        kept = np.sqrt(np.clip(1 - off, 0.0, 1.0))[..., None]
        # by ratios: what is cold stays so
        mean = (np.maximum(goal.mean, LEAST_LOAD) / even) ** kept
        mean *= k / mean.sum(axis=2, keepdims=True)
        more = replace(goal, mean=mean, square=goal.square + slow)
        d = _remembering(trial.put_right(d, more, TRIES // 2, done=TRIES // 2), alike)
    return d


def _remembering(d: Dynamics, alike: Float64) -> Dynamics:
    """With a memory whose loads, bent as they are, have the captured one."""
    return replace(d, partial=partial_of(state_correlations(d, alike)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Goal:
    """What loads are to be around each knot."""

    mean: Float64  # [K, L, E]
    square: Float64  # [K, L, E] variance of the states' part
    skew: Float64  # [K, L]
    tail: Float64  # [K, L]
    sure: npt.NDArray[np.bool_]  # [K, L] whether tails can be told from chance
    skews: Float64  # [K, L, E]
    tails: Float64  # [K, L, E]
    told: Float64  # [K, L, E] trust in each expert's own shape
    trust: Float64  # [K, 1, 1] in each expert's own variance
    chance: Float64  # [K, L, E] variance of the mean by rows' chance

    def off(self, together: Float64, alone: Float64) -> Float64:
        """Of what all experts are off together ``[K, L]`` and each alone: its part."""
        off = (1 - self.told) * together[..., None] + self.told * alone
        return np.asarray(np.clip(off, -FARTHEST, FARTHEST))


def _third(look: Seen) -> Float64:
    """Third cumulant ``[n, L, E]`` of the mean load by rows' chance."""
    rows = look.rows.shape[1]
    if rows < 3:
        return np.zeros_like(look.answer)
    cubes = ((look.rows * look.answer[:, None]) ** 3).sum(axis=1)
    return np.asarray(cubes / ((rows - 1) * (rows - 2) * rows), np.float64)


def _goal(
    kernels: Float64, load: Float64, middle: Float64, noise: Float64, third: Float64
) -> _Goal:
    mean = np.einsum("kt,tle->kle", kernels, load)
    raw = [(load - middle) ** power for power in range(1, 5)]
    # what loads are off on average is the trend's, and no movement
    square, cubes, fourth = _central(kernels, raw)
    chance = np.einsum("kt,tle->kle", kernels, noise)
    square = np.maximum(square - chance, 0.02 * square)
    cubes = cubes - np.einsum("kt,tle->kle", kernels, third)
    # the fourth cumulant of normal noise is 0
    fourth = fourth - 6 * square * chance - 3 * chance**2
    known = 1 / (kernels**2).sum(axis=1)[:, None, None]
    clear = square / np.maximum(square + chance, 1e-300)
    told = known * clear**3
    return _Goal(
        mean=mean,
        square=square,
        skew=_skew(square, cubes, mean),
        tail=_tail(square, fourth, mean),
        # where chance is most of what is seen, tails are not
        sure=(square / mean).sum(axis=2) > SURE * (chance / mean).sum(axis=2),
        skews=_over(cubes, square**1.5, 3.0),
        tails=np.maximum(_over(fourth, 3 * square**2, 3.0), 0.3),
        told=told / (told + OWN_SHAPE),
        trust=known / (known + TRUST),
        chance=np.einsum("kt,tle->kle", kernels**2, noise),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial:
    """Samples of states, compared with targets."""

    kernels: Float64  # [K, n] weights of iterations around knots
    few: Float64  # [K, m] those of the moments that are looked at
    when: Int64  # [m]
    middle: Float64  # [n, L, E] loads of the trend at first
    k: int

    def put_right(
        self, d: Dynamics, goal: _Goal, tries: int, done: int = 0
    ) -> Dynamics:
        """The states nearer to the goal, after so many tries."""
        mean = goal.mean
        for at in range(tries):
            # what is put right together disturbs each other: in ever smaller steps
            pace = min(1.0, 5 / (done + at + 1))
            drawn = self._loads(d)
            got, cubes, fourth = _central(self.few, drawn)
            got_mean = np.einsum("kt,tle->kle", self.few, drawn[0])
            got_mean += np.einsum("kt,tle->kle", self.kernels, self.middle)
            by_layer = (goal.square / mean).sum(axis=2) / np.maximum(
                (got / mean).sum(axis=2), 1e-15
            )
            by_layer = np.clip(by_layer, *STEP)[:, :, None] ** pace
            alone = np.clip(goal.square / np.maximum(got, 1e-15), *STEP) ** pace
            alone = np.maximum(alone / by_layer, 1e-3)
            scale = d.scale * np.sqrt(alone) ** goal.trust
            sd = d.sd * np.sqrt(by_layer)
            most = MOST_SIZE / np.maximum(np.sqrt((sd**2).sum(axis=2)), 1e-9)
            unit = np.sqrt((scale**2 * mean).sum(axis=2) / mean.sum(axis=2))
            more = goal.off(
                _skew(got, cubes, mean) - goal.skew,
                _over(cubes, got**1.5, 3.0) - goal.skews,
            )
            heavier = goal.off(
                _tail(got, fourth, mean) - goal.tail,
                _over(fourth, 3 * got**2, 3.0) - goal.tails,
            )
            heavier = np.where(goal.sure[..., None], heavier, 0.0)
            level = np.log(weights_of(mean, self.k) / weights_of(got_mean, self.k))
            d = replace(
                d,
                bend=np.clip(d.bend + pace * BEND * more, *MOST_BEND),
                limit=np.clip(d.limit + pace * LIMIT * heavier, *MOST_LIMIT),
                scale=np.minimum(scale / unit[:, :, None], most[..., None]),
                sd=sd,
                shift=d.shift + pace * np.clip(level, -0.5, 0.5),
            )
        return d

    def wander(self, d: Dynamics) -> Float64:
        """Variance ``[K, L, E]`` of the mean load around knots, from run to run."""
        _, layers, experts = self.middle.shape
        sums = np.zeros((len(self.kernels), PATHS, layers, experts))
        for t, load in self._drawn(d, range(len(self.middle))):
            near = self.kernels[:, t] > 0
            sums[near] += self.kernels[near, t, None, None, None] * load
        return np.asarray(sums.var(axis=1, ddof=1), np.float64)

    def _loads(self, d: Dynamics) -> Sequence[Float64]:
        """Loads less the middle: mean and powers to the 4th at moments, [m, L, E]."""
        out = np.empty((4, len(self.when), *self.middle.shape[1:]))
        for at, (t, load) in enumerate(self._drawn(d, self.when.tolist())):
            apart = load - self.middle[t]
            for power in range(1, 5):
                out[power - 1, at] = (apart**power).mean(axis=0)
        return list(out)

    def _drawn(self, d: Dynamics, when: Sequence[int]) -> Iterator[tuple[int, Float64]]:
        """Loads ``[PATHS, L, E]`` of samples at some iterations, ascending."""
        rng = np.random.default_rng(0)
        _, size = d.sizes(0)
        shape = (*size.shape, PATHS)
        steps = Steps(d, np.zeros(shape))
        at = 0
        for t in range(when[-1] + 1):
            if t:
                steps.take(t, rng.standard_normal(shape))
            if t < when[at]:
                continue
            moved = d.bent(d.deviation(steps.unit, t), t)
            state = bounded(d.trend(t)[..., None] + moved)
            state -= state.max(axis=1, keepdims=True)
            yield t, inclusion(np.exp(state).transpose(2, 0, 1), self.k)
            at += 1


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


def _over(moment: Float64, unit: Float64, most: float) -> Float64:
    """A moment over its unit, at most so far from 0."""
    return np.asarray(np.clip(moment / np.maximum(unit, 1e-30), -most, most))


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
