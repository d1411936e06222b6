"""Import NCCL Inspector's JSON: one object per collective, send or receive.

``{"header": {"id", "rank", "n_ranks"}, "metadata": {"hostname", "pid"}, "coll_perf":
{"coll", "coll_sn", "coll_msg_size_bytes", "coll_exec_time_us", "event_trace_ts"}}``, or
``p2p_perf`` with ``p2p_peer`` and the like (NCCL ``ext-profiler/inspector``).  ``rank``
is the rank in the communicator ``id``.  Sizes are of one rank's part: a reduce-scatter
of 2 GiB over 8 ranks at 418 GB/s took 41 ms.  An all-to-all is a send and a receive per
peer; by default, messages below 8192 bytes are not written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace.model import Group

from .imported_call import ImportedCall, ImportedRank
from .importer import ImportedFiles, Importer, ImportOptions, json_with
from .json_reader import MOST_RANKS, json_lines, whole, words, wrong

OPERATIONS = {  # coll: (operation, whether the input has a part for each rank)
    "AllReduce": ("all_reduce", False),
    "AllGather": ("all_gather", False),
    "ReduceScatter": ("reduce_scatter", True),
    "Broadcast": ("broadcast", False),
    "Reduce": ("reduce", False),
}

SMALL_LEFT_OUT = "NCCL Inspector leaves out messages below 8192 bytes by default"

Process = tuple[str, int]  # host and process id


@dataclass(kw_only=True)
class Operations:
    """Operations and communicators of all processes, from all files."""

    # communicator -> rank in it -> process
    members: dict[str, dict[int, Process]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    sizes: dict[str, int] = field(default_factory=dict)
    seen: dict[Process, list[tuple[str, int, dict[str, Any]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    source: dict[Process, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def read(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    """Read the operations of all processes, numbered by a common communicator."""
    every = Operations()
    for file in files:
        _operations(file, every)
    if not every.seen:
        raise wrong(files[0], "it holds no operation")
    largest = max(every.sizes, key=lambda c: every.sizes[c])
    world = every.sizes[largest]
    if options.ranks not in (0, world):
        raise TraceError(
            f"the largest communicator defines the ranks of a run, and has {world}, "
            f"but --ranks is {options.ranks}: leave it out"
        )
    rank_of = {p: rank for rank, p in every.members[largest].items()}
    if any(p not in rank_of for p in every.seen):
        raise TraceError(
            "a communicator of all processes defines their ranks, but the largest has "
            f"{len(rank_of)} of {len(every.seen)}: import the processes of one run"
        )
    groups = {}
    for name, members in every.members.items():
        ranks = tuple(rank_of[members[r]] for r in sorted(members))
        if len(ranks) == every.sizes[name]:
            kind = "world" if ranks == tuple(range(world)) else "other"
            groups[name] = Group(kind=kind, ranks=ranks)
        elif name == largest:
            groups[name] = Group(kind="world", ranks=tuple(range(world)))
    found = []
    for process, seen in every.seen.items():
        record = ImportedRank(
            rank=rank_of[process], source=every.source[process], node=process[0]
        )
        counts: Counter[Any] = Counter()
        for name, rank, told in seen:
            call = _call(told, groups.get(name), rank, counts, record)
            if call is not None:
                record.add(call)
        record.calls.sort(key=lambda c: (c.issue, c.start))
        found.append(record)
    return ImportedFiles(
        records=found,
        world=world,
        world_by="the largest communicator",
        remarks=(SMALL_LEFT_OUT, *every.remarks),
    )


def _operations(path: Path, into: Operations) -> None:
    """Read the operations of an NCCL Inspector file."""
    for number, told in enumerate(json_lines(path, into.remarks)):
        header, about = told.get("header"), told.get("metadata")
        if not (isinstance(header, dict) and isinstance(about, dict)):
            raise wrong(path, f"object {number} has no header or no metadata")
        rank, size = whole(header.get("rank")), whole(header.get("n_ranks"), 1)
        process = (words(about.get("hostname")), whole(about.get("pid")) or 0)
        name = words(header.get("id"))
        if rank is None or size is None or rank >= size or size > MOST_RANKS:
            raise wrong(path, f"object {number} is of rank {rank} of {size}")
        other = into.members[name].setdefault(rank, process)
        if other != process or into.sizes.setdefault(name, size) != size:
            raise wrong(
                path,
                f"communicator {name} has two ranks {rank}",
                "import the files of one run",
            )
        into.seen[process].append((name, rank, told))
        into.source.setdefault(process, path.name)


def _call(
    told: dict[str, Any],
    group: Group | None,
    rank: int,
    counts: Counter[Any],
    record: ImportedRank,
) -> ImportedCall | None:
    kind = "coll" if isinstance(told.get("coll_perf"), dict) else "p2p"
    perf = told.get(f"{kind}_perf")
    if not isinstance(perf, dict):
        record.left_out["objects without coll_perf and p2p_perf"] += 1
        return None
    name = words(perf.get(kind), 50)
    if group is None:
        record.left_out[f"{name} of a communicator whose ranks are not all known"] += 1
        return None
    size = whole(perf.get(f"{kind}_msg_size_bytes"))
    call = ImportedCall(
        operation="send_recv",
        group=group,
        row_bytes=0,
        direction="",
    )
    call.volume = -1 if size is None else size
    if kind == "coll":
        if name not in OPERATIONS:
            record.left_out[f"{name}, of which the sizes to each rank are unknown"] += 1
            return None
        call.operation, parted = OPERATIONS[name]
        if parted and size is not None:
            call.volume = size * len(group.ranks)
        sequence = whole(perf.get("coll_sn"))
        call.sequence = -1 if sequence is None else sequence
    else:
        peer = whole(perf.get("p2p_peer"))
        if peer is None or peer >= len(group.ranks) or name not in ("Send", "Recv"):
            record.left_out[f"{name} of which the peer is unknown"] += 1
            return None
        call.peers = (rank, peer) if name == "Send" else (peer, rank)
    _times(call, perf, kind, told["metadata"])
    return call


def _times(
    call: ImportedCall, perf: dict[str, Any], kind: str, about: dict[str, Any]
) -> None:
    """Set the times of a call, which verbose files contain in Unix microseconds."""
    trace = perf.get("event_trace_ts")
    trace = trace if isinstance(trace, dict) else {}
    began = whole(trace.get(f"{kind}_start_ts"), 1)
    told = trace.get("kernel_events")
    kernels = [k for k in told if isinstance(k, dict)] if isinstance(told, list) else []
    starts = [whole(k.get("kernel_start_ts"), 1) for k in kernels]
    ends = [whole(k.get("kernel_stop_ts"), 1) for k in kernels]
    if began is not None and began < 1 << 52:
        call.issue = began * 1000
    known = [t for t in (*starts, *ends) if t is not None]
    if known and len(known) == 2 * len(kernels) and max(known) < 1 << 52:
        call.start, call.end = min(known) * 1000, max(known) * 1000


IMPORTER = Importer(
    name="nccl-inspector",
    what="NCCL Inspector's JSON",
    matches=json_with(['"header"', '"n_ranks"']),
    read=read,
)
