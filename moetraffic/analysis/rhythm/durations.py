"""Durations: quantiles and histogram of burst or gap lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.intervals import mean_and_cv

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

BINS_A_DECADE = 10


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Distribution of durations: mean, quantiles and histogram; NaN if empty."""

    number: int
    mean_ns: float
    cv: float  # population standard deviation over mean
    quantiles_ns: Float64  # [5], of QUANTILES, linear between the lengths
    edges_ns: Float64  # [B + 1] of the histogram, BINS_A_DECADE a power of ten
    counts: Int64  # [B] lengths from an edge to below the next; of 0 ns in none


def durations(lengths: npt.ArrayLike) -> Durations:
    """Compute mean, quantiles and histogram of durations.

    The histogram's edges are powers of ten to the tenths, whatever the lengths, so that
    the histograms of two runs can be laid over each other.

    Parameters
    ----------
    lengths
        ``[n]`` ns, not negative.

    Returns
    -------
    Durations

    Examples
    --------
    >>> found = durations([1000, 1000, 3000])
    >>> found.number, found.quantiles_ns.tolist(), found.counts.tolist()
    (3, [1000.0, 1000.0, 1000.0, 2000.0, 2800.0], [2, 0, 0, 0, 1])
    """
    values = np.asarray(lengths, np.float64)
    mean, cv = mean_and_cv(values)
    positive = values[values > 0]
    edges, counts = np.zeros(0), np.zeros(0, np.int64)
    if positive.size:
        # a length on an edge belongs above it, though its logarithm is rounded
        place = np.floor(np.log10(positive) * BINS_A_DECADE + 1e-9).astype(np.int64)
        low = int(place.min())
        counts = np.bincount(place - low).astype(np.int64)
        edges = 10.0 ** (np.arange(low, low + len(counts) + 1) / BINS_A_DECADE)
    return Durations(
        number=values.size,
        mean_ns=mean,
        cv=cv,
        quantiles_ns=np.quantile(values, QUANTILES)
        if values.size
        else np.full(len(QUANTILES), np.nan),
        edges_ns=edges,
        counts=counts,
    )
