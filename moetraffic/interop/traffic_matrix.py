"""Import traffic matrices from text files with one row per source rank.

nccl-tests' ``alltoallv_perf`` reads one from ALLTOALLV_MATRIX_FILE, in KiB truncated to
integers (``alltoallv.cu``, TRAFFIC_SCALE); UCC's ``ucc_perftest`` reads the same with
a letter after the number (``512K``, ``2M``).  Here blank lines separate matrices, and
``#`` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from moetraffic.trace.model import Int64

from .json_reader import MOST_BYTES, lines, wrong

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LETTERS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CELL = re.compile(r"(\d{1,18})(?:\.(\d*))?(?:[eE]\+?(\d{1,2}))?([BKMG]?)")
MOST_RANKS = 1 << 13


def read(path: Path, unit: str) -> list[Int64]:
    """Read the traffic matrices of a text file.

    Parameters
    ----------
    path
        The file.
    unit
        Unit of numbers without a letter, a key of UNITS.

    Returns
    -------
    list of ndarray
        ``[W, W]`` int64 bytes each; row sends, column receives.

    Raises
    ------
    UnreadableFile
        If they are not square matrices of equal size.
    """
    import numpy as np

    found = []
    for rows in _blocks(path, UNITS[unit]):
        if any(len(row) != len(rows) for row in rows):
            short = next(n for n, row in enumerate(rows) if len(row) != len(rows))
            raise wrong(
                path,
                f"a matrix has {len(rows)} rows, but its row {short} "
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
            rows.append([_bytes(path, number, cell, unit) for cell in cells])
        elif rows and not line.strip():
            yield rows
            rows = []
    if rows:
        yield rows


def _bytes(path: Path, line: int, cell: str, unit: int) -> int:
    match = CELL.fullmatch(cell)
    if match is None:
        raise wrong(
            path,
            f"line {line} has {cell[:40]!r}, which is no number of bytes",
            "say which format it is with --from",
        )
    digits, behind, power, letter = match.groups(default="")
    value: int = int(digits + behind) * 10 ** int(power or 0)
    # numbers without a letter are truncated to integers, as in nccl-tests
    if letter:
        value = value * LETTERS[letter] // 10 ** len(behind)
    else:
        value = value // 10 ** len(behind) * unit
    if value > MOST_BYTES:
        raise wrong(path, f"line {line} has {cell[:40]!r}, which is too many bytes")
    return value
