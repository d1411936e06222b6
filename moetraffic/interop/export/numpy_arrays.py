"""Export a trace to NumPy arrays: ``.npz`` without pickled objects.

For each group size W: ``wire_W`` ``[n, W, W]`` int64 bytes, and of its rows
``wire_W_iteration``, ``_layer``, ``_phase``, ``_direction``, ``_label``,
``_micro_batch``, ``_row_bytes``, ``_ranks`` ``[n, W]`` and ``_issue_ns``, ``_end_ns``
``[n, W]``. For each size and number of experts E: ``demand_WxE`` ``[n, W, E]`` int32
token copies, and ``_iteration``, ``_layer``, ``_micro_batch``, ``_ranks``.
``step_iteration`` ``[S]``, ``step_loss`` ``[S, R]``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

from .call_selection import (
    AT_ONCE,
    Int64,
    by_width,
    find,
    other_operations,
    select_calls,
)
from .exporter import Exporter, ExportOptions

Array = npt.NDArray[Any]


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write wire and demand arrays of a trace in chunks of rows.

    Raises
    ------
    TraceError
        If neither an all-to-all nor a routing matches the options.
    """
    lost: list[str] = []
    try:
        chosen = select_calls(trace, replace(options, unnamed=True), only=ALL_TO_ALL)
        sent = chosen.occurrences
        lost += chosen.lost
    except TraceError:
        sent = np.zeros(0, np.int64)
        lost.append("no all-to-all with known bytes fits")
    routed = trace.complete(find(trace, options, operation=ROUTING))
    if not len(sent) and not len(routed):
        raise TraceError(
            f"arrays need an all-to-all or a routing, but none of {trace.name} fits: "
            f"its MoE layers are {list(trace.layers)}; widen iterations or layer"
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for at in by_width(trace, sent):
            _add_wire(archive, trace, sent[at])
        for family in _families(trace, routed):
            _add_demand(archive, trace, family)
        _add(archive, "step_iteration", trace.steps.iteration)
        _add(archive, "step_loss", trace.steps.loss)
    return [*lost, *other_operations(trace), "where experts lie is left out"]


def _families(trace: Trace, routed: Int64) -> Iterator[Int64]:
    """Group routing occurrences by their numbers of ranks and experts."""
    experts = np.array([s.experts for s in trace.sites], np.int64)
    for at in by_width(trace, routed):
        mine = routed[at]
        own = experts[trace.occurrences.site[mine]]
        for count in np.unique(own):
            yield mine[own == count]


def _add_wire(archive: zipfile.ZipFile, trace: Trace, sent: Int64) -> None:
    width = trace.common_size(sent)
    name = f"wire_{width}"
    _add(
        archive, name, _read(sent, width * width, trace.wire), (len(sent), width, width)
    )
    sites = [trace.sites[s] for s in trace.occurrences.site[sent]]
    _add_labels(archive, name, trace, sent)
    for column in ("phase", "direction", "label"):
        values = np.array([getattr(s, column) for s in sites], np.str_)
        _add(archive, f"{name}_{column}", values)
    _add(archive, f"{name}_row_bytes", np.array([s.row_bytes for s in sites], np.int64))
    issue, _, end = trace.times(sent)
    _add(archive, f"{name}_issue_ns", issue)
    _add(archive, f"{name}_end_ns", end)


def _add_demand(archive: zipfile.ZipFile, trace: Trace, routed: Int64) -> None:
    width = trace.common_size(routed)
    experts = trace.sites[trace.occurrences.site[routed[0]]].experts
    name = f"demand_{width}x{experts}"
    shape = (len(routed), width, experts)
    _add(archive, name, _read(routed, width * experts, trace.demand), shape, np.int32)
    _add_labels(archive, name, trace, routed)


def _add_labels(
    archive: zipfile.ZipFile, name: str, trace: Trace, occurrences: Int64
) -> None:
    sites = [trace.sites[s] for s in trace.occurrences.site[occurrences]]
    _add(archive, f"{name}_iteration", trace.occurrences.iteration[occurrences])
    _add(archive, f"{name}_layer", np.array([s.layer for s in sites], np.int64))
    _add(archive, f"{name}_micro_batch", np.array([s.slot for s in sites], np.int64))
    _add(archive, f"{name}_ranks", trace.members(occurrences))


def _read(
    occurrences: Int64, cells: int, read: Callable[[Int64], Array]
) -> Iterator[Array]:
    step = max(1, AT_ONCE // cells)
    for begin in range(0, len(occurrences), step):
        # chunks follow the trace order, whatever their layers
        yield read(occurrences[begin : begin + step])


def _add(
    archive: zipfile.ZipFile,
    name: str,
    values: Array | Iterable[Array],
    shape: tuple[int, ...] | None = None,
    dtype: Any = np.int64,
) -> None:
    """Write an array to the archive, given whole or in chunks along its first axis."""
    pieces: Iterable[Array] = [values] if isinstance(values, np.ndarray) else values
    if isinstance(values, np.ndarray):
        shape, dtype = values.shape, values.dtype
    dtype = np.dtype(dtype)
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).tobytes())


EXPORTER = Exporter(
    name="npz",
    what="matrices [n, W, W], demand [n, W, E] and the labels of their rows",
    readers="numpy.load, and whatever numpy feeds",
    limits="exact; nothing pickled",
    suffix=".npz",
    write=write,
)
