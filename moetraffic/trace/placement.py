"""Expert placement: ranks that hold each expert, and traffic summed by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError

from .model import PLACEMENT, Group
from .reading import TraceContents


def contiguous_placement(
    groups: Sequence[Group], layers: Sequence[int], experts: int
) -> npt.NDArray[Any]:
    """Place consecutive blocks of experts on the ranks of each group, in order.

    The rows are of type PLACEMENT, valid from iteration 0: group rank ``floor(e W/E)``
    holds expert e.
    """
    rows = [
        (number, layer, expert, 0, group.ranks[expert * len(group.ranks) // experts], 0)
        for number, group in enumerate(groups)
        for layer in layers
        for expert in range(experts)
    ]
    return np.array(rows, PLACEMENT)


def holder(trace: TraceContents, layer: int, group: int, iteration: int) -> Int64:
    """Return the group rank that holds each expert in an iteration, ``[E]`` int64."""
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    rows = rows[rows["valid_from"] <= iteration]
    if len(rows):
        rows = rows[rows["valid_from"] == rows["valid_from"].max()]
    if not len(rows) or (rows["replica"] > 0).any():
        raise TraceError(
            "a matrix between ranks needs exactly one rank per expert, but the "
            f"placement of layer {layer} has {'several' if len(rows) else 'none'}: "
            "Trace.demand() has the demand by expert"
        )
    rows = np.sort(rows, order="expert")
    if not np.array_equal(rows["expert"], np.arange(len(rows))):
        raise TraceError(
            f"experts are numbered from 0 without gaps, but the placement of layer "
            f"{layer} has gaps: Trace.demand() has the demand by expert"
        )
    member = {rank: at for at, rank in enumerate(trace.groups[group].ranks)}
    return np.array([member[int(rank)] for rank in rows["rank"]], np.int64)


def between_ranks(
    trace: TraceContents,
    layer: int,
    group: int,
    iterations: Int64,
    by_expert: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Sum traffic to experts over the experts that each rank holds.

    ``iterations`` ``[n]`` are those of each matrix, as the placement may change during
    the run; ``by_expert`` ``[n, W, E]`` are token copies, or expected ones in float64.
    The result is ``[n, W, W]``: the input itself where rank w holds expert w alone,
    else int64, or float64.
    """
    count, width, experts = by_expert.shape
    kind = np.result_type(by_expert.dtype, np.int64)
    rows = trace.placements
    rows = rows[(rows["layer"] == layer) & (rows["group"] == group)]
    version = np.searchsorted(np.unique(rows["valid_from"]), iterations, side="right")
    parts = []
    for number in np.unique(version):
        these = np.flatnonzero(version == number)
        ranks_of = holder(trace, layer, group, int(iterations[these[0]]))
        if len(ranks_of) != experts:
            raise TraceError(
                f"the placement of layer {layer} names {len(ranks_of)} experts, but "
                f"its routing has {experts}: the file is inconsistent"
            )
        mine = by_expert if len(these) == count else by_expert[these]
        if np.array_equal(ranks_of, np.arange(width)):
            parts.append((these, mine))
            continue
        order = np.argsort(ranks_of, kind="stable")
        ranks, first = np.unique(ranks_of[order], return_index=True)
        if not np.array_equal(order, np.arange(experts)):
            mine = mine[:, :, order]
        held = np.add.reduceat(mine, first, axis=2, dtype=kind)
        if len(ranks) < width:
            every = np.zeros((len(these), width, width), kind)
            every[:, :, ranks] = held
            held = every
        parts.append((these, held))
    if len(parts) == 1:
        return parts[0][1]
    out = np.zeros((count, width, width), kind)
    for these, held in parts:
        out[these] = held
    return out
