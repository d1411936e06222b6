"""Export a trace for PARAM's ``comm_replay``: a JSON call list per rank.

Each call has ``comms``, ``req``, ``pg_id``, ``world_size``, ``in_msg_size`` and
``out_msg_size`` in elements of ``dtype``, and ``in_split``, ``out_split``
(all_to_allv), ``root`` or ``src_rank``, ``dst_rank``, ``use_batch`` (send, recv);
``init`` makes a group of ``global_ranks``, ``wait`` waits for a ``req``
(facebookresearch/param ``et_replay/comm/commsTraceParser.py``, _parseBasicTraceComms;
types in ``comms_utils.py``, dtypeMap). ``--trace-path`` is the folder, of which a rank
reads ``rank-<n>.json`` (``tools/comm_replay.py``, readRawTrace). Groups have
ascending ranks, as ``torch.distributed.new_group`` sorts them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .call_selection import issue_times, select_calls
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
    "all_gather": "all_gather_base",
    "reduce_scatter": "reduce_scatter_base",
}
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNEVEN = "all-gathers and reduce-scatters of uneven parts are made even, as the largest"
ROOT = "calls with a root, which is not in a trace, have the group's first rank"
UNKNOWN = "messages whose ends are not known are left out"


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write the call list ``rank-<n>.json`` for each rank.

    Raises
    ------
    TraceError
        If no call matches the options.
    """
    chosen = select_calls(trace, options)
    lost: Counter[str] = Counter()
    begin = issue_times(trace, chosen.occurrences)
    timed = options.pace == "captured" and not (begin == UNKNOWN_TIME).any()
    base = int(begin.min()) if timed else UNKNOWN_TIME
    groups = {g.ranks: n for n, g in enumerate(trace.groups, 1)}
    head = [_init(0, tuple(range(trace.meta.world)))]
    head += [_init(n, ranks) for ranks, n in groups.items()]
    for rank in range(trace.meta.world):
        first = ",\n".join(json.dumps(entry) for entry in head)
        (folder / f"rank-{rank}.json").write_text("[\n" + first)
    for rank, calls in programs(trace, chosen):
        with (folder / f"rank-{rank}.json").open("a") as file:
            for entry in _program(calls, rank, groups, base, lost):
                file.write(",\n" + json.dumps(entry))
    for rank in range(trace.meta.world):
        with (folder / f"rank-{rank}.json").open("a") as file:
            file.write("\n]\n")
    said = [f"{count} {what}" for what, count in sorted(lost.items())]
    said.append(
        "each call but sends is waited for before the next, and nothing is computed"
    )
    if not timed:
        said.append("when calls began is left out (--use-timestamp cannot be given)")
    return [*chosen.lost, *said]


def _init(number: int, ranks: tuple[int, ...]) -> dict[str, Any]:
    return {
        "comms": "init",
        "pg_id": number,
        "global_ranks": sorted(ranks),
        "world_size": len(ranks),
        "req": -1,
        "markers": ["init"],
    }


def _program(
    calls: list[ProgramCall],
    rank: int,
    groups: dict[tuple[int, ...], int],
    base: int,
    lost: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a rank; sends move to the end of their iteration.

    Two ranks that send to each other before they receive would deadlock.
    """
    sends: list[dict[str, Any]] = []
    for at, call in enumerate(calls):
        entries = _entries(call, rank, groups, base, lost)
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
    base: int,
    lost: Counter[str],
) -> list[dict[str, Any]]:
    site, width = call.site, len(call.group.ranks)
    what = site.phase or site.label or site.operation
    where = [what] if site.layer < 0 else [what, f"layer {site.layer}"]
    entry: dict[str, Any] = {
        "comms": NAMES.get(site.operation, site.operation),
        "req": call.number,
        "pg_id": groups[call.group.ranks],
        "world_size": width,
        "markers": [*where, f"iteration {call.iteration}"],
    }
    if base != UNKNOWN_TIME:
        entry["startTime_ns"] = call.issue_ns - base
    if site.operation == "barrier":
        return [entry]
    told = _sizes(call, rank, lost)
    if told is None:
        lost[UNKNOWN] += 1
        return []
    entry |= told
    if site.operation in ROOTED:
        entry["root"] = min(call.group.ranks)
        lost[ROOT] += call.member == 0
    wait = {"comms": "wait", "req": call.number, "pg_id": entry["pg_id"]}
    return [entry, wait | {"markers": entry["markers"]}]


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
            "in_msg_size": int(sent.sum()),
            "out_msg_size": int(received.sum()),
            "in_split": sent.tolist(),
            "out_split": received.tolist(),
        }
    if site.operation == MESSAGE:
        source, destination = call.ends
        if source < 0:
            return None
        own = int(counts[site.peers[0]])
        return {
            "comms": "send" if rank == source else "recv",
            "dtype": name,
            "in_msg_size": own,
            "out_msg_size": own,
            "src_rank": source,
            "dst_rank": destination,
            "use_batch": False,
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
    return {"dtype": name, "in_msg_size": given, "out_msg_size": taken}


EXPORTER = Exporter(
    name="param",
    what="rank-<n>.json: every collective and message of a rank, in its order",
    readers="PARAM's comm_replay (--trace-type basic)",
    limits="sizes in elements; each call but sends is waited for; roots are not known",
    suffix="",
    files=r"rank-\d+\.json",
    write=write,
)
