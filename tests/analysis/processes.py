"""Twelve processes whose properties are known, of drawn settings.

Each takes a generator of random numbers and a number of iterations T, or steps.  Loads
are token copies ``[T, E]`` of top-1 routing, bursts are profiles of steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from moetraffic.arrays import Float64, Int64

BINS = 64
"""Bins of a step."""


def _counts(logits: Float64, rng: np.random.Generator) -> Int64:
    """Draw the tokens of each iteration from its shares."""
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return rng.multinomial(int(rng.integers(1024, 8193)), shares)


def _level(rng: np.random.Generator) -> Float64:
    """Draw logits ``[1, E]`` of a skewed router."""
    return rng.normal(0, 0.5, (1, int(rng.choice([8, 16, 32]))))


def _returning(
    rng: np.random.Generator, total: int, experts: int, half: float
) -> Float64:
    """Draw autoregressive logits of variance 1 and a half-life in iterations."""
    phi, warm = 0.5 ** (1 / half), round(10 * half)
    noise = rng.normal(0, np.sqrt(1 - phi**2), (total + warm, experts))
    return np.asarray(lfilter([1], [1, -phi], noise, axis=0)[warm:])


def balanced(rng: np.random.Generator, total: int) -> Int64:
    """All experts have the same probability."""
    return _counts(np.zeros((total, _level(rng).size)), rng)


def skewed(rng: np.random.Generator, total: int) -> Int64:
    """Experts have different probabilities, which do not change."""
    return _counts(np.repeat(_level(rng), total, axis=0), rng)


def redrawn(rng: np.random.Generator, total: int) -> Int64:
    """Probabilities are drawn again in each iteration."""
    return _counts(rng.normal(0, 0.4, (total, _level(rng).size)), rng)


def ar8(rng: np.random.Generator, total: int) -> Int64:
    """Logits swing about a level; half of a swing is over after 8 iterations."""
    level = _level(rng)
    return _counts(level + 0.3 * _returning(rng, total, level.size, 8), rng)


def ar30(rng: np.random.Generator, total: int) -> Int64:
    """Logits swing about a level; half of a swing is over after 30 iterations."""
    level = _level(rng)
    return _counts(level + 0.3 * _returning(rng, total, level.size, 30), rng)


def walk(rng: np.random.Generator, total: int) -> Int64:
    """Logits are a random walk of 0.04 an iteration."""
    level = _level(rng)
    changes = rng.normal(0, 0.04, (total, level.size))
    return _counts(level + changes.cumsum(axis=0), rng)


def line(rng: np.random.Generator, total: int) -> Int64:
    """Logits shrink along a line through the whole run, to a fifth."""
    level = 1.6 * _level(rng)
    swings = 0.1 * _returning(rng, total, level.size, 8)
    return _counts(level * np.linspace(1, 0.2, total)[:, None] + swings, rng)


def fading(rng: np.random.Generator, total: int) -> Int64:
    """Logits fade exponentially, in a fifth of the run by 1/e."""
    level = 1.6 * _level(rng)
    swings = 0.15 * _returning(rng, total, level.size, 8)
    faded = np.exp(-5 * np.arange(total) / total)[:, None]
    return _counts(level * faded + swings, rng)


def collapse(rng: np.random.Generator, total: int) -> Int64:
    """One expert takes nearly all tokens, from 20% to 60% of the run on."""
    level, at = _level(rng), rng.uniform(0.2, 0.6) * total
    logits = np.repeat(level, total, axis=0)
    rise = 1 / (1 + np.exp(-(np.arange(total) - at) / (0.02 * total)))
    logits[:, 0] += (np.log(level.size) + 4) * rise
    return _counts(logits, rng)


def period10(rng: np.random.Generator, total: int) -> Int64:
    """Logits oscillate with a period of 10 iterations."""
    level = _level(rng)
    phase = 2 * np.pi * np.arange(total)[:, None] / 10
    wave = np.sin(phase + rng.uniform(0, 2 * np.pi, level.size))
    return _counts(level + 0.25 * wave, rng)


def jittered_steps(rng: np.random.Generator, total: int) -> Float64:
    """A step is 1 to 5 bursts, at times that vary by 5% of the step; its length by 8%.

    A profile is of a step, which begins with its first burst.
    """
    number = int(rng.integers(1, 6))
    slots = rng.dirichlet(np.full(number, 4.0))
    begin = np.concatenate(([0.0], slots.cumsum()[:-1]))
    on = slots * rng.uniform(0.2, 0.6, number)
    length = rng.gamma(1 / 0.08**2, 0.08**2, (total, 1))
    first = (begin + 0.05 * rng.normal(size=(total, number))) / length
    first -= first[:, :1].copy()
    return _profiles(first, first + on / length)


def exponential_bursts(rng: np.random.Generator, total: int) -> Float64:
    """Bursts and gaps of exponential lengths, the mean of both together one step."""
    duty, number = rng.uniform(0.2, 0.6), 2 * total
    on, off = rng.exponential(duty, number), rng.exponential(1 - duty, number)
    last = (on + off).cumsum()
    first = last - on
    edges = np.arange(total * BINS + 1) / BINS + first[0]
    passed = np.interp(edges, np.stack([first, last], 1).ravel(), _on_until(on))
    return np.asarray(np.diff(passed).reshape(total, BINS) * BINS)


def _on_until(on: Float64) -> Float64:
    """Time that is on until the start and the end of each burst, ``[2n]``."""
    until = on.cumsum()
    return np.stack([until - on, until], 1).ravel()


def _profiles(first: Float64, last: Float64) -> Float64:
    """Compute the share of each bin in which bursts ``[n, B]`` of a step are on."""
    edges = np.arange(BINS + 1) / BINS
    until = np.clip(edges - first[..., None], 0, (last - first)[..., None]).sum(axis=1)
    return np.asarray(np.minimum(np.diff(until, axis=1) * BINS, 1.0))


LOADS: dict[str, Callable[[np.random.Generator, int], Int64]] = {
    "balanced": balanced,
    "skewed": skewed,
    "redrawn": redrawn,
    "AR 8": ar8,
    "AR 30": ar30,
    "walk": walk,
    "line to even": line,
    "fading": fading,
    "collapse": collapse,
    "period 10": period10,
}

BURSTS: dict[str, Callable[[np.random.Generator, int], Float64]] = {
    "jittered steps": jittered_steps,
    "exponential bursts": exponential_bursts,
}
