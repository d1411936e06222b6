"""Import Chakra execution traces (``run.<rank>.et``), as ASTRA-sim reads them.

A file is a GlobalMetadata and Nodes, each after its length (mlcommons/chakra
``schema/protobuf/et_def.proto``); a JSON file ``{"1": [0, 1], ...}`` has the ranks of
the process groups that ``pg_name`` names.  A collective has one size; an all-to-all of
uneven parts is a send and a receive for each pair of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace.model import ALL_TO_ALL, Group

from .files import (
    LARGEST_VALUE,
    MOST_RANKS,
    integers,
    opened,
    opened_bytes,
    rank_in_name,
    read_json,
    words,
    wrong,
)
from .rows import Contents, Importer, ImportOptions, Row, number_of_ranks

SEND, RECEIVE, COLLECTIVE = 5, 6, 7  # NodeType
OPERATIONS = (  # by CollectiveCommType
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast"),
    *(ALL_TO_ALL, "reduce_scatter", "reduce_scatter", "barrier"),
)
ATTRIBUTE = {"name": (1, "BYTES"), "int32": (7, "INT32"), "int64": (9, "INT64")}
ATTRIBUTE |= {"uint32": (11, "UINT32"), "uint64": (13, "UINT64"), "text": (29, "BYTES")}
NODE = {"name": (2, "BYTES"), "type": (3, "INT32"), "start": (6, "UINT64")}
NODE |= {"duration": (7, "UINT64"), "attr": (10, "MESSAGE")}
LOCAL = "rank-local bytes, which Chakra traces lack, are set to 0"
ROUNDED = "times are whole microseconds"


@cache
def _node_class() -> Any:
    """Return the protobuf class of a Node, with the fields that are read."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise TraceError(
            "Chakra files are read by the package protobuf, which is not installed: "
            "pip install moetraffic[interop]"
        ) from None
    kinds = descriptor_pb2.FieldDescriptorProto
    schema = descriptor_pb2.FileDescriptorProto(name="chakra.proto", syntax="proto3")
    for message, fields in (("Attribute", ATTRIBUTE), ("Node", NODE)):
        described = schema.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            nested = kind == "MESSAGE"
            described.field.add(
                name=name,
                number=number,
                type=kinds.Type.Value(f"TYPE_{kind}"),
                label=kinds.LABEL_REPEATED if nested else kinds.LABEL_OPTIONAL,
                type_name=".Attribute" if nested else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Node"))


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the execution traces of all ranks, and their process groups."""
    listed: dict[str, tuple[int, ...]] = {}
    ranks: dict[int, Path] = {}
    for file in files:
        with opened(file) as text:
            if text.read(64).lstrip()[:1] == "{":
                listed |= _groups(file)
                continue
        rank = rank_in_name(file)
        if rank is None or rank >= MOST_RANKS:
            told = "does not contain its rank" if rank is None else f"has rank {rank}"
            raise wrong(file, f"its name {told}", "name it like run.3.et")
        if rank in ranks:
            raise wrong(
                file,
                f"{ranks[rank].name} is of rank {rank}, too",
                "import the files of one run",
            )
        ranks[rank] = file
    if not ranks:
        raise wrong(files[0], "it is no execution trace", "name the files of the ranks")
    for folder in {file.parent for file in files} if not listed else ():
        if (beside := folder / "comm_group.json").is_file():
            listed |= _groups(beside)
    nodes = {rank: list(_nodes(file)) for rank, file in sorted(ranks.items())}
    ends = [rank for members in listed.values() for rank in members]
    for _, attributes in (node for of in nodes.values() for node in of):
        peers = (attributes.get(end) for end in ("comm_src", "comm_dst"))
        ends += [peer for peer in peers if isinstance(peer, int)]
    connected = max(ends, default=-1) + 1
    by = "the ranks of messages and groups"
    world, world_by = number_of_ranks(connected, by, options)
    contents = Contents(
        world=max(world, *(rank + 1 for rank in ranks)),
        world_by=world_by,
        files={rank: file.name for rank, file in ranks.items()},
        inferred=[ROUNDED],
    )
    if not world:
        raise wrong(
            files[0],
            "neither its messages nor groups show the number of ranks",
            "give --ranks, or the files of all ranks",
        )
    for rank, of in nodes.items():
        for node, attributes in of:
            row, why = _row(node, attributes, rank, listed, contents.world)
            contents.seen[words(node.name.decode(errors="replace"), 60)] += 1
            if row is not None:
                contents.rows.append(row)
            elif why:
                contents.left_out[rank, why] += 1
    if any(row.operation == ALL_TO_ALL for row in contents.rows):
        contents.inferred.append(LOCAL)
    return contents


def _groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the ranks of the process groups by name."""
    groups = {}
    document = read_json(path)
    for name, value in document.items() if isinstance(document, dict) else ():
        ranks, _ = integers(value) or ([], False)
        if not ranks or len(set(ranks)) < len(ranks):
            raise wrong(path, f"group {name[:40]!r} has no list of ranks", "list them")
        if max(ranks) >= MOST_RANKS:
            raise wrong(
                path, f"group {name[:40]!r} has rank {max(ranks)}", "correct it"
            )
        groups[name] = tuple(ranks)
    return groups


def _nodes(path: Path) -> Iterator[tuple[Any, Mapping[str, int | str]]]:
    """Yield the communication nodes of one rank, with their attributes."""
    node_class = _node_class()
    from google.protobuf.message import DecodeError

    with opened_bytes(path) as stream:
        number = 0
        while (message := _message(path, stream)) is not None:
            number += 1
            if number == 1:
                continue  # GlobalMetadata
            try:
                node = node_class.FromString(message)
            except DecodeError:
                what = f"its message {number} is no Chakra node"
                raise wrong(path, what) from None
            if node.type not in (SEND, RECEIVE, COLLECTIVE):
                continue
            attributes: dict[str, int | str] = {}
            for attribute in node.attr:
                name = attribute.name.decode(errors="replace")
                values = {field.name: value for field, value in attribute.ListFields()}
                values.pop("name", None)
                # a value of 0 or "" is not written
                value = next(iter(values.values()), 0)
                attributes[name] = value
                if isinstance(value, bytes):
                    attributes[name] = words(value.decode(errors="replace"))
            yield node, attributes


def _message(path: Path, stream: Any) -> bytes | None:
    """Return the next message of a file, None at its end."""
    length = shift = 0
    while byte := stream.read(1):
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if shift > 63:
            raise wrong(path, "the length of a message has more than 10 bytes")
    if not byte:
        if shift:
            raise wrong(path, "it ends within the length of a message")
        return None
    if length > LARGEST_VALUE:
        raise wrong(path, f"a message has more than {LARGEST_VALUE} bytes")
    message: bytes = stream.read(length)
    if len(message) < length:
        raise wrong(path, "it ends within a message")
    return message


def _row(
    node: Any,
    attributes: Mapping[str, int | str],
    rank: int,
    listed: Mapping[str, tuple[int, ...]],
    world: int,
) -> tuple[Row | None, str]:
    """Build the row of a node; or return why it is left out, "" for no call."""

    def number(name: str) -> int:
        value = attributes.get(name)
        return value if isinstance(value, int) and value >= 0 else -1

    everyone = tuple(range(world))
    name = attributes.get("pg_name", "")
    ranks = listed.get(str(name)) if name not in ("", 0) else everyone
    if node.type != COLLECTIVE:
        ranks = everyone
        operation, size = "send_recv", number("comm_size")
        if size < 0:
            return None, ""  # the operator of a kernel that has its own node
    elif "comm_type" not in attributes:
        return None, ""
    else:
        kind, size = number("comm_type"), number("comm_size")
        if not 0 <= kind < len(OPERATIONS):
            return None, f"collectives of type {kind}"
        operation = OPERATIONS[kind]
    if ranks is None or rank not in ranks:
        return None, f"{operation} on a group that no JSON file of groups has"
    group = Group(kind="world" if ranks == everyone else "other", ranks=ranks)
    row = Row(rank=rank, operation=operation, group=group, row_bytes=0)
    if operation == ALL_TO_ALL:  # one size, of all parts together
        row.sent = row.received = [-1] * len(ranks)
    else:
        row.volume = size
    if operation == "send_recv":
        source, destination = number("comm_src"), number("comm_dst")
        if node.type == SEND and source < 0:
            source = rank
        if node.type == RECEIVE and destination < 0:
            destination = rank
        row.peers = (source, destination)
        if rank not in row.peers or not 0 <= min(row.peers) <= max(row.peers) < world:
            return None, "messages of which the other rank is unknown"
    if 0 < node.start < 1 << 52 and node.duration < 1 << 52:
        row.issue = node.start * 1000
        row.end = (node.start + node.duration) * 1000
    return row, ""


def matches(_: Path, beginning: str) -> bool:
    """Return whether a file begins like a GlobalMetadata, or lists groups in JSON."""
    listed = re.match(r'\{\s*"[^"]{0,40}"\s*:\s*\[\s*\d', beginning)
    version = re.match(r"[^{\[]{0,3}\n?[\x01-\x1f]\d+\.\d+", beginning)
    attribute = re.match(r"[^{\[]{1,3}\x12.\n.schema", beginning, re.DOTALL)
    return bool(listed or version or attribute)


IMPORTER = Importer(
    name="chakra",
    what="Chakra execution traces, run.<rank>.et, and their groups in JSON",
    matches=matches,
    read=read,
)
