"""Export all-to-alls as matrices for nccl-tests' ``alltoallv_perf``, a file per call.

A square matrix has one row per source, with numbers separated by whitespace.  Two
generations of the program read it (NVIDIA/nccl-tests ``src/alltoallv.cu``): with
NCCL_TESTS_ALLTOALLV_MATRIX_FILE numbers are bytes, rounded down to multiples of 16;
with ALLTOALLV_MATRIX_FILE they are KiB (TRAFFIC_SCALE), truncated to integers.  ``-b``
and ``-e`` must be equal, and at least the total that any rank sends or receives.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, Trace

from .call_selection import exchanges, select_calls
from .exporter import Exporter, ExportOptions

ALIGNMENT = 16  # bytes; AlltoAllvReadTrafficMatrix: & ~15
UNITS = {"B": (1, ALIGNMENT), "KiB": (1024, 1024)}
INDEX = "matrices.csv"


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write one all-to-all matrix per call, and an index table.

    Bytes are rounded to the nearest multiple that the program supports.
    """
    if options.unit not in UNITS:
        raise TraceError(
            f"nccl-tests reads matrices in {' or '.join(UNITS)}, not "
            f"{options.unit[:40]!r}: change --unit"
        )
    unit, least = UNITS[options.unit]
    chosen = select_calls(trace, options, only=ALL_TO_ALL)
    lost = list(chosen.lost)
    told, kept, changed = 0, 0, 0
    with (folder / INDEX).open("w", newline="") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["file", "iteration", "layer", "phase", "micro_batch", "size"])
        for one in exchanges(trace, options, chosen):
            values = nearest(one.bytes, least)
            told += int(one.bytes.sum())
            kept += int(values.sum())
            changed += int((values != one.bytes).sum())
            name = f"{one.name}.txt"
            (folder / name).write_text(as_text(values // unit))
            size = max(int(values.sum(axis=0).max()), int(values.sum(axis=1).max()))
            site = one.site
            rows.writerow(
                [name, one.iteration, site.layer, site.phase, site.slot, size]
            )
    if changed:
        lost.append(
            f"{changed} cells are rounded to multiples of {least} bytes: {kept} bytes "
            f"in all instead of {told}"
        )
    return lost


def nearest(values: Int64, least: int) -> Int64:
    """Round byte counts to multiples of ``least``, but positive ones never to 0.

    Examples
    --------
    >>> nearest(np.array([0, 3, 23, 24, 40]), 16).tolist()
    [0, 16, 16, 32, 48]
    """
    rounded = (values + least // 2) // least * least
    return np.asarray(np.where(values > 0, np.maximum(rounded, least), 0), np.int64)


def as_text(values: Int64) -> str:
    """Format a matrix as lines of space-separated numbers."""
    return "".join(" ".join(map(str, row)) + "\n" for row in values.tolist())


EXPORTER = Exporter(
    name="nccl-tests",
    what="one alltoallv matrix per call; matrices.csv has the sizes for -b and -e",
    readers="nccl-tests' alltoallv_perf",
    limits="multiples of 16 B, or of 1 KiB with --unit KiB for the older program",
    suffix="",
    files=r"matrices\.csv|iteration-\d+-[\w-]+\.txt",
    write=write,
)
