r"""Fit the dependence of rank differences on the load of an expert.

An expert that few tokens need is needed by few in most documents.  In captures the
variance of rows over :math:`p (1 - p)` grows with an expert's share p in the iteration,
about in proportion where the share is small, and less and less where it is large.  What
counts show of it is blurred by the chance of the same rows, so samples are held against
the counts, in experts below and above the even share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

HALVES = (0.0, 0.25, 0.5, 1.0, 2.0)
"""s that are tried, until one is too much; where none is, it is something else."""

MARGIN = 0.06
"""By which samples without it must be off: of runs that have none they are by .05."""

LEAST = 1e-12


def squares(apart: Float64, size: Float64, share: Float64) -> Float64:
    """What rows vary by, of cells below and of cells above the even share.

    Parameters
    ----------
    apart
        ``[n, R, L, E]`` deviations of rows, in shares.
    size
        ``[n, L, E]`` p (1 - p).
    share
        ``[n, L, E]`` of an expert in the load.

    Returns
    -------
    float64 array
        ``[4, L]``: variance and size, each of the colder and of the hotter cells, in
        units in which all of the window's vary by their size.
    """
    square = (apart**2).sum(axis=1) / max(apart.shape[1] - 1, 1)
    cold = share * share.shape[2] < 1
    parts = [
        np.where(mask, x, 0.0).sum(axis=(0, 2))
        for mask in (cold, ~cold)
        for x in (square, size)
    ]
    whole = (parts[0] + parts[2]) / np.maximum(parts[1] + parts[3], LEAST)
    parts[0], parts[2] = (parts[i] / np.maximum(whole, LEAST) for i in (0, 2))
    return np.stack(parts)


def colder(windows: Sequence[Float64]) -> Float64:
    """Dispersion of the colder cells over that of the hotter ones, ``[L]`` logarithms.

    Parameters
    ----------
    windows
        Of :func:`squares`.
    """
    cold, cold_size, hot, hot_size = np.maximum(np.sum(windows, axis=0), LEAST)
    return np.asarray(np.log(cold / cold_size) - np.log(hot / hot_size))


def half_for(wanted: Float64, sampled: Callable[[Float64], Float64]) -> Float64:
    """s ``[L]`` with which samples are as the counts.

    Parameters
    ----------
    wanted
        ``[L]`` of the counts, see :func:`colder`.
    sampled
        Of samples with s ``[L]``; it falls as s grows.
    """
    half = np.zeros(len(wanted))
    before = sampled(half)
    found = before - wanted < MARGIN  # 0: nothing less will do
    for low, high in pairwise(HALVES):
        if found.all():
            break
        now = sampled(np.full(len(wanted), high))
        share = (before - wanted) / np.maximum(before - now, LEAST)
        between = low + np.clip(share, 0.0, 1.0) * (high - low)
        half = np.where(found, half, between)
        found |= now <= wanted
        before = now
    return np.asarray(np.where(found, half, 0.0), np.float64)
