"""From experts to the ranks that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.errors import TraceError

from .model import Int64

if TYPE_CHECKING:
    from .trace import Trace


def holder(trace: Trace, layer: int, group: int, iteration: int) -> Int64:
    """See :meth:`Trace.holder`."""
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    rows = rows[rows["valid_from"] <= iteration]
    if len(rows):
        rows = rows[rows["valid_from"] == rows["valid_from"].max()]
    if not len(rows) or (rows["replica"] > 0).any():
        raise TraceError(
            "a matrix between ranks needs one known rank for each expert, but the "
            f"placement of layer {layer} names {'several' if len(rows) else 'none'}: "
            "use the demand by expert"
        )
    rows = np.sort(rows, order="expert")
    if not np.array_equal(rows["expert"], np.arange(len(rows))):
        raise TraceError(
            f"experts are numbered from 0 on, but the placement of layer {layer} "
            "leaves some out: use the demand by expert"
        )
    member = {rank: at for at, rank in enumerate(trace.groups[group].ranks)}
    return np.array([member[int(rank)] for rank in rows["rank"]], np.int64)


def between_ranks(
    trace: Trace, layer: int, group: int, iterations: Int64, by_expert: Int64
) -> Int64:
    """Sum the experts that each rank holds.

    Parameters
    ----------
    iterations
        ``[n]`` the iteration of each matrix: placement may change in a run.
    by_expert
        ``[n, W, E]`` token copies.

    Returns
    -------
    ndarray
        ``[n, W, W]`` int64.
    """
    count, width, experts = by_expert.shape
    out = np.zeros((count, width, width), np.int64)
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    starts = np.unique(rows["valid_from"])
    version = np.searchsorted(starts, iterations, side="right")
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        holder = trace.holder(layer, group, int(iterations[these[0]]))
        if len(holder) != experts:
            raise TraceError(
                f"the placement of layer {layer} names {len(holder)} experts, but its "
                f"routing has {experts}: the file contradicts itself"
            )
        order = np.argsort(holder, kind="stable")
        ranks, first = np.unique(holder[order], return_index=True)
        ordered = by_expert[these][:, :, order].astype(np.int64)
        out[np.ix_(these, np.arange(width), ranks)] = np.add.reduceat(
            ordered, first, axis=2
        )
    return out
