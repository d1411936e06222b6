r"""Downstream figures: what users compute from a run, and how far two runs are apart.

All are computed from token counts ``n[t, l, r, e]`` and the placement of experts (T
iterations, L layers, R ranks, E experts), so that they are defined of captured and of
synthetic routing alike.  Times are by the port model: ranks of a group exchange through
a non-blocking switch with one port each of a stated rate, and an all-to-all ends when
the bottleneck port has sent or received its bytes.

Two runs differ in a figure by :math:`2(x - y)/(|x| + |y|)`; in a forecast skill, which
may be zero or below, by :math:`x - y`.  A synthetic run is accepted in a figure if it
differs from its run by at most :data:`SLACK` times the largest difference between two
reruns, and always if by at most :data:`TOLERATED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from moetraffic.analysis.forecast import score
from moetraffic.analysis.load import hot_members, retention
from moetraffic.analysis.measures import entropy, total_variation
from moetraffic.arrays import Float64, Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.trace import PHASES, Trace

from .routing_counts import placed_counts, routing_counts

FIGURES = {
    "entropy": "normalized entropy of the expert load",
    "max over mean": "load of the busiest expert over the mean",
    "change": "change of the expert load from iteration to iteration",
    "p99 link time": "time of an all-to-all at the bottleneck port, 99th percentile",
    "p50 completion": "time of an iteration's all-to-alls, median",
    "p99 completion": "time of an iteration's all-to-alls, 99th percentile",
    "skill at 1": "forecast skill, 1 iteration ahead",
    "skill at 10": "forecast skill, 10 iterations ahead",
    "retention at 10": "retention of hot experts over 10 iterations",
}
"""Downstream figures of a run, with their titles; the first three are means over
iterations, a change is a total variation, hot is the quarter of most load."""

TIMES = ("p99 link time", "p50 completion", "p99 completion")
"""Figures that are seconds; the others have no unit."""

PORT_BYTES_S = 25e9
"""Rate of a port, each way: 200 Gb/s.  Differences of runs do not depend on it."""

SLACK = 1.25
"""Accepted difference over the largest difference between two reruns."""
TOLERATED = 0.02
"""Difference that is accepted whatever reruns differ by."""

LAG = 10
"""Iterations after which hot experts and forecasts are looked at again."""


def downstream(
    run: Trace | Integer,
    *,
    holder: Int64 | None = None,
    width: int | None = None,
    copy_bytes: int = 1,
) -> dict[str, float]:
    """Compute the downstream figures of a run.

    Parameters
    ----------
    run
        Trace with the routing of every rank, or ``[T, L, R, E]`` token copies that a
        rank routes to an expert.
    holder
        ``[L, E]`` which rank of its group holds each expert; None: contiguous.  A trace
        has its own, as it has ``width`` and ``copy_bytes``.
    width
        W, consecutive ranks of an expert-parallel group; None: all R.
    copy_bytes
        Bytes of a token copy in each of the four phases.

    Returns
    -------
    dict of str to float
        By the names in :data:`FIGURES`; NaN where a run is too short.

    Raises
    ------
    AnalysisError, TraceError
        If the routing of all ranks is not known, or the shape is another.
    """
    if isinstance(run, Trace):
        routing = routing_counts(run)
        run, holder, width = routing.counts, routing.holder, routing.width
        copy_bytes = routing.copy_bytes
    n, held, group = placed_counts(run, holder, width)
    total = n.sum(axis=2, dtype=np.float64)
    load = total / np.maximum(total.sum(axis=2, keepdims=True), 1)  # [T, L, E]
    second = copy_bytes / PORT_BYTES_S
    calls = bottleneck_copies(n, holder=held, width=group) * second  # [T, L]
    iteration = len(PHASES) * calls.sum(axis=1)  # a transposed matrix has its bound
    skills = _skills(load)
    return {
        "entropy": float(np.nanmean(entropy(load))),
        "max over mean": float(load.max(axis=2).mean() * load.shape[2]),
        "change": float(np.nanmean(total_variation(load[1:], load[:-1]))),
        "p99 link time": float(np.percentile(calls, 99)),
        "p50 completion": float(np.percentile(iteration, 50)),
        "p99 completion": float(np.percentile(iteration, 99)),
        "skill at 1": skills[0],
        "skill at 10": skills[1],
        "retention at 10": _retention(load),
    }


def bottleneck_copies(counts: Integer, *, holder: Int64, width: int) -> Int64:
    """Compute the token copies through the bottleneck port of each dispatch.

    ``[T, L]``: the largest sum of a row or column, without rank-local copies, of all
    groups.
    """
    total, depth, ranks, _ = counts.shape
    onto = (holder[..., None] == np.arange(width)).astype(np.float64)
    most = np.zeros((total, depth), np.int64)
    for t in range(total):  # an iteration at a time: matrices are large
        sent = (counts[t] @ onto).reshape(depth, ranks // width, width, width)
        sent[..., np.arange(width), np.arange(width)] = 0
        ports = np.maximum(sent.sum(axis=2), sent.sum(axis=3))
        most[t] = np.rint(ports.max(axis=(1, 2)))
    return most


def difference(
    figures: Mapping[str, float], of: Mapping[str, float]
) -> dict[str, float]:
    """Compute the signed difference of each figure of a run to that of another.

    It is positive where ``figures`` has the larger value; NaN where one is unknown.
    """
    found = {}
    for name in FIGURES:
        apart = figures[name] - of[name]
        scale = (abs(figures[name]) + abs(of[name])) / 2
        if name.startswith("skill") or apart == 0:
            found[name] = apart
        else:
            found[name] = apart / scale
    return found


def accepted_difference(reruns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Compute the largest accepted difference of each figure from those of reruns.

    Parameters
    ----------
    reruns
        Figures of two or more runs of the same initialization, the fitted one too.

    Raises
    ------
    AnalysisError
        If there are fewer than two.
    """
    if len(reruns) < 2:
        raise AnalysisError(
            "the accepted difference is that of two or more runs of the same "
            f"initialization, but there are {len(reruns)}: capture reruns with "
            "--data-seed"
        )
    pairs = [difference(a, b) for a, b in combinations(reruns, 2)]
    return {
        name: max(TOLERATED, SLACK * float(np.max([abs(pair[name]) for pair in pairs])))
        for name in FIGURES
    }


def _skills(load: Float64) -> tuple[float, float]:
    """Compute the skill of one forecaster for all experts at horizons 1 and LAG."""
    one, later = (
        next((row["below_mean"] for row in scores.rows if row["chosen"]), float("nan"))
        for scores in score(load.reshape(len(load), -1), horizons=(1, LAG), period=0)
    )
    return one, later


def _retention(load: Float64) -> float:
    """Compute the mean share of the hottest quarter that is so after LAG iterations."""
    if len(load) <= LAG:
        return float("nan")
    hot, known = max(1, load.shape[2] // 4), np.ones(len(load), bool)
    kept = [
        retention(hot_members(load[:, layer], hot), known, np.array([LAG]))[0]
        for layer in range(load.shape[1])
    ]
    return float(np.mean(kept))
