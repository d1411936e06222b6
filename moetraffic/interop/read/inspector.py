"""Import NCCL Inspector's JSON: one object per collective, send or receive.

``{"header": {"id", "rank", "n_ranks"}, "metadata": {"hostname", "pid"}, "coll_perf":
{"coll", "coll_sn", "coll_msg_size_bytes", "event_trace_ts"}}``, or ``p2p_perf`` with
``p2p``, ``p2p_sn``, ``p2p_peer`` and the like (NCCL ``ext-profiler/inspector``).
``rank`` is the rank in the communicator ``id``.  Sizes are of one rank's part: a
reduce-scatter of 2 GiB over 8 ranks at 418 GB/s took 41 ms.  An all-to-all is a send
and a receive for each rank.  By default, messages below 8192 bytes are not written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace.model import UNKNOWN_TIME, Group

from .files import MOST_RANKS, json_objects, whole, words, wrong
from .messages import add_lost
from .rows import BY_ORDER, Contents, Importer, ImportOptions, Row

OPERATIONS = {
    **{"AllReduce": "all_reduce", "AllGather": "all_gather", "Reduce": "reduce"},
    **{"ReduceScatter": "reduce_scatter", "Broadcast": "broadcast"},
    **{"Send": "send_recv", "Recv": "send_recv"},
}
SMALL_LEFT_OUT = "NCCL Inspector leaves out messages below 8192 bytes by default"

Process = tuple[str, int]  # host and process id


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the operations of all processes; the largest communicator is the world."""
    contents = Contents(missing=[SMALL_LEFT_OUT])
    members: defaultdict[str, dict[int, Process]] = defaultdict(dict)
    sizes: dict[str, int] = {}  # of communicators
    records: defaultdict[Process, list[tuple[str, int, Any]]] = defaultdict(list)
    source: dict[Process, str] = {}
    for file in files:
        for line, record in json_objects(file, contents.missing):
            header, about = (record.get(name) for name in ("header", "metadata"))
            if not (isinstance(header, dict) and isinstance(about, dict)):
                raise wrong(file, f"line {line} has no header or no metadata")
            rank, size = whole(header.get("rank")), whole(header.get("n_ranks"), 1)
            if rank is None or size is None or rank >= size or size > MOST_RANKS:
                raise wrong(file, f"line {line} is of rank {rank} of {size}")
            process = (words(about.get("hostname")), whole(about.get("pid")) or 0)
            name = words(header.get("id"))
            same = members[name].setdefault(rank, process) == process
            if not same or sizes.setdefault(name, size) != size:
                what = f"communicator {name} has two ranks {rank}"
                raise wrong(file, what, "import the files of one run")
            records[process].append((name, rank, record))
            source.setdefault(process, file.name)
    if not records:
        raise wrong(files[0], "it holds no operation")
    largest = max(sizes, key=lambda name: sizes[name])
    contents.world, contents.world_by = sizes[largest], "the largest communicator"
    if options.ranks not in (0, contents.world):
        raise TraceError(
            f"the largest communicator defines the ranks of a run, and has "
            f"{contents.world}, but --ranks is {options.ranks}: leave it out"
        )
    rank_of = {process: rank for rank, process in members[largest].items()}
    if not records.keys() <= rank_of.keys():
        raise TraceError(
            "a communicator of all processes defines their ranks, but the largest has "
            f"{len(rank_of)} of {len(records)}: import the processes of one run"
        )
    world = tuple(range(contents.world))
    groups = {largest: Group(kind="world", ranks=world)}
    for name, own in members.items():
        ranks = tuple(rank_of[own[rank]] for rank in sorted(own))
        if len(ranks) == sizes[name]:
            groups[name] = Group(
                kind="world" if ranks == world else "other", ranks=ranks
            )
    for process, calls in records.items():
        world_rank = rank_of[process]
        contents.files[world_rank] = source[process]
        contents.nodes[world_rank] = process[0]
        rows = [
            row
            for name, rank, record in calls
            if (row := _row(record, groups.get(name), rank, world_rank, contents))
        ]
        contents.rows += sorted(rows, key=lambda row: (row.issue, row.start))
    _number_rounds(contents.rows)
    add_lost(contents)
    return contents


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
    perf = perf if isinstance(perf, dict) else {}
    name, peer = words(perf.get(kind), 50), whole(perf.get("p2p_peer"))
    size, number = (whole(perf.get(f"{kind}_{n}")) for n in ("msg_size_bytes", "sn"))
    operation = OPERATIONS.get(name, "")
    contents.seen[name] += 1
    message = operation == "send_recv"
    why = ""
    if group is None:
        why = f"{name} of a communicator whose ranks are not all known"
    elif not name:
        why = "objects without coll_perf and p2p_perf"
    elif not operation:
        why = f"{name}, of which the sizes to each rank are unknown"
    elif message and (peer is None or peer >= len(group.ranks)):
        why = f"{name} of which the peer is unknown"
    if why or group is None:
        contents.left_out[world_rank, why] += 1
        return None
    parts = len(group.ranks) if operation == "reduce_scatter" else 1
    row = Row(
        rank=world_rank,
        operation=operation,
        group=group,
        volume=-1 if size is None else size * parts,
        row_bytes=0,
        direction="",
        sequence=BY_ORDER if number is None else number,
    )
    if message and peer is not None:
        row.peers = (rank, peer) if name == "Send" else (peer, rank)
    trace = perf.get("event_trace_ts")  # of verbose files, Unix microseconds
    trace = trace if isinstance(trace, dict) else {}
    row.issue = _nanoseconds(trace.get(f"{kind}_start_ts"))
    events = trace.get("kernel_events")
    kernels = (
        [k for k in events if isinstance(k, dict)] if isinstance(events, list) else []
    )
    starts = [_nanoseconds(kernel.get("kernel_start_ts")) for kernel in kernels]
    ends = [_nanoseconds(kernel.get("kernel_stop_ts")) for kernel in kernels]
    if kernels and UNKNOWN_TIME not in (*starts, *ends):
        row.start, row.end = min(starts), max(ends)
    return row


def _nanoseconds(value: Any) -> int:
    time = whole(value, 1)
    return time * 1000 if time is not None and time < 1 << 52 else UNKNOWN_TIME


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
        received = row.group.ranks[source] != row.rank
        if source == dest:  # the send to itself precedes the receive
            received = (row.rank, row.group, row.sequence - 1) in sent
        if not received:
            sent.add((row.rank, row.group, row.sequence))
        by_group[row.group].append((2 * (source if received else dest) + received, row))
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
