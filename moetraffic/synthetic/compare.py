r"""Compare a synthetic trace with real runs, in one table of statistics.

Of n real runs with the mean m and the standard deviation s of a statistic, one more
real run lies within Student's prediction interval

.. math:: m \pm t_{n-1}(1 - \alpha/2M)\, s \sqrt{1 + 1/n}

in all M statistics together with a probability of at least :math:`1 - \alpha`
(Bonferroni).  A synthetic run outside is distinguished from real runs; half the width
is the smallest change that is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis.verdict import counted, listed
from moetraffic.arrays import Float64, Int64
from moetraffic.columns import COLUMNS, cell_text
from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers

from .counts import routing_counts
from .statistics import LEAST, RANGES, SHORTEST, STATISTICS, statistics

LEVEL = 0.05
"""Probability that one more real run lies outside in any statistic."""

ROUNDING = 1e-9
"""Half of the width of an interval, at least."""

COPIES = "token copies of a rank in a layer"
"""A size that varies slightly from batch to batch."""

SEVERAL = (
    "95% interval: for one more real run, all statistics together; finds: smallest "
    "change that is found, of shares and correlations absolute"
)
ONE = "difference: synthetic minus real"
"""Captions of the table, by the number of real runs."""


def compare_with_runs(
    synthetic: Trace | str | Path,
    real: Sequence[Trace | str | Path],
    *,
    layers: Sequence[int] | str | int | None = None,
    iterations: range | str | None = None,
    tick: Callable[[int, str], None] = lambda done, name: None,
) -> Result:
    """Compare a synthetic trace with real runs of the same size.

    Parameters
    ----------
    synthetic
        Trace with the routing of every rank.
    real
        Traces of runs of one training, such as reruns with other data.  All are cut to
        the length of the shortest.  Of one run only the difference is known.
    layers, iterations
        None: all.
    tick
        Progress callback: number of runs read, and the name of the last.

    Returns
    -------
    Result
        Table ``statistics``; ``data["outside"]`` is the number of statistics outside
        the interval for one more real run.

    Raises
    ------
    AnalysisError, TraceError
        If traces differ in size, are too short, or lack the routing of a rank.
    """
    chosen: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "iterations": iteration_range(iterations),
    }
    traces = [Trace.open(source) for source in (synthetic, *real)]
    names, runs = [trace.name for trace in traces], []
    for trace in traces:
        runs.append(routing_counts(trace, **chosen))
        tick(len(runs), trace.name)
    _check_sizes(names, runs, [trace.meta.k for trace in traces])
    lengths = [len(run) for run in runs]
    shortest = min(lengths)
    if shortest < SHORTEST:
        raise AnalysisError(
            f"the statistics need {SHORTEST} iterations, but "
            f"{names[lengths.index(shortest)]} has {shortest}: compare longer runs"
        )
    values = [statistics(run[:shortest]) for run in runs]
    rows = statistic_rows(values[0], values[1:])
    return Result(
        verb="compare",
        head=f"{names[0]} against {counted(len(real), 'real run')}, "
        f"the first {shortest} iterations of each",
        tables={"statistics": rows},
        screen=("statistics",),
        captions={"statistics": SEVERAL if len(real) > 1 else ONE},
        verdict=_sentences(rows, len(real)),
        data={
            "synthetic": names[0],
            "real": names[1:],
            "iterations": shortest,
            "outside": sum(bool(row["outside"]) for row in rows),
        },
    )


def statistic_rows(
    synthetic: Mapping[str, float], real: Sequence[Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Compare the statistics of a synthetic run with those of real runs.

    Returns
    -------
    list of dict
        A row for each statistic that all real runs have.  With one real run,
        ``real_interval`` and ``finds`` are NaN, and ``outside`` is None.
    """
    known = [name for name in STATISTICS if np.isfinite([r[name] for r in real]).all()]
    rows = []
    for name in known:
        theirs = np.array([run[name] for run in real])
        smallest, largest = float(theirs.min()), float(theirs.max())
        low, high, finds = prediction(theirs, STATISTICS[name], len(known))
        low, high = np.clip((low, high), *RANGES.get(name, (0, np.inf))).tolist()
        value = synthetic[name]
        rows.append(
            {
                "measure": name,
                "synthetic": value,
                "real": (smallest, largest) if len(real) > 1 else smallest,
                "real_interval": (low, high),
                "outside": None if len(real) < 2 else not low <= value <= high,
                "finds": finds,
                "difference": None if len(real) > 1 else value - smallest,
            }
        )
    return rows


def prediction(
    values: Float64, scale: str, compared: int
) -> tuple[float, float, float]:
    """Compute the interval for one more run, and the smallest change that it finds.

    Parameters
    ----------
    values
        ``[n]`` of real runs; of fewer than two all results are NaN.
    scale
        On which runs scatter: ``log`` or ``linear``.
    compared
        M statistics, among which the level is divided.

    Returns
    -------
    tuple of float
        Lower and upper end, and half of the width: on a logarithmic scale relative to
        the mean (0.1: from 10% more on), on a linear one absolute.
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return float("nan"), float("nan"), float("nan")
    x = np.log(np.maximum(values, LEAST)) if scale == "log" else values
    center = float(x.mean())
    half = t.ppf(1 - LEVEL / (2 * compared), n - 1) * x.std(ddof=1) * np.sqrt(1 + 1 / n)
    half = max(float(half), ROUNDING)
    if scale == "linear":
        return center - half, center + half, half
    with np.errstate(over="ignore"):  # two runs that differ much have no upper end
        low, high, factor = np.exp([center - half, center + half, half]).tolist()
    return low, high, factor - 1


def _check_sizes(
    names: Sequence[str], runs: Sequence[Int64], ks: Sequence[int]
) -> None:
    """Refuse runs of another size than the first one; an unknown k fits any."""
    if len(runs) < 2:
        raise AnalysisError("a run is compared with one real run or more: give some")
    sizes = []
    for run, k in zip(runs, ks, strict=True):
        total, depth, ranks, experts = run.shape
        copies = int(run.sum()) // (total * depth * ranks)
        size = {"layers": depth, "ranks": ranks, "experts": experts, "k": k}
        sizes.append(size | {COPIES: copies})
    for name, size in zip(names[1:], sizes[1:], strict=True):
        for field, value in size.items():
            own = sizes[0][field]
            same = isclose(own, value, rel_tol=0.01 if field == COPIES else 0)
            if own and value and not same:
                raise AnalysisError(
                    f"runs of one size are compared, but {names[0]} has {own} in "
                    f"{field} and {name} {value}: compare runs of one size"
                )


def _sentences(rows: Sequence[Mapping[str, Any]], real: int) -> tuple[str, ...]:
    """State which statistics are outside, and what changes are found."""
    if real < 2:
        return (
            "The spread of real runs is unknown: give two reruns or more, captured "
            "with other values of --data-seed.",
        )

    def name(row: Mapping[str, Any]) -> str:
        return COLUMNS[row["measure"]].heading

    def finds(row: Mapping[str, Any]) -> str:
        return cell_text(row["finds"], COLUMNS["finds"].format)

    outside = [name(row) for row in rows if row["outside"]]
    first = f"All {len(rows)} statistics are inside the intervals."
    if outside:
        first = (
            f"Outside the interval: {len(outside)} of {len(rows)} statistics "
            f"({listed(outside)})."
        )
    ordered = sorted(rows, key=lambda row: row["finds"])
    least, median, most = (ordered[at] for at in (0, len(ordered) // 2, -1))
    return (
        first,
        f"{real} real runs find changes over {finds(least)} ({name(least)}) to "
        f"{finds(most)} ({name(most)}), in the median {finds(median)}.",
    )
