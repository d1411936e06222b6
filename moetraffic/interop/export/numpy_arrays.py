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
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

from .call_selection import AT_ONCE, by_width, find, other_operations, select_calls
from .exporter import Exporter, ExportOptions


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write wire and demand arrays of a trace in chunks of rows."""
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
            f"its MoE layers are {list(trace.layers)}; select other "
            "iterations or layers"
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for at in by_width(trace, sent):
            _add_calls(archive, trace, sent[at])
        experts = np.array([s.experts for s in trace.sites], np.int64)
        for at in by_width(trace, routed):
            own = experts[trace.occurrences.site[routed[at]]]
            for count in np.unique(own):
                _add_calls(archive, trace, routed[at][own == count])
        _add(archive, "step_iteration", trace.steps.iteration)
        _add(archive, "step_loss", trace.steps.loss)
        _add(archive, "step_source", trace.steps.source)
    if any(site.token_sample for site in trace.sites):
        lost.append("experts of sampled tokens are left out")
    return [*lost, *other_operations(trace), "where experts lie is left out"]


def _add_calls(archive: zipfile.ZipFile, trace: Trace, found: Int64) -> None:
    """Write all-to-alls of one size, or routings also of one number of experts."""
    sites = [trace.sites[s] for s in trace.occurrences.site[found]]
    width = trace.size(int(found[0]))
    read: Callable[[Int64], npt.NDArray[Any]] = trace.wire
    name, columns, dtype = f"wire_{width}", width, "<i8"
    if sites[0].operation == ROUTING:
        columns, dtype = sites[0].experts, "<i4"
        name, read = f"demand_{width}x{columns}", trace.demand
    step = max(1, AT_ONCE // (width * columns))
    # chunks follow the trace order, whatever their layers
    chunks = (read(found[b : b + step]) for b in range(0, len(found), step))
    _write_array(archive, name, chunks, (len(found), width, columns), dtype)
    _add(archive, f"{name}_iteration", trace.occurrences.iteration[found])
    _add(archive, f"{name}_layer", np.array([s.layer for s in sites], np.int64))
    _add(archive, f"{name}_micro_batch", np.array([s.slot for s in sites], np.int64))
    _add(archive, f"{name}_ranks", trace.members(found))
    _add(archive, f"{name}_source", np.array([s.source for s in sites], np.uint8))
    if sites[0].operation == ROUTING:
        return
    for column in ("phase", "direction", "label"):
        _add(archive, f"{name}_{column}", np.array([getattr(s, column) for s in sites]))
    _add(archive, f"{name}_row_bytes", np.array([s.row_bytes for s in sites], np.int64))
    issue, _, end = trace.times(found)
    _add(archive, f"{name}_issue_ns", issue)
    _add(archive, f"{name}_end_ns", end)


def _add(archive: zipfile.ZipFile, name: str, values: npt.NDArray[Any]) -> None:
    _write_array(archive, name, [values], values.shape, values.dtype.str)


def _write_array(
    archive: zipfile.ZipFile,
    name: str,
    chunks: Iterable[npt.NDArray[Any]],
    shape: tuple[int, ...],
    dtype: str,
) -> None:
    """Write an array to the archive in chunks along its first axis."""
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype).tobytes())


EXPORTER = Exporter(
    name="npz",
    what="matrices [n, W, W], demand [n, W, E] and the labels of their rows",
    readers="numpy.load, and whatever numpy feeds",
    limits="exact; nothing pickled",
    suffix=".npz",
    write=write,
)
