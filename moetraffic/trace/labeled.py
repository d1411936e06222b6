"""Convert a trace to labeled data: demand as xarray, calls as a pandas table."""

from __future__ import annotations

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
    try:
        import xarray
    except ImportError:
        raise TraceError(
            "labeled arrays need xarray, which is not installed: "
            f"{install_command('xarray')}"
        ) from None
    found = trace.find(operation=ROUTING, direction="forward", group=group)
    sites = [trace.sites[s] for s in trace.occurrences.site[found]]
    groups = sorted({s.group for s in sites})
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
    layers = sorted({s.layer for s in sites})
    slots = sorted({s.slot for s in sites})
    when = trace.occurrences.iteration[found]
    iterations = np.unique(when)
    shape = (len(layers), len(slots), len(iterations))
    if len(trace.complete(found)) != len(found) or len(found) != np.prod(shape):
        raise TraceError(
            f"a labeled array needs every layer, micro-batch and rank in each of the "
            f"{len(iterations)} iterations, but some are absent: read "
            "trace.demand(trace.complete(trace.find(...))) instead"
        )
    order = np.lexsort((when, [s.slot for s in sites], [s.layer for s in sites]))
    counts = trace.demand(found)[order]
    return xarray.DataArray(
        counts.reshape(*shape, *counts.shape[1:]),
        dims=("layer", "micro_batch", "iteration", "src", "expert"),
        coords={
            "layer": layers,
            "micro_batch": slots,
            "iteration": iterations,
            "src": list(trace.groups[groups[0]].ranks),
            "expert": np.arange(counts.shape[2]),
        },
        name="demand",
        attrs={
            "units": "1",
            "long_name": "token copies routed from a rank to an expert",
            "source": min(s.source for s in sites).name.lower(),
            "step_source": Source(trace.steps.sources(iterations).min()).name.lower(),
        },
    ).transpose("iteration", "micro_batch", "layer", "src", "expert")


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
        of = np.flatnonzero(trace.width[site] == width)
        step = max(1, MOST_CELLS // width**2)
        for part in np.split(of, range(step, len(of), step)):
            issue, start, end = trace.times(part)
            times[part, 0] = earliest(issue, axis=1)
            times[part, 1] = earliest(start, axis=1)
            times[part, 2] = end.max(axis=1)
            known = trace.occurrences.matrix[part] >= 0
            whole = part[known & trace.present(part).all(axis=1)]
            square = trace.square[site[whole]]
            for these, read in (
                (whole[square], trace.wire),
                (whole[~square], trace.volume),
            ):
                values = read(these)
                sent[these] = values.sum(axis=tuple(range(1, values.ndim)))
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
