"""Export a trace as Chakra execution traces (``run.<rank>.et``), for ASTRA-sim.

A file is a GlobalMetadata and Nodes, each prefixed with its length (mlcommons/chakra
``schema/protobuf/et_def.proto``, ``src/third_party/utils/protolib.py``).  An all-to-all
is a COMM_SEND_NODE and a COMM_RECV_NODE for each other rank: Chakra's collective has
one size for all pairs.  Other collectives are COMM_COLL_NODEs of the groups in
``comm_group.json``.  Before each call, a COMP_NODE stands for the time that the rank
spent outside of calls; it depends on all nodes of the previous call.  Attributes have
the types that the feeder reads (``src/feeder/et_feeder_node.cpp``): sizes int64, ranks
and tags int32.

In the Protocol Buffers wire format a field is its number and wire type as a varint,
then a varint (type 0) or a length and that number of bytes (type 2).  Numbers are
non-negative, so that int32, int64 and uint64 have the same encoding
(protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .call_selection import counted, select_calls, site_name
from .exporter import Exporter, ExportOptions
from .rank_programs import MESSAGE, ProgramCall, programs

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
COLLECTIVES = {  # CollectiveCommType
    "all_reduce": 0,
    "all_gather": 2,
    "broadcast": 5,
    "reduce_scatter": 7,
    "barrier": 9,
}
SIMULATED = ("all_reduce", "all_gather", "reduce_scatter")  # supported by ASTRA-sim
INT32, INT64, BOOL, STRING = 7, 9, 27, 29  # fields of AttributeProto.value
MOST_TAGS = 2**31 - 1
VERSION = "0.0.4"
GROUPS = "comm_group.json"


@dataclass(kw_only=True)
class _Program:
    """Writer state of one rank's execution trace."""

    nodes: int = 0
    before: list[int] = field(default_factory=list)  # nodes of the last call
    end_ns: int = UNKNOWN_TIME  # of the last call

    def gap_ns(self, call: ProgramCall, options: ExportOptions) -> int:
        """Return the compute time before a call."""
        if options.every_ns:
            return options.every_ns
        if options.pace == "asap" or UNKNOWN_TIME in (self.end_ns, call.issue_ns):
            return 0
        return max(0, call.issue_ns - self.end_ns)


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write one Chakra execution trace per rank, and the process groups.

    At the captured pace a rank's COMP_NODE lasts, in whole microseconds, from the end
    of its previous call to the issue of the next; at "asap" its duration is 0, and with
    ``every_ns`` it is that value.
    """
    chosen = select_calls(trace, options, timed=True)
    if len(chosen.occurrences) > MOST_TAGS:
        raise TraceError(
            f"messages have {MOST_TAGS} tags, but there are {len(chosen.occurrences)} "
            "calls: export fewer iterations"
        )
    lost: Counter[str] = Counter()
    world = tuple(range(trace.meta.world))
    groups = {
        g.ranks: n
        for n, g in enumerate(trace.groups, 1)
        if tuple(sorted(g.ranks)) != world
    }
    named = {str(n): list(ranks) for ranks, n in groups.items()}
    (folder / GROUPS).write_text(json.dumps(named) + "\n")
    states = {rank: _Program() for rank in world}
    for rank in world:
        (folder / f"run.{rank}.et").write_bytes(delimited(text(1, VERSION)))
    for rank, calls in programs(trace, chosen):
        with (folder / f"run.{rank}.et").open("ab") as file:
            for call in calls:
                for node in _nodes(call, rank, states[rank], groups, options, lost):
                    file.write(delimited(node))
    order = "each call waits for the one before, and times are rounded to microseconds"
    return [*chosen.lost, *counted(lost), order]


def _nodes(
    call: ProgramCall,
    rank: int,
    state: _Program,
    groups: dict[tuple[int, ...], int],
    options: ExportOptions,
    lost: Counter[str],
) -> list[bytes]:
    site = call.site
    name = f"iteration-{call.iteration}-{site_name(site)}"
    gap = _Node(state, COMPUTE, f"before {name}", state.before)
    gap.times(0, state.gap_ns(call, options))
    gap.attribute("is_cpu_op", BOOL, 1)
    made = [gap.finish()]
    state.end_ns = call.end_ns
    own: list[_Node] = []
    messages: list[tuple[int, int, int, int]] = []  # kind, source, destination, bytes
    if site.operation == ALL_TO_ALL:
        for other, peer in enumerate(call.group.ranks):
            if other == call.member:
                lost["bytes of rank-local (self) traffic are left out"] += int(
                    call.bytes[other, other]
                )
                continue
            sent, received = (
                call.bytes[call.member, other],
                call.bytes[other, call.member],
            )
            messages += [(SEND, rank, peer, sent)] if sent else []
            messages += [(RECEIVE, peer, rank, received)] if received else []
    elif site.operation == MESSAGE:
        source, destination = call.ends
        if source < 0:
            lost["messages whose sender or receiver is unknown are left out"] += 1
        else:
            kind = SEND if rank == source else RECEIVE
            messages.append((kind, source, destination, call.bytes[site.peers[0]]))
    elif site.operation in SIMULATED:
        node = _Node(state, COLLECTIVE, name, [gap.id])
        node.attribute("is_cpu_op", BOOL, 0)
        node.attribute("comm_type", INT64, COLLECTIVES[site.operation])
        node.attribute("comm_size", INT64, int(call.bytes.max()))
        if call.group.ranks in groups:
            node.attribute("pg_name", STRING, str(groups[call.group.ranks]))
        own.append(node)
        if call.member == 0 and (call.bytes != call.bytes.max()).any():
            lost["collectives of uneven parts get equal ones of the largest size"] += 1
    elif call.member == 0:
        lost[
            f"calls of {site.operation}, which ASTRA-sim does not have, are left out"
        ] += 1
    for kind, source, destination, size in messages:
        node = _Node(state, kind, f"{name} {source} to {destination}", [gap.id])
        node.attribute("is_cpu_op", BOOL, 0)
        node.attribute("comm_size", INT64, int(size))
        node.attribute("comm_src", INT32, source)
        node.attribute("comm_dst", INT32, destination)
        node.attribute("comm_tag", INT32, call.number)
        own.append(node)
    for node in own:
        node.attribute("source", STRING, site.source.name.lower())
        begin = call.issue_ns if options.pace == "captured" else UNKNOWN_TIME
        node.times(begin, call.duration_ns)
    state.before = [n.id for n in own] or [gap.id]
    return made + [n.finish() for n in own]


class _Node:
    """Builder of a Chakra Node message."""

    def __init__(self, state: _Program, kind: int, name: str, after: list[int]) -> None:
        state.nodes += 1
        self.id = state.nodes
        self._parts = [number(1, self.id), text(2, name), number(3, kind)]
        self._parts.append(packed(5, after))  # data_deps

    def times(self, begin_ns: int, duration_ns: int) -> None:
        """Set start and duration in whole microseconds, if they are known."""
        if begin_ns > 0:
            self._parts.append(number(6, begin_ns // 1000))
        if duration_ns > 0:
            self._parts.append(number(7, (duration_ns + 500) // 1000))

    def attribute(self, name: str, kind: int, value: int | str) -> None:
        """Append an attribute to the node (an AttributeProto)."""
        self._parts.append(_attribute(name, kind, value))

    def finish(self) -> bytes:
        """Serialize the node."""
        return b"".join(self._parts)


@lru_cache(maxsize=1 << 14)
def _attribute(name: str, kind: int, value: int | str) -> bytes:
    encode: Any = text if isinstance(value, str) else number
    return content(10, text(1, name) + encode(kind, value))


# ---- Protocol Buffers -----------------------------------------------------------


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a varint.

    Examples
    --------
    >>> varint(1).hex(), varint(150).hex(), varint(2**64 - 1).hex()
    ('01', '9601', 'ffffffffffffffffff01')
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode an integer or boolean field, also if zero."""
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes) -> bytes:
    """Encode a field of bytes or of a nested message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """Encode a string field in UTF-8."""
    return content(field, value.encode())


def packed(field: int, values: Sequence[int]) -> bytes:
    """Encode a packed repeated integer field; empty for no values."""
    if not values:
        return b""
    return content(field, b"".join(map(varint, values)))


def delimited(message: bytes) -> bytes:
    """Prefix a message with its length as a varint."""
    return varint(len(message)) + message


EXPORTER = Exporter(
    name="chakra",
    what="run.<rank>.et: a send and a receive for each pair of an all-to-all, other "
    "collectives of comm_group.json",
    readers="ASTRA-sim (--workload-configuration=OUT/run), Chakra's tools",
    limits="microseconds; calls of a rank one after another",
    suffix="",
    files=r"run\.\d+\.et|comm_group\.json",
    write=write,
)
