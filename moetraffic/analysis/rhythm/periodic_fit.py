"""Periodic functions that fit many series best, and what they leave of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

from moetraffic.arrays import Float64

HARMONICS = (1, 8)
"""Numbers of harmonics of the functions with a real period."""

FEWEST_CYCLES = 2
"""Cycles in the run, of a function of any shape with an integer period."""

_FINER = 8  # frequencies that are searched, for each of the transform
_NOTCH = 0.55  # half the width of what a fit takes off, in cycles a run


def without_period(levels: Float64) -> Iterator[tuple[Float64, Float64]]:
    """Take the periodic functions that fit best off levels.

    Sums of harmonics of one frequency, each with its own size and phase in each column,
    by least squares; and the means of each place in a cycle, of integer periods.

    ``levels``: ``[T, D]``, step first.

    Yields
    ------
    residual : ndarray
        ``[T, D]`` levels less the function and the mean.
    bands : ndarray
        ``[m, 2]`` frequencies in cycles a step, from and to, that are lost with it.

    Examples
    --------
    >>> wave = np.sin(2 * np.pi * np.arange(200) / 7.3)[:, None]
    >>> float(abs(next(without_period(wave))[0]).max()) < 1e-4
    True
    """
    x = levels - levels.mean(axis=0)
    n = len(x)
    power = (np.abs(np.fft.rfft(x, _FINER * n, axis=0)) ** 2).sum(axis=1)
    time = np.arange(n)
    for harmonics in HARMONICS:
        # a harmonic above half a cycle a step is the mirror of another
        first = np.arange(_FINER // 2, len(power))
        place = np.outer(np.arange(1, harmonics + 1), first)
        found = power.take(place, mode="clip") * (place < len(power))
        top = float(first[found.sum(axis=0).argmax()])

        def residual(place: float, number: int = harmonics) -> Float64:
            angle = 2 * np.pi * place / (_FINER * n) * np.arange(1, number + 1)
            turned = np.outer(time, angle[angle < np.pi])
            basis = np.hstack([np.ones((n, 1)), np.cos(turned), np.sin(turned)])
            rest: Float64 = x - basis @ np.linalg.lstsq(basis, x, rcond=None)[0]
            return rest

        best = scipy.optimize.minimize_scalar(
            lambda place: float((residual(place) ** 2).sum()),
            bounds=(max(top - 1, 0.25 * _FINER), min(top + 1, len(power) - 1)),
            method="bounded",
            options={"xatol": 1e-4},
        ).x
        yield residual(best), _bands(best / (_FINER * n), harmonics, n)
    periods = range(2, n // FEWEST_CYCLES + 1)
    if periods:
        # variance that is left, for each degree of freedom
        rests = ((_less_cycle(x, p), p) for p in periods)
        rest, period = min(rests, key=lambda r: (r[0] ** 2).sum() / (n - r[1]))
        yield rest, _bands(1 / period, period // 2, n)


def _less_cycle(x: Float64, period: int) -> Float64:
    """Take the mean of each place in a cycle off levels ``[T, D]``."""
    cycles = -(-len(x) // period)
    padded = np.full((cycles * period, x.shape[1]), np.nan)
    padded[: len(x)] = x
    mean = np.nanmean(padded.reshape(cycles, period, -1), axis=0)
    rest: Float64 = x - np.tile(mean, (cycles, 1))[: len(x)]
    return rest


def _bands(frequency: float, harmonics: int, steps: int) -> Float64:
    center = frequency * np.arange(1, harmonics + 1)
    reach = _NOTCH / steps
    return np.stack([center - reach, center + reach], axis=1)
