"""From experts to the ranks that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

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
    trace: Trace,
    layer: int,
    group: int,
    iterations: Int64,
    by_expert: npt.NDArray[np.integer],
) -> npt.NDArray[np.integer]:
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
        ``[n, W, W]``: as it was given where each rank holds the expert of its own
        number, else int64.
    """
    count, width, experts = by_expert.shape
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    starts = np.unique(rows["valid_from"])
    version = np.searchsorted(starts, iterations, side="right")
    parts = []
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        holder = trace.holder(layer, group, int(iterations[these[0]]))
        if len(holder) != experts:
            raise TraceError(
                f"the placement of layer {layer} names {len(holder)} experts, but its "
                f"routing has {experts}: the file contradicts itself"
            )
        mine = by_expert if len(these) == count else by_expert[these]
        if np.array_equal(holder, np.arange(width)):
            parts.append((these, mine))
            continue
        order = np.argsort(holder, kind="stable")
        ranks, first = np.unique(holder[order], return_index=True)
        if not np.array_equal(order, np.arange(experts)):
            mine = mine[:, :, order]
        held = np.add.reduceat(mine, first, axis=2, dtype=np.int64)
        if len(ranks) < width:
            every = np.zeros((len(these), width, width), np.int64)
            every[:, :, ranks] = held
            held = every
        parts.append((these, held))
    if len(parts) == 1:
        return parts[0][1]
    out = np.zeros((count, width, width), np.int64)
    for these, held in parts:
        out[these] = held
    return out
