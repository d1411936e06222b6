"""Build the trace of a replay from the sent traffic and the measured times.

On the ranks of the trace, without background traffic, it is the trace with new times,
including its routings and their demand.  Otherwise (other ranks, other bytes,
background traffic) it is built from the plan: each operation with the bytes that were
sent, without demand, because no router ran on these ranks.

Losses and tokens are unknown.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import moetraffic
from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError, TraceError
from moetraffic.replay.plan.operations import KINDS, Plan
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
from moetraffic.units import byte_size

from .durations import NO_CLOCKS, Durations, Times
from .load import busy

if TYPE_CHECKING:
    from moetraffic.replay.options import Options


def replayed_trace(
    trace: Trace,
    plan: Plan,
    times: Times,
    *,
    options: Options,
    nodes: Sequence[str],
    torch_version: str = "",
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    runs: Sequence[Durations] = (),
    load: Sequence[Mapping[str, Any]] = (),
) -> Trace:
    """Build the trace of a replay: sent bytes with measured times.

    ``trace`` is the one of the plan, rescaled; ``times`` are those of every rank on its
    own clock, ``clocks`` knots of type CLOCK.  ``runs`` are all timed passes, of which
    these are the times of the median; several are summed in the trace, each by site.
    ``load`` are rows of :func:`.load.load_rows`.
    """
    rescaled = bool(options.scaling)
    settings = " ".join(["--pace", str(options.pace), *options.scaling.arguments()])
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
        + f" with {settings}",
        virtual=False,
        backend=options.backend,
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
        runs=_run_sums(base, place, runs, load) if len(runs) > 1 else None,
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
    base: Trace,
    place: Int64,
    runs: Sequence[Durations],
    load: Sequence[Mapping[str, Any]],
) -> npt.NDArray[np.void]:
    """Sum the calls of each run by site, ``[k]`` of type RUN."""
    training = np.isin(base.occurrences.iteration[place], base.iterations)
    sites, which = np.unique(base.occurrences.site[place], return_inverse=True)
    made = np.zeros((len(runs), len(sites) + 1), RUN)
    made["number"], made["site"] = np.arange(len(runs))[:, None], [*sites, -1]
    made["busy"] = any(map(busy, load))
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


def _times(base: Trace, times: Times, place: Int64) -> dict[str, Panel]:
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
        ),
        panels=blank_panels(groups, sites, number)
        | wire
        | {name: ArrayPanel(np.array(rows)) for name, rows in volumes.items()},
        steps=trace.steps,
    )
    place = np.empty(len(plan), np.int64)
    place[order] = np.arange(len(plan))
    return base, place


def _steps(trace: Trace, plan: Plan, times: Times) -> Steps:
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


# ---- the file ------------------------------------------------------------------------


def check_disk_space(trace: Trace, file: Path, plan: Plan, out: Path) -> None:
    """Check, before any work, that the disk has space for the replayed trace.

    It holds the same columns as the trace ``file``, for the operations of the plan.

    Raises
    ------
    ReplayError
        If the folder has less free space.
    """
    operations = min(1.0, len(plan) / max(1, len(trace.occurrences)))
    # a replay on fewer ranks has smaller matrices
    share = operations * min(1.0, plan.world / trace.meta.world) ** 2
    needed = int(file.stat().st_size * share)
    free = shutil.disk_usage(out.absolute().parent).free
    if needed > free:
        raise ReplayError(
            f"{out} will take about {byte_size(needed)}, but its disk has "
            f"{byte_size(free)} free: make room or choose another folder"
        )


def write(trace: Trace, out: Path, *, force: bool) -> None:
    """Write the replayed trace or, on a full disk, save it in another folder.

    Its times cannot be measured again, and the disk may be full when a replay ends.

    Raises
    ------
    ReplayError
        If it could not be written as requested; naming the file it was saved to.
    """
    try:
        trace.save(out, force=force)
        return
    except TraceError as error:
        reason = str(error)
    home = Path(os.path.expanduser("~"))  # stays "~" for a user without a home
    kept = "could not be kept in any folder"
    # persistent disks first, then one in memory
    for folder in (Path(tempfile.gettempdir()), Path.cwd(), home, Path("/dev/shm")):
        if folder.absolute() == out.absolute().parent or not os.access(folder, os.W_OK):
            continue
        path = folder / f"{out.stem}-kept-{os.getpid()}{out.suffix}"
        try:
            trace.save(path)
        except TraceError:
            continue  # this one is full as well
        kept = f"is kept as {path}"
        break
    raise ReplayError(f"{reason}; the replay is done and its trace {kept}")
