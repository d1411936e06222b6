"""Build the trace of a replay: the trace's own operations with the measured times.

On the ranks of the trace it has its routings and their demand, too.  With other ranks
or other bytes it has none, because no router ran on these ranks.  Background traffic,
losses and tokens are not in it.
"""

from __future__ import annotations

import os
import platform
import tempfile
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
from moetraffic.replay.plan.operations import Plan
from moetraffic.trace.model import ROUTING, RUN, UNKNOWN_TIME, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import TIMES, Trace

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
    """Build the trace of a replay.

    ``trace`` is the one of the plan, rescaled; ``times`` are those of every rank on its
    own clock, ``clocks`` knots of type CLOCK.  ``runs`` are all timed passes, of which
    these are the times of the median; several are summed in the trace, each by site.
    ``load`` are rows of :func:`.load.load_rows`.
    """
    settings = " ".join(["--pace", str(options.pace), *options.scaling.arguments()])
    captured = np.flatnonzero(plan.occurrence >= 0)
    keep = np.union1d(plan.occurrence[captured], _routings(trace, plan))
    base = trace.select(keep)
    place = np.full(len(plan), -1)  # of operations in it
    place[captured] = np.searchsorted(keep, plan.occurrence[captured])
    # ---- times and steps -------------------------------------------------------------
    panels = {
        name: np.full(panel.shape, UNKNOWN_TIME)
        for name, panel in base.panels.items()
        if name.partition("/")[2] in TIMES
    }
    iterations = np.unique(plan.iteration)
    shape = len(iterations), plan.world
    begin = np.full(shape, np.iinfo(np.int64).max)
    end = np.full(shape, UNKNOWN_TIME)
    group = np.array([s.group for s in base.sites], np.int64)
    for rank, timing in times.items():
        at = np.searchsorted(iterations, plan.iteration[timing.operation])
        np.minimum.at(begin[:, rank], at, timing.issue)
        np.maximum.at(end[:, rank], at, timing.end)
        member_of = np.array(
            [g.ranks.index(rank) if rank in g.ranks else -1 for g in base.groups]
        )
        there = place[timing.operation] >= 0
        at = place[timing.operation[there]]
        site = base.occurrences.site[at]
        member, width = member_of[group[site]], base.width[site]
        for size in np.unique(width).tolist():
            here = width == size
            for name in TIMES:
                values = getattr(timing, name)[there][here]
                panels[f"call_{size}/{name}"][base.row[at[here]], member[here]] = values
    kinds = dict(zip(trace.steps.iteration.tolist(), trace.steps.kind, strict=True))
    steps = Steps(
        iteration=iterations,
        kind=tuple(kinds.get(i, "train") for i in iterations.tolist()),
        loss=np.full(shape, np.nan),
        tokens=np.full(shape, -1, np.int64),
        start=np.where(end == UNKNOWN_TIME, UNKNOWN_TIME, begin),
        end=end,
        source=trace.steps.sources(iterations),
    )
    median = f" (median run of {len(runs)})" if len(runs) > 1 else ""
    return base.replaced(
        meta=replace(
            base.meta,
            origin="replayed",
            source=f"{plan.source}{median} with {settings}",
            virtual=False,
            backend=options.backend,
            nodes=tuple(nodes),
            complete=True,
            missing="",
            moetraffic=moetraffic.__version__,
            torch=torch_version,
            python=platform.python_version(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        ),
        panels=base.panels | {n: ArrayPanel(array) for n, array in panels.items()},
        steps=steps,
        clocks=clocks,
        runs=_run_sums(base, place, runs, load) if len(runs) > 1 else None,
        file=None,
    )


def _routings(trace: Trace, plan: Plan) -> Int64:
    """Find the routings of the exchanges of a plan."""
    used = [trace.sites[n] for n in np.unique(plan.site[plan.occurrence >= 0]).tolist()]
    keys = {(s.layer, s.slot, s.group) for s in used if s.phase}
    routes = np.array(
        [
            s.operation == ROUTING and (s.layer, s.slot, s.group) in keys
            for s in trace.sites
        ],
        bool,
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
    captured = np.flatnonzero(place >= 0)
    calls = base.occurrences[place[captured]]
    training = np.isin(calls.iteration, base.iterations)
    sites, which = np.unique(calls.site, return_inverse=True)
    made = np.zeros((len(runs), len(sites) + 1), RUN)
    made["number"], made["site"] = np.arange(len(runs))[:, None], [*sites, -1]
    made["busy"] = any(map(busy, load))
    for row, run in zip(made, runs, strict=True):
        known = training & np.isfinite(run.call_s[captured])
        of = which.reshape(-1)[known]
        row["calls"][:-1] = np.bincount(of, minlength=len(sites))
        for name in ("call", "transfer", "wait", "inside"):
            seconds = getattr(run, f"{name}_s")[captured][known]
            sums = np.bincount(of, seconds, minlength=len(sites))
            row[f"{name}_ns"][:-1] = np.rint(sums * 1e9)
        walls = run.wall_s[np.isin(run.iteration, base.iterations)]
        row["calls"][-1], row["call_ns"][-1] = len(walls), np.rint(walls.sum() * 1e9)
    return made.reshape(-1)


# ---- the file ------------------------------------------------------------------------


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
