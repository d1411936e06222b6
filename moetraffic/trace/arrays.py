"""Build a trace from arrays of routed token counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.errors import TraceError

from .contents import T
from .model import UNKNOWN_TIME, Group, Int64, Meta, Steps
from .placement import contiguous_placement
from .routed import RoutedLayer, trace_of_routing

SHAPES = "[iterations, layers, ranks, experts], or with micro-batches after the layers"


def arrays_as_trace(
    kind: type[T],
    demand: npt.ArrayLike,
    *,
    placement: npt.ArrayLike | None,
    k: int,
    row_bytes: int,
    dropped: npt.ArrayLike | None,
    iterations: npt.ArrayLike | None,
    layers: npt.ArrayLike | None,
) -> T:
    """Build a trace from an array of token counts; see :meth:`Trace.from_arrays`."""
    counts = _integers("demand", demand)
    if counts.ndim not in (4, 5) or 0 in counts.shape:
        raise TraceError(
            f"demand has the shape {SHAPES}, but this one has {counts.shape}: reshape "
            "it"
        )
    lost = np.zeros_like(counts) if dropped is None else _integers("dropped", dropped)
    if lost.shape != counts.shape or (lost > counts).any():
        raise TraceError(
            "dropped has the shape of demand and at most its values: give the dropped "
            "part of each value"
        )
    if counts.ndim == 4:
        counts, lost = counts[:, :, None], lost[:, :, None]
    steps, depth, batches, ranks, experts = counts.shape
    if k < 0 or row_bytes < 1:
        raise TraceError(
            f"k is at least 0 and row_bytes at least 1, but they are {k} and "
            f"{row_bytes}: give counts"
        )
    when = _numbers("iterations", iterations, steps)
    numbers = _numbers("layers", layers, depth)
    return trace_of_routing(
        [
            RoutedLayer(
                layer=int(numbers[at]),
                slot=slot,
                iteration=when,
                demand=counts[:, at, slot].astype(np.int32),
                dropped=lost[:, at, slot].astype(np.int32) if lost.any() else None,
                row_bytes=row_bytes,
                dtype="",
            )
            for slot in range(batches)
            for at in range(depth)
        ],
        groups=[Group(kind="ep", ranks=tuple(range(ranks)))],
        placements=_placements(placement, numbers, ranks, experts),
        meta=Meta(
            origin="imported",
            world=ranks,
            dp=ranks,
            ep=ranks,
            layers=depth,
            experts=experts,
            k=k,
            virtual=True,
            moetraffic=__version__,
        ),
        steps=Steps(
            iteration=when,
            kind=("train",) * steps,
            loss=np.full((steps, ranks), np.nan),
            tokens=np.full((steps, ranks), -1),
            start=np.full((steps, ranks), UNKNOWN_TIME),
            end=np.full((steps, ranks), UNKNOWN_TIME),
        ),
        kind=kind,
    )


def _integers(name: str, values: npt.ArrayLike) -> Int64:
    """Convert values to int64 after checking that they are counts within int32."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise TraceError(
            f"{name} holds integers, but this one is of type {array.dtype}: convert it"
        )
    if array.size and not 0 <= array.min() <= array.max() < 1 << 31:
        raise TraceError(
            f"{name} holds counts from 0 to 2^31 - 1, but this one has values from "
            f"{array.min()} to {array.max()}: check its order of axes and its type"
        )
    return array.astype(np.int64)


def _numbers(name: str, values: npt.ArrayLike | None, count: int) -> Int64:
    if values is None:
        return np.arange(count)
    numbers = _integers(name, values)
    if numbers.shape != (count,) or (np.diff(numbers) <= 0).any():
        raise TraceError(f"{name} are {count} increasing numbers: give one per entry")
    return numbers


def _placements(
    placement: npt.ArrayLike | None, layers: Int64, ranks: int, experts: int
) -> npt.NDArray[Any]:
    """Build rows of type PLACEMENT; experts are contiguous unless ranks are given."""
    group = Group(kind="ep", ranks=tuple(range(ranks)))
    rows = contiguous_placement([group], layers.tolist(), experts)
    if placement is not None:
        holders = _integers("placement", placement)
        shapes = ((experts,), (len(layers), experts))
        if holders.shape not in shapes or holders.max() >= ranks:
            raise TraceError(
                f"placement is the rank, below {ranks}, of each expert in the shape "
                f"{shapes[0]} or {shapes[1]}: check its shape and values"
            )
        rows["rank"] = np.broadcast_to(holders, shapes[1]).reshape(-1)
    return rows
