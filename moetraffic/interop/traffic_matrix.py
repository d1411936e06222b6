"""Import traffic matrices from text files with one row per source rank.

nccl-tests' ``alltoallv_perf`` reads one from ALLTOALLV_MATRIX_FILE, in KiB
(``alltoallv.cu``, TRAFFIC_SCALE); UCC's ``ucc_perftest`` reads the same with a letter
after the number (``512K``, ``2M``).  Here blank lines separate matrices, and
``#`` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME, Group, Source

from .imported_call import ImportedCall, ImportedRank
from .importer import ImportedFiles, Importer, ImportOptions
from .json_reader import MOST_BYTES, lines, wrong
from .model_properties import with_model

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LETTERS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CELL = re.compile(r"(\d{1,18})(?:\.(\d*))?(?:[eE]\+?(\d{1,2}))?([BKMG]?)")
MOST_RANKS = 1 << 13
AS_DISPATCH = "each matrix as the dispatch of layer 0, as --experts or --k is given"
NO_DISPATCH = "no layer and phase (--experts or --k: each matrix is a layer's dispatch)"
IN_KIB = "numbers read as KiB (--unit B for bytes)"


def read(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    """Read each traffic matrix as one iteration with one all-to-all."""
    unit = options.unit or "KiB"
    check_choice("a unit", unit, UNITS, TraceError)
    matrices = [m for f in files for m in _matrices(f, UNITS[unit])]
    world = len(matrices[0])
    if any(len(m) != world for m in matrices):
        raise TraceError(
            "matrices of one run have one size, but these differ: import each by itself"
        )
    if options.ranks not in (0, world):
        raise TraceError(
            f"the matrix has {world} rows, one per rank, but --ranks is "
            f"{options.ranks}: leave it out"
        )
    experts = bool(options.experts or options.k)
    kind = "ep" if experts else "world"
    group = Group(kind=kind, ranks=tuple(range(world)))
    records = [ImportedRank(rank=rank, source=files[0].name) for rank in range(world)]
    for iteration, matrix in enumerate(matrices):
        for rank, record in enumerate(records):
            record.steps.append((iteration, UNKNOWN_TIME, UNKNOWN_TIME))
            record.calls.append(
                ImportedCall(
                    operation=ALL_TO_ALL,
                    group=group,
                    row_bytes=0,
                    sent=matrix[rank],
                    received=matrix[:, rank],
                    iteration=iteration,
                    phase="dispatch" if experts else "",
                    layer=0 if experts else -1,
                    named_by=Source.INFERRED,
                    direction="forward" if experts else "",
                )
            )
    return with_model(
        ImportedFiles(
            records=records,
            world=world,
            world_by="the rows of a matrix",
            inferred=(
                *[IN_KIB] * (not options.unit),
                AS_DISPATCH if experts else NO_DISPATCH,
            ),
        ),
        options,
    )


def _matrices(path: Path, unit: int) -> list[Int64]:
    """Read the matrices of a file, ``[W, W]`` int64 bytes each; row sends."""
    found = []
    for rows in _blocks(path, unit):
        if any(len(row) != len(rows) for row in rows):
            short = next(n for n, row in enumerate(rows) if len(row) != len(rows))
            raise wrong(
                path,
                f"a matrix has {len(rows)} rows, but its row {short} has "
                f"{len(rows[short])} numbers",
                "write a number for each pair of ranks",
            )
        found.append(np.array(rows, np.int64))
    if not found:
        raise wrong(path, "it holds no matrix")
    if len({len(m) for m in found}) > 1:
        raise wrong(path, "its matrices differ in size", "import each by itself")
    return found


def _blocks(path: Path, unit: int) -> Iterator[list[list[int]]]:
    rows: list[list[int]] = []
    for number, line in enumerate(lines(path), 1):
        cells = line.partition("#")[0].replace(",", " ").replace("\t", " ").split()
        if len(cells) > MOST_RANKS:
            raise wrong(path, f"line {number} has more than {MOST_RANKS} numbers")
        if cells:
            places = enumerate(cells, 1)
            rows.append([_bytes(path, number, *of, unit) for of in places])
        elif rows and not line.strip():
            yield rows
            rows = []
    if rows:
        yield rows


def _bytes(path: Path, line: int, at: int, cell: str, unit: int) -> int:
    match = CELL.fullmatch(cell)
    if match is None:
        raise wrong(
            path,
            f"line {line}, number {at} is {cell[:40]!r}, which is not a number of "
            "bytes from 0 on",
            "correct it, or name another format with --from",
        )
    digits, behind, power, letter = match.groups(default="")
    scale = LETTERS[letter] if letter else unit
    number = Decimal(f"{digits}.{behind or 0}e{power or 0}") * scale
    value = int(number + Decimal("0.5"))
    if value != number and scale == 1:
        raise wrong(
            path,
            f"line {line}, number {at} is {cell[:40]!r}, which is no whole number of "
            "bytes",
            "correct it, or name its unit with --unit",
        )
    if value > MOST_BYTES:
        raise wrong(
            path,
            f"line {line}, number {at} is {cell[:40]!r}, which is too many bytes",
        )
    return value


def matches(beginning: str) -> bool:
    """Return whether a file begins with a row mostly of numbers, or a comment."""
    first = beginning.partition("\n")[0].partition("#")[0].replace(",", " ").split()
    numbers = sum(CELL.fullmatch(cell.lstrip("+-")) is not None for cell in first)
    return 0 < len(first) <= 2 * numbers or beginning.startswith("#")


IMPORTER = Importer(
    name="matrix",
    what="a traffic matrix as text, such as nccl-tests' alltoallv reads",
    matches=matches,
    read=read,
)
