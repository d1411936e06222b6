"""Traffic of a load of experts whose source ranks are unknown, on ranks in theory.

Inference engines count the token copies of each expert, summed over ranks.  The load of
ranks under a placement follows from it; what a rank sends is an assumption.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.trace.model import ROUTING
from moetraffic.trace.routed import arrays_as_trace
from moetraffic.trace.trace import Trace

EQUAL_SHARES = (
    "source ranks are unknown: each is taken to send an equal share, in rows of 1 byte"
)


def is_load(trace: Trace) -> bool:
    """Whether a trace has loads of experts without source ranks."""
    return any(group.kind == "load" for group in trace.groups)


def over_ranks(trace: Trace, ep: int | None, *, needed: bool = False) -> Trace:
    """Divide the load of experts evenly among ``ep`` source ranks.

    Experts lie on the ranks in order; micro-batches are summed, and a row is 1 byte.
    Iterations that a layer lacks are left out.  Without ``ep`` the trace is returned.

    Raises
    ------
    LayoutError
        If the ranks are known, but ``ep`` is given, or it does not divide the experts,
        or it is missing, but ``needed``.
    """
    if ep is None and needed and is_load(trace):
        raise LayoutError(
            f"{trace.name} is a load of experts without ranks: give their number, --ep"
        )
    if ep is None:
        return trace
    if not is_load(trace):
        raise LayoutError(
            f"--ep divides a load without source ranks, but {trace.name} has the "
            f"traffic of {trace.meta.world} ranks: leave it out"
        )
    calls = trace.find(operation=ROUTING, direction="forward")
    layer = np.array([site.layer for site in trace.sites])
    experts = max(site.experts for site in trace.sites)
    if not 1 <= ep <= experts or experts % ep:
        raise LayoutError(
            f"{experts} experts do not divide among {ep} ranks: choose another --ep"
        )
    layers, of_layer = np.unique(
        layer[trace.occurrences.site[calls]], return_inverse=True
    )
    when, of_when = np.unique(trace.occurrences.iteration[calls], return_inverse=True)
    load = np.zeros((len(when), len(layers), experts), np.int64)
    seen = np.zeros(load.shape[:2], bool)
    np.add.at(load, (of_when, of_layer), trace.demand(calls)[:, 0])
    seen[of_when, of_layer] = True
    load, when = load[seen.all(axis=1)], when[seen.all(axis=1)]
    # the rest of a division goes to other ranks for each expert
    turn = (np.arange(ep)[:, None] - np.arange(experts)) % ep
    share, rest = np.divmod(load[:, :, None], ep)
    made = arrays_as_trace(share + (turn < rest), None, None, None, None, when, layers)
    inferred = (trace.meta.inferred, EQUAL_SHARES)
    return made.replaced(
        meta=replace(
            made.meta,
            k=trace.meta.k,
            source=trace.meta.source,
            inferred="; ".join(filter(None, inferred)),
            missing=trace.meta.missing,
            complete=trace.meta.complete,
        ),
        file=trace.file,
    )
