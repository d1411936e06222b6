"""Import Chakra execution traces (``run.<rank>.et``), as ASTRA-sim reads them.

A file is a GlobalMetadata and Nodes, each after its length (mlcommons/chakra
``schema/protobuf/et_def.proto``); a JSON file ``{"1": [0, 1], ...}`` has the ranks of
the process groups that ``pg_name`` names.  A collective has one size; an all-to-all of
uneven parts is a send and a receive for each pair of ranks.

:mod:`moetraffic.interop.write.chakra` names its nodes by iteration, layer and call:
sends and receives of such a call are joined to an all-to-all.  Those of other programs
remain messages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetraffic.trace.model import (
    ALL_TO_ALL,
    PHASES,
    UNKNOWN_TIME,
    Group,
)

from .imported_call import ImportedCall, ImportedRank
from .importer import (
    ImportedFiles,
    Importer,
    ImportOptions,
    number_of_ranks,
    rank_in_name,
)
from .json_reader import (
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_RANKS,
    JsonStream,
    integers,
    opened,
    words,
    wrong,
)
from .model_properties import with_model
from .protobuf_reader import fields, messages, signed

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
OPERATIONS = {  # CollectiveCommType
    **{0: "all_reduce", 1: "reduce", 2: "all_gather", 3: "gather", 4: "scatter"},
    **{5: "broadcast", 6: ALL_TO_ALL, 7: "reduce_scatter", 8: "reduce_scatter"},
    9: "barrier",
}
NUMBERS = range(7, 15, 2)  # int32, int64, uint32 and uint64 fields of an attribute
STRING = 29
CALL = re.compile(
    r"(before )?(iteration-(\d{1,12})-((?:layer-(\d{1,6})-)?(\w+?)(-recompute)?"
    r"-slot-\d{1,7}))(?: \d+ to \d+)?"
)
MESSAGE = "send_recv"
LOCAL = "rank-local bytes, which Chakra traces lack, are set to 0"
ROUNDED = "times are whole microseconds"


@dataclass(kw_only=True, slots=True)
class Node:
    """Communication node of a rank, or one that announces a call."""

    name: str
    kind: int
    attributes: dict[str, int | str]
    start_us: int = 0
    duration_us: int = 0

    def number(self, name: str) -> int:
        """Return an integer attribute, -1 if it is missing or negative."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) and value >= 0 else -1


@dataclass(kw_only=True, slots=True)
class NamedCall:
    """Nodes of one call that :mod:`moetraffic.interop.write.chakra` wrote."""

    iteration: int
    site: str  # layer, operation, slot
    layer: int
    what: str  # phase, label or operation
    recomputed: bool
    nodes: list[Node] = field(default_factory=list)

    @property
    def ends(self) -> set[int]:
        """World ranks of the messages, as far as they are known."""
        ends = {n.number(f"comm_{end}") for n in self.nodes for end in ("src", "dst")}
        return ends - {-1}


@dataclass(kw_only=True)
class RankNodes:
    """Content of one rank's file: named calls and other nodes, in order."""

    rank: int
    source: str
    calls: list[NamedCall | Node] = field(default_factory=list)


def read(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    """Read the execution traces of all ranks, and their process groups."""
    listed: dict[str, tuple[int, ...]] = {}
    every: list[RankNodes] = []
    for file in files:
        if _is_json(file):
            listed |= _groups(file)
        else:
            every.append(_rank_nodes(file))
    if not every:
        raise wrong(files[0], "it is no execution trace", "name the files of the ranks")
    folders = {file.parent for file in files}
    for folder in folders if not listed else ():
        if (beside := folder / "comm_group.json").is_file():
            listed |= _groups(beside)
    if len({one.rank for one in every}) < len(every):
        raise wrong(
            files[0],
            "two of the files are of one rank",
            "import the files of one run",
        )
    named = [
        (one.rank, call)
        for one in every
        for call in one.calls
        if isinstance(call, NamedCall)
    ]
    ends = [end for _, call in named for end in call.ends]
    ends += [rank for ranks in listed.values() for rank in ranks]
    if max(ends, default=0) >= MOST_RANKS:
        raise wrong(files[0], f"a message is of rank {max(ends)}")
    records = [ImportedRank(rank=one.rank, source=one.source) for one in every]
    for record in records:
        record.widest = max(ends, default=-1) + 1
    world, world_by = number_of_ranks(records, options)
    if not world:
        raise wrong(
            files[0],
            "neither its messages nor groups show the number of ranks",
            "give --ranks, or the files of all ranks",
        )
    world = max(world, *(one.rank + 1 for one in every))
    groups = Groups(listed, world)
    groups.join(named)
    for record, one in zip(records, every, strict=True):
        for call in one.calls:
            made = (
                _named(call, groups, record)
                if isinstance(call, NamedCall)
                else _other(call, groups, record)
            )
            if made is not None:
                record.add(made)
        steps = sorted({c.iteration for c in record.calls if c.iteration >= 0})
        record.steps += [(step, UNKNOWN_TIME, UNKNOWN_TIME) for step in steps]
    inferred = [ROUNDED]
    if any(c.operation == ALL_TO_ALL for r in records for c in r.calls):
        inferred.append(LOCAL)
    if named:
        inferred.append("sends and receives of a call joined by the names of its nodes")
    return with_model(
        ImportedFiles(
            records=records, world=world, world_by=world_by, inferred=tuple(inferred)
        ),
        options,
    )


# ---- reading --------------------------------------------------------------------


def _is_json(path: Path) -> bool:
    with opened(path) as text:
        return text.read(64).lstrip()[:1] == "{"


def _groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the ranks of the process groups by name."""
    found = {}
    with opened(path) as text:
        for name, value in JsonStream(path, text).members(""):
            ranks = integers(value)
            if ranks is None or not ranks[0] or len(set(ranks[0])) < len(ranks[0]):
                raise wrong(path, f"group {name[:40]!r} has no list of ranks")
            if max(ranks[0]) >= MOST_RANKS:
                raise wrong(path, f"group {name[:40]!r} has rank {max(ranks[0])}")
            found[name] = tuple(ranks[0])
    return found


def _rank_nodes(path: Path) -> RankNodes:
    """Read the communication nodes of one rank."""
    rank = rank_in_name(path)
    if rank is None:
        raise wrong(path, "its name does not contain its rank", "name it like run.3.et")
    if rank >= MOST_RANKS:
        raise wrong(path, f"it is of rank {rank}")
    found = RankNodes(rank=rank, source=path.name)
    for number, message in enumerate(messages(path)):
        node = _node(path, message) if number else None
        if node is None:
            continue
        match = CALL.fullmatch(node.name)
        current = found.calls[-1] if found.calls else None
        if match is None:
            if node.kind != COMPUTE:
                found.calls.append(node)
            continue
        layer, iteration = int(match[5] or -1), int(match[3])
        if layer >= MOST_LAYERS or iteration >= MOST_ITERATIONS:
            raise wrong(path, f"a node is named {words(node.name, 60)!r}")
        site = match[4]
        same = (
            isinstance(current, NamedCall)
            and (current.iteration, current.site) == (iteration, site)
            and not match[1]
        )
        if not same:
            current = NamedCall(
                iteration=iteration,
                site=site,
                layer=layer,
                what=match[6],
                recomputed=bool(match[7]),
            )
            found.calls.append(current)
        if node.kind != COMPUTE and isinstance(current, NamedCall):
            current.nodes.append(node)
    return found


def _node(path: Path, message: Sequence[tuple[int, Any]]) -> Node | None:
    """Parse a Node; None if it is neither communication nor named like a call."""
    told = dict(message)
    name, kind = told.get(2, b""), told.get(3, 0)
    if not isinstance(name, bytes) or not isinstance(kind, int):
        raise wrong(path, "a node has no name and type")
    text = name.decode(errors="replace")
    announces = kind == COMPUTE and text.startswith("before iteration-")
    if kind not in (SEND, RECEIVE, COLLECTIVE) and not announces:
        return None
    node = Node(name=text, kind=kind, attributes={})
    for number, value in message:
        if number == 10 and isinstance(value, bytes):
            attribute = dict(fields(path, value))
            key = attribute.get(1, b"")
            for at, content in attribute.items():
                if (
                    isinstance(key, bytes)
                    and at in NUMBERS
                    and isinstance(content, int)
                ):
                    node.attributes[key.decode(errors="replace")] = signed(content)
                elif isinstance(key, bytes) and at == STRING:
                    raw = content if isinstance(content, bytes) else b""
                    node.attributes[key.decode(errors="replace")] = words(
                        raw.decode(errors="replace")
                    )
    times = (told.get(6, 0), told.get(7, 0))
    if all(isinstance(t, int) and t < 1 << 52 for t in times):
        node.start_us, node.duration_us = times
    return node


# ---- groups ---------------------------------------------------------------------


class Groups:
    """Process groups of a run: listed ones, and those that messages connect."""

    def __init__(self, listed: Mapping[str, tuple[int, ...]], world: int) -> None:
        self.listed = dict(listed)
        self.everyone = tuple(range(world))
        self._of_site: dict[tuple[str, int], frozenset[int]] = {}

    def join(self, calls: Iterable[tuple[int, NamedCall]]) -> None:
        """Join the ranks that the messages of each call site connect."""
        parts: defaultdict[str, list[set[int]]] = defaultdict(list)
        for rank, call in calls:
            if not call.nodes or any(n.kind == COLLECTIVE for n in call.nodes):
                continue
            found = parts[call.site]
            ends = call.ends | {rank}
            touching = [part for part in found if part & ends]
            parts[call.site] = [p for p in found if not p & ends]
            parts[call.site].append(ends.union(*touching))
        for site, found in parts.items():
            for part in found:
                whole = frozenset(part)
                self._of_site |= {(site, rank): whole for rank in part}

    def of_messages(self, call: NamedCall, rank: int) -> Group | None:
        """Return the smallest known group of all ranks that a call connects."""
        part = self._of_site.get((call.site, rank))
        if part is None:
            return None
        fits = [r for r in (*self.listed.values(), self.everyone) if part <= {*r}]
        return self.group(min(fits, key=len), call.what)

    def named(self, node: Node) -> Group | None:
        """Return the group that a collective names; all ranks without a name."""
        name = node.attributes.get("pg_name", "")
        ranks = self.listed.get(str(name)) if name != "" else self.everyone
        return self.group(ranks) if ranks else None

    def group(self, ranks: tuple[int, ...], what: str = "") -> Group:
        """Create a group, of the kind that its ranks or a phase imply."""
        kind = "world" if ranks == self.everyone else "other"
        return Group(kind="ep" if what in PHASES else kind, ranks=ranks)


# ---- calls ----------------------------------------------------------------------


def _named(
    call: NamedCall, groups: Groups, record: ImportedRank
) -> ImportedCall | None:
    """Build a call from the nodes that this library's exporter wrote."""
    if any(n.kind == COLLECTIVE for n in call.nodes):
        made = _other(call.nodes[0], groups, record)
    else:
        group = groups.of_messages(call, record.rank)
        if group is None or record.rank not in group.ranks:
            record.left_out[f"{call.what} without a node for it"] += 1
            return None
        if call.what == MESSAGE:
            made = _message(call.nodes[0], group, record) if call.nodes else None
        else:
            made = _exchange(call, group, record)
    if made is None:
        return None
    made.iteration = call.iteration
    made.layer, made.phase = call.layer, call.what if call.what in PHASES else ""
    if call.what not in (*PHASES, made.operation):
        made.label = call.what
    made.direction = ""
    if call.recomputed:
        made.direction = "recompute"
    elif made.phase:
        made.direction = "backward" if "grad" in made.phase else "forward"
    return made


def _exchange(call: NamedCall, group: Group, record: ImportedRank) -> ImportedCall:
    """Join the sends and receives of a call to an all-to-all."""
    places = {rank: at for at, rank in enumerate(group.ranks)}
    sent, received = [0] * len(places), [0] * len(places)
    for node in call.nodes:
        side, end = (sent, "dst") if node.kind == SEND else (received, "src")
        peer, size = node.number(f"comm_{end}"), node.number("comm_size")
        if peer not in places:
            record.left_out["messages of which the other rank is unknown"] += 1
            continue
        side[places[peer]] += size
    made = ImportedCall(
        operation=ALL_TO_ALL, group=group, row_bytes=0, sent=sent, received=received
    )
    _times(made, call.nodes)
    return made


def _message(node: Node, group: Group, record: ImportedRank) -> ImportedCall | None:
    places = {rank: at for at, rank in enumerate(group.ranks)}
    ends = (node.number("comm_src"), node.number("comm_dst"))
    if node.kind == SEND and ends[0] < 0:
        ends = (record.rank, ends[1])
    if node.kind == RECEIVE and ends[1] < 0:
        ends = (ends[0], record.rank)
    if any(end not in places for end in ends) or record.rank not in ends:
        record.left_out["messages whose ends are unknown"] += 1
        return None
    made = ImportedCall(operation=MESSAGE, group=group, row_bytes=0)
    made.peers = (places[ends[0]], places[ends[1]])
    made.volume = node.number("comm_size")
    _times(made, [node])
    return made


def _other(node: Node, groups: Groups, record: ImportedRank) -> ImportedCall | None:
    """Build a call from a collective or message of any program."""
    record.seen[words(node.name, 60)] += 1
    if node.kind != COLLECTIVE:
        if node.number("comm_size") < 0:
            return None  # the operator of a kernel that has its own node
        return _message(node, groups.group(groups.everyone), record)
    kind = node.number("comm_type")
    if kind < 0 and "comm_type" not in node.attributes:
        return None
    operation, group = OPERATIONS.get(kind, ""), groups.named(node)
    if not operation:
        record.left_out[f"collectives of type {kind}"] += 1
        return None
    if group is None or record.rank not in group.ranks:
        record.left_out[f"{operation} on a group that no JSON file of groups has"] += 1
        return None
    made = ImportedCall(operation=operation, group=group, row_bytes=0)
    if operation == ALL_TO_ALL:
        unknown = [-1] * len(group.ranks)  # its size is that of all parts together
        made.sent, made.received = unknown, unknown
    else:
        made.volume = node.number("comm_size")
    _times(made, [node])
    return made


def _times(call: ImportedCall, nodes: Sequence[Node]) -> None:
    """Set issue and end of a call whose nodes have a start."""
    known = [n for n in nodes if n.start_us > 0]
    if known:
        call.issue = min(n.start_us for n in known) * 1000
        call.end = max(n.start_us + n.duration_us for n in known) * 1000


def matches(beginning: str) -> bool:
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
