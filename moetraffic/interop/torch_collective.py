"""Reconstruct a collective call from torch's profiler or execution-trace records.

Two kinds of records describe a call: the operator (``c10d::alltoall_base_``, with the
shapes of its output and inputs) and, on NCCL, ``record_param_comms`` inside it,
with the group and the numbers of elements (torch ``ParamCommsUtils.hpp``).  Splits are
rows, ``nelems`` elements: bytes = split x (nelems / rows) x bytes of an element.
The element type is ``Float`` (c10's ScalarType) in the attributes of a collective, and
``float`` or ``c10::BFloat16`` (the C++ type) in the types of an operator's inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from moetraffic.trace.model import ALL_TO_ALL, Group

from .imported_call import ImportedCall, ImportedRank
from .json_reader import integers, whole
from .process_group import AMBIGUOUS, BY_DEFAULT, BY_SIZE, BY_THREAD, ProfileGroups

C10D = "c10d::"

OPERATORS = {  # c10d operator: (operation, index of this rank's input)
    name: (operation, source)
    for operation, source, names in (
        (ALL_TO_ALL, 1, "alltoall_base_ alltoall_"),
        ("all_reduce", 0, "allreduce_ allreduce_coalesced_"),
        ("all_gather", 1, "allgather_ _allgather_base_ allgather_coalesced_"),
        ("all_gather", 1, "allgather_into_tensor_coalesced_"),
        ("reduce_scatter", 1, "reduce_scatter_ _reduce_scatter_base_"),
        ("reduce_scatter", 1, "reduce_scatter_tensor_coalesced_"),
        ("reduce", 0, "reduce_"),
        ("broadcast", 0, "broadcast_"),
        ("gather", 1, "gather_"),
        ("scatter", 1, "scatter_"),
        ("barrier", -1, "barrier"),
        ("send_recv", 0, "send recv_ recv_any_source_"),
    )
    for name in names.split()
}

RECORDED = {  # name in record_param_comms: operation
    name: operation
    for operation, names in (
        (ALL_TO_ALL, "all_to_all all_to_allv alltoall alltoall_base all_to_all_single"),
        ("all_reduce", "allreduce all_reduce allreduce_sparse allreduce_coalesced"),
        ("all_gather", "all_gather allgather _allgather_base all_gather_coalesced"),
        ("all_gather", "all_gather_into_tensor_coalesced"),
        ("all_gather", "allgather_into_tensor_coalesced"),
        ("reduce_scatter", "reduce_scatter _reduce_scatter_base reduce_scatter_base"),
        ("reduce_scatter", "reduce_scatter_coalesced reduce_scatter_tensor_coalesced"),
        ("reduce", "reduce _reduce_oop"),
        ("broadcast", "broadcast _broadcast_oop"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("send_recv", "send recv"),
    )
    for name in names.split()
}

NUMBERED = re.compile(  # torch dtypes whose names contain their bits
    r"(?:b?float16|float32|float64|float8_(?:e4m3fn|e5m2|e4m3fnuz|e5m2fnuz|e8m0fnu)"
    r"|u?int(?:8|16|32|64)|complex64|complex128)"
)
TYPE_NAMES = {  # of c10's ScalarTypes and C++ types
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}

TruncatedList = tuple[list[int], bool]  # and whether the end was cut off


@dataclass(frozen=True, kw_only=True)
class InputTensors:
    """Shapes and element type of an operator's tensor argument."""

    shapes: Sequence[tuple[int, ...]]
    dtype: str = ""
    element_bytes: int = 0  # 0: unknown type

    @property
    def elements(self) -> int:
        """Total number of elements of the tensors."""
        return sum(prod(s) for s in self.shapes)


@dataclass(frozen=True, kw_only=True)
class C10dOperator:
    """Arguments of a c10d operator in a profile; missing values are None."""

    name: str = ""  # without "c10d::"; "": no operator
    output: InputTensors | None = None
    input: InputTensors | None = None
    output_rows: TruncatedList | None = None  # an empty list stands for equal parts
    input_rows: TruncatedList | None = None
    peer: int | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedCollective:
    """Fields of a ``record_param_comms`` event; missing values are None."""

    name: str = ""  # "": no event
    group: Group | None = None
    identity: str = ""  # of the group, where the file has it
    dtype: str = ""
    element_bytes: int = 0
    input_elements: int | None = None
    output_elements: int | None = None
    input_rows: TruncatedList | None = None
    output_rows: TruncatedList | None = None
    sequence: int = -1
    peer: int | None = None


def element_type(name: str) -> tuple[str, int] | None:
    """Return torch's name and element size of a type, None if unknown.

    >>> element_type("Tensor(c10::BFloat16)"), element_type("long int")
    (('bfloat16', 2), ('int64', 8))
    """
    plain = name.strip()
    if plain.startswith("Tensor(") and plain.endswith(")"):
        plain = plain[len("Tensor(") : -1]
    plain = plain.removeprefix("c10::").removeprefix("torch.").lower()
    plain = TYPE_NAMES.get(plain, plain)
    if plain == "bool":
        return plain, 1
    bits = re.search(r"\d+", plain) if NUMBERED.fullmatch(plain) else None
    return (plain, int(bits[0]) // 8) if bits else None


def c10d_operator(
    name: str, values: Sequence[Any], tensors: Callable[[int], InputTensors | None]
) -> C10dOperator:
    """Parse the values of a c10d operator's inputs; "" stands for an omitted list.

    ``tensors`` returns the tensors of the n-th input, None if they are unknown.
    """
    name = name.removeprefix(C10D)
    operation, source = OPERATORS.get(name, ("", -1))
    splits = name == "alltoall_base_"
    sends = operation == "send_recv" and len(values) > 2
    return C10dOperator(
        name=name,
        input=tensors(source),
        output=tensors(0) if source == 1 else None,
        output_rows=integers(values[3]) if splits and len(values) > 3 else None,
        input_rows=integers(values[4]) if splits and len(values) > 4 else None,
        peer=whole(values[2]) if sends else None,
    )


def recorded_collective(
    name: str,
    told: Mapping[str, Any],
    groups: ProfileGroups,
    tensors: InputTensors | None = None,
) -> RecordedCollective:
    """Parse a ``record_param_comms`` with the attributes of an execution trace.

    Only profiles also have ``pg_ranks``, ``seq``, ``src_rank`` and ``dst_rank``.
    ``tensors`` is the input, for files without ``dtype`` and ``in_msg_nelems``.
    """
    dtype, size = element_type(str(told.get("dtype", ""))) or ("", 0)
    if not size and tensors:
        dtype, size = tensors.dtype, tensors.element_bytes
    elements, sequence = whole(told.get("in_msg_nelems")), whole(told.get("seq"))
    return RecordedCollective(
        name=name,
        group=groups.described(told),
        identity=identity_of(told),
        dtype=dtype,
        element_bytes=size,
        input_elements=tensors.elements if elements is None and tensors else elements,
        output_elements=whole(told.get("out_msg_nelems")),
        input_rows=_splits(told.get("in_split_size")),
        output_rows=_splits(told.get("out_split_size")),
        sequence=-1 if sequence is None else sequence,
        peer=whole(told.get("dst_rank" if name == "send" else "src_rank")),
    )


def identity_of(told: Mapping[str, Any]) -> str:
    """Return what identifies the group of a ``record_param_comms``, "" for nothing."""
    found = (told.get(name) for name in ("pg_name", "pg_id"))
    return next((str(one) for one in found if one not in (None, "")), "")


def _splits(value: Any) -> TruncatedList | None:
    """Parse splits; an empty list may stand for a list of tensors of any sizes."""
    rows = integers(value)
    return rows if rows and (rows[0] or rows[1]) else None


def call_of(
    operator: C10dOperator,
    recorded: RecordedCollective,
    groups: ProfileGroups,
    record: ImportedRank,
    known: Group | None = None,
) -> ImportedCall | None:
    """Build a call from a c10d operator and its ``record_param_comms`` event.

    One of them may be empty.  Inconsistencies and omissions are noted in the record;
    None if the group is unknown.  ``known`` is the group, where another source has it.
    """
    operation = OPERATORS.get(operator.name, ("", -1))[0]
    if not operator.name:
        operation = RECORDED.get(recorded.name, "")
    if not operation:
        return None
    group = recorded.group
    identity, width = identity_and_width(operator, recorded)
    if group is None and operator.name:
        group = groups.of_width(width, record.rank)
        record.note(group, BY_SIZE)
    if group is None and known is not None:
        group = known
        record.note(group, BY_THREAD)
    counted = True
    if group is None:
        group, reason = groups.inferred(identity, width)
        record.note(group, reason)
        counted = reason not in (AMBIGUOUS, BY_DEFAULT)
    if group is None or record.rank not in group.ranks:
        record.left_out[f"{operation} {_why_without_group(groups, width)}"] += 1
        return None
    call = ImportedCall(
        operation=operation, group=group, sequence=recorded.sequence, counted=counted
    )
    tensors = operator.input or operator.output
    typed = tensors if tensors and tensors.element_bytes else recorded
    call.dtype, size = typed.dtype, typed.element_bytes
    if operation == "barrier":
        call.dtype, call.row_bytes, call.volume = "", 0, 0
    elif operation == ALL_TO_ALL:
        _exchange(call, operator, recorded, size, record)
    else:
        call.row_bytes = 0  # a buffer has no rows
        elements = recorded.input_elements
        if operator.input:
            elements = operator.input.elements
        if elements is not None and size:
            call.volume = elements * size
        if operation == "send_recv":
            return _message(call, operator, recorded, record)
    return call


def width_of(operator: C10dOperator) -> int:
    """Return the group size implied by an operator's inputs; 0 if undetermined."""
    for rows in (operator.input_rows, operator.output_rows):
        if rows and rows[0] and not rows[1]:
            return len(rows[0])
    into, out = operator.input, operator.output
    if operator.name == "alltoall_" and into:
        return len(into.shapes)
    if into and out:
        return _width_by_elements(operator.name, into.elements, out.elements)
    return 0


def identity_and_width(
    operator: C10dOperator, recorded: RecordedCollective
) -> tuple[str, int]:
    """Return what identifies the group of a call, "" for nothing, and its size or 0."""
    return recorded.identity, width_of(operator) or _width_of_recorded(recorded)


def _width_of_recorded(recorded: RecordedCollective) -> int:
    """Return the group size implied by a record_param_comms; 0 if undetermined."""
    for rows in (recorded.input_rows, recorded.output_rows):
        if rows and not rows[1] and RECORDED.get(recorded.name) == ALL_TO_ALL:
            return len(rows[0])
    into, out = recorded.input_elements or 0, recorded.output_elements or 0
    return _width_by_elements(recorded.name, into, out)


def _width_by_elements(name: str, into: int, out: int) -> int:
    """Return the group size by a collective's number of elements; 0 if undetermined."""
    if name in ("_reduce_scatter_base_", "_reduce_scatter_base"):
        into, out = out, into
    elif name not in ("_allgather_base_", "_allgather_base"):
        return 0
    return out // into if into and out % into == 0 else 0


def _why_without_group(groups: ProfileGroups, width: int) -> str:
    """Describe why the group of a call is unknown, after the call's operation."""
    of = f" of {width} ranks" if width else ""
    if groups.listed or groups.world:
        return f"on a group{of} that the files do not list"
    return (
        f"on a group{of} that the files do not list, in an unknown number of ranks: "
        "give --ranks"
    )


def _message(
    call: ImportedCall,
    operator: C10dOperator,
    recorded: RecordedCollective,
    record: ImportedRank,
) -> ImportedCall | None:
    """Set the ends of a message; None if they are unknown."""
    name = operator.name or recorded.name
    peer = recorded.peer if operator.peer is None else operator.peer
    width, me = len(call.group.ranks), call.group.ranks.index(record.rank)
    if peer is None or not 0 <= peer < width:
        record.left_out["send_recv with an unknown peer"] += 1
        return None
    call.peers = (me, peer) if name == "send" else (peer, me)
    call.sequence = -1
    return call


def _exchange(
    call: ImportedCall,
    operator: C10dOperator,
    recorded: RecordedCollective,
    size: int,
    record: ImportedRank,
) -> None:
    """Set the bytes that an all-to-all sent and received."""
    width = len(call.group.ranks)
    into, out = _sides(operator, recorded, width)
    call.row_bytes = _row_bytes(operator, into, out, size)
    for side, (rows, elements) in (("sent", into), ("received", out)):
        counts, cut = rows or ([], True)
        row_bytes = call.row_bytes
        if not any(counts) and not cut:
            row_bytes = 0  # no rows: 0 bytes, even if the row size is unknown
        parts = [n * row_bytes if row_bytes >= 0 else -1 for n in counts]
        wrong = ""
        if len(counts) > width or (len(counts) < width and not cut):
            wrong = f"it has {len(counts)} splits in a group of {width}"
        elif len(counts) == width and elements is not None and size:
            # the rows must make up the buffer
            if min(parts) >= 0 and sum(parts) != elements * size:
                wrong = (
                    f"its splits make {sum(parts)} bytes {side}, but its buffer has "
                    f"{elements * size}"
                )
        elif elements is not None and size and sum(parts) > elements * size:
            wrong = f"a part of its splits is more than its {elements} elements"
        if wrong:
            record.contradict(len(record.calls), ALL_TO_ALL, wrong)
            parts = []
        setattr(call, side, [*parts, *[-1] * (width - len(parts))])


Side = tuple[TruncatedList | None, int | None]
"""Rows to or from each member, and total elements."""


def _sides(
    operator: C10dOperator, recorded: RecordedCollective, width: int
) -> tuple[Side, Side]:
    """Return input and output splits; values of the operator take precedence."""
    sides: list[Side] = []
    for tensors, rows, before in (
        (
            *(operator.input, operator.input_rows),
            (recorded.input_rows, recorded.input_elements),
        ),
        (
            *(operator.output, operator.output_rows),
            (recorded.output_rows, recorded.output_elements),
        ),
    ):
        if tensors is None:
            sides.append(before)
        elif operator.name == "alltoall_":
            # the parts may differ in shape: one element is one row
            sides.append((([prod(s) for s in tensors.shapes], False), tensors.elements))
        elif rows is not None and not rows[0] and not rows[1]:
            # the operator takes no splits for equal parts
            first = tensors.shapes[0][0] if tensors.shapes and tensors.shapes[0] else 0
            sides.append((([first // width] * width, False), tensors.elements))
        else:
            sides.append((rows or before[0], tensors.elements))
    return sides[0], sides[1]


def _row_bytes(operator: C10dOperator, into: Side, out: Side, size: int) -> int:
    """Compute the bytes of a row of an all-to-all, -1 if unknown."""
    if not size:
        return -1
    if operator.name == "alltoall_":
        return size
    tensors = operator.input or operator.output
    if tensors and tensors.shapes and tensors.shapes[0]:
        return size * prod(tensors.shapes[0][1:])
    for rows, elements in (into, out):
        if rows and not rows[1] and sum(rows[0]) and elements:
            each, rest = divmod(elements, sum(rows[0]))
            if not rest:
                return size * each
    return -1
