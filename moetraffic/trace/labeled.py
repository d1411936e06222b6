"""A regular run's demand as one labeled array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.errors import TraceError, install_command

from .model import ROUTING

if TYPE_CHECKING:
    import xarray

    from .trace import Trace


def demand_array(trace: Trace, group: int | None) -> xarray.DataArray:
    """See :meth:`Trace.to_xarray`."""
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
    if len(groups) != 1:
        raise TraceError(
            f"a labeled array is of one expert-parallel group, but there are "
            f"{groups}: name one of them"
        )
    layers = sorted({s.layer for s in sites})
    slots = sorted({s.slot for s in sites})
    iterations = np.unique(trace.occurrences.iteration[found])
    shape = (len(layers), len(slots), len(iterations))
    regular = len(found) == np.prod(shape) and len(trace.complete(found)) == len(found)
    if not regular:
        raise TraceError(
            f"a labeled array needs every layer, micro-batch and rank in each of the "
            f"{len(iterations)} iterations, but some are absent: read "
            "trace.demand(trace.complete(trace.find(...))) instead"
        )
    order = np.lexsort(
        (
            trace.occurrences.iteration[found],
            [s.slot for s in sites],
            [s.layer for s in sites],
        )
    )
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
            "long_name": "token copies that a rank routed to an expert",
        },
    ).transpose("iteration", "micro_batch", "layer", "src", "expert")
