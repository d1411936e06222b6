"""Processes of bursts whose properties are known: truth.csv lists them.

Each takes a generator of random numbers and the number of steps, draws its setting,
and returns the bursts' starts and ends in ns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Float64, Int64

STEP_NS = 1e7
"""Mean step, or mean of a burst and its gap."""


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """A run of a known process."""

    start: Int64  # [n] ns
    end: Int64  # [n] ns
    marks: Int64 | None = None  # [steps + 1] ns, where steps begin, if recorded
    truth: dict[str, float] = field(default_factory=dict)  # figures that are known


def _renewal(on: Float64, off: Float64) -> Bursts:
    """Lay bursts and gaps one after the other."""
    border = np.stack([on, off], axis=1).ravel().cumsum() * STEP_NS
    edges = np.concatenate(([0], border)).astype(np.int64)
    return Bursts(start=edges[:-1:2], end=edges[1::2])


def exponential_on_off(rng: np.random.Generator, steps: int) -> Bursts:
    """Lengths of bursts and gaps are exponential."""
    duty = rng.uniform(0.2, 0.6)
    return _renewal(rng.exponential(duty, steps), rng.exponential(1 - duty, steps))


def gamma_on_off(rng: np.random.Generator, steps: int) -> Bursts:
    """Lengths of bursts and gaps have gamma distributions of shape 2."""
    duty = rng.uniform(0.2, 0.6)
    return _renewal(rng.gamma(2, duty / 2, steps), rng.gamma(2, (1 - duty) / 2, steps))


def heavy_tailed_on_off(rng: np.random.Generator, steps: int) -> Bursts:
    """Lengths of bursts and gaps have Pareto distributions of tail index 1.3."""
    on, off = (0.1 * (1 + rng.pareto(1.3, steps)) for _ in range(2))
    return _renewal(on, off)


def _steps(
    rng: np.random.Generator, lengths: Float64, *, wobble: float, marked: bool
) -> Bursts:
    """Lay a burst, or 2 to 6 into each marked step, at places that are the same."""
    number = int(rng.integers(2, 7)) if marked else 1
    # bursts of different lengths at different distances, apart from each other
    slots = rng.dirichlet(np.full(number, 4.0))
    begin = np.concatenate(([0], slots.cumsum()[:-1]))
    long = slots * rng.uniform(0.2, 0.6, number)
    borders = np.concatenate(([0], lengths.cumsum())) * STEP_NS
    shift = wobble * slots * rng.normal(size=(len(lengths), number))
    at = np.clip(begin + np.abs(shift), begin, begin + slots - long)
    start = borders[:-1, None] + at * (lengths * STEP_NS)[:, None]
    end = start + long * (lengths * STEP_NS)[:, None]
    return Bursts(
        start=start.ravel().astype(np.int64),
        end=end.ravel().astype(np.int64),
        marks=borders.astype(np.int64) if marked else None,
        truth={
            "period_s": float(np.median(lengths)) * STEP_NS / 1e9,
            "cv": float(lengths.std() / lengths.mean()),
        },
    )


def _lengths(rng: np.random.Generator, steps: int, jitter: float) -> Float64:
    """Draw lengths of steps with a coefficient of variation."""
    return rng.gamma(1 / jitter**2, jitter**2, steps)


def regular_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of one burst, with a jitter of 1%, without marks."""
    return _steps(rng, _lengths(rng, steps, 0.01), wobble=0.01, marked=False)


def jittered_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of one burst, with a jitter of 8%, without marks."""
    return _steps(rng, _lengths(rng, steps, 0.08), wobble=0.05, marked=False)


def drifting_tempo(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps whose length drifts by up to 30% over the run, with a jitter of 2%."""
    levels = 1 + rng.uniform(0.1, 0.3) * rng.uniform(-1, 1, 5)
    slow = np.interp(np.linspace(0, 4, steps), np.arange(5), levels)
    return _steps(rng, slow * _lengths(rng, steps, 0.02), wobble=0.02, marked=False)


def some_slow_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of which 10% take twice as long, without marks."""
    lengths = _lengths(rng, steps, 0.02)
    lengths[rng.uniform(size=steps) < 0.1] *= 2
    return _steps(rng, lengths, wobble=0.02, marked=False)


def proportional_gaps(rng: np.random.Generator, steps: int) -> Bursts:
    """Gaps that are a multiple of the burst before, with noise, in random order."""
    on = rng.gamma(rng.uniform(0.5, 3), 1, steps)
    noise = np.exp(rng.uniform(0.02, 0.5) * rng.normal(size=steps))
    off = on * rng.uniform(0.5, 3) * noise
    return _renewal(0.3 * on + 0.01, 0.3 * off + 0.01)


def irregular_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of one burst, with a jitter of 20%, without marks."""
    return _steps(rng, _lengths(rng, steps, 0.2), wobble=0.05, marked=False)


def marked_irregular_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of several bursts, with a jitter of 8 to 20%, with marks."""
    jitter = rng.uniform(0.08, 0.2)
    return _steps(rng, _lengths(rng, steps, jitter), wobble=0.05, marked=True)


def marked_slow_steps(rng: np.random.Generator, steps: int) -> Bursts:
    """Steps of which 5% take four times as long, with marks."""
    lengths = _lengths(rng, steps, 0.02)
    lengths[rng.uniform(size=steps) < 0.05] *= 4
    return _steps(rng, lengths, wobble=0.02, marked=True)


PROCESSES: dict[str, Callable[[np.random.Generator, int], Bursts]] = {
    "exponential on-off": exponential_on_off,
    "gamma on-off": gamma_on_off,
    "heavy-tailed on-off": heavy_tailed_on_off,
    "regular steps": regular_steps,
    "jittered steps": jittered_steps,
    "irregular steps": irregular_steps,
    "drifting tempo": drifting_tempo,
    "some slow steps": some_slow_steps,
    "proportional gaps": proportional_gaps,
    "marked irregular steps": marked_irregular_steps,
    "marked slow steps": marked_slow_steps,
}
