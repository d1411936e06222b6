"""Build the trace of a replay from the sent traffic and the measured times.

On the ranks of the trace, without background traffic, it is the trace with new times,
including its routings and their demand.  Otherwise (other ranks, other bytes,
background traffic) it is built from the plan: each operation with the bytes that were
sent, without demand, because no router ran on these ranks.

Losses and tokens are unknown.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

import moetraffic
from moetraffic.arrays import Bool, Int64
from moetraffic.replay.plan.program import KINDS, Plan, Timing
from moetraffic.replay.plan.sizes import exchange_matrices
from moetraffic.trace.model import (
    ALL_TO_ALL,
    RUN,
    UNKNOWN_TIME,
    Group,
    Meta,
    Occurrences,
    Site,
    Steps,
    WireForm,
)
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.rows import TIMES, recorded_panels
from moetraffic.trace.trace import Trace

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
    same_operations = not rescaled and bool((plan.occurrence >= 0).all())
    if same_operations:
        base = trace.select(plan.occurrence)
        place = base.rows.at(plan.site.astype(np.int64), plan.iteration)
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
    issue, start, end = (_panels(base, plan, times, place, n) for n in TIMES)
    return base.replace(
        issue=issue,
        start=start,
        end=end,
        meta=meta,
        steps=_steps(trace, plan, times),
        clocks=clocks,
        runs=_run_sums(base, place, runs, busy) if len(runs) > 1 else None,
    )


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


def _panels(
    base: Trace, plan: Plan, times: Mapping[int, Timing], place: Int64, name: str
) -> dict[int, Int64]:
    """Collect issue, start or end times by group size: ``[O_W, W]`` int64 ns."""
    width = np.array([len(base.groups[s.group].ranks) for s in base.sites], np.int64)
    of = width[base.occurrences.site]
    row = np.zeros(len(of), np.int64)
    panels = {}
    for size in np.unique(of).tolist():
        mine = of == size
        row[mine] = np.arange(np.count_nonzero(mine))
        shape = int(mine.sum()), size
        panels[size] = np.full(shape, UNKNOWN_TIME, np.int64)
    group = np.array([s.group for s in base.sites], np.int64)
    for rank, timing in times.items():
        member_of = np.array(
            [g.ranks.index(rank) if rank in g.ranks else -1 for g in base.groups]
        )
        at = place[timing.operation]
        member = member_of[group[base.occurrences.site[at]]]
        for size, panel in panels.items():
            here = of[at] == size
            panel[row[at[here]], member[here]] = getattr(timing, name)[here]
    return panels


# ---- on other ranks, with other bytes, with background traffic ---------------------


def _build(trace: Trace, plan: Plan) -> tuple[Trace, Int64]:
    """Build a trace from a plan; return it and each operation's index in it."""
    order = np.lexsort((plan.iteration, plan.site))
    place = np.empty(len(plan), np.int64)
    place[order] = np.arange(len(plan))
    used, site = np.unique(plan.site[order], return_inverse=True)
    site = site.reshape(-1)
    members = [len(g) for g in plan.groups]
    first = np.searchsorted(plan.site[order], used)
    sites, inputs = [], []
    for number, head in zip(used.tolist(), order[first].tolist(), strict=True):
        mine = plan.site == number
        made, volumes = _site(plan, number, head, mine)
        sites.append(made)
        inputs.append(volumes)
    width = np.array([members[s.group] for s in sites], np.int64)[site]
    square = np.array([s.operation == ALL_TO_ALL for s in sites], bool)[site]
    stored = np.array([s.wire == WireForm.STORED for s in sites], bool)[site]
    groups = _groups(trace, plan)
    panels: dict[str, Panel] = recorded_panels(groups, sites, site)
    for size in np.unique(width).tolist():
        here = width == size
        if (here & square).any():
            count = int((here & square).sum())
            panels[f"wire_{size}"] = ArrayPanel(np.zeros((count, size, size), np.int64))
        mine = np.flatnonzero(here & ~square & stored)
        if len(mine):
            rows = [inputs[site[at]] * plan.size[order[at]] for at in mine.tolist()]
            panels[f"volume_{size}"] = ArrayPanel(np.stack(rows).astype(np.int64))
    row_of = np.zeros(len(plan), np.int64)  # of an all-to-all in its panel
    for size in np.unique(width).tolist():
        same = np.flatnonzero((width == size) & square)
        row_of[same] = np.arange(len(same))
    for read, _, wire in exchange_matrices(trace, plan):
        panel = panels[f"wire_{wire.shape[1]}"]
        panel.read(0, panel.shape[0])[row_of[place[read]]] = wire
    base = Trace(
        meta=_meta(trace, plan),
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=plan.iteration[order],
            site=site.astype(np.int32),
            sequence=np.full(len(plan), -1, np.int64),
        ),
        panels=panels,
        steps=trace.steps,
    )
    return base, place


def _site(plan: Plan, number: int, head: int, mine: Bool) -> tuple[Site, Int64]:
    """Build a replayed site, and the share of its size each member sends, ``[W]``."""
    site, group = plan.sites[number], int(plan.group[head])
    ranks = plan.groups[group]
    kind = KINDS[int(plan.kind[head])]
    peers, gives = (-1, -1), np.ones(len(ranks), np.int64)
    if kind == "send_recv":
        peers = (
            ranks.index(int(plan.sender[head])),
            ranks.index(int(plan.receiver[head])),
        )
    if kind in ("send_recv", "scatter"):
        gives[:] = 0
        gives[ranks.index(int(plan.sender[head]))] = 1
    sizes = np.unique(plan.size[mine])
    constant = kind != ALL_TO_ALL and len(sizes) == 1
    made = replace(
        site,
        group=group,
        operation=kind,
        peers=peers,
        routing=-1,
        wire=WireForm.CONSTANT if constant else WireForm.STORED,
        wire_checked=0,
        constant=tuple((gives * sizes[0]).tolist()) if constant else (),
    )
    return made, gives


def _groups(trace: Trace, plan: Plan) -> list[Group]:
    """Build the groups of the replay; background groups are named by their stream."""
    kinds = [g.kind for g in trace.groups]
    for number in range(len(kinds), len(plan.groups)):
        streams = plan.stream[plan.group == number]
        kinds.append(plan.streams[int(streams[0])] if len(streams) else "other")
    return [
        Group(kind=kind, ranks=ranks)
        for kind, ranks in zip(kinds, plan.groups, strict=True)
    ]


def _meta(trace: Trace, plan: Plan) -> Meta:
    """Build the replay's metadata; the parallel layout is the trace's or unknown."""
    if plan.world == trace.meta.world:
        return trace.meta
    return replace(trace.meta, world=plan.world, dp=1, tp=1, pp=1, ep=1, cp=1)


def _steps(trace: Trace, plan: Plan, times: Mapping[int, Timing]) -> Steps:
    """Build one step per iteration, from first call to last end on each rank."""
    iterations = np.unique(plan.iteration)
    kinds = dict(zip(trace.steps.iteration.tolist(), trace.steps.kind, strict=True))
    _, of, at = np.intersect1d(iterations, trace.steps.iteration, return_indices=True)
    sources = np.zeros((2, len(iterations)), np.uint8)
    sources[:, of] = trace.steps.source[at], trace.steps.kind_source[at]
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
        source=sources[0],
        kind_source=sources[1],
    )
