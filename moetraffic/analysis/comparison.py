r"""Comparison of two traces: distances with confidence intervals and a noise floor.

A distance between two finite runs is never zero: two halves of one run differ, too,
and two runs of one program differ by more than resamples of one of them.
Each distance is therefore reported with a confidence interval by the moving-block
bootstrap (Kuensch, Annals of Statistics 17 (1989) 1217), which preserves
autocorrelation, and with the *floor*: the 95% quantile of the same distance after
blocks of both runs have been exchanged at random (a permutation test at 5%).

    load, matrix   total variation of the mean shares, :math:`\frac12 \sum |p - q|`
    sent, received likewise, of the bytes of each rank
    a measure      Wasserstein-1 distance of its values over the iterations, in its unit
    bytes          relative difference of the mean bytes (or copies) an iteration
    duration       relative difference of the median time of an all-to-all

The times of calls that occur in both runs are compared as ratios: see
:mod:`moetraffic.analysis.times.completion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.analysis.times.completion import completion
from moetraffic.analysis.times.time_ratios import TimeRatio, compare_times
from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.tables import ShownAsTables
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers, names

from .distances import (
    relative_difference,
    relative_median,
    total_variation,
    wasserstein,
)
from .engine import Tick
from .exchange import OF, Rows, Source, read, sources, windows
from .mapper import in_threads, observed
from .observation import SKEW
from .resampling import LEVEL, block_means, block_values, divisions

if TYPE_CHECKING:
    import pandas

Statistic = Callable[[Float64, Float64], Any]

STATISTICS: dict[Statistic, tuple[str, Callable[[Float64], Any] | None]] = {
    total_variation: ("total variation", None),
    relative_difference: ("relative difference", np.mean),
    relative_median: ("relative difference", np.median),
    wasserstein: ("Wasserstein-1", np.mean),
}
"""Name of each distance, and the summary of one run that is stored with it."""

SHARES = {
    "demand.load": "expert load",
    "demand.cells": "demand matrix",
    "wire.sent": "bytes sent by rank",
    "wire.received": "bytes received by rank",
    "wire.cells": "wire matrix",
}
"""Rows compared by total variation of their shares, with a description of each."""


SCALES = {
    "total variation": "share that differs, 0 to 1",
    "relative difference": "over the first's",
    "Wasserstein-1": "mean difference of their sorted values",
}
"""Meaning of the value of each distance.  All are dimensionless, as are the skew
measures compared by Wasserstein-1."""


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Distance between one statistic of two runs, with its interval and noise floor."""

    layer: int  # -1: of the whole run
    of: str  # what is compared
    measure: str  # one of SCALES
    unit: str  # of a and b; "1" where they have none
    a: float  # value of the first run; NaN if not a single number
    b: float
    value: float
    low: float  # interval of LEVEL; NaN with fewer than FEWEST observations
    high: float
    floor: float  # LEVEL quantile if blocks are exchanged at random; likewise NaN
    observations: int  # iterations of the shorter run; of durations calls

    @property
    def beyond_noise(self) -> bool:
        """Whether the distance exceeds that of runs whose blocks are exchanged.

        Runs of one program with other seeds often do, too.
        """
        return self.value > self.floor


@dataclass(frozen=True, kw_only=True)
class Comparison(ShownAsTables):
    """Distances between the traffic of two traces, and time ratios of common calls."""

    distances: tuple[Distance, ...]
    notes: tuple[str, ...]  # reasons for missing comparisons
    times: tuple[TimeRatio, ...] = ()
    identical: str = ""  # what has equal counts and bytes in each iteration; "": none

    def to_frame(self) -> pandas.DataFrame:
        """Convert the distances to a data frame with one row per distance.

        Returns
        -------
        pandas.DataFrame
            With the fields of :class:`Distance` and ``beyond_noise`` as columns.
        """
        import pandas

        return pandas.DataFrame(
            [vars(d) | {"beyond_noise": d.beyond_noise} for d in self.distances]
        )


def compare(
    a: Trace | str | Path,
    b: Trace | str | Path,
    *,
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    of: Sequence[str] | str = OF,
    seed: int = 0,
    threads: int = 2,
    tick: Tick | None = None,
) -> Comparison:
    """Compute the distances between the traffic of two traces.

    Parameters
    ----------
    a, b
        Traces, such as two seeds, a run and its replay, or a run and a synthetic trace.
    layers, phase, iterations, of
        As in :func:`moetraffic.analysis.analyze`; layers and groups are matched by
        their order.
    seed
        Seed of the bootstrap.
    threads
        Number of threads that read and compute.
    tick
        Progress callback: windows read so far of both traces, and the exchange.

    Raises
    ------
    AnalysisError
        If the two have no exchange in common.
    """
    a, b, of = Trace.open(a), Trace.open(b), names(of)
    layers, iterations = layer_numbers(layers), iteration_range(iterations)
    notes: list[str] = []
    pairs = _matched(
        sources(a, notes, layers=layers, phase=phase, iterations=iterations, of=of),
        sources(b, notes, layers=layers, phase=phase, iterations=iterations, of=of),
        notes,
    )
    found: list[Distance] = []
    done = count(1)

    def report(note: str) -> None:
        if tick is not None:
            tick(next(done), note)

    for one, other in pairs:
        of_a, of_b = (
            observed(source, in_threads(trace, threads), report=report)
            for trace, source in ((a, one), (b, other))
        )
        found += _of_exchange(one.layer, of_a, of_b, notes, seed)
    if not a.meta.origin == b.meta.origin == "replayed":
        # within-run noise is not the noise between runs of a replay
        found += _durations(a, b, iterations, notes, seed)
    if not found:
        raise AnalysisError(
            f"two traces are compared in what both have, but {a.name} and {b.name} "
            f"share nothing ({'; '.join(dict.fromkeys(notes)) or 'no exchange'}): give "
            "two runs of one model"
        )
    traffic = [d.value for d in found if not d.of.startswith("duration")]
    return Comparison(
        distances=tuple(found),
        notes=tuple(dict.fromkeys(notes)),
        # the matrices are read again only where no statistic differs
        identical="" if any(traffic) else _identical(a, b, pairs),
        times=compare_times(a, b, iterations=iterations, seed=seed),
    )


def _matched(
    a: Sequence[Source], b: Sequence[Source], notes: list[str]
) -> list[tuple[Source, Source]]:
    """Pair the exchanges of two traces by layer and by the order of the groups."""
    pairs = []
    for layer in sorted({s.layer for s in (*a, *b)}):
        of_a = [s for s in a if s.layer == layer]
        of_b = [s for s in b if s.layer == layer]
        if len(of_a) != len(of_b):
            notes.append(
                f"layer {layer}: {len(of_a)} groups in the first, {len(of_b)} in the "
                f"second; {min(len(of_a), len(of_b))} are compared"
            )
        pairs += list(zip(of_a, of_b, strict=False))
    return pairs


def _identical(a: Trace, b: Trace, pairs: Sequence[tuple[Source, Source]]) -> str:
    """Describe the exchanges if their matrices are equal in each iteration, or ""."""
    of: set[str] = set()
    for one, other in pairs:
        if not np.array_equal(one.iterations, other.iterations):
            return ""
        for part in windows(one):
            x, y = read(a, one, part), read(b, other, part)
            for name, first, second in (
                ("demand", x.demand, y.demand),
                (f"bytes of {one.phase}", x.wire, y.wire),
            ):
                units = (x.wire_unit, y.wire_unit) if first is x.wire else (1, 1)
                if (first is None) != (second is None):
                    return ""
                if first is None or second is None:
                    continue
                of.add(name)
                if not np.array_equal(first * units[0], second * units[1]):
                    return ""
    if not of:
        return ""
    number, each = len(pairs[0][0].iterations), len(pairs)
    return (
        f"{' and '.join(sorted(of))}, {number} iteration{'s' * (number > 1)} of {each} "
        f"exchange{'s' * (each > 1)}"
    )


def _of_exchange(
    layer: int, a: Rows, b: Rows, notes: list[str], seed: int
) -> list[Distance]:
    wanted: list[tuple[str, Statistic, str, str]] = [
        (name, total_variation, about, "1") for name, about in SHARES.items()
    ]
    for kind, load, unit in (
        ("demand", "demand.load", "token copies"),
        ("wire", "wire.sent", "bytes"),
    ):
        wanted.append((load, relative_difference, f"{kind} per iteration", unit))
        wanted += [
            (f"{kind}.{name}", wasserstein, f"{name.replace('_', ' ')} of {kind}", "1")
            for name in SKEW
        ]
    found = []
    for name, statistic, of, unit in wanted:
        if name not in a or name not in b:
            continue
        x, y = (
            np.asarray(rows[name], np.float64).reshape(len(rows[name]), -1)
            for rows in (a, b)
        )
        if statistic is relative_difference:
            x, y = (values.sum(axis=1, keepdims=True) for values in (x, y))
        if x.shape[1] != y.shape[1]:
            notes.append(
                "matrices and loads whose numbers of ranks or experts differ are not "
                "compared cell by cell"
            )
            continue
        found.append(
            distance(x, y, statistic, layer=layer, of=of, unit=unit, seed=seed)
        )
    return found


def _durations(
    a: Trace, b: Trace, iterations: range | None, notes: list[str], seed: int
) -> list[Distance]:
    """Compare all-to-all durations of each phase recorded in both runs."""
    of_a, of_b = (durations(trace, iterations) for trace in (a, b))
    for trace, times in ((a, of_a), (b, of_b)):
        if not times:
            notes.append(f"no durations: {trace.name} has no times of all-to-alls")
    return [
        distance(
            times[:, None],
            of_b[name][:, None],
            relative_median,
            layer=-1,
            of=f"duration of {name}",
            unit="s",
            seed=seed,
        )
        for name, times in of_a.items()
        if name in of_b
    ]


def durations(trace: Trace, iterations: range | None = None) -> dict[str, Float64]:
    """Compute the duration of each all-to-all from last issue to last end, seconds.

    ``trace``: Trace with call times.

    By phase (those without one: "all-to-alls without a phase"), ``[n]`` float64 in the
    order of the iterations.
    """
    calls = completion(trace, iterations)
    calls = calls.take(np.flatnonzero(trace.square[calls.site]))
    calls = calls.take(np.argsort(calls.iteration, kind="stable"))
    phase = np.array([s.phase for s in trace.sites])[calls.site]
    return {
        name or "all-to-alls without a phase": calls.transfer_s[phase == name]
        for name in dict.fromkeys(phase.tolist())
    }


FEWEST = 24
"""Fewest observations for an interval and a noise floor: those that have four blocks.

With a single block, every resample has the mean of the run itself.
"""

ON_MEANS = (total_variation, relative_difference)
"""Statistics computed from means over iterations, not from the values themselves."""

MOST_VALUES = 4096
"""Maximum number of evenly spaced iterations used by statistics of values."""


def distance(
    x: Float64,
    y: Float64,
    statistic: Statistic,
    *,
    layer: int,
    of: str,
    unit: str,
    seed: int = 0,
) -> Distance:
    """Compute one distance with its confidence interval and noise floor.

    Parameters
    ----------
    x, y
        ``[T, C]`` and ``[U, C]``, time first; C is 1 for statistics of values.
    statistic
        One of STATISTICS.
    """
    rng, number = np.random.default_rng(seed), min(len(x), len(y))
    measure, summary = STATISTICS[statistic]
    draw: Callable[..., list[Float64]] = block_means
    if statistic in ON_MEANS:
        value = float(statistic(x.mean(axis=0), y.mean(axis=0)))
    else:
        x, y = _thinned(x[:, 0]), _thinned(y[:, 0])
        value = float(statistic(x, y))
        draw = block_values
    a, b = (float(summary(v)) if summary else float("nan") for v in (x, y))
    low = high = floor = float("nan")
    if number >= FEWEST:
        resampled = zip(draw(x, len(x), rng), draw(y, len(y), rng), strict=True)
        low, high = _interval(value, np.array([statistic(*two) for two in resampled]))
        exchanged = divisions(x, y, rng, means=statistic in ON_MEANS)
        floor = _quantile(np.array([statistic(*two) for two in exchanged]), LEVEL)
    return Distance(
        layer=layer,
        of=of,
        measure=measure,
        unit=unit,
        a=a,
        b=b,
        value=value,
        low=low,
        high=high,
        floor=floor,
        observations=number,
    )


def _thinned(values: Float64) -> Float64:
    if len(values) <= MOST_VALUES:
        return values
    at = np.linspace(0, len(values) - 1, MOST_VALUES).astype(np.int64)
    return values[at]


def _interval(value: float, drawn: Float64) -> tuple[float, float]:
    """Compute an interval from basic-bootstrap lower to percentile-bootstrap upper end.

    Noise biases small distances upward, those of resamples even more: each end is the
    conservative one.
    """
    above = _quantile(drawn, (1 + LEVEL) / 2)
    return float(np.maximum(0.0, 2 * value - above)), float(np.maximum(value, above))


def _quantile(values: Float64, level: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, level)) if len(known) else float("nan")


def worst(comparison: Comparison, measures: Mapping[str, float]) -> list[Distance]:
    """List the distances whose interval, or value without one, is above a threshold.

    ``measures``: Threshold of each measure, such as ``{"total variation": 0.1}``.
    """
    return [
        d
        for d in comparison.distances
        if d.measure in measures
        and (d.value if np.isnan(d.low) else d.low) > measures[d.measure]
    ]
