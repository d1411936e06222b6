"""Export all-to-alls as pattern files for UCC's ``ucc_perftest -c alltoallv``.

An INI file has a section ``[collective]`` per call, whose ``counts`` are the elements
that each rank sends to each, row by row between braces (openucx/ucc
``tools/perf/generator/ucc_pt_generator_file.cc`` and ``examples/alltoallv_4.ptini``).
Counts are kept in uint32; a line has at most 8189 characters (``src/utils/ini.h``,
UCC_INI_MAX_LINE); a matrix must have as many rows as there are ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, Trace

from .call_selection import exchanges, select_calls
from .exporter import Exporter, ExportOptions

MOST = 2**32 - 1
MOST_CHARACTERS = 4000  # of a line of counts; a row may span several
DATATYPES = (("INT8", 1), ("INT32", 4), ("INT64", 8))


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write all selected all-to-alls to one file, in order."""
    chosen = select_calls(trace, options, only=ALL_TO_ALL)
    # one element type for all calls: the largest that divides the bytes of every pair
    every = (one.bytes for one in exchanges(trace, options, chosen))
    common = int(np.gcd.reduce([int(np.gcd.reduce(b, axis=None)) for b in every]))
    name, size = next((n, s) for n, s in reversed(DATATYPES) if common % s == 0)
    with path.open("w") as file:
        file.write(
            "[format]\nversion = 1.0\n"
            f"description = all-to-alls of {_plain(trace.meta.model or trace.name)}, "
            f"counts of {name}\n"
        )
        for one in exchanges(trace, options, chosen):
            counts = one.bytes // size
            if int(counts.max()) > MOST:
                raise TraceError(
                    f"ucc_perftest counts up to {MOST} elements of {name}, but in "
                    f"{one.name} a pair has {int(counts.max())}: export what has "
                    "larger elements, or split the call"
                )
            file.write(
                f"\n; {one.name}\n[collective]\ntype = ALLTOALLV\n"
                f"team_size = {len(counts)}\ndatatype = {name}\n"
                "flags = COUNT_32BIT\ncounts = {\n"
            )
            file.writelines(f"    {line}\n" for line in _lines(counts))
            file.write("    }\n")
    return [
        *chosen.lost,
        "start times of calls are left out",
        "ucc_perftest does not read the element type in the file: run it with -d "
        f"{name.lower()} on {trace.meta.world} ranks",
    ]


def _lines(counts: Int64) -> Iterator[str]:
    # the reader inserts a comma between lines: none may end with one
    for row in counts.tolist():
        line = ""
        for count in map(str, row):
            if line and len(line) + len(count) + 1 > MOST_CHARACTERS:
                yield line
                line = ""
            line = f"{line},{count}" if line else count
        yield line


def _plain(text: str) -> str:
    """Replace characters that are special in INI files."""
    return "".join(c if c.isalnum() or c in " -._/" else " " for c in text)[:200]


EXPORTER = Exporter(
    name="ucc-perftest",
    what="a pattern file: the counts of every alltoallv, in order",
    readers="UCC's ucc_perftest (--gen file:name=FILE)",
    limits="uint32 elements per pair of ranks; no times",
    suffix=".ptini",
    write=write,
)
