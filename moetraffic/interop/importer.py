"""Importer interface, and reading of runs that have one file per rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from moetraffic.errors import TraceError

from .imported_call import ImportedRank, Placed

RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.I)
LAST_NUMBER = re.compile(r"(?:^|[_\-.])(\d{1,7})$")
BY_OPTION = "--ranks"
SUFFIXES = ("json", "jsonl", "gz", "et", "trace", "pt", "log", "txt")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Properties of the run that the files do not contain; 0 and "" are unknown."""

    ranks: int = 0
    experts: int = 0
    k: int = 0  # distinct experts of a token
    tokens: int = 0  # of a rank in an iteration
    row_bytes: int = 0  # of a token copy
    ep: int = 0
    pp: int = 1  # pipeline stages
    unit: str = ""  # of a matrix; KiB if empty


@dataclass(frozen=True, kw_only=True)
class ImportedFiles:
    """Combined content of all imported files."""

    records: list[ImportedRank]
    world: int
    world_by: str = ""  # what the number of ranks is from
    placed: Placed | None = None
    experts: int = 0
    k: int = 0
    remarks: tuple[str, ...] = ()  # what the files lack
    inferred: tuple[str, ...] = ()  # what was inferred, and from what


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


Read = Callable[[Path, int | None, int], tuple[ImportedRank, int]]
"""Read the file of a rank, given its path, the rank in its name, and the number of
ranks to assume (0: that in the file).  Return its record and number of ranks."""


def rank_by_rank(
    read: Read, files: Sequence[Path], options: ImportOptions
) -> ImportedFiles:
    """Read files that each hold one rank, and check that they are of one run.

    The number of ranks is, in this order: that of the options; that stated in a file;
    the number of files, if they are those of ranks 0, 1, 2 ...; the size of the
    largest group that a call implies.  Files that do not state it are then read again.
    """
    found = [read(file, rank_in_name(file), options.ranks) for file in files]
    stated = {r.stated: r.source for r, _ in found if r.stated}
    if len(stated) > 1:
        (few, one), (many, other) = sorted(stated.items())[:2]
        raise TraceError(
            f"files of one run are imported together, but {one} is of {few} ranks and "
            f"{other} of {many}: leave one of them out"
        )
    world, world_by = number_of_ranks([r for r, _ in found], options)
    records = [
        record if size == world else read(file, rank_in_name(file), world)[0]
        for file, (record, size) in zip(files, found, strict=True)
    ]
    by_rank: dict[int, list[ImportedRank]] = {}
    for record in records:
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
    return ImportedFiles(records=records, world=world, world_by=world_by)


def number_of_ranks(
    records: Sequence[ImportedRank], options: ImportOptions
) -> tuple[int, str]:
    """Return the number of ranks of a run, 0 if unknown, and what it is from."""
    stated = max(r.stated for r in records)
    widest = max(r.widest for r in records)
    ranks = {r.rank for r in records}
    least = max(stated, widest)
    if options.ranks:
        if options.ranks < least:
            raise too_few_ranks(least, options)
        return options.ranks, BY_OPTION
    if stated:
        return stated, "the files, which state it"
    if len(ranks) > 1 and ranks == set(range(len(ranks))) and widest <= len(ranks):
        return len(ranks), "the number of files, one for each rank"
    return widest, "the largest group of a call, by its parts" if widest else ""


def too_few_ranks(least: int, options: ImportOptions) -> TraceError:
    """Create the error for a number of ranks that the files contradict."""
    return TraceError(
        f"the files are of {least} ranks, but --ranks is {options.ranks}: raise it"
    )
