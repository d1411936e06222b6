"""Power spectrum of the on-off series of a traffic source.

Windows of the series overlap by half, and their Fourier powers are averaged, after
P. D. Welch, "The Use of Fast Fourier Transform for the Estimation of Power Spectra",
IEEE Trans. Audio Electroacoust. 15 (1967) 70.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from moetraffic.analysis.sources import on_off_series
from moetraffic.arrays import Float64, Int64

BINS_A_STEP = 32
"""Bins per iteration: frequencies up to 16 per iteration are resolved."""

WINDOW_STEPS = 32
"""Iterations per window: the frequency resolution is 1/32 per iteration."""

FEWEST_STEPS = 4
"""Iterations from which on there is a spectrum."""

MOST_BINS = 1 << 20


def spectrum(
    begin: Int64, end: Int64, *, step_ns: float
) -> tuple[Float64, Float64] | None:
    """Compute the power spectrum of bursts.

    Parameters
    ----------
    begin, end
        ``[m]`` ns, disjoint bursts in time order.
    step_ns
        Length of an iteration.

    Returns
    -------
    frequency : ndarray
        ``[F]`` Hz, above 0.
    share : ndarray
        ``[F]`` of the power without the mean; the sum is 1.  None for both where the
        bursts are too few.
    """
    width = step_ns / BINS_A_STEP
    if not len(begin) or not width > 0:
        return None
    origin = int(begin[0])
    until = min(int(end[-1]), origin + int(MOST_BINS * width))
    series = on_off_series(begin, end, bin_ns=width, span=(origin, until))
    size = min(BINS_A_STEP * WINDOW_STEPS, len(series))
    if size < FEWEST_STEPS * BINS_A_STEP or not series.std() > 0:
        return None
    frequency, power = scipy.signal.welch(series, fs=1e9 / width, nperseg=size)
    return frequency[1:], power[1:] / power[1:].sum()


def spectra(
    sources: dict[str, tuple[Int64, Int64]], step_ns: float
) -> dict[str, npt.NDArray[Any]]:
    """Compute the spectra of bursts by source, as columns."""
    found = {n: spectrum(*bursts, step_ns=step_ns) for n, bursts in sources.items()}
    known = {name: both for name, both in found.items() if both is not None}
    lengths = [len(frequency) for frequency, _ in known.values()]
    none = [np.zeros(0)]
    return {
        "source": np.repeat(np.array(list(known), str), lengths),
        "frequency_hz": np.concatenate([f for f, _ in known.values()] or none),
        "power_share": np.concatenate([power for _, power in known.values()] or none),
    }
