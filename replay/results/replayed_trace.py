"""Build the trace of a replay from the sent traffic and the measured times.

On the ranks of the trace, without background traffic, it is the trace with new times,
including its routings and their demand.  Otherwise (other ranks, other bytes,
background traffic) it is built from the plan: each operation with the bytes that were
sent, without demand, because no router ran on these ranks.

Losses and tokens are unknown.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

import moetraffic
from moetraffic.arrays import Int64
from moetraffic.replay.plan.program import KINDS, Plan, Timing
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    RUN,
    UNKNOWN_TIME,
    Group,
    Occurrences,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.routed import blank_panels
from moetraffic.trace.trace import TIMES, Trace

from .call_times import NO_CLOCKS, Measured


def replayed_trace(
    trace: Trace,
    plan: Plan,
    times: Mapping[int, Timing],
    *,
    backend: str,
    nodes: Sequence[str],
    torch_version: str = "",
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    rescaled: bool = False,
    runs: Sequence[Measured] = (),
    busy: bool = False,
    settings: str = "",
) -> Trace:
    """Build the trace of a replay: sent bytes with measured times.

    ``times`` are those of every rank on its own clock, ``clocks`` are offsets of type
    CLOCK.  ``rescaled``: ``trace`` is on other ranks, or with other bytes, than it was
    captured.  ``runs`` are all timed passes, of which these are the times of the
    median; several are summed in the trace, each by site.  ``busy``: other processes
    used the hosts meanwhile.  ``settings``: pace and scale as options.
    """
    if not rescaled and bool((plan.occurrence >= 0).all()):
        base = trace.select(np.union1d(plan.occurrence, _routings(trace, plan)))
        place = base.at(plan.site.astype(np.int64), plan.iteration)
    else:
        base, place = _build(trace, plan)
    meta = replace(
        base.meta,
        origin="replayed",
        source=plan.source
        + (f" (median run of {len(runs)})" if len(runs) > 1 else "")
        + f" with {settings}" * bool(settings),
        virtual=False,
        backend=backend,
        nodes=tuple(nodes),
        complete=True,
        missing="",
        moetraffic=moetraffic.__version__,
        torch=torch_version,
        python=platform.python_version(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return base.replaced(
        meta=meta,
        panels=base.panels | _times(base, times, place),
        steps=_steps(trace, plan, times),
        clocks=clocks,
        runs=_run_sums(base, place, runs, busy) if len(runs) > 1 else None,
        file=None,
    )


def _routings(trace: Trace, plan: Plan) -> Int64:
    """Find the routings of the exchanges of a plan."""
    used = [trace.sites[n] for n in np.unique(plan.site).tolist()]
    keys = {(s.layer, s.slot, s.group) for s in used if s.phase}
    routes = np.array(
        [
            s.operation == ROUTING and (s.layer, s.slot, s.group) in keys
            for s in trace.sites
        ]
    )
    every = trace.occurrences
    replayed = np.isin(every.iteration, plan.iteration)
    return np.flatnonzero(routes[every.site] & replayed)


def _run_sums(
    base: Trace, place: Int64, runs: Sequence[Measured], busy: bool
) -> npt.NDArray[np.void]:
    """Sum the calls of each run by site, ``[k]`` of type RUN."""
    training = np.isin(base.occurrences.iteration[place], base.iterations)
    sites, which = np.unique(base.occurrences.site[place], return_inverse=True)
    made = np.zeros((len(runs), len(sites) + 1), RUN)
    made["number"], made["site"] = np.arange(len(runs))[:, None], [*sites, -1]
    made["busy"] = busy
    for row, run in zip(made, runs, strict=True):
        known = training & np.isfinite(run.call_s)
        of = which.reshape(-1)[known]
        row["calls"][:-1] = np.bincount(of, minlength=len(sites))
        for name in ("call", "transfer", "wait", "inside"):
            seconds = getattr(run, f"{name}_s")[known]
            sums = np.bincount(of, seconds, minlength=len(sites))
            row[f"{name}_ns"][:-1] = np.rint(sums * 1e9)
        walls = run.wall_s[np.isin(run.iteration, base.iterations)]
        row["calls"][-1], row["call_ns"][-1] = len(walls), np.rint(walls.sum() * 1e9)
    return made.reshape(-1)


def _times(base: Trace, times: Mapping[int, Timing], place: Int64) -> dict[str, Panel]:
    """Build the panels of issue, start and end times; those of routings are unknown."""
    found = {
        name: np.full(panel.shape, UNKNOWN_TIME)
        for name, panel in base.panels.items()
        if name.partition("/")[2] in TIMES
    }
    group = np.array([s.group for s in base.sites], np.int64)
    for rank, timing in times.items():
        member_of = np.array(
            [g.ranks.index(rank) if rank in g.ranks else -1 for g in base.groups]
        )
        at = place[timing.operation]
        site = base.occurrences.site[at]
        member, width = member_of[group[site]], base.width[site]
        for size in np.unique(width).tolist():
            here = width == size
            for name in TIMES:
                values = getattr(timing, name)[here]
                found[f"call_{size}/{name}"][base.row[at[here]], member[here]] = values
    return {name: ArrayPanel(array) for name, array in found.items()}


# ---- on other ranks, with other bytes, with background traffic ---------------------


def _build(trace: Trace, plan: Plan) -> tuple[Trace, Int64]:
    """Build a trace from a plan; return it and each operation's index in it.

    All-to-alls have the bytes of the trace, other operations those of the plan.
    """
    groups = list(trace.groups)
    for added in range(len(groups), len(plan.groups)):
        streams = plan.stream[plan.group == added]  # names of background groups
        kind = plan.streams[int(streams[0])] if len(streams) else "other"
        groups.append(Group(kind=kind, ranks=plan.groups[added]))
    matrix, transposed = np.full(len(plan), -1), np.zeros(len(plan), bool)
    captured = np.flatnonzero(plan.kind == KINDS.index(ALL_TO_ALL))
    calls = trace.occurrences[plan.occurrence[captured]]
    matrix[captured], transposed[captured] = calls.matrix, calls.transposed
    order = np.lexsort((plan.iteration, plan.site))
    number = np.unique(plan.site[order], return_inverse=True)[1].reshape(-1)
    sites, volumes = [], defaultdict[str, list[Int64]](list)
    for mine in np.split(order, np.flatnonzero(np.diff(number)) + 1):
        site = plan.sites[plan.site[mine[0]]]
        sites.append(site)
        if site.operation != ALL_TO_ALL:
            ranks = np.array(groups[site.group].ranks)
            gives = np.ones(len(ranks), bool)
            if site.operation in ("send_recv", "scatter"):
                gives = ranks == plan.sender[mine[0]]
            sizes, which = np.unique(plan.size[mine], return_inverse=True)
            rows = volumes[f"call_{len(ranks)}/volume"]
            matrix[mine] = len(rows) + which
            rows += [size * gives for size in sizes]
    inside = trace.occurrences.evaluation
    if inside is not None:
        inside = (inside[plan.occurrence] & (plan.occurrence >= 0))[order]
    wire = {name: p for name, p in trace.panels.items() if name.endswith("/wire")}
    base = Trace(
        meta=trace.meta,
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=plan.iteration[order],
            site=number.astype(np.int32),
            sequence=np.full(len(plan), -1),
            matrix=matrix[order],
            transposed=transposed[order],
            evaluation=inside,
        ),
        panels=blank_panels(groups, sites, number)
        | wire
        | {name: ArrayPanel(np.array(rows)) for name, rows in volumes.items()},
        steps=trace.steps,
    )
    place = np.empty(len(plan), np.int64)
    place[order] = np.arange(len(plan))
    return base, place


def _steps(trace: Trace, plan: Plan, times: Mapping[int, Timing]) -> Steps:
    """Build one step per iteration, from first call to last end on each rank."""
    iterations = np.unique(plan.iteration)
    kinds = dict(zip(trace.steps.iteration.tolist(), trace.steps.kind, strict=True))
    shape = len(iterations), plan.world
    begin = np.full(shape, np.iinfo(np.int64).max, np.int64)
    end = np.full(shape, UNKNOWN_TIME, np.int64)
    for rank, timing in times.items():
        at = np.searchsorted(iterations, plan.iteration[timing.operation])
        np.minimum.at(begin[:, rank], at, timing.issue)
        np.maximum.at(end[:, rank], at, timing.end)
    return Steps(
        iteration=iterations,
        kind=tuple(kinds.get(i, "train") for i in iterations.tolist()),
        loss=np.full(shape, np.nan),
        tokens=np.full(shape, -1, np.int64),
        start=np.where(end == UNKNOWN_TIME, UNKNOWN_TIME, begin),
        end=end,
        source=trace.steps.sources(iterations),
    )
