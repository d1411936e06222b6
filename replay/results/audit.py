"""Compute the times of a replay and their ratios to the baselines.

Completion times of all operations, of each kind, stream, phase and layer, and of
iterations; their busbw; and ratios to the baselines (:mod:`.baselines`), each with a
confidence interval from iterations resampled jointly for both
(:mod:`moetraffic.analysis.resampling`).  A ratio is of sums over the operations whose
time is known in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.resampling import ratio
from moetraffic.analysis.times.completion import by_iteration, quantiles
from moetraffic.errors import ReplayError
from moetraffic.replay.execution.timing import Timing
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL, Float64, Int64

from .baselines import Baselines
from .durations import NO_CLOCKS, Measured, measure, parts
from .fidelity import UNKNOWN_RATIO, DurationQuantiles, Fidelity, PartFidelity, Ratio
from .punctuality import punctuality

Times = Mapping[int, Timing]


def audit(
    plan: Plan,
    times: Times,
    measured: Measured,
    *,
    baselines: Baselines | None = None,
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    absolute: bool = False,
    pairs: Sequence[tuple[Times, Times]] = (),
    captured_wall_s: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Fidelity:
    """Compare the durations of a replay with the captured run and other baselines.

    Parameters
    ----------
    plan
        The plan that was replayed.
    times
        Times of every rank.
    measured
        Durations of the operations, from these times.
    baselines
        Durations to compare with.
    clocks
        Clock offsets of type CLOCK.
    absolute
        Whether due times are those of a fixed schedule: see :mod:`.punctuality`.
    pairs
        Pairs of passes without and with dense traffic, for the slowdown.
    captured_wall_s
        Wall time of each iteration in the trace.
    seed
        Seed of the resampling.
    """
    base = baselines or Baselines()
    found = [
        _part(plan, measured, base, by, label, at, seed)
        for by, label, at in parts(plan)
        if np.isfinite(measured.call_s[at]).any()
    ]
    found.append(_iterations(plan, measured, captured_wall_s or {}, seed))
    return Fidelity(
        parts=tuple(found),
        punctuality=punctuality(times, absolute=absolute),
        slowdown=slowdown(plan, pairs, seed=seed) if pairs else None,
        pairs=len(pairs),
        bound_of=base.bound_of,
        model_of=base.model_of,
        clock_error_s=float(clocks["error_ns"].max()) / 1e9 if len(clocks) else 0.0,
        notes=base.notes,
    )


def slowdown(
    plan: Plan, pairs: Sequence[tuple[Times, Times]], *, seed: int = 0
) -> Ratio:
    """Compute the slowdown of all-to-alls by dense traffic, a ratio of total times.

    Both passes of a pair follow each other, so that other load of the machine affects
    both; iterations are resampled together with their counterpart of the pair.

    Parameters
    ----------
    plan
        Plan of both passes.
    pairs
        Times of every rank, of the all-to-alls alone and of all operations.
    seed
        Seed of the resampling.

    Returns
    -------
    Ratio
        Sum of the call times with dense traffic over the sum without.

    Raises
    ------
    ReplayError
        If there is no pair, or the plan has no all-to-all.
    """
    exchanges = np.flatnonzero(plan.kind == KINDS.index(ALL_TO_ALL))
    if not (len(pairs) and len(exchanges)):
        raise ReplayError(
            "a slowdown is measured from pairs of passes with all-to-alls, but there "
            f"are {len(pairs)} pairs and {len(exchanges)} all-to-alls: replay a trace "
            "that has some, with and without the dense traffic"
        )
    sums: tuple[list[Float64], list[Float64]] = ([], [])
    for pair in pairs:
        taken = [measure(plan, times).call_s[exchanges] for times in pair]
        both = np.isfinite(taken[0]) & np.isfinite(taken[1])
        for into, call in zip(sums, taken, strict=True):
            into.append(by_iteration(call[both], plan.iteration[exchanges][both]))
    without, with_dense = (np.concatenate(s) for s in sums)
    return _ratio(without, with_dense, seed)


def _part(
    plan: Plan,
    measured: Measured,
    base: Baselines,
    by: str,
    label: str,
    at: Int64,
    seed: int,
) -> PartFidelity:
    at = at[np.isfinite(measured.call_s[at])]
    call, transfer = measured.call_s[at], measured.transfer_s[at]
    link_bytes = plan.bottleneck_bytes[at]
    crossed = (link_bytes > 0) & (call > 0)
    busbw = float("nan")
    if crossed.any():
        busbw = float(link_bytes[crossed].sum() / call[crossed].sum() / 1e9)

    def over(baseline: Float64 | None, own: Float64) -> Ratio:
        if baseline is None:
            return UNKNOWN_RATIO
        other = baseline[at]
        both = np.isfinite(other) & (other > 0)
        when = plan.iteration[at][both]
        return _ratio(
            by_iteration(other[both], when), by_iteration(own[both], when), seed
        )

    return PartFidelity(
        by=by,
        label=label,
        number=len(at),
        total_bytes=int(plan.total_bytes[at].sum()),
        network_bytes=int(plan.network_bytes[at].sum()),
        time_s=_quantiles(call),
        transfer_s=_quantiles(transfer),
        **_straggler(measured.last[at]),
        busbw_gbs=busbw,
        over_captured=over(base.captured_call_s, call),
        transfer_over_captured=over(base.captured_transfer_s, transfer),
        over_bound=over(base.bound_s, call),
        over_model=over(base.model_s, call),
    )


def _iterations(
    plan: Plan, measured: Measured, captured_s: Mapping[int, float], seed: int
) -> PartFidelity:
    known = np.isfinite(measured.wall_s)
    own, when = measured.wall_s[known], measured.iteration[known]
    before = np.array([captured_s.get(i, np.nan) for i in when.tolist()], np.float64)
    both = np.isfinite(before)
    return PartFidelity(
        by="iteration",
        label="",
        number=len(own),
        total_bytes=int(plan.total_bytes.sum()),
        network_bytes=int(plan.network_bytes.sum()),
        time_s=_quantiles(own),
        **_straggler(measured.wall_rank[known]),
        over_captured=_ratio(before[both], own[both], seed),
    )


def _straggler(ranks: Int64) -> dict[str, Any]:
    """Find the most frequent rank and its share; negative ranks are not counted."""
    times = np.bincount(ranks[ranks >= 0], minlength=1)
    if not times.any():
        return {"straggler": -1, "straggler_share": 0.0}
    share = float(times.max() / times.sum())
    return {"straggler": int(times.argmax()), "straggler_share": share}


def _ratio(below: Float64, above: Float64, seed: int) -> Ratio:
    return Ratio(**asdict(ratio(below, above, seed=seed)))


def _quantiles(values: Float64) -> DurationQuantiles:
    return DurationQuantiles(**asdict(quantiles(values)))
