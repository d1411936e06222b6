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
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from moetraffic.trace.model import UNKNOWN_TIME, Group

from .autograd_direction import direction_and_link
from .element_type import element_type
from .imported_call import RankRecord
from .json_reader import JsonStream, integers, opened, whole, wrong
from .process_group import ProfileGroups
from .torch_collective import (
    C10D,
    ENGINE,
    OPERATORS,
    PARAMETERS,
    RECORDED,
    STEP,
    C10dOperator,
    InputTensors,
    RecordedCollective,
    call_of,
)

GROUPS = "## process_group:init ##"


@dataclass(frozen=True, kw_only=True)
class Node:
    """Node of an execution trace, independent of the schema version."""

    id: int
    parent: int
    name: str
    values: list[Any]
    shapes: list[Any]
    types: list[Any]
    attributes: dict[str, Any]

    @property
    def sequence(self) -> int:
        """Autograd sequence number of the node, -1 for none."""
        found = whole(self.attributes.get("seq_id"))
        return -1 if found is None else found

    @property
    def backward(self) -> bool:
        """Whether the node is a backward function or autograd's engine."""
        return bool(whole(self.attributes.get("fw_tid"))) or self.name.startswith(
            ENGINE
        )


@dataclass
class CollectedNodes:
    """Nodes of an execution trace that describe collectives and their context."""

    groups: Any = None
    operators: dict[int, Node] = field(default_factory=dict)
    parameters: dict[int, Node] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # id -> iteration
    # nodes around the calls: id -> parent, sequence number, backward
    around: dict[int, tuple[int, int, bool]] = field(default_factory=dict)


def read(path: Path, rank: int | None) -> tuple[RankRecord, int]:
    """Read one rank's execution trace; return its record and the number of ranks.

    Parameters
    ----------
    path
        The file.
    rank
        Rank in the file name, for traces that do not contain it (only NCCL's do).

    Raises
    ------
    UnreadableFile
        If the file is not an execution trace, or its rank is unknown.
    """
    kept = CollectedNodes()
    for one in _nodes(path):
        _take(kept, one)
    _walk_out(path, kept)
    groups = ProfileGroups(kept.groups)
    told = _rank(kept, groups)
    rank = told if told is not None else rank
    if rank is None:
        raise wrong(
            path,
            "neither a collective of all ranks nor its name tells of which rank it is",
            "name it like rank3.json",
        )
    record = RankRecord(rank=rank, source=path.name)
    begins = sorted(kept.steps)
    threads: dict[int, int] = {}
    for operator, recorded in _together(kept):
        call = call_of(
            _operator(operator) if operator else None,
            _recorded(recorded, groups) if recorded else None,
            groups,
            record,
        )
        node = operator or recorded
        if call is None or node is None:
            continue
        thread = whole(node.attributes.get("tid")) or 0
        call.thread = threads.setdefault(thread, len(threads))
        call.direction, call.link = direction_and_link(_around(kept, node))
        step = bisect_left(begins, node.id) - 1
        if begins and step < 0:
            record.left_out[f"{call.operation} before the first step"] += 1
            continue
        call.iteration = kept.steps[begins[step]] if begins else -1
        record.add(call)
    last = max((c.iteration for c in record.calls), default=-1)
    # the last step marker begins a step without calls
    ended = [kept.steps[s] for s in begins if kept.steps[s] <= last]
    record.steps += [(number, UNKNOWN_TIME, UNKNOWN_TIME) for number in ended]
    return record, groups.world


def _nodes(path: Path) -> Iterator[Node]:
    seen = False
    with opened(path) as text:
        for name, value in JsonStream(path, text).members("nodes"):
            if name == "schema":
                if not isinstance(value, str) or not value.startswith(("1.0", "1.1")):
                    raise wrong(
                        path,
                        f"its schema is {str(value)[:40]!r}, not 1.0 or 1.1",
                        "write it with a torch that this release knows",
                    )
            elif name == "nodes":
                seen = True
                node = _node(value)
                if node is not None:
                    yield node
    if not seen:
        raise wrong(path, "it has no nodes", "say which format it is with --from")


def _node(value: Any) -> Node | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    number, parent = (
        whole(value.get("id")),
        whole(value.get("ctrl_deps", value.get("parent"))),
    )
    if number is None:
        return None
    inputs = value.get("inputs")
    if isinstance(inputs, dict):
        told = [inputs.get(n) for n in ("values", "shapes", "types")]
    else:
        told = [inputs, value.get("input_shapes"), value.get("input_types")]
    attrs = value.get("attrs")
    attributes = value
    if isinstance(attrs, list):
        attributes = {
            str(a["name"]): a.get("value")
            for a in attrs
            if isinstance(a, dict) and "name" in a
        }
    values, shapes, types = [t if isinstance(t, list) else [] for t in told]
    return Node(
        id=number,
        parent=-1 if parent is None else parent,
        name=value["name"],
        values=values,
        shapes=shapes,
        types=types,
        attributes=attributes,
    )


def _take(kept: CollectedNodes, node: Node) -> None:
    step = STEP.fullmatch(node.name)
    if step:
        kept.steps[node.id] = int(step[1])
    elif node.name == GROUPS and node.values and isinstance(node.values[0], str):
        try:
            kept.groups = json.loads(node.values[0])
        except (ValueError, RecursionError):
            kept.groups = None  # unreadable: groups stay unknown
    elif node.name.startswith(C10D):
        kept.operators[node.id] = node
    elif node.name == PARAMETERS:
        kept.parameters[node.id] = node


def _walk_out(path: Path, kept: CollectedNodes) -> None:
    """Collect the ancestors of the call nodes.

    Ancestors are written after their descendants, so one pass over the file finds all
    of them; if a tool has sorted the nodes, each level takes another pass.
    """
    calls = {**kept.operators, **kept.parameters}
    wanted = {node.parent for node in calls.values()} - calls.keys()
    while wanted:
        found = 0
        for node in _nodes(path):
            if node.id in wanted:
                wanted.discard(node.id)
                kept.around[node.id] = (node.parent, node.sequence, node.backward)
                if node.parent not in kept.around and node.parent not in calls:
                    wanted.add(node.parent)
                found += 1
        if not found:
            return


def _around(kept: CollectedNodes, node: Node) -> list[tuple[int, bool]]:
    """Return sequence number and direction of enclosing functions, innermost first."""
    found: list[tuple[int, bool]] = []
    at = node.parent
    while at in kept.around and len(found) < 1000:
        at, sequence, backward = kept.around[at]
        found.append((sequence, backward))
    return found


def _together(kept: CollectedNodes) -> Iterator[tuple[Node | None, Node | None]]:
    """Pair operators with the record_param_comms inside them, in call order."""
    inner: dict[int, Node] = {}
    alone: dict[int, Node] = {}
    for number in sorted(kept.parameters):
        node = kept.parameters[number]
        if _name(node) not in RECORDED:
            continue
        owner = node.parent
        for _ in range(1000):
            if owner in kept.operators or owner not in kept.around:
                break
            owner = kept.around[owner][0]
        if owner in kept.operators:
            inner.setdefault(owner, node)
        elif node.parent not in kept.parameters:
            alone[number] = node
    for number in sorted([*kept.operators, *alone]):
        operator = kept.operators.get(number)
        if operator is None:
            yield None, alone[number]
        elif operator.parent not in kept.operators:
            yield operator, inner.get(number)


# ---- conversion of nodes --------------------------------------------------------


def _operator(node: Node) -> C10dOperator:
    """Parse a c10d operator node: output and input tensors, group, split sizes."""
    name = node.name.removeprefix(C10D)
    operation, source = OPERATORS.get(name, ("", -1))
    splits = name == "alltoall_base_"
    peer = node.values[2] if len(node.values) > 2 else None
    return C10dOperator(
        name=name,
        input=_tensors(node, source),
        output=_tensors(node, 0) if source == 1 else None,
        output_rows=integers(node.values[3]) if splits and _has(node, 3) else None,
        input_rows=integers(node.values[4]) if splits and _has(node, 4) else None,
        peer=whole(peer) if operation == "send_recv" else None,
    )


def _has(node: Node, at: int) -> bool:
    return at < len(node.values)


def _tensors(node: Node, at: int) -> InputTensors | None:
    """Parse an operator input that is a tensor or a (nested) list of tensors."""
    if not 0 <= at < min(len(node.values), len(node.shapes), len(node.types)):
        return None
    flat = list(_flat_tensors(node.values[at], node.shapes[at], depth=0))
    if not flat:
        return None
    shapes, sizes = [s for s, _ in flat], {size for _, size in flat}
    named = re.search(r"Tensor\(([^)]*)\)", str(node.types[at]))
    dtype, size = (element_type(named[1]) if named else None) or ("", 0)
    if len(sizes) == 1 and not size:
        size = sizes.pop()
    return InputTensors(shapes=shapes, dtype=dtype, element_bytes=size)


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
        yield from _flat_tensors(
            inner, shapes[number] if number < len(shapes) else None, depth + 1
        )


def _name(node: Node) -> str:
    """Return the collective name of a record_param_comms: an attribute or an input."""
    told = node.attributes.get("collective_name")
    if isinstance(told, str):
        return told
    at = _name_at(node)
    return "" if at is None else node.values[at]


def _name_at(node: Node) -> int | None:
    """Return the index of the input with the collective's name; releases differ."""
    for at, value in enumerate(node.values):
        text = at >= len(node.types) or str(node.types[at]).startswith("String")
        if text and isinstance(value, str) and (value in RECORDED or value == "wait"):
            return at
    return None


def _recorded(node: Node, groups: ProfileGroups) -> RecordedCollective:
    """Parse a record_param_comms: its attributes (schema 1.0.3 on) or its inputs.

    Inputs are ``[tensors,] sequence, group, rank, name, input splits, output splits,
    first rank, stride, group size`` in most releases.
    """
    told, at = node.attributes, _name_at(node)
    tensors, size = _tensors(node, 0), 0
    dtype, size = element_type(str(told.get("dtype", ""))) or ("", 0)
    if not size and tensors:
        dtype, size = tensors.dtype, tensors.element_bytes
    input_rows = integers(told.get("in_split_size"))
    output_rows = integers(told.get("out_split_size"))
    if at is not None and not (input_rows or output_rows):
        input_rows = integers(node.values[at + 1]) if _has(node, at + 1) else None
        output_rows = integers(node.values[at + 2]) if _has(node, at + 2) else None
    elements = whole(told.get("in_msg_nelems"))
    if elements is None and tensors:
        elements = tensors.elements
    return RecordedCollective(
        name=_name(node),
        group=_group(node, at, groups),
        dtype=dtype,
        element_bytes=size,
        input_elements=elements,
        output_elements=whole(told.get("out_msg_nelems")),
        input_rows=input_rows,
        output_rows=output_rows,
    )


def _group(node: Node, at: int | None, groups: ProfileGroups) -> Group | None:
    """Find a node's process group by name, size or rank range."""
    told = node.attributes
    described = str(told.get("pg_desc", ""))
    if isinstance(told.get("pg_name"), str):
        named = groups.named(told["pg_name"])
        if named is not None:
            return named
    for value in node.values[: at or 0]:
        for one in value if isinstance(value, list) and len(value) == 2 else [value]:
            named = groups.named(str(one)) if isinstance(one, str | int) else None
            if named is not None and (isinstance(one, str) or one > 1 << 16):
                return named
    size = whole(told.get("pg_size"), 1)
    if size is None and at is not None:
        sizes = [whole(v, 1) for v in node.values[at + 3 :] if not isinstance(v, bool)]
        size = sizes[-1] if sizes else None
    first = whole(told.get("global_rank_start"))
    stride = whole(told.get("global_rank_stride"), 1)
    return groups.from_range(size, first, stride, described)


def _rank(kept: CollectedNodes, groups: ProfileGroups) -> int | None:
    """Infer the rank of the file from a record_param_comms of the world group."""
    for node in kept.parameters.values():
        at = _name_at(node)
        group = _group(node, at, groups) if at else None
        if at and group and group.ranks == tuple(range(groups.world)):
            found = whole(node.values[at - 1])
            if found is not None and found < groups.world:
                return found
    return None
