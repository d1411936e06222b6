"""What an importer gives: a row for each rank's part of a call, and facts of the run.

A value that the files do not contain is negative, "" or UNKNOWN_TIME: merging infers
it (steps, layers, phases, bytes that a peer recorded) or leaves it unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moetraffic.arrays import Int32, Int64
from moetraffic.errors import TraceError
from moetraffic.trace.model import UNKNOWN_TIME, Group, Source

from .files import MOST_RANKS

BY_ORDER = -1
"""Sequence number of a call: the n-th row of its group on its rank."""

UNNUMBERED = -2
"""Sequence number of a call that is not counted among the calls of its group."""


@dataclass(kw_only=True, slots=True)
class Row:
    """One rank's part of one call, in bytes."""

    rank: int
    operation: str
    group: Group
    sent: Sequence[int] | Int64 | Int32 = ()
    """Bytes to each member of an all-to-all; copies by expert of a routing."""
    received: Sequence[int] | Int64 | Int32 = ()
    """Bytes from each member of an all-to-all; of a routing, copies dropped."""
    volume: int = -1  # of the input buffer, of other operations
    peers: tuple[int, int] = (-1, -1)  # group ranks of a message: source, destination
    dtype: str = ""
    row_bytes: int = -1  # 0: the call has no rows
    phase: str = ""
    layer: int = -1
    label: str = ""
    direction: str = "forward"
    source: Source = Source.ANNOTATED  # of phase, layer and label, where known
    iteration: int = -1
    sequence: int = BY_ORDER
    issue: int = UNKNOWN_TIME  # ns of the rank's clock
    start: int = UNKNOWN_TIME
    end: int = UNKNOWN_TIME
    thread: int = 0
    link: int = -1  # equal for a forward call and its backward


@dataclass(slots=True)
class Step:
    """One rank's iteration; times in ns of the rank's clock."""

    rank: int
    iteration: int
    start: int = UNKNOWN_TIME
    end: int = UNKNOWN_TIME
    tokens: int = -1
    source: Source = Source.ANNOTATED


@dataclass(kw_only=True)
class Contents:
    """What the files of a run contain."""

    rows: list[Row] = field(default_factory=list)  # of a rank, in program order
    steps: list[Step] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)  # name of a file, by rank
    nodes: dict[int, str] = field(default_factory=dict)  # host, by rank
    world: int = 0
    world_by: str = ""  # what the number of ranks is from
    experts: int = 0
    k: int = 0
    placed: dict[tuple[int, Group], Sequence[int]] = field(default_factory=dict)
    """World rank that holds each expert, by layer and group."""
    missing: list[str] = field(default_factory=list)  # what the files lack
    inferred: list[str] = field(default_factory=list)  # what, and from what
    contradictions: list[str] = field(default_factory=list)
    left_out: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Calls that were left out, by rank and reason."""
    seen: Counter[str] = field(default_factory=Counter)  # communication, by name


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Properties of the run that the files do not contain; 0 and "" are unknown."""

    ranks: int = 0
    experts: int = 0
    k: int = 0  # distinct experts of a token
    tokens: int = 0  # of a rank in an iteration
    row_bytes: int = 0  # of a token copy
    ep: int = 0
    pp: int = 0  # pipeline stages
    unit: str = ""  # of a matrix; KiB if empty


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Import format: its name, description, detection and read function."""

    name: str
    what: str  # program or columns of the files
    matches: Callable[[Path, str], bool]  # whether a file of this format begins so
    read: Callable[[Sequence[Path], ImportOptions], Contents]


def number_of_ranks(world: int, by: str, options: ImportOptions) -> tuple[int, str]:
    """Return the number of ranks of a run, and what it is from.

    ``world`` is the number that the files show, 0 if unknown, and ``by`` how they do.
    """
    if world > MOST_RANKS:
        raise TraceError(
            f"a run has at most {MOST_RANKS} ranks, but the files are of {world}: "
            "correct them there"
        )
    if options.ranks and options.ranks < world:
        raise TraceError(
            f"the files are of {world} ranks, but --ranks is {options.ranks}: raise it"
        )
    return (options.ranks, "--ranks") if options.ranks else (world, by)
