"""Processes of expert load whose properties are known: truth.csv lists them.

Each takes a generator of random numbers and the number of iterations, draws its
setting, and returns token copies ``[T, E]``, int64, of top-1 routing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Float64, Int64


@dataclass(frozen=True, kw_only=True)
class Loads:
    """A run of a known process."""

    counts: Int64  # [T, E] token copies, top-1
    tokens: int  # of an iteration
    truth: dict[str, float] = field(default_factory=dict)  # figures that are known


def _counts(logits: Float64, rng: np.random.Generator, **truth: float) -> Loads:
    """Draw the tokens of each iteration from its shares."""
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    tokens = int(rng.integers(1024, 8193))
    return Loads(counts=rng.multinomial(tokens, shares), tokens=tokens, truth=truth)


def _experts(rng: np.random.Generator) -> int:
    return int(rng.choice([8, 16, 32]))


def _level(rng: np.random.Generator, experts: int) -> Float64:
    """Draw logits that are constant over time, as of a trained router."""
    return rng.normal(0, 0.5, experts)


def balanced(rng: np.random.Generator, steps: int) -> Loads:
    """All experts have the same probability, at all times."""
    return _counts(np.zeros((steps, _experts(rng))), rng, stationary=1)


def skewed(rng: np.random.Generator, steps: int) -> Loads:
    """Experts have different probabilities, which do not change."""
    level = _level(rng, _experts(rng))
    return _counts(np.tile(level, (steps, 1)), rng, stationary=1)


def _walk(rng: np.random.Generator, steps: int, change: float) -> Loads:
    experts = _experts(rng)
    return _counts(rng.normal(0, change, (steps, experts)).cumsum(axis=0), rng)


def slow_walk(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are a random walk of .01 an iteration."""
    return _walk(rng, steps, 0.01)


def walk(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are a random walk of .03 an iteration."""
    return _walk(rng, steps, 0.03)


def fast_walk(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are a random walk of .1 an iteration."""
    return _walk(rng, steps, 0.1)


def autoregression(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are an AR(1) around a level, with a coefficient of .8 to .92."""
    experts, phi = _experts(rng), rng.uniform(0.8, 0.92)
    states = _returning(rng, steps, experts, phi)
    half_life = float(np.log(0.5) / np.log(phi))
    level = _level(rng, experts)
    return _counts(level + 0.25 * states, rng, half_life=half_life, stationary=1)


def _returning(
    rng: np.random.Generator, steps: int, experts: int, phi: float
) -> Float64:
    """Draw AR(1) states of variance 1, ``[steps, experts]``."""
    states = rng.normal(0, 1, (steps, experts))
    for now, before in zip(states[1:], states, strict=False):
        now *= np.sqrt(1 - phi**2)
        now += phi * before
    return states


def step(rng: np.random.Generator, steps: int) -> Loads:
    """Probabilities change once, at 25% to 60% of the run."""
    experts, at = _experts(rng), int(rng.uniform(0.25, 0.6) * steps)
    logits = np.tile(_level(rng, experts), (steps, 1))
    logits[at:] += rng.normal(0, 0.3, experts)
    return _counts(logits, rng, change=at)


def trend(rng: np.random.Generator, steps: int) -> Loads:
    """Logits change along a line through the whole run."""
    experts = _experts(rng)
    slope = rng.normal(0, 0.8, experts)
    return _counts(
        _level(rng, experts) + np.linspace(0, 1, steps)[:, None] * slope, rng
    )


def transient(rng: np.random.Generator, steps: int) -> Loads:
    """Logits approach a level exponentially, within the first third of the run."""
    experts, tau = _experts(rng), rng.uniform(0.02, 0.05) * steps
    fading = np.exp(-np.arange(steps) / tau)[:, None]
    return _counts(
        _level(rng, experts) + fading * rng.normal(0, 0.8, experts), rng, tau=tau
    )


def _exponentially(time: Float64, rng: np.random.Generator) -> Float64:
    """Fade with the time constant 1."""
    return np.exp(-time)


def _otherwise(time: Float64, rng: np.random.Generator) -> Float64:
    """Fade by a power of time, at two rates, ever more slowly, or along a line."""
    forms: list[Float64] = [
        (1 + time) ** -rng.uniform(1, 3),
        0.5 * np.exp(-rng.uniform(5, 20) * time) + 0.5 * np.exp(-time),
        np.exp(-(time ** rng.uniform(0.5, 0.8))),
        np.maximum(1 - time / 3, 0),
    ]
    return forms[int(rng.integers(len(forms)))]


def _unevenly(time: Float64, rng: np.random.Generator) -> Float64:
    """Fade at 32 rates at once, ``[T, 32]``, along a logistic curve, or swinging."""
    forms: list[Float64] = [
        np.exp(-time[:, None] * np.exp(rng.uniform(-1, 1, 32))),
        1 / (1 + np.exp(2 * (time - rng.uniform(1, 3)))),
        np.exp(-time) * np.cos(time * rng.uniform(0.5, 2)),
    ]
    return forms[int(rng.integers(len(forms)))]


def _fading(
    rng: np.random.Generator,
    steps: int,
    moving: float,
    fade: Callable[[Float64, np.random.Generator], Float64] = _exponentially,
) -> Loads:
    """Draw logits that fade from .05 to 2 off their level, in 1 to 12% of the run.

    They have settled when what is left is below a standard deviation of the log
    shares about the level.
    """
    experts, phi = _experts(rng), rng.uniform(0.8, 0.92)
    tau, size = rng.uniform(0.01, 0.12) * steps, np.exp(rng.uniform(*np.log([0.05, 2])))
    curve = fade(np.arange(steps) / tau, rng).reshape(steps, -1)[:, :experts]
    off = curve * rng.normal(0, size, experts)
    level = _level(rng, experts) + moving * _returning(rng, steps, experts, phi)
    run = _counts(level + off, rng)
    logs = np.log(run.counts[steps // 2 :] + 0.5)
    spread = (logs - logs.mean(axis=1, keepdims=True)).std(axis=0)
    left = ((off - off.mean(axis=1, keepdims=True)) / spread) ** 2
    run.truth["settled"] = int((left.mean(axis=1) > 1).sum())
    return run


def fading_to_a_constant(rng: np.random.Generator, steps: int) -> Loads:
    """Logits approach a level exponentially; from it, only tokens are drawn."""
    return _fading(rng, steps, 0)


def fading_to_a_motion(rng: np.random.Generator, steps: int) -> Loads:
    """Logits approach exponentially an AR(1) around a level, of .02 to .3."""
    return _fading(rng, steps, rng.uniform(0.02, 0.3))


def fading_otherwise(rng: np.random.Generator, steps: int) -> Loads:
    """Logits fade not exponentially, to a constant or to an AR(1) of .02 to .3."""
    moving = rng.uniform(0.02, 0.3) * rng.integers(2)
    return _fading(rng, steps, moving, _otherwise)


def fading_unevenly(rng: np.random.Generator, steps: int) -> Loads:
    """Logits fade each at a rate of its own, or later, or swing about their level."""
    moving = rng.uniform(0.02, 0.3) * rng.integers(2)
    return _fading(rng, steps, moving, _unevenly)


def overshooting(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are an AR(1) of a coefficient of -.8 to -.3, about a level.

    They tend to the other side in the next iteration.  After four cycles of two
    iterations, at most .8^8, a sixth, of the phase is left: no period.
    """
    experts, size = _experts(rng), rng.uniform(0.1, 0.4)
    states = _returning(rng, steps, experts, -rng.uniform(0.3, 0.8))
    return _counts(_level(rng, experts) + size * states, rng)


def _periodic(rng: np.random.Generator, steps: int, jitter: float) -> Loads:
    experts, length = _experts(rng), rng.uniform(5, 20)
    # a cycle's length varies by the jitter, the next one begins where it ends
    speed = np.empty(0)
    while len(speed) < steps:
        own = max(2, round(length * (1 + jitter * rng.normal())))
        speed = np.append(speed, np.full(own, 1 / own))
    if not jitter:
        speed = np.full(steps, 1 / length)
    phase = 2 * np.pi * speed[:steps].cumsum()[:, None]
    wave = np.sin(phase + rng.uniform(0, 2 * np.pi, experts))
    return _counts(_level(rng, experts) + 0.25 * wave, rng, period=length)


def period(rng: np.random.Generator, steps: int) -> Loads:
    """Logits oscillate with a period of 5 to 20 iterations."""
    return _periodic(rng, steps, 0.0)


def jittered_period(rng: np.random.Generator, steps: int) -> Loads:
    """Logits oscillate, and the cycles' lengths vary by 5%."""
    return _periodic(rng, steps, 0.05)


def collapse(rng: np.random.Generator, steps: int) -> Loads:
    """One expert takes nearly all tokens in the course of the run."""
    experts, at = _experts(rng), rng.uniform(0.2, 0.6) * steps
    logits = np.tile(_level(rng, experts), (steps, 1))
    rise = 1 / (1 + np.exp(-(np.arange(steps) - at) / (0.02 * steps)))
    logits[:, 0] += (np.log(experts) + 4) * rise
    return _counts(logits, rng)


def drifting_hot_set(rng: np.random.Generator, steps: int) -> Loads:
    """The experts that are hot move on, once around in 1.2 to 2.5 runs."""
    experts, turns = _experts(rng), rng.uniform(0.4, 0.8)
    angle = 2 * np.pi * (np.arange(experts) / experts + rng.uniform())
    turned = 2 * np.pi * turns * np.linspace(0, 1, steps)[:, None]
    return _counts(0.8 * np.cos(angle - turned), rng)


def regime_switch(rng: np.random.Generator, steps: int) -> Loads:
    """Two levels alternate; each holds for 30 iterations in the mean."""
    experts = _experts(rng)
    state = np.cumsum(rng.uniform(size=steps) < 1 / 30) % 2
    levels = np.stack([_level(rng, experts), _level(rng, experts)])
    return _counts(levels[state], rng)


def fading_swings(rng: np.random.Generator, steps: int) -> Loads:
    """Swings around a level become smaller, from 1.0 to .1, as early in a training."""
    experts, tau = _experts(rng), rng.uniform(0.1, 0.15) * steps
    swings = rng.normal(0, 1, (steps, experts))
    for now, before in zip(swings[1:], swings, strict=False):
        now *= 0.6
        now += 0.8 * before
    size = 0.1 + 0.9 * np.exp(-np.arange(steps) / tau)[:, None]
    return _counts(_level(rng, experts) + size * swings, rng, faded=tau)


def _oscillation(rng: np.random.Generator, steps: int, experts: int) -> Float64:
    """Draw AR(2) states of variance 1 that swing and fade; their phase is soon lost.

    Balancing that reacts with a delay, as momentum has, drives loads past their level
    and back.  Experts share few modes.  After four cycles an oscillation has lost at
    least 90% of its phase.
    """
    length, modes = rng.uniform(6, 14), int(rng.integers(1, 5))
    decay = rng.uniform(0.7, 0.1 ** (1 / (4 * length)))
    first, second = 2 * decay * np.cos(2 * np.pi / length), -(decay**2)
    states = rng.normal(size=(steps + 200, modes))
    for t in range(2, len(states)):
        states[t] += first * states[t - 1] + second * states[t - 2]
    states = states[200:] @ rng.normal(size=(modes, experts))
    spread: Float64 = states / states.std()
    return spread


def damped_oscillation(rng: np.random.Generator, steps: int) -> Loads:
    """Logits overshoot their level and swing back, driven by noise: no period."""
    experts = _experts(rng)
    states = _oscillation(rng, steps, experts)
    return _counts(_level(rng, experts) + rng.uniform(0.1, 0.4) * states, rng)


def early_training(rng: np.random.Generator, steps: int) -> Loads:
    """Logits drift along a line, with damped oscillations that become smaller."""
    experts = _experts(rng)
    states = _oscillation(rng, steps, experts)
    time = np.linspace(0, 1, steps)[:, None]
    size = 0.1 + rng.uniform(0.2, 0.6) * np.exp(-time / rng.uniform(0.1, 0.5))
    drift = time * rng.normal(0, rng.uniform(0.1, 0.8), experts)
    return _counts(_level(rng, experts) + drift + size * states, rng)


def _turns(
    rng: np.random.Generator, source: Int64, sources: int, **truth: float
) -> Loads:
    """Draw iterations that each take their tokens from one of some data sources."""
    experts = _experts(rng)
    own = rng.uniform(0.1, 0.5) * rng.normal(size=(sources, experts))
    return _counts(_level(rng, experts) + own[source], rng, **truth)


def two_in_turn(rng: np.random.Generator, steps: int) -> Loads:
    """Even and odd iterations have tokens of different data sources."""
    return _turns(rng, np.arange(steps) % 2, 2, period=2)


def three_in_turn(rng: np.random.Generator, steps: int) -> Loads:
    """Iterations have tokens of three data sources in turn."""
    return _turns(rng, np.arange(steps) % 3, 3, period=3)


def every_nth(rng: np.random.Generator, steps: int) -> Loads:
    """Each fourth to eighth micro-batch has tokens of another data source.

    A pulse: its harmonics have as much power as its fundamental.
    """
    every = int(rng.integers(4, 9))
    source = (np.arange(steps) % every == 0).astype(np.int64)
    return _turns(rng, source, 2, period=every)


def slipping_turns(rng: np.random.Generator, steps: int) -> Loads:
    """Two data sources in turn, but a source may come again: the phase is soon lost.

    After four cycles, turns have lost at least 90% of their phase.
    """
    again = rng.uniform((1 - 0.1**0.125) / 2, 0.35)
    turned = rng.random(steps) >= again
    return _turns(rng, turned.cumsum() % 2, 2)


def random_turns(rng: np.random.Generator, steps: int) -> Loads:
    """Each iteration has tokens of one of two data sources, at random."""
    return _turns(rng, rng.integers(0, 2, steps), 2)


def accumulation(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are a random walk that moves after every 4 to 8 micro-batches."""
    experts, every = _experts(rng), int(rng.integers(4, 9))
    change = rng.normal(0, rng.uniform(0.03, 0.1), (-(-steps // every), experts))
    return _counts(np.repeat(change.cumsum(axis=0), every, axis=0)[:steps], rng)


def redrawn(rng: np.random.Generator, steps: int) -> Loads:
    """Shares are drawn anew in each iteration, from one law for all experts."""
    law = np.full(_experts(rng), np.exp(rng.uniform(0, 4)))
    return _counts(np.log(rng.dirichlet(law, steps)), rng)


def _evenly_used(rng: np.random.Generator, ways: int) -> Float64:
    """Draw uneven shares ``[ways, E]`` whose mean is the same for all experts."""
    experts = _experts(rng)
    shares = np.exp(rng.normal(0, rng.uniform(0.3, 1.0), (ways, experts)))
    for _ in range(200):  # Sinkhorn's balancing
        shares /= shares.mean(axis=0)
        shares /= shares.sum(axis=1, keepdims=True)
    return shares


def documents(rng: np.random.Generator, steps: int) -> Loads:
    """Batches of documents, whose topics together use all experts alike."""
    topics, number = int(rng.integers(2, 13)), int(rng.choice([4, 16, 64]))
    batch = rng.multinomial(number, np.full(topics, 1 / topics), steps) / number
    return _counts(np.log(batch @ _evenly_used(rng, topics)), rng)


def even_regimes(rng: np.random.Generator, steps: int) -> Loads:
    """Two levels alternate, each for 30 iterations, and their mean is even."""
    state = (rng.integers(2) + np.cumsum(rng.uniform(size=steps) < 1 / 30)) % 2
    return _counts(np.log(_evenly_used(rng, 2))[state], rng)


def _about_equal(rng: np.random.Generator, steps: int, half_life: float) -> Loads:
    experts, phi = _experts(rng), 0.5 ** (1 / half_life)
    size = rng.uniform(0.1, 0.5)
    states = size * _returning(rng, steps, experts, phi)
    return _counts(states, rng, half_life=half_life, stationary=1)


def short_swings(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are an AR(1) about equal shares, with a half-life of 2 iterations."""
    return _about_equal(rng, steps, 2)


def long_swings(rng: np.random.Generator, steps: int) -> Loads:
    """Logits are an AR(1) about equal shares, with a half-life of 20 iterations."""
    return _about_equal(rng, steps, 20)


PROCESSES: dict[str, Callable[[np.random.Generator, int], Loads]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(balanced, skewed, slow_walk, walk, fast_walk, autoregression, step, trend),
        *(fading_to_a_constant, fading_to_a_motion, fading_otherwise),
        *(fading_unevenly, overshooting),
        *(transient, period, jittered_period, collapse, drifting_hot_set),
        *(regime_switch, fading_swings, damped_oscillation, early_training),
        *(two_in_turn, three_in_turn, every_nth, slipping_turns, random_turns),
        *(accumulation, redrawn, documents, even_regimes, short_swings, long_swings),
    )
}
