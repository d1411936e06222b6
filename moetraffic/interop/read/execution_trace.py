"""Import execution traces of torch's ExecutionTraceObserver (Chakra host traces).

``{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id", "name", "ctrl_deps", "inputs":
{"values", "shapes", "types"}, "attrs": [{"name", "value"}]}]}``.  Schema 1.0.1 has
``parent``, ``inputs``, ``input_shapes`` and ``input_types`` in the node itself.  A
tensor is ``[id, storage, offset, elements, bytes of an element, device]``.  Nodes are
numbered as they begin and written as they end; there are no times (torch
``profiler/standalone/execution_trace_observer.cpp``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from moetraffic.trace.model import UNKNOWN_TIME

from .files import integers, rank_in_name, read_json, whole, wrong
from .rows import Contents, Importer, ImportOptions
from .torch_calls import (
    C10D,
    ENGINE,
    NO_TIMES,
    PARAMETERS,
    STEP,
    Collective,
    Function,
    Groups,
    RankFile,
    Tensors,
    communication_name,
    element_type,
    operation_of,
    operator,
    paired,
    read_ranks,
    recorded,
)

GROUPS = "## process_group:init ##"
GLOO = "gloo:"


@dataclass(kw_only=True, slots=True, eq=False)
class Node(Function):
    """Node of an execution trace, independent of the schema version."""

    parent: int
    values: Sequence[Any] = ()
    shapes: Sequence[Any] = ()
    types: Sequence[Any] = ()

    @property
    def name_at(self) -> int | None:
        """Index of the input with the collective's name; releases differ."""
        for at, value in enumerate(self.values):
            text = at >= len(self.types) or str(self.types[at]).startswith("String")
            if (
                text
                and isinstance(value, str)
                and (value == "wait" or operation_of(value))
            ):
                return at
        return None


@dataclass
class Nodes:
    """Nodes of an execution trace that describe collectives and their context."""

    listed: Any = None  # process groups
    functions: dict[int, Node] = field(default_factory=dict)  # by number
    calls: list[Node] = field(default_factory=list)  # also record_param_comms
    steps: dict[int, int] = field(default_factory=dict)  # number: iteration
    seen: Counter[str] = field(default_factory=Counter)  # names of communication

    def take(self, value: dict[str, Any]) -> None:
        """Store a node: whole if it describes a collective, else for others in it."""
        number, name = whole(value.get("id")), value.get("name")
        if number is None or not isinstance(name, str):
            return
        attrs, told = value.get("attrs"), value
        if isinstance(attrs, list):
            named = [a for a in attrs if isinstance(a, dict) and "name" in a]
            told = {str(a["name"]): a.get("value") for a in named}
        parent = whole(value.get("ctrl_deps", value.get("parent")))
        sequence = whole(told.get("seq_id"))
        node = Node(
            at=number,
            name=name,
            parent=-1 if parent is None else parent,
            sequence=-1 if sequence is None else sequence,
            backward=bool(whole(told.get("fw_tid"))) or name.startswith(ENGINE),
        )
        self.functions[number] = node
        if sender := communication_name(name, kernel=False):
            self.seen[sender] += 1
        if step := STEP.fullmatch(name):
            self.steps[number] = int(step[1])
        if name not in (GROUPS, PARAMETERS) and not name.startswith(C10D):
            return
        inputs = value.get("inputs")
        lists = [inputs, value.get("input_shapes"), value.get("input_types")]
        if isinstance(inputs, dict):
            lists = [inputs.get(key) for key in ("values", "shapes", "types")]
        node.values, node.shapes, node.types = (
            values if isinstance(values, list) else [] for values in lists
        )
        if name == GROUPS:
            try:
                self.listed = json.loads(node.values[0])
            except (LookupError, TypeError, ValueError, RecursionError):
                self.listed = None  # unreadable: groups stay unknown
            return
        node.arguments, node.thread = told, whole(told.get("tid")) or 0
        self.calls.append(node)
        if name == PARAMETERS:
            collective, at = told.get("collective_name"), node.name_at
            if not isinstance(collective, str):
                collective = "" if at is None else node.values[at]
            node.collective = collective


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the execution traces of all ranks."""
    return read_ranks(_read_rank, files, options)


def _read_rank(path: Path, assumed: int, contents: Contents) -> RankFile:
    """Read one rank's execution trace, of a run with an assumed number of ranks."""
    nodes = _scanned(path)
    for node in nodes.functions.values():
        node.outer = nodes.functions.get(node.parent)
    groups = Groups(nodes.listed)
    if assumed:
        groups.set_world(assumed)
    calls = []
    # Gloo's operators end when its worker thread does
    on_gloo = any(name.startswith(GLOO) for name in nodes.seen)
    for pair in paired(nodes.calls, asynchronous=on_gloo):
        function, call = pair[0] or pair[1], _collective(pair, groups)
        if function is not None and call.operation:
            calls.append((function, call, NO_TIMES))
            groups.widths[call.identity] |= {call.width} - {0}
    rank = _rank(nodes, groups)
    rank = rank_in_name(path) if rank is None else rank
    if rank is None:
        raise wrong(
            path,
            "neither a collective of all ranks nor its name contains its rank",
            "name it like rank3.json",
        )
    contents.seen += nodes.seen
    return RankFile(
        path=path,
        rank=rank,
        groups=groups,
        calls=calls,
        steps={at: (n, UNKNOWN_TIME, UNKNOWN_TIME) for at, n in nodes.steps.items()},
    )


def _scanned(path: Path) -> Nodes:
    nodes, document = Nodes(), read_json(path)
    document = document if isinstance(document, dict) else {}
    schema, listed = document.get("schema"), document.get("nodes")
    if not isinstance(listed, list):
        raise wrong(path, "it has no nodes", "say which format it is with --from")
    if not isinstance(schema, str) or not schema.startswith(("1.0", "1.1")):
        raise wrong(
            path,
            f"its schema is {str(schema)[:40]!r}, not 1.0 or 1.1",
            "write it with a torch that this release knows",
        )
    for value in listed:
        if isinstance(value, dict):
            nodes.take(value)
    return nodes


def _collective(pair: tuple[Any, Any], groups: Groups) -> Collective:
    """Parse a call from its c10d operator and record_param_comms."""
    node, parameters = pair
    call = Collective()
    if parameters is not None:
        told = _attributes(parameters, groups)
        call = recorded(parameters.collective, told, _tensors(parameters, 0))
    if node is None:
        return call
    return operator(node.name, node.values, partial(_tensors, node)).completed(call)


def _tensors(node: Node, at: int) -> Tensors | None:
    """Parse an operator input that is a tensor or a (nested) list of tensors."""
    if not 0 <= at < min(len(node.values), len(node.shapes), len(node.types)):
        return None
    flat = list(_flat_tensors(node.values[at], node.shapes[at], depth=0))
    if not flat:
        return None
    named = re.search(r"Tensor\(([^)]*)\)", str(node.types[at]))
    dtype, size = element_type(named[1]) if named else ("", 0)
    sizes = {size for _, size in flat}
    if len(sizes) == 1 and not size:
        size = sizes.pop()
    return Tensors([shape for shape, _ in flat], dtype, size)


def _flat_tensors(
    value: Any, shape: Any, depth: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield shape and element size of each tensor in a nested value."""
    if not isinstance(value, list) or depth > 3:
        return
    if len(value) >= 5 and all(whole(v) is not None for v in value[:5]):
        told = integers(shape)
        elements = whole(value[3]) or 0
        if told is None or prod(told[0]) != elements:
            yield (elements,), value[4]  # the shape is unknown
        else:
            yield tuple(told[0]), value[4]
        return
    shapes = shape if isinstance(shape, list) else []
    for number, inner in enumerate(value):
        own = shapes[number] if number < len(shapes) else None
        yield from _flat_tensors(inner, own, depth + 1)


def _attributes(node: Node, groups: Groups) -> Mapping[str, Any]:
    """Return the attributes of a record_param_comms, which early schemas lack.

    Its inputs are ``[tensors,] sequence, group, rank, name, input splits, output
    splits, first rank, stride, group size`` in most releases.
    """
    told, at, values = dict(node.arguments), node.name_at, node.values
    if at is None:
        return told
    if at > 1 and isinstance(values[at - 2], int | str):
        told["pg_id"] = values[at - 2]
    if integers(told.get("in_split_size")) is None:
        splits = values[at + 1 : at + 3]
        told |= zip(("in_split_size", "out_split_size"), splits, strict=False)
    sizes = [whole(v, 1) for v in values[at + 3 :] if not isinstance(v, bool)]
    if whole(told.get("pg_size"), 1) is None and sizes:
        told["pg_size"] = sizes[-1]
    listed = {name for names, _ in groups.named for name in names}
    for value in values[:at] if "pg_name" not in told else ():
        for name in value if isinstance(value, list) and len(value) == 2 else [value]:
            # smaller numbers may be the sequence number or the rank
            known = isinstance(name, str) or (isinstance(name, int) and name > 1 << 16)
            if known and str(name) in listed:
                return {**told, "pg_name": str(name)}
    return told


def _rank(nodes: Nodes, groups: Groups) -> int | None:
    """Infer the rank of the file from a record_param_comms of the world group."""
    for node in nodes.calls:
        at = node.name_at if node.name == PARAMETERS else None
        if not at or not operation_of(node.collective):
            continue
        call = recorded(node.collective, _attributes(node, groups))
        group = groups.described(call.group)
        if group is None and groups.widths[call.identity] == {groups.world}:
            group = groups.of(call, -1)[0]
        if group and group.ranks == tuple(range(groups.world)):
            rank = whole(node.values[at - 1])
            if rank is not None and rank < groups.world:
                return rank
    return None


def matches(_: Path, beginning: str) -> bool:
    """Return whether a file begins like an execution trace."""
    marks = ('"schema"', '"nodes"')
    return beginning[:1] == "{" and all(mark in beginning for mark in marks)


IMPORTER = Importer(
    name="execution-trace",
    what="torch's ExecutionTraceObserver",
    matches=matches,
    read=read,
)
