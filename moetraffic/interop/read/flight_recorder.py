"""Import JSON dumps of torch's flight recorder, one file a rank.

``{"version", "pg_config": {name: {"desc", "ranks": "[0, 1]"}}, "entries":
[{"process_group": [name, description], "profiling_name": "nccl:all_to_all",
"collective_seq_id", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes",
"time_created_ns"}]}`` (torch ``FlightRecorder.hpp``).  The sizes are of whole tensors:
the parts of an all-to-all are known where it has a tensor for each rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME, Group

from .files import MOST_RANKS, integers, rank_in_name, read_json, whole, words, wrong
from .messages import add_lost
from .rows import BY_ORDER, Contents, Importer, ImportOptions, Row
from .torch_calls import KINDS, element_type, operation_of

MESSAGE = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the collectives of all ranks, numbered by process group."""
    entries: dict[int, list[Any]] = {}
    listed: dict[str, tuple[int, ...]] = {}  # world ranks of groups
    contents = Contents(world_by="the files and the process groups in them")
    for file in files:
        rank, dump = rank_in_name(file), read_json(file)
        if rank is None or rank in entries:
            raise wrong(file, "its name has no rank of its own", "name it rank0.json")
        dump = dump if isinstance(dump, dict) else {}
        entries[rank], contents.files[rank] = _list(dump, "entries"), file.name
        groups = dump.get("pg_config")
        for name, about in groups.items() if isinstance(groups, dict) else ():
            value = about.get("ranks") if isinstance(about, dict) else None
            ranks, _ = integers(value) or ((), False)
            if ranks and len(set(ranks)) == len(ranks) and max(ranks) < MOST_RANKS:
                listed[name] = tuple(ranks)
    highest = max(max(ranks) for ranks in (entries, *listed.values()))
    contents.world = max(options.ranks, highest + 1)
    for rank, own in entries.items():
        for entry in own:
            row = _row(entry, rank, listed, contents)
            contents.rows += [row] if row else []
    add_lost(contents)
    return contents


def _row(
    entry: Any, rank: int, listed: Mapping[str, tuple[int, ...]], contents: Contents
) -> Row | None:
    """Convert an entry; None for what is left out."""
    entry = entry if isinstance(entry, dict) else {}
    call = words(entry.get("profiling_name")).rpartition(":")[2]
    verb = call.partition(" ")[0]
    operation, message = operation_of(verb), MESSAGE.match(call)
    contents.seen[verb] += 1
    name, described = (*map(words, _list(entry, "process_group")), "", "")[:2]
    world = tuple(range(contents.world))
    ranks = listed.get(name, world if described == "default_pg" else ())
    if not operation or rank not in ranks or (operation == "send_recv" and not message):
        why = "on a group whose ranks are not in the files"
        contents.left_out[rank, f"{verb} {why if operation else ''}".rstrip()] += 1
        return None
    kind = KINDS.get(described, "world" if ranks == world else "other")
    number, created = (
        whole(entry.get(key)) for key in ("collective_seq_id", "time_created_ns")
    )
    (dtype, sent), (_, received) = (_sizes(entry, end) for end in ("input", "output"))
    row = Row(
        rank=rank,
        operation=operation,
        group=Group(kind=kind, ranks=ranks),
        volume=sum(sent or received) if min(sent or received, default=-1) >= 0 else -1,
        dtype=dtype,
        direction="",
        sequence=BY_ORDER if number is None else number,
        issue=created or UNKNOWN_TIME,
    )
    if message:
        own, peer = int(message[2]), int(message[3])
        row.peers = (own, peer) if message[1] == "send" else (peer, own)
        row.sequence = BY_ORDER
        if max(row.peers) >= len(ranks):
            return None
    elif operation == ALL_TO_ALL:
        unknown = [-1] * len(ranks)  # the splits of one tensor are not recorded
        row.sent = sent if len(sent) == len(ranks) else unknown
        row.received = received if len(received) == len(ranks) else unknown
    return row


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []


def _sizes(entry: Mapping[str, Any], end: str) -> tuple[str, list[int]]:
    """Return the type of tensors and the bytes of each, -1 if unknown."""
    dtype, element = element_type(next(iter(_list(entry, f"{end}_dtypes")), ""))
    sizes = []
    for shape in _list(entry, f"{end}_sizes"):
        axes, _ = integers(shape) or ((), False)
        known = element and isinstance(shape, list) and len(axes) == len(shape)
        sizes.append(prod(axes) * element if known else -1)
    return dtype, sizes


IMPORTER = Importer(
    name="flight-recorder",
    what="JSON dumps of torch's flight recorder",
    matches=lambda _, text: '"profiling_name"' in text and '"input_sizes"' in text,
    read=read,
)
