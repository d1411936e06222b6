r"""Comparison of two traces: distances with confidence intervals and a noise floor.

A distance between two finite runs is never zero: two halves of one run differ, too.
Each distance is therefore reported with a confidence interval by the moving-block
bootstrap (Kuensch, Annals of Statistics 17 (1989) 1217), which preserves
autocorrelation, and with the *floor*: the same distance between two resamples of the
first run, of the lengths of both runs.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import TimeRatio, compare_times, completion
from moetraffic.errors import AnalysisError
from moetraffic.tables import ShownAsTables
from moetraffic.trace import ALL_TO_ALL, Trace

from .distances import (
    relative_difference,
    relative_median,
    total_variation,
    wasserstein,
)
from .engine import Tick, observed
from .exchange import OF, Rows, Source, sources
from .observation import SKEW
from .resampling import LEVEL, block_means, block_values

if TYPE_CHECKING:
    import pandas

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Statistic = Callable[[Float64, Float64], Any]

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
    low: float  # interval of LEVEL
    high: float
    floor: float  # LEVEL quantile of the distance between resamples of the first run

    @property
    def beyond_chance(self) -> bool:
        """Whether the distance exceeds the noise floor within the first run."""
        return self.value > self.floor


@dataclass(frozen=True, kw_only=True)
class Comparison(ShownAsTables):
    """Distances between the traffic of two traces, and time ratios of common calls."""

    distances: tuple[Distance, ...]
    notes: tuple[str, ...]  # reasons for missing comparisons
    times: tuple[TimeRatio, ...] = ()

    def to_frame(self) -> pandas.DataFrame:
        """Convert the distances to a data frame with one row per distance.

        Returns
        -------
        pandas.DataFrame
            With the fields of :class:`Distance` and ``beyond_chance`` as columns.
        """
        import pandas

        rows = [vars(d) | {"beyond_chance": d.beyond_chance} for d in self.distances]
        names = [*Distance.__dataclass_fields__, "beyond_chance"]
        return pandas.DataFrame(rows, columns=names)


def compare(
    a: Trace,
    b: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
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

    Returns
    -------
    Comparison

    Raises
    ------
    AnalysisError
        If the two have no exchange in common.
    """
    notes: list[str] = []
    pairs = _matched(
        sources(a, notes, layers=layers, phase=phase, iterations=iterations, of=of),
        sources(b, notes, layers=layers, phase=phase, iterations=iterations, of=of),
        notes,
    )
    found: list[Distance] = []
    done = 0

    def read(_: int, where: str) -> None:
        nonlocal done
        done += 1
        if tick is not None:
            tick(done, where)

    for one, other in pairs:
        rows = [
            observed(trace, source, threads=threads, tick=read)
            for trace, source in ((a, one), (b, other))
        ]
        found += _of_exchange(one.layer, rows[0], rows[1], notes, seed)
    found += _durations(a, b, iterations, notes, seed)
    if not found:
        raise AnalysisError(
            f"two traces are compared in what both have, but {a.name} and {b.name} "
            f"share nothing ({'; '.join(dict.fromkeys(notes)) or 'no exchange'}): give "
            "two runs of one model"
        )
    return Comparison(
        distances=tuple(found),
        notes=tuple(dict.fromkeys(notes)),
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


def _of_exchange(
    layer: int, a: Rows, b: Rows, notes: list[str], seed: int
) -> list[Distance]:
    found = []
    for name, about in SHARES.items():
        if name not in a or name not in b:
            continue
        x, y = (np.asarray(rows[name], np.float64) for rows in (a, b))
        if x.shape[1] != y.shape[1]:
            notes.append(
                f"layer {layer}: {about} not compared, for {x.shape[1]} and "
                f"{y.shape[1]} cells are no pairs"
            )
            continue
        found.append(
            distance(
                x,
                y,
                total_variation,
                layer=layer,
                of=about,
                measure="total variation",
                unit="1",
                seed=seed,
            )
        )
    for kind, name in (("demand", "demand.load"), ("wire", "wire.sent")):
        if name not in a or name not in b:
            continue
        x, y = (
            np.asarray(rows[name], np.float64).sum(axis=1, keepdims=True)
            for rows in (a, b)
        )
        found.append(
            distance(
                x,
                y,
                relative_difference,
                layer=layer,
                of=f"{kind} an iteration",
                measure="relative difference",
                unit="token copies" if kind == "demand" else "bytes",
                seed=seed,
                figure=lambda values: float(np.mean(values)),
            )
        )
        for measure in SKEW:
            x, y = (
                np.asarray(rows[f"{kind}.{measure}"], np.float64)[:, None]
                for rows in (a, b)
            )
            found.append(
                distance(
                    x,
                    y,
                    wasserstein,
                    layer=layer,
                    of=f"{measure.replace('_', ' ')} of {kind}",
                    measure="Wasserstein-1",
                    unit="1",
                    seed=seed,
                    figure=lambda values: float(np.mean(values)),
                )
            )
    return found


def _durations(
    a: Trace, b: Trace, iterations: range | None, notes: list[str], seed: int
) -> list[Distance]:
    """Compare all-to-all durations of each phase recorded in both runs."""
    told = [durations(trace, iterations) for trace in (a, b)]
    for trace, times in zip((a, b), told, strict=True):
        if not times:
            notes.append(f"no durations: {trace.name} has no times of all-to-alls")
    return [
        distance(
            told[0][name][:, None],
            told[1][name][:, None],
            relative_median,
            layer=-1,
            of=f"duration of {name}",
            measure="relative difference",
            unit="s",
            seed=seed,
            figure=lambda values: float(np.median(values)),
        )
        for name in told[0]
        if name in told[1]
    ]


def durations(trace: Trace, iterations: range | None = None) -> dict[str, Float64]:
    """Compute the duration of each all-to-all from last issue to last end, seconds.

    Parameters
    ----------
    trace
        Trace with call times.
    iterations
        Training iterations; all if None.

    Returns
    -------
    dict
        By phase (those without one: "all-to-alls without a phase"), ``[n]`` float64 in
        the order of the iterations.
    """
    calls = completion(trace, iterations)
    exchanges = np.array([s.operation == ALL_TO_ALL for s in trace.sites], bool)
    calls = calls.take(np.flatnonzero(exchanges[calls.site]))
    calls = calls.take(np.argsort(calls.iteration, kind="stable"))
    phase = np.array([s.phase for s in trace.sites])[calls.site]
    return {
        name or "all-to-alls without a phase": calls.transfer_s[phase == name]
        for name in dict.fromkeys(phase.tolist())
    }


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
    measure: str,
    unit: str,
    seed: int = 0,
    figure: Callable[[Float64], float] | None = None,
) -> Distance:
    """Compute one distance with its confidence interval and noise floor.

    Parameters
    ----------
    x, y
        ``[T, C]`` and ``[U, C]``, time first; C is 1 for statistics of values.
    statistic
        Distance function.
    layer, of, measure, unit
        As in :class:`Distance`.
    seed
        Seed of the resamples.
    figure
        Summary of one run, stored with the distance.

    Returns
    -------
    Distance
    """
    rng = np.random.default_rng(seed)
    if statistic in ON_MEANS:
        value = float(statistic(x.mean(axis=0), y.mean(axis=0)))
        drawn = [block_means(v, n, rng) for v, n in ((x, len(x)), (y, len(y)))]
        itself = [block_means(x, n, rng) for n in (len(x), len(y))]
    else:
        x, y = _thinned(x[:, 0]), _thinned(y[:, 0])
        value = float(statistic(x, y))
        drawn = [block_values(v, n, rng) for v, n in ((x, len(x)), (y, len(y)))]
        itself = [block_values(x, n, rng) for n in (len(x), len(y))]
    resampled = np.array([statistic(p, q) for p, q in zip(*drawn, strict=True)])
    own = np.array([statistic(p, q) for p, q in zip(*itself, strict=True)])
    low, high = _interval(value, resampled)
    return Distance(
        layer=layer,
        of=of,
        measure=measure,
        unit=unit,
        a=float("nan") if figure is None else figure(x),
        b=float("nan") if figure is None else figure(y),
        value=value,
        low=low,
        high=high,
        floor=_quantile(own, LEVEL),
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
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return float("nan"), float("nan")
    above = float(np.quantile(known, (1 + LEVEL) / 2))
    return max(0.0, 2 * value - above), max(value, above)


def _quantile(values: Float64, level: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, level)) if len(known) else float("nan")


def worst(comparison: Comparison, measures: Mapping[str, float]) -> list[Distance]:
    """List the distances whose confidence interval lies above their threshold.

    Parameters
    ----------
    comparison
        Comparison of two traces.
    measures
        Threshold of each measure, such as ``{"total variation": 0.1}``.
    """
    return [
        d
        for d in comparison.distances
        if d.measure in measures and d.low > measures[d.measure]
    ]
