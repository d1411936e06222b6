"""Importer interface, and reading of runs that have one file per rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from moetraffic.errors import TraceError

from .imported_call import Placed, RankRecord

RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.I)
LAST_NUMBER = re.compile(r"(?:^|[_\-.])(\d{1,7})$")
SUFFIXES = ("json", "jsonl", "gz", "et", "trace", "pt", "log", "txt")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Properties of the run that the files do not contain; 0 and "" are unknown."""

    ranks: int = 0
    experts: int = 0
    ep: int = 0
    unit: str = "KiB"


@dataclass(frozen=True, kw_only=True)
class ImportedFiles:
    """Combined content of all imported files."""

    records: list[RankRecord]
    world: int
    placed: Placed | None = None
    experts: int = 0
    k: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Import format: its name, description, detection and read function."""

    name: str
    what: str  # program or columns of the files
    matches: Callable[[str], bool]  # whether a file of this format begins so
    read: Callable[[Sequence[Path], ImportOptions], ImportedFiles]


def json_with(*alternatives: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that detects JSON with all strings of any alternative."""

    def matches(beginning: str) -> bool:
        return beginning[:1] in ("{", "[") and any(
            all(mark in beginning for mark in marks) for marks in alternatives
        )

    return matches


def rank_in_name(path: Path) -> int | None:
    """Parse the rank from a file name: ``rank3``, or a number at its end.

    >>> rank_in_name(Path("et_rank_3.json.gz")), rank_in_name(Path("trace.json"))
    (3, None)
    """
    stem = path.name
    while "." in stem and stem.rpartition(".")[2].lower() in SUFFIXES:
        stem = stem.rpartition(".")[0]
    found = RANK.findall(stem) or LAST_NUMBER.findall(stem)
    return int(found[-1]) if found else None


def rank_by_rank(
    read: Callable[[Path, int | None], tuple[RankRecord, int]],
    files: Sequence[Path],
    options: ImportOptions,
) -> ImportedFiles:
    """Read files that each hold one rank, and check that they are of one run.

    ``read`` returns the record of a file and the number of ranks (0: unknown), given
    the path and the rank in the file's name.

    Raises
    ------
    TraceError
        If the files are of several runs.
    """
    found = [read(file, rank_in_name(file)) for file in files]
    worlds = {world: record.source for record, world in found if world}
    if len(worlds) > 1:
        (few, one), (many, other) = sorted(worlds.items())[:2]
        raise TraceError(
            f"files of one run are imported together, but {one} is of {few} ranks and "
            f"{other} of {many}: leave one of them out"
        )
    by_rank: dict[int, list[RankRecord]] = {}
    for record, _ in found:
        by_rank.setdefault(record.rank, []).append(record)
    for rank, mine in by_rank.items():
        spans = sorted(
            (min(i), max(i)) for r in mine if (i := [step for step, _, _ in r.steps])
        )
        apart = all(a[1] < b[0] for a, b in pairwise(spans))
        if len(mine) > 1 and (len(spans) < len(mine) or not apart):
            raise TraceError(
                f"a rank has one file, or one for each of several steps, but "
                f"{mine[0].source} and {mine[1].source} are both of rank {rank}: "
                "leave one of them out"
            )
    return ImportedFiles(
        records=[record for record, _ in found], world=max(worlds, default=0)
    )
