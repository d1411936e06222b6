"""Convert a trace to labeled data: demand as xarray, calls as a pandas table."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError, install_command

from .clock import earliest
from .model import ROUTING, UNKNOWN_TIME, Source

if TYPE_CHECKING:
    import pandas
    import xarray

    from .trace import Trace

DEMAND = ("iteration", "micro_batch", "layer", "group", "src", "expert", "tokens")
"""Columns of a table of demand."""

MOST_CELLS = 1 << 22
"""Maximum number of matrix cells read at once."""


def demand_array(trace: Trace, group: int | None) -> xarray.DataArray:
    """Build an xarray of demand by (iteration, micro_batch, layer, src, expert)."""
    if find_spec("xarray") is None:
        raise TraceError(
            "labeled arrays need xarray, which is not installed: "
            f"{install_command('xarray')}"
        )
    calls = trace.find(operation=ROUTING, direction="forward", group=group)
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[calls])]
    groups = sorted({site.group for site in sites})
    if not groups:
        raise TraceError(
            "a labeled array is of demand, but the trace has no routing: register "
            "the router with capture.router, or read trace.calls()"
        )
    if len(groups) != 1:
        raise TraceError(
            f"a labeled array covers one expert-parallel group, but the trace has "
            f"{groups}: choose one with group="
        )
    table = demand_table(trace, calls)
    index = ["iteration", "micro_batch", "layer", "src", "expert"]
    cells = int(np.prod([table[name].nunique() for name in index]))
    if not len(trace.complete(calls)) == len(calls) or len(table) != cells:
        raise TraceError(
            "a labeled array needs every layer, micro-batch and rank in each "
            "iteration, but some are absent: read "
            "trace.demand(trace.complete(trace.find(...))) instead"
        )
    array: xarray.DataArray = table.set_index(index)["tokens"].to_xarray()
    steps = trace.steps.sources(trace.occurrences.iteration[calls])
    array.attrs = {
        "units": "1",
        "long_name": "token copies routed from a rank to an expert",
        "source": min(site.source for site in sites).name.lower(),
        "step_source": Source(steps.min()).name.lower(),
    }
    return array.rename("demand")


def demand_table(trace: Trace, occurrences: Int64 | None = None) -> pandas.DataFrame:
    """Build a pandas table of demand; see :meth:`Trace.demand_frame`."""
    import pandas

    if occurrences is None:
        occurrences = trace.find(operation=ROUTING, direction="forward")
    parts = []
    for at in np.unique(trace.occurrences.site[occurrences]).tolist():
        site = trace.sites[at]
        of = occurrences[trace.occurrences.site[occurrences] == at]
        demand, present = trace.demand(of), trace.present(of)
        call, member = np.nonzero(present)
        experts = demand.shape[2]
        rows = {
            "iteration": trace.occurrences.iteration[of][call],
            **{"micro_batch": site.slot, "layer": site.layer, "group": site.group},
            "src": np.array(trace.groups[site.group].ranks)[member],
        }
        table = pandas.DataFrame(rows)
        table = table.loc[table.index.repeat(experts)]
        table["expert"] = np.tile(np.arange(experts), len(call))
        table["tokens"] = demand[call, member].ravel()
        parts.append(table)
    if not parts:
        return pandas.DataFrame(columns=[*DEMAND], dtype=int)
    order = ["iteration", "layer", "micro_batch", "group", "src", "expert"]
    return pandas.concat(parts).sort_values(order, ignore_index=True)[[*DEMAND]]


def calls_table(trace: Trace) -> pandas.DataFrame:
    """Build a pandas table with one row per call; see :meth:`Trace.calls`."""
    import pandas

    site = trace.occurrences.site
    sent = np.full(len(site), np.nan)
    times = np.full((len(site), 3), UNKNOWN_TIME)
    for width in np.unique(trace.width[site]).tolist():
        calls = np.flatnonzero(trace.width[site] == width)
        step = max(1, MOST_CELLS // width**2)
        for part in np.split(calls, range(step, len(calls), step)):
            issue, start, end = trace.times(part)
            columns = (earliest(issue, 1), earliest(start, 1), end.max(axis=1))
            times[part] = np.stack(columns, axis=1)
            known = trace.occurrences.matrix[part] >= 0
            whole = part[known & trace.present(part).all(axis=1)]
            square = whole[trace.square[site[whole]]]
            other = np.setdiff1d(whole, square)
            sent[square] = trace.wire(square).sum(axis=(1, 2))
            sent[other] = trace.volume(other).sum(axis=1)
    measured = times != UNKNOWN_TIME
    first = times[measured].min() if measured.any() else 0
    seconds = np.where(measured, (times - first) / 1e9, np.nan)

    def column(name: str) -> Any:
        return np.array([getattr(s, name) for s in trace.sites])[site]

    names = np.array([source.name.lower() for source in Source])
    return pandas.DataFrame(
        {
            "iteration": trace.occurrences.iteration,
            "micro_batch": column("slot"),
            **{n: column(n) for n in ("layer", "module", "phase", "direction")},
            **{n: column(n) for n in ("operation", "label", "group")},
            "source": names[column("source").astype(int)],
            "step_source": names[trace.steps.sources(trace.occurrences.iteration)],
            "ranks": trace.width[site],
            "bytes": sent,
            **dict(zip(("issue_s", "start_s", "end_s"), seconds.T, strict=True)),
        }
    )
