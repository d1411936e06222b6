"""Export a trace as Chakra execution traces (``run.<rank>.et``), for ASTRA-sim.

A file is a GlobalMetadata and Nodes, each prefixed with its length (mlcommons/chakra
``schema/protobuf/et_def.proto``, ``src/third_party/utils/protolib.py``).  An all-to-all
is a COMM_SEND_NODE and a COMM_RECV_NODE for each other rank: Chakra's collective has
one size for all pairs.  Other collectives are COMM_COLL_NODEs of the groups in
``comm_group.json``.  Before each call, a COMP_NODE stands for the time that the rank
spent outside of calls; it depends on all nodes of the previous call.  Attributes have
the types that the feeder reads (``src/feeder/et_feeder_node.cpp``): sizes int64, ranks
and tags int32.

Messages are encoded here, so that this export needs no protobuf: a field is its number
and wire type as a varint, then a varint (type 0) or a length and that number of bytes
(type 2); all numbers are non-negative (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .exporter import Exporter, ExportOptions
from .frames import MESSAGE, calls, counted, pairs, select_calls, site_name

if TYPE_CHECKING:
    import pandas

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "reduce_scatter": 7}
"""CollectiveCommType of what ASTRA-sim simulates."""
INT32, INT64, BOOL, STRING = 7, 9, 27, 29  # fields of AttributeProto.value
MOST_TAGS = 2**31 - 1
VERSION = "0.0.4"
UNEVEN = "collectives of uneven parts get equal ones of the largest size"
NO_ENDS = "messages whose sender or receiver is unknown are left out"


class Transfer(NamedTuple):
    """A send or receive of a rank."""

    kind: int
    source: int
    destination: int
    bytes: int


class Program:
    """Nodes of one rank so far."""

    def __init__(self) -> None:
        self.count = 0
        self.last: list[int] = []  # nodes of the last call
        self.end_ns = UNKNOWN_TIME  # of the last call

    def node(
        self,
        kind: int,
        name: str,
        after: list[int],
        *attributes: tuple[str, int, int | str],
        begin_ns: int = 0,
        ns: int = 0,
    ) -> bytes:
        """Encode the next node, which waits for the nodes ``after``."""
        self.count += 1
        fields = [number(1, self.count), text(2, name), number(3, kind)]
        if after:
            fields.append(content(5, b"".join(map(varint, after))))  # data_deps
        timed = kind == COMPUTE  # its times stand before its attributes
        coded = [_attribute(*told) for told in attributes]
        times = [number(6, begin_ns // 1000)] if begin_ns > 0 else []
        times += [number(7, (ns + 500) // 1000)] if ns > 0 else []
        fields += times + coded if timed else coded + times
        return delimited(b"".join(fields))


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write one Chakra execution trace per rank, and the process groups.

    At the captured pace a rank's COMP_NODE lasts, in whole microseconds, from the end
    of its previous call to the issue of the next; at "asap" its duration is 0, and with
    ``every_ns`` it is that value.
    """
    chosen, lost = select_calls(trace, options, timed=True)
    if len(chosen) > MOST_TAGS:
        raise TraceError(
            f"messages have {MOST_TAGS} tags, but there are {len(chosen)} "
            "calls: export fewer iterations"
        )
    world = range(trace.meta.world)
    groups = {
        g.ranks: n
        for n, g in enumerate(trace.groups, 1)
        if tuple(sorted(g.ranks)) != tuple(world)
    }
    named = {str(n): list(ranks) for ranks, n in groups.items()}
    (folder / "comm_group.json").write_text(json.dumps(named) + "\n")
    for rank in world:
        (folder / f"run.{rank}.et").write_bytes(delimited(text(1, VERSION)))
    programs = [Program() for _ in world]
    omitted: Counter[str] = Counter()
    for table in calls(trace, chosen):
        largest = table.groupby("call")["sent"].transform("max")
        table["uneven"] = (
            (table["sent"] != largest).groupby(table["call"]).transform(any)
        )
        table["largest"] = largest
        transfers = _transfers(trace, chosen, table, omitted)
        for rank, rows in table.groupby("rank"):
            with (folder / f"run.{rank}.et").open("ab") as file:
                for call in rows.itertuples():
                    nodes = _nodes(
                        trace, call, transfers, programs[rank], groups, options, omitted
                    )
                    file.write(nodes)
    order = "each call waits for the one before, and times are rounded to microseconds"
    return [*lost, *counted(omitted), order]


def _transfers(
    trace: Trace, chosen: Any, table: pandas.DataFrame, omitted: Counter[str]
) -> dict[tuple[int, int], list[Transfer]]:
    """Return the sends and receives of a block's calls, by call and rank."""
    operation = np.array([s.operation for s in trace.sites])
    numbers = np.unique(
        table["call"][operation[table["site"].to_numpy()] == ALL_TO_ALL].to_numpy()
    )
    transfers: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for pair in pairs(trace, chosen[numbers]):
        own = pair["source"] == pair["destination"]
        omitted["bytes of rank-local (self) traffic are left out"] += int(
            pair["bytes"][own].sum()
        )
        pair = pair[~own & (pair["bytes"] > 0)]
        columns = (pair[n].tolist() for n in ("source", "destination", "bytes"))
        call = numbers[pair["call"]].tolist()
        for number, source, destination, size in zip(call, *columns, strict=True):
            transfers[number, source].append(Transfer(SEND, source, destination, size))
            transfers[number, destination].append(
                Transfer(RECEIVE, source, destination, size)
            )
    for own_transfers in transfers.values():
        # by the other rank (one end is the rank itself), sends before receives
        own_transfers.sort(key=lambda t: (t.source + t.destination, t.kind))
    return transfers


def _nodes(
    trace: Trace,
    call: Any,
    transfers: dict[tuple[int, int], list[Transfer]],
    program: Program,
    groups: dict[tuple[int, ...], int],
    options: ExportOptions,
    omitted: Counter[str],
) -> bytes:
    """Encode the nodes of a rank's call: the computation before it, and its own."""
    site, rank = trace.sites[call.site], call.rank
    ranks = trace.groups[site.group].ranks
    gap = options.every_ns
    if not gap and options.pace == "captured":
        known = UNKNOWN_TIME not in (program.end_ns, call.issue)
        gap = max(0, call.issue - program.end_ns) if known else 0
    name = f"iteration-{call.iteration}-{site_name(site)}"
    cpu = ("is_cpu_op", BOOL, 1)
    coded = program.node(COMPUTE, f"before {name}", program.last, cpu, ns=gap)
    before = [program.count]
    program.end_ns = call.end
    known = UNKNOWN_TIME not in (call.issue, call.end)
    told: dict[str, Any] = {"ns": call.end - call.issue if known else 0}
    if options.pace == "captured":
        told["begin_ns"] = call.issue
    device = ("is_cpu_op", BOOL, 0)
    origin = ("source", STRING, site.source.name.lower())
    moved = transfers.get((call.call, rank), [])
    if site.operation == MESSAGE and min(site.peers) >= 0:
        source, destination = (ranks[peer] for peer in site.peers)
        kind, size = (SEND, call.sent) if rank == source else (RECEIVE, call.received)
        moved = [Transfer(kind, source, destination, size)]
    elif site.operation in COLLECTIVES:
        of_group = ranks in groups
        coded += program.node(
            COLLECTIVE,
            name,
            before,
            device,
            ("comm_type", INT64, COLLECTIVES[site.operation]),
            ("comm_size", INT64, call.largest),
            *([("pg_name", STRING, str(groups[ranks]))] if of_group else []),
            origin,
            **told,
        )
        omitted[UNEVEN] += call.member == 0 and call.uneven
    elif site.operation == MESSAGE:
        omitted[NO_ENDS] += 1
    elif site.operation != ALL_TO_ALL and call.member == 0:
        what = f"calls of {site.operation}, which ASTRA-sim does not have, are left out"
        omitted[what] += 1
    for transfer in moved:
        coded += program.node(
            transfer.kind,
            f"{name} {transfer.source} to {transfer.destination}",
            before,
            device,
            ("comm_size", INT64, transfer.bytes),
            ("comm_src", INT32, transfer.source),
            ("comm_dst", INT32, transfer.destination),
            ("comm_tag", INT32, call.call),
            origin,
            **told,
        )
    program.last = list(range(before[0] + 1, program.count + 1)) or before
    return coded


# ---- Protocol Buffers ----------------------------------------------------------------


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


def delimited(message: bytes) -> bytes:
    """Prefix a message with its length as a varint."""
    return varint(len(message)) + message


@lru_cache(maxsize=1 << 14)
def _attribute(name: str, kind: int, value: int | str) -> bytes:
    coded = text(kind, value) if isinstance(value, str) else number(kind, value)
    return content(10, text(1, name) + coded)


EXPORTER = Exporter(
    name="chakra",
    what="run.<rank>.et: a send and a receive for each pair of an all-to-all, other "
    "collectives of comm_group.json",
    readers="ASTRA-sim (--workload-configuration=OUT/run)",
    limits="microseconds; calls of a rank one after another",
    suffix="",
    files=r"run\.\d+\.et|comm_group\.json",
    write=write,
)
