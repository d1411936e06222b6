"""Audit: a replay's times, and how they stand to those of the run it repeats.

Completion times of all operations and of each kind, stream, phase and layer, and of
iterations; their busbw; and ratios to the baselines (:mod:`.baselines`), each with an
interval from iterations that are drawn for both together
(:mod:`moetraffic.analysis.resampling`).  A ratio is of sums over the operations that
both know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

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
from .fidelity import DurationQuantiles, Fidelity, PartFidelity, Ratio
from .punctuality import punctuality

UNKNOWN_RATIO = Ratio(value=float("nan"), low=float("nan"), high=float("nan"))


def audit(
    plan: Plan,
    times: Mapping[int, Timing],
    measured: Measured,
    *,
    baselines: Baselines | None = None,
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    absolute: bool = False,
    alone: Sequence[tuple[Mapping[int, Timing], Mapping[int, Timing]]] = (),
    captured_wall_s: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Fidelity:
    """Say how a replay stands to what it repeats.

    Parameters
    ----------
    plan
        What was replayed.
    times
        Every rank's times.
    measured
        What operations took, of these.
    baselines
        What they are held against.
    clocks
        Knots of type CLOCK.
    absolute
        Whether due times are those of a fixed schedule: see :mod:`.punctuality`.
    alone
        Pairs of passes, without and with the dense traffic, for the slowdown.
    captured_wall_s
        What each iteration took in the trace.
    seed
        Of the resamples.
    """
    held = baselines or Baselines()
    found = [
        _part(plan, measured, held, by, label, at, seed)
        for by, label, at in parts(plan)
        if np.isfinite(measured.call_s[at]).any()
    ]
    found.append(_iterations(measured, captured_wall_s or {}, seed))
    return Fidelity(
        parts=tuple(found),
        punctuality=punctuality(times, absolute=absolute),
        slowdown=slowdown(plan, alone, seed=seed) if alone else None,
        pairs=len(alone),
        bound_of=held.bound_of,
        model_of=held.model_of,
        clock_error_s=float(clocks["error_ns"].max()) / 1e9 if len(clocks) else 0.0,
        notes=held.notes,
    )


def slowdown(
    plan: Plan,
    pairs: Sequence[tuple[Mapping[int, Timing], Mapping[int, Timing]]],
    *,
    seed: int = 0,
) -> Ratio:
    """How much longer all-to-alls take beside dense traffic than alone.

    Both passes of a pair follow each other, so that what else the machine does falls on
    both; an iteration of a pair is drawn with its partner.

    Parameters
    ----------
    plan
        Of both.
    pairs
        Every rank's times of the all-to-alls without, and of all operations with it.
    seed
        Of the resamples.

    Returns
    -------
    Ratio
        Sum of the call times with over without.

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
    without, beside = (np.concatenate(s) for s in sums)
    return _ratio(without, beside, seed)


def _part(
    plan: Plan,
    measured: Measured,
    held: Baselines,
    by: str,
    label: str,
    at: Int64,
    seed: int,
) -> PartFidelity:
    at = at[np.isfinite(measured.call_s[at])]
    call, transfer = measured.call_s[at], measured.transfer_s[at]
    crossed = (plan.bottleneck_bytes[at] > 0) & (call > 0)
    came = np.bincount(measured.last[at][measured.last[at] >= 0])

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
        time_s=_quantiles(call),
        transfer_s=_quantiles(transfer),
        straggler=int(came.argmax()) if came.any() else -1,
        straggler_share=float(came.max() / came.sum()) if came.any() else 0.0,
        busbw_gbs=float(
            plan.bottleneck_bytes[at][crossed].sum() / call[crossed].sum() / 1e9
        )
        if crossed.any()
        else float("nan"),
        over_captured=over(held.captured_call_s, call),
        transfer_over_captured=over(held.captured_transfer_s, transfer),
        over_bound=over(held.bound_s, call),
        over_model=over(held.model_s, call),
    )


def _iterations(
    measured: Measured, captured_s: Mapping[int, float], seed: int
) -> PartFidelity:
    known = np.isfinite(measured.wall_s)
    own, when = measured.wall_s[known], measured.iteration[known]
    before = np.array([captured_s.get(i, np.nan) for i in when.tolist()], np.float64)
    both = np.isfinite(before)
    slow = np.bincount(measured.wall_rank[known])
    return PartFidelity(
        by="iteration",
        label="",
        number=len(own),
        time_s=_quantiles(own),
        transfer_s=None,
        straggler=int(slow.argmax()) if slow.any() else -1,
        straggler_share=float(slow.max() / slow.sum()) if slow.any() else 0.0,
        busbw_gbs=float("nan"),
        over_captured=_ratio(before[both], own[both], seed),
        transfer_over_captured=UNKNOWN_RATIO,
        over_bound=UNKNOWN_RATIO,
        over_model=UNKNOWN_RATIO,
    )


def _ratio(below: Float64, above: Float64, seed: int) -> Ratio:
    return Ratio(**asdict(ratio(below, above, seed=seed)))


def _quantiles(values: Float64) -> DurationQuantiles:
    return DurationQuantiles(**asdict(quantiles(values)))
