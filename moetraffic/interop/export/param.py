"""Export a trace for PARAM's ``comm_replay``: an execution trace per rank.

PARAM reads execution traces of torch's ExecutionTraceObserver only (``--trace-type
et``), schema 1.0.3 to 1.1.1, of which it uses

- the node ``## process_group:init ##``: a JSON list of groups with decimal names;
- nodes ``record_param_comms``: inputs ``[sequence number, is message]``, the group's
  name and description, the rank of root or peer in the group; attributes
  ``collective_name``, ``dtype``, ``in_msg_nelems``, ``out_msg_nelems``,
  ``in_split_size``, ``out_split_size`` (JSON lists as text) and ``pg_name``.
  ``wait`` waits for the call of the same group and sequence number.

Read from facebookresearch/param at 1e115ffc: ``et_replay/comm/commsTraceParser.py``
(_parse_comms_op_node), ``et_replay/execution_trace.py`` (ExecutionTrace) and
``et_replay/comm/comms_utils.py`` (dtypeMap).  ``--trace-path`` is the folder, of which
a rank reads ``rank-<n>.json`` (``tools/comm_replay.py``, readRawTrace).  Groups have
ascending ranks, as ``torch.distributed.new_group`` sorts them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.trace import ALL_TO_ALL, Trace

from .call_selection import counted, select_calls
from .exporter import Exporter, ExportOptions
from .rank_programs import MESSAGE, ProgramCall, programs

TYPES = {  # torch's name: PARAM's, bytes
    "float32": ("float32", 4),
    "float16": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "float64": ("float64", 8),
    "int64": ("long", 8),
    "int32": ("int32", 4),
    "int16": ("short", 2),
    "int8": ("int8", 1),
    "uint8": ("byte", 1),
    "bool": ("bool", 1),
}
BYTE = ("byte", 1)
NAMES = {  # where they differ from the trace's
    ALL_TO_ALL: "all_to_allv",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}
SCHEMA = "1.1.0-chakra.0.0.4"
PROCESS, THREAD, GROUPS = range(1, 4)
"""Node numbers of the process, its thread and the groups; calls follow."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNEVEN = (
    "all-gathers and reduce-scatters of uneven parts get equal ones of the largest size"
)
ROOT = "calls with a root, which traces do not have, get the group's first rank"
UNKNOWN = "messages whose sender or receiver is unknown are left out"


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write the execution trace ``rank-<n>.json`` of each rank."""
    chosen = select_calls(trace, options)
    lost: Counter[str] = Counter()
    groups = {g.ranks: n for n, g in enumerate(trace.groups, 1)}
    head = _head(trace.meta.world, groups)
    made = dict.fromkeys(range(trace.meta.world), GROUPS)
    for rank in made:
        first = ",\n".join(json.dumps(node) for node in head)
        start = json.dumps({"schema": SCHEMA, "pid": rank, "nodes": []})
        (folder / f"rank-{rank}.json").write_text(f"{start[:-2]}\n{first}")
    for rank, calls in programs(trace, chosen):
        with (folder / f"rank-{rank}.json").open("a") as file:
            for entry in _program(calls, rank, groups, lost):
                made[rank] += 1
                file.write(",\n" + json.dumps(_node(made[rank], entry)))
    for rank in range(trace.meta.world):
        with (folder / f"rank-{rank}.json").open("a") as file:
            file.write("\n]}\n")
    return [
        *chosen.lost,
        *counted(lost),
        "each call except sends ends before the next begins; start times and "
        "computation are left out",
    ]


def _head(world: int, groups: dict[tuple[int, ...], int]) -> list[dict[str, Any]]:
    """Return the nodes of process, thread and groups; group 0 has all ranks."""
    every = [(0, tuple(range(world))), *((n, ranks) for ranks, n in groups.items())]
    told = [
        {
            "pg_name": str(number),
            "pg_desc": "default_pg" if not number else "undefined",
            "backend_config": "",
            "pg_size": len(ranks),
            "ranks": sorted(ranks),
            "group_size": len(ranks),
            "group_count": len(every),
        }
        for number, ranks in every
    ]
    label = "[pytorch|profiler|execution_trace|{}]"
    return [
        _plain(PROCESS, PROCESS, label.format("process"), []),
        _plain(THREAD, PROCESS, label.format("thread"), []),
        _plain(GROUPS, THREAD, "## process_group:init ##", [json.dumps(told)]),
    ]


def _plain(
    number: int,
    parent: int,
    name: str,
    values: list[Any],
    types: list[str] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """Return a node with inputs ``values``, of which those without a type are text."""
    empty: dict[str, Any] = {"values": [], "shapes": [], "types": []}
    named: dict[str, Any] = {
        "fw_parent": 0,
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
    }
    named |= {"op_schema": "", **attributes}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {
            "values": values,
            "shapes": [[] for _ in values],
            "types": types or ["String"] * len(values),
        },
        "outputs": empty,
        "attrs": [
            {
                "name": key,
                "type": "string" if isinstance(value, str) else "int64",
                "value": value,
            }
            for key, value in named.items()
        ],
    }


def _node(number: int, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the node ``record_param_comms`` of a call, or of waiting for it."""
    name, group = entry["comms"], str(entry["group"])
    rank = entry["rank"]
    attributes = {
        "collective_name": name,
        "pg_name": group,
        "pg_desc": "undefined",
        "pg_size": entry["size"],
        "moetraffic": ", ".join(entry["markers"]),
    }
    if "dtype" in entry:
        attributes |= {
            "dtype": entry["dtype"],
            "in_msg_nelems": entry["sent"],
            "out_msg_nelems": entry["received"],
            "in_split_size": json.dumps(entry.get("sends", [])),
            "out_split_size": json.dumps(entry.get("receives", [])),
        }
    sequence = [
        entry["number"],
        name in ("send", "recv") or entry.get("message", False),
    ]
    return _plain(
        number,
        THREAD,
        "record_param_comms",
        [sequence, [group, "undefined"], rank, name],
        ["Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String"],
        **attributes,
    )


def _program(
    calls: list[ProgramCall],
    rank: int,
    groups: dict[tuple[int, ...], int],
    lost: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a rank; sends move to the end of their iteration.

    Two ranks that send to each other before they receive would deadlock.
    """
    sends: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        entries = _entries(call, rank, groups, lost)
        if entries and entries[0]["comms"] == "send":
            sends.append(entries.pop())
        yield from entries
        if at + 1 == len(calls) or calls[at + 1].iteration != call.iteration:
            yield from sends
            sends = []


def _entries(
    call: ProgramCall,
    rank: int,
    groups: dict[tuple[int, ...], int],
    lost: Counter[str],
) -> list[dict[str, Any]]:
    site, width = call.site, len(call.group.ranks)
    what = site.phase or site.label or site.operation
    where = [what] if site.layer < 0 else [what, f"layer {site.layer}"]
    entry: dict[str, Any] = {
        "comms": NAMES.get(site.operation, site.operation),
        "number": call.number,
        "group": groups[call.group.ranks],
        "size": width,
        "rank": rank,
        "markers": [*where, f"iteration {call.iteration}"],
    }
    if site.operation == "barrier":
        return [entry]
    told = _sizes(call, rank, lost)
    if told is None:
        lost[UNKNOWN] += 1
        return []
    entry |= told
    if site.operation in ROOTED:
        entry["rank"] = 0  # of the group: its ranks ascend
        lost[ROOT] += call.member == 0
    wait = {
        name: entry[name] for name in ("number", "group", "size", "rank", "markers")
    }
    message = {"message": site.operation == MESSAGE}
    return [entry, {"comms": "wait", **wait, **message}]


def _sizes(call: ProgramCall, rank: int, lost: Counter[str]) -> dict[str, Any] | None:
    """Return sizes in elements and peers of a call; None if its peers are unknown."""
    site, width, me = call.site, len(call.group.ranks), call.member
    name, size = TYPES.get(site.dtype, BYTE)
    if (call.bytes % size).any():
        name, size = BYTE
    counts = call.bytes // size
    if site.operation == ALL_TO_ALL:
        order = np.argsort(call.group.ranks)
        sent, received = counts[me, order], counts[order, me]
        return {
            "dtype": name,
            "sent": int(sent.sum()),
            "received": int(received.sum()),
            "sends": sent.tolist(),
            "receives": received.tolist(),
        }
    if site.operation == MESSAGE:
        source, destination = call.ends
        if source < 0:
            return None
        own = int(counts[site.peers[0]])
        return {
            "comms": "send" if rank == source else "recv",
            "dtype": name,
            "sent": own,
            "received": own,
            "rank": sorted(call.group.ranks).index(
                destination if rank == source else source
            ),
        }
    largest = int(counts.max())
    given = taken = largest
    if site.operation in ("all_gather", "gather"):
        taken = largest * width
    elif site.operation in ("reduce_scatter", "scatter"):
        given = -(-largest // width) * width
        taken = given // width
    uneven = given != largest or (counts != largest).any()
    if site.operation in ("all_gather", "reduce_scatter") and uneven and me == 0:
        lost[UNEVEN] += 1
    return {"dtype": name, "sent": given, "received": taken}


EXPORTER = Exporter(
    name="param",
    what="rank-<n>.json: every collective and message of a rank, in its order",
    readers="PARAM's comm_replay (--trace-type et)",
    limits="sizes in elements; each call but sends is waited for; roots are not known",
    suffix="",
    files=r"rank-\d+\.json",
    write=write,
)
