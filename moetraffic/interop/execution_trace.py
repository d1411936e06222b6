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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from moetraffic.trace.model import UNKNOWN_TIME

from .imported_call import ImportedCall, ImportedRank
from .importer import Importer, json_with, rank_by_rank
from .json_reader import JsonStream, integers, opened, whole, wrong
from .process_group import ProfileGroups
from .profiled_function import (
    ENGINE,
    PARAMETERS,
    STEP,
    ProfiledFunction,
    add_calls,
    paired,
)
from .torch_collective import (
    C10D,
    RECORDED,
    C10dOperator,
    InputTensors,
    RecordedCollective,
    c10d_operator,
    call_of,
    element_type,
    identity_and_width,
    identity_of,
    recorded_collective,
)
from .unread_communication import communication_name

GROUPS = "## process_group:init ##"
GLOO = "gloo:"


@dataclass(kw_only=True, slots=True, eq=False)
class Node(ProfiledFunction):
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
            if text and isinstance(value, str) and value in (*RECORDED, "wait"):
                return at
        return None


@dataclass
class CollectedNodes:
    """Nodes of an execution trace that describe collectives and their context."""

    groups: Any = None
    nodes: dict[int, Node] = field(default_factory=dict)  # others without arguments
    calls: list[Node] = field(default_factory=list)  # also record_param_comms
    steps: dict[int, int] = field(default_factory=dict)  # id -> iteration
    seen: Counter[str] = field(default_factory=Counter)  # names of communication


def read(path: Path, rank: int | None, assumed: int = 0) -> tuple[ImportedRank, int]:
    """Read one rank's execution trace; return its record and number of ranks.

    The number is 0 if unknown, and ``assumed`` if that is not 0; ``rank`` is that in
    the file name, for files that do not contain it.
    """
    kept = CollectedNodes()
    for value in _nodes(path):
        _take(kept, value)
    for node in kept.nodes.values():
        node.outer = kept.nodes.get(node.parent)
    groups = ProfileGroups(kept.groups, assumed=assumed)
    # Gloo's operators end when its worker thread does
    pairs = paired(
        kept.calls, asynchronous=any(name.startswith(GLOO) for name in kept.seen)
    )
    for operator, recorded in pairs:
        groups.observe(*identity_and_width(*_parsed(operator, recorded, groups)))
    told = _rank(kept, groups)
    rank = told if told is not None else rank
    if rank is None:
        raise wrong(
            path,
            "neither a collective of all ranks nor its name contains its rank",
            "name it like rank3.json",
        )
    record = ImportedRank(
        rank=rank,
        source=path.name,
        stated=groups.stated,
        widest=groups.widest,
        seen=kept.seen,
    )

    def build(operator: Any, recorded: Any) -> ImportedCall | None:
        return call_of(*_parsed(operator, recorded, groups), groups, record)

    steps = {at: (n, UNKNOWN_TIME, UNKNOWN_TIME) for at, n in kept.steps.items()}
    add_calls(record, pairs, steps, build)
    return record, groups.world


def _parsed(
    operator: Any, recorded: Any, groups: ProfileGroups
) -> tuple[C10dOperator, RecordedCollective]:
    """Parse an operator and its record_param_comms, either of which may be None."""
    arguments, event = C10dOperator(), RecordedCollective()
    if operator:
        tensors = partial(_tensors, operator)
        arguments = c10d_operator(operator.name, operator.values, tensors)
    if recorded:
        told = _attributes(recorded, groups)
        tensor = _tensors(recorded, 0)
        event = recorded_collective(recorded.collective, told, groups, tensor)
    return arguments, event


def _nodes(path: Path) -> Iterator[dict[str, Any]]:
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
                if isinstance(value, dict):
                    yield value
    if not seen:
        raise wrong(path, "it has no nodes", "say which format it is with --from")


def _take(kept: CollectedNodes, value: dict[str, Any]) -> None:
    """Store a node: whole if it describes a collective, else for its descendants."""
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
    kept.nodes[number] = node
    if known := communication_name(name, kernel=False):
        kept.seen[known] += 1
    if step := STEP.fullmatch(name):
        kept.steps[number] = int(step[1])
    if name not in (GROUPS, PARAMETERS) and not name.startswith(C10D):
        return
    inputs = value.get("inputs")
    parts = [inputs, value.get("input_shapes"), value.get("input_types")]
    if isinstance(inputs, dict):
        parts = [inputs.get(part) for part in ("values", "shapes", "types")]
    node.values, node.shapes, node.types = (
        part if isinstance(part, list) else [] for part in parts
    )
    if name == GROUPS:
        try:
            kept.groups = json.loads(node.values[0])
        except (LookupError, TypeError, ValueError, RecursionError):
            kept.groups = None  # unreadable: groups stay unknown
        return
    node.arguments, node.thread = told, whole(told.get("tid")) or 0
    kept.calls.append(node)
    if name == PARAMETERS:
        collective, at = told.get("collective_name"), node.name_at
        if not isinstance(collective, str):
            collective = "" if at is None else node.values[at]
        node.collective = collective


# ---- conversion of nodes --------------------------------------------------------


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


def _attributes(node: Node, groups: ProfileGroups) -> dict[str, Any]:
    """Return the attributes of a record_param_comms, which early schemas lack.

    Its inputs are ``[tensors,] sequence, group, rank, name, input splits, output
    splits, first rank, stride, group size`` in most releases.
    """
    found, at, values = dict(node.arguments), node.name_at, node.values
    if at is None:
        return found
    if at > 1 and isinstance(values[at - 2], int | str):
        found["pg_id"] = values[at - 2]
    if integers(found.get("in_split_size")) is None:
        splits = values[at + 1 : at + 3]
        found |= zip(("in_split_size", "out_split_size"), splits, strict=False)
    sizes = [whole(v, 1) for v in values[at + 3 :] if not isinstance(v, bool)]
    if whole(found.get("pg_size"), 1) is None and sizes:
        found["pg_size"] = sizes[-1]
    for value in values[:at] if "pg_name" not in found else ():
        for one in value if isinstance(value, list) and len(value) == 2 else [value]:
            # smaller numbers may be the sequence number or the rank
            known = isinstance(one, str) or (isinstance(one, int) and one > 1 << 16)
            if known and groups.named(str(one)):
                return {**found, "pg_name": str(one)}
    return found


def _rank(kept: CollectedNodes, groups: ProfileGroups) -> int | None:
    """Infer the rank of the file from a record_param_comms of the world group."""
    for node in kept.calls:
        at = node.name_at if node.name == PARAMETERS else None
        if not at or node.collective not in RECORDED:
            continue
        told = _attributes(node, groups)
        group = groups.described(told)
        if group is None and groups.widths[identity_of(told)] == {groups.world}:
            group = groups.inferred(identity_of(told), 0)[0]
        if group and group.ranks == tuple(range(groups.world)):
            found = whole(node.values[at - 1])
            if found is not None and found < groups.world:
                return found
    return None


IMPORTER = Importer(
    name="execution-trace",
    what="torch's ExecutionTraceObserver",
    matches=json_with(['"schema"', '"nodes"']),
    read=partial(rank_by_rank, read),
)
