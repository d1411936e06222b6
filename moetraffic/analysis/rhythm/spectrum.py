r"""Power spectrum of the on-off series of a traffic source.

The on-off series of :func:`moetraffic.analysis.rhythm.bins.on_off_series` is cut into
overlapping windows whose Fourier powers are averaged, after P. D. Welch, "The Use of
Fast Fourier Transform for the Estimation of Power Spectra", IEEE Trans. Audio
Electroacoust. 15 (1967) 70.  Each power is a share of all, so that the shares of a
spectrum add up to 1; the mean, frequency 0, is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from moetraffic.analysis.times.call_times import on_the_wire, step_ns
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import Trace

from .bins import on_off_series
from .sources import bounded, chosen_keys, collected

BINS_A_STEP = 32
"""Bins per iteration: frequencies up to 16 per iteration are resolved."""

STEPS_A_WINDOW = 32
"""Iterations per window: the frequency resolution is 1/32 per iteration."""

MOST_BINS = 1 << 20

MOST_RANKS = 4

BY = ("phase", "rank")
"""Sources whose spectra are computed."""


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Power spectrum of one traffic source's on-off series."""

    by: str  # "phase" or "rank"
    name: str
    frequency_hz: Float64  # [F], above 0
    share: Float64  # [F] of the power without the mean; the sum is 1
    step_hz: float  # iterations a second
    windows: int  # that were averaged


def spectra(trace: Trace) -> tuple[tuple[Spectrum, ...], str]:
    """Compute the power spectra of the phases and ranks of a trace with times.

    Returns
    -------
    tuple
        The spectra, of at most :data:`MOST_RANKS` ranks, those with the most bytes; and
        why there is none, "" where there are.
    """
    length = step_ns(trace, 0)
    if trace.meta.virtual:
        return (), "the trace is virtual: nothing was sent, so it has no times"
    if not np.isfinite(length):
        return (), "the lengths of the iterations are not known"
    found, _ = on_the_wire(trace, trace.layers, None)
    notes: list[str] = []
    found = bounded(trace, found, notes)
    keys = chosen_keys(trace, found, BY, 0, MOST_RANKS, False, notes)
    told = []
    for (kind, _, name), parts in collected(trace, found, keys, False).items():
        if not parts:
            continue
        first, last = (np.concatenate([p[at] for p in parts]) for at in range(2))
        if spectrum := _spectrum(kind, name, first, last, length):
            told.append(spectrum)
    reason = "" if told else "too few all-to-alls have times for a spectrum"
    return tuple(told), reason


def _spectrum(
    kind: str,
    name: str,
    first: Int64,
    last: Int64,
    step: float,
) -> Spectrum | None:
    width = step / BINS_A_STEP
    origin = int(first.min(initial=np.iinfo(np.int64).max))
    end = min(int(last.max(initial=0)), origin + int(MOST_BINS * width))
    inside = first < end
    series = on_off_series(
        first[inside], np.minimum(last[inside], end), bin_ns=width, span=(origin, end)
    )
    size = min(BINS_A_STEP * STEPS_A_WINDOW, len(series))
    if size < 4 * BINS_A_STEP or not series.std() > 0:
        return None
    frequency, power = scipy.signal.welch(
        series, fs=1e9 / width, nperseg=size, detrend="constant"
    )
    total = float(power[1:].sum())
    if not total > 0:
        return None
    return Spectrum(
        by=kind,
        name=name,
        frequency_hz=np.asarray(frequency[1:], np.float64),
        share=np.asarray(power[1:] / total, np.float64),
        step_hz=1e9 / step,
        windows=1 + max(0, (len(series) - size) // (size // 2)),
    )
