"""Import NCCL Inspector's JSON: one object per collective, send or receive.

``{"header": {"id", "rank", "n_ranks"}, "metadata": {"hostname", "pid"}, "coll_perf":
{"coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us", "event_trace_ts"}}``, or
``p2p_perf`` with ``p2p``, ``p2p_sn``, ``p2p_peer`` and the like (NCCL
``ext-profiler/inspector``).  ``rank`` is the rank in the communicator ``id``.  Sizes
are of one rank's part: a reduce-scatter of 2 GiB over 8 ranks at 418 GB/s took 41 ms.
An all-to-all is a send and a receive for each peer, itself included.  By default,
messages below 8192 bytes are not written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace.model import Group

from .files import MOST_RANKS, json_objects, whole, words, wrong
from .messages import add_lost
from .rows import BY_ORDER, Contents, Importer, ImportOptions, Row

OPERATIONS = {  # coll: (operation, whether the input has a part for each rank)
    "AllReduce": ("all_reduce", False),
    "AllGather": ("all_gather", False),
    "ReduceScatter": ("reduce_scatter", True),
    "Broadcast": ("broadcast", False),
    "Reduce": ("reduce", False),
}
SMALL_LEFT_OUT = "NCCL Inspector leaves out messages below 8192 bytes by default"

Process = tuple[str, int]  # host and process id


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """Communicator: its size, and the process of each rank in it that has records."""

    size: int
    processes: dict[int, Process]


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the operations of all processes; the largest communicator is the world."""
    contents = Contents(missing=[SMALL_LEFT_OUT])
    communicators: dict[str, Communicator] = {}
    records: defaultdict[Process, list[tuple[str, int, Any]]] = defaultdict(list)
    source: dict[Process, str] = {}
    for file in files:
        for name, rank, process, record in _records(file, communicators, contents):
            records[process].append((name, rank, record))
            source.setdefault(process, file.name)
    if not records:
        raise wrong(files[0], "it holds no operation")
    largest = max(communicators, key=lambda name: communicators[name].size)
    contents.world = communicators[largest].size
    contents.world_by = "the largest communicator"
    if options.ranks not in (0, contents.world):
        raise TraceError(
            f"the largest communicator defines the ranks of a run, and has "
            f"{contents.world}, but --ranks is {options.ranks}: leave it out"
        )
    rank_of = {p: rank for rank, p in communicators[largest].processes.items()}
    if not records.keys() <= rank_of.keys():
        raise TraceError(
            "a communicator of all processes defines their ranks, but the largest has "
            f"{len(rank_of)} of {len(records)}: import the processes of one run"
        )
    groups = _groups(communicators, largest, rank_of)
    for process, own in records.items():
        world_rank = rank_of[process]
        contents.files[world_rank] = source[process]
        contents.nodes[world_rank] = process[0]
        rows = [
            row
            for name, rank, record in own
            if (row := _row(record, groups.get(name), rank, world_rank, contents))
        ]
        contents.rows += sorted(rows, key=lambda row: (row.issue, row.start))
    _number_rounds(contents.rows)
    add_lost(contents)
    return contents


def _records(
    path: Path, communicators: dict[str, Communicator], contents: Contents
) -> Iterator[tuple[str, int, Process, Any]]:
    """Yield communicator, rank in it, process and content of each record."""
    for number, record in json_objects(path, contents.missing):
        header, about = record.get("header"), record.get("metadata")
        if not (isinstance(header, dict) and isinstance(about, dict)):
            raise wrong(path, f"line {number} has no header or no metadata")
        rank, size = whole(header.get("rank")), whole(header.get("n_ranks"), 1)
        if rank is None or size is None or rank >= size or size > MOST_RANKS:
            raise wrong(path, f"line {number} is of rank {rank} of {size}")
        process = (words(about.get("hostname")), whole(about.get("pid")) or 0)
        name = words(header.get("id"))
        known = communicators.setdefault(name, Communicator(size=size, processes={}))
        if known.size != size or known.processes.setdefault(rank, process) != process:
            raise wrong(
                path,
                f"communicator {name} has two ranks {rank}",
                "import the files of one run",
            )
        yield name, rank, process, record


def _groups(
    communicators: Mapping[str, Communicator],
    largest: str,
    rank_of: Mapping[Process, int],
) -> dict[str, Group]:
    """Return the groups of communicators whose ranks are all known."""
    world = tuple(range(communicators[largest].size))
    groups = {largest: Group(kind="world", ranks=world)}
    for name, known in communicators.items():
        ranks = tuple(rank_of[known.processes[r]] for r in sorted(known.processes))
        if len(ranks) == known.size:
            kind = "world" if ranks == world else "other"
            groups[name] = Group(kind=kind, ranks=ranks)
    return groups


def _row(
    record: Mapping[str, Any],
    group: Group | None,
    rank: int,
    world_rank: int,
    contents: Contents,
) -> Row | None:
    """Convert a record; None for what is left out."""
    kind = "coll" if isinstance(record.get("coll_perf"), dict) else "p2p"
    perf = record.get(f"{kind}_perf")
    if not isinstance(perf, dict):
        contents.left_out[world_rank, "objects without coll_perf and p2p_perf"] += 1
        return None
    name = words(perf.get(kind), 50)
    contents.seen[name] += 1
    size, peer = whole(perf.get(f"{kind}_msg_size_bytes")), whole(perf.get("p2p_peer"))
    number = whole(perf.get(f"{kind}_sn"))
    why = ""
    if group is None:
        why = "of a communicator whose ranks are not all known"
    elif kind == "coll" and name not in OPERATIONS:
        why = ", of which the sizes to each rank are unknown"
    elif kind == "p2p" and (
        peer is None or peer >= len(group.ranks) or name not in ("Send", "Recv")
    ):
        why = "of which the peer is unknown"
    if why or group is None:
        contents.left_out[world_rank, f"{name} {why}".replace(" ,", ",")] += 1
        return None
    row = Row(
        rank=world_rank,
        operation="send_recv",
        group=group,
        volume=-1 if size is None else size,
        row_bytes=0,
        direction="",
        sequence=BY_ORDER if number is None else number,
    )
    if kind == "coll":
        row.operation, parted = OPERATIONS[name]
        if parted and size is not None:
            row.volume = size * len(group.ranks)
    elif peer is not None:
        row.peers = (rank, peer) if name == "Send" else (peer, rank)
    _set_times(row, perf.get("event_trace_ts"), kind)
    return row


def _set_times(row: Row, trace: Any, kind: str) -> None:
    """Set the times of a call, which verbose files contain in Unix microseconds."""
    fields = trace if isinstance(trace, dict) else {}
    began = whole(fields.get(f"{kind}_start_ts"), 1)
    events = fields.get("kernel_events")
    kernels = (
        [k for k in events if isinstance(k, dict)] if isinstance(events, list) else []
    )
    starts = [whole(kernel.get("kernel_start_ts"), 1) for kernel in kernels]
    ends = [whole(kernel.get("kernel_stop_ts"), 1) for kernel in kernels]
    if began is not None and began < 1 << 52:
        row.issue = began * 1000
    times = [time for time in (*starts, *ends) if time is not None]
    if times and len(times) == 2 * len(kernels) and max(times) < 1 << 52:
        row.start, row.end = min(times) * 1000, max(times) * 1000


def _number_rounds(rows: Sequence[Row]) -> None:
    """Number messages by all-to-all where their numbers are in NCCL's order.

    An all-to-all is a send to and a receive from each rank, in the order of ranks.
    Other messages are left in the order of their records.
    """
    by_group: defaultdict[Group, list[tuple[int, Row]]] = defaultdict(list)
    sent: set[tuple[int, Group, int]] = set()
    for row in rows:
        if row.operation != "send_recv":
            continue
        source, dest = row.peers
        own = row.group.ranks.index(row.rank)
        received = source != own
        if source == dest:  # the send to itself precedes the receive
            received = (row.rank, row.group, row.sequence - 1) in sent
        if not received:
            sent.add((row.rank, row.group, row.sequence))
        place = 2 * (source if received else dest) + received
        by_group[row.group].append((place, row))
    for group, places in by_group.items():
        length = 2 * len(group.ranks)
        first, start = min((row.sequence, row.sequence - at) for at, row in places)
        ordered = all((row.sequence - start - at) % length == 0 for at, row in places)
        for _, row in places:
            numbered = ordered and first >= 0
            row.sequence = (row.sequence - start) // length if numbered else BY_ORDER


IMPORTER = Importer(
    name="nccl-inspector",
    what="NCCL Inspector's JSON",
    matches=lambda _, beginning: '"header"' in beginning and '"n_ranks"' in beginning,
    read=read,
)
