"""Collective calls of torch's profiles and execution traces.

Two records describe a call: the operator (``c10d::alltoall_base_``, with the shapes of
its output and inputs) and, on NCCL, ``record_param_comms`` inside it, with the group
and the numbers of elements (torch ``ParamCommsUtils.hpp``).  Splits are rows, numbers
are elements: bytes = split x (elements / rows) x bytes of an element.  The element type
is ``Float`` (c10's ScalarType) in a collective, ``float`` or ``c10::BFloat16`` (the C++
type) in an operator.

A forward function and its backward have the same autograd sequence number.  A call is
backward if the innermost function around it is, and recomputed if that one is a forward
function within a backward.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from moetraffic.errors import TraceError
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME, Group, Source
from moetraffic.units import rank_span

from .files import MOST_RANKS, integers, whole
from .rows import (
    BY_ORDER,
    UNNUMBERED,
    Contents,
    ImportOptions,
    Row,
    Step,
    number_of_ranks,
)

C10D = "c10d::"
PARAMETERS = "record_param_comms"
ENGINE = "autograd::engine::evaluate_function"
STEP = re.compile(r"ProfilerStep#(\d{1,12})")
DEEPEST = 1000  # functions around a call

OPERATIONS = {  # pattern in the name of a c10d operator or a record_param_comms
    re.compile(pattern): operation
    for pattern, operation in (
        (r"_?all_?to_?all(v|_base)?(_single)?_?", ALL_TO_ALL),
        (r"_?all_?reduce(_sparse|_coalesced)?_?", "all_reduce"),
        (r"_?all_?gather(_base|_into_tensor)?(_coalesced)?_?", "all_gather"),
        (r"_?reduce_?scatter(_base|_tensor)?(_coalesced)?_?", "reduce_scatter"),
        (r"_?(reduce|broadcast|gather|scatter)(_oop)?_?", r"\1"),
        (r"barrier", "barrier"),
        (r"send|recv(_any_source)?_?", "send_recv"),
    )
}
TYPE_NAMES = {  # of c10's ScalarTypes and C++ types, without "int", "signed"
    **{"double": "float64", "float": "float32", "half": "float16", "long": "int64"},
    **{"long long": "int64", "int": "int32", "short": "int16", "char": "int8"},
    **{"byte": "uint8", "unsigned char": "uint8", "complexfloat": "complex64"},
    "complexdouble": "complex128",
}
NUMBERED = re.compile(  # torch dtypes whose names contain their bits
    r"(?:b?float16|float32|float64|float8_(?:e4m3fn|e5m2|e4m3fnuz|e5m2fnuz|e8m0fnu)"
    r"|u?int(?:8|16|32|64)|complex64|complex128)"
)
KINDS = {  # of groups, by Megatron-Core's descriptions
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
}
MESH = re.compile(r"mesh_(ep|edp|tp|dp|pp|cp)\w*")  # a dimension of a DeviceMesh
UNKNOWN = "unknown"
"""Kind of a group of which only the ranks that it may contain are known."""

BY_SIZE = "no other listed group has this size"
BY_WIDTH = "the calls have a part for each rank"
BY_GROUP = "other calls on this process group have a part for each rank"
BY_DEFAULT = "the files list no group, and have no call of a part of the ranks"
AMBIGUOUS = "the files list no group, but have calls of parts of the ranks"

OF_TORCH = re.compile(r"record_param_comms$|c10d::|(?:nccl|gloo|mpi|ucc|hccl|xccl):")
OF_NCCL = re.compile(r"[nr]ccl", re.I)
OF_KERNELS = re.compile(  # of libraries that do not call torch.distributed
    r"deep_?ep\b|\bintranode::|\binternode(?:_ll)?::|nvshmem|rocshmem|mscclpp|pplx"
    r"|all_?to_?all|all_?reduce|all_?gather|reduce_?scatter|multimem|symm_?mem",
    re.I,
)


def communication_name(name: str, *, kernel: bool) -> str:
    """Return the name of a communication event without its arguments, "" for others.

    >>> communication_name("void deep_ep::intranode::dispatch<8>(int4*)", kernel=True)
    'deep_ep::intranode::dispatch'
    >>> name = "void at::(anonymous namespace)::one_shot_all_reduce<1>(float*)"
    >>> communication_name(name, kernel=True)
    'at::one_shot_all_reduce'
    >>> communication_name("aten::add", kernel=False)
    ''
    """
    name = name.replace("(anonymous namespace)::", "")
    known = OF_TORCH.match(name)
    if kernel:
        known = OF_NCCL.search(name) or OF_KERNELS.search(name.partition("(")[0])
    plain = re.match(r"(?:void\s+)?([\w:]+)", name)
    return plain[1].rstrip(":") if known and plain else ""


def element_type(name: object) -> tuple[str, int]:
    """Return torch's name and element size of a type, ("", 0) if unknown.

    >>> element_type("Tensor(c10::BFloat16)"), element_type("long int")
    (('bfloat16', 2), ('int64', 8))
    """
    plain = str(name).strip()
    if plain.startswith("Tensor(") and plain.endswith(")"):
        plain = plain[len("Tensor(") : -1]
    plain = plain.removeprefix("c10::").removeprefix("torch.").lower()
    plain = plain.removeprefix("signed ")
    plain = TYPE_NAMES.get(re.sub(r"(?<=g|t) int$", "", plain), plain)
    if plain == "bool":
        return plain, 1
    bits = re.search(r"\d+", plain) if NUMBERED.fullmatch(plain) else None
    return (plain, int(bits[0]) // 8) if bits else ("", 0)


@cache
def operation_of(name: str) -> str:
    """Return the operation of a c10d operator or record_param_comms, "" for others.

    >>> operation_of("_reduce_scatter_base_"), operation_of("all_to_allv")
    ('reduce_scatter', 'all_to_all')
    >>> operation_of("wait"), operation_of("allgather_into_tensor_coalesced")
    ('', 'all_gather')
    """
    for pattern, operation in OPERATIONS.items():
        if match := pattern.fullmatch(name):
            return match.expand(operation)
    return ""


# ---- functions and collectives ------------------------------------------------------


@dataclass(kw_only=True, slots=True, eq=False)
class Function:
    """Operator, ``record_param_comms`` or autograd function of one rank's file."""

    at: int  # increases in call order: begin in ns, or number of the node
    end: int = 0
    name: str = ""
    thread: int = 0
    sequence: int = -1  # autograd sequence number, -1 for none
    backward: bool = False  # a backward function, or autograd's engine
    arguments: Mapping[str, Any] = field(default_factory=dict)
    collective: str = ""  # name of the collective in a record_param_comms
    outer: Function | None = None  # innermost function around it

    def around(self) -> Iterator[Function]:
        """Iterate over the enclosing functions, innermost first."""
        function = self.outer
        for _ in range(DEEPEST):  # a damaged file may have a cycle
            if function is None:
                return
            yield function
            function = function.outer


Pair = tuple[Function | None, Function | None]
"""Operator and its ``record_param_comms``; at least one is not None."""


def paired(functions: Iterable[Function], *, asynchronous: bool = False) -> list[Pair]:
    """Pair operators with the first collective recorded inside them, in call order.

    Further ones are implementation details of a backend, as are operators inside
    operators, unless ``asynchronous``: an operator may then still run when its thread
    calls the next one, which seems to be inside.
    """
    inside: dict[int, Function] = {}
    outermost = []
    for function in sorted(functions, key=lambda f: f.at):
        around = list(function.around())
        owner = next((f for f in reversed(around) if f.name.startswith(C10D)), None)
        if function.name != PARAMETERS:
            outermost += [function] if owner is None or asynchronous else []
        elif not operation_of(function.collective):
            continue
        elif owner is not None:
            inside.setdefault(id(owner), function)
        elif all(f.name != PARAMETERS for f in around):
            outermost.append(function)
    return [
        (None, f) if f.name == PARAMETERS else (f, inside.get(id(f))) for f in outermost
    ]


class Tensors(NamedTuple):
    """Shapes and element type of a tensor argument, or of a list of tensors."""

    shapes: Sequence[tuple[int, ...]]
    dtype: str = ""
    size: int = 0  # bytes of an element, 0: unknown

    @property
    def elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(prod(shape) for shape in self.shapes)


class Side(NamedTuple):
    """What a rank sends or receives in a collective; None is unknown."""

    rows: Sequence[int] | None = None  # to or from each member
    cut: bool = False  # the file has only the first of the rows
    even: int | None = None  # rows in all, the same for each member
    elements: int | None = None

    def of(self, width: int) -> tuple[Sequence[int], bool]:
        """Return the rows of a group of a size, and whether others are missing."""
        if self.even is not None:
            return [self.even // width] * width, False
        return self.rows or [], self.cut or self.rows is None


NOTHING = Side()


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Collective as an operator, its ``record_param_comms``, or both describe it."""

    name: str = ""  # without "c10d::"
    operation: str = ""
    operator: bool = False
    sent: Side = NOTHING
    received: Side = NOTHING
    row_elements: int | None = None
    dtype: str = ""
    size: int = 0  # bytes of an element, 0: unknown
    group: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = -1
    peer: int | None = None

    @property
    def identity(self) -> str:
        """What identifies the group in the file, "" for nothing."""
        names = (self.group.get(key) for key in ("pg_name", "pg_id"))
        return next((str(name) for name in names if name not in (None, "")), "")

    @property
    def width(self) -> int:
        """Size of the group that the call implies; 0 if it does not."""
        if self.operation == ALL_TO_ALL:
            lists = (s.rows for s in (self.sent, self.received) if not s.cut)
            return next((len(rows) for rows in lists if rows), 0)
        into, out = self.sent.elements or 0, self.received.elements or 0
        base = self.name.rstrip("_")
        if base == "_reduce_scatter_base":
            into, out = out, into
        elif base != "_allgather_base":
            return 0
        return out // into if into and out % into == 0 else 0

    def completed(self, recorded: Collective) -> Collective:
        """Add what the ``record_param_comms`` of an operator has more."""
        sides = []
        for own, other in (
            (self.sent, recorded.sent),
            (self.received, recorded.received),
        ):
            if own.elements is None:
                own = other if other != NOTHING else own
            elif own.rows is None and own.even is None:
                own = own._replace(rows=other.rows, cut=other.cut)
            sides.append(own)
        return replace(
            self,
            sent=sides[0],
            received=sides[1],
            dtype=self.dtype if self.size else recorded.dtype,
            size=self.size or recorded.size,
            group=recorded.group,
            sequence=recorded.sequence,
            peer=recorded.peer if self.peer is None else self.peer,
        )


def operator(
    name: str,
    values: Sequence[Any],
    tensors: Callable[[int], Tensors | None],
    annotated: Tensors | None = None,
) -> Collective:
    """Parse the values of a c10d operator's inputs.

    ``tensors`` returns the tensors of the n-th input, None if they are unknown; then
    ``annotated`` is the input of the collective.
    """
    name = name.removeprefix(C10D)
    operation = operation_of(name)
    # the output comes first, except where it is the input
    in_place = operation in ("all_reduce", "reduce", "broadcast", "send_recv")
    source = -1 if operation in ("barrier", "") else int(not in_place)
    into = tensors(source) or annotated
    out = tensors(0) if source == 1 else None
    sides = []
    for given, at in ((into, 4), (out, 3)):
        rows, cut, even = None, False, None
        if name == "alltoall_base_" and len(values) > at:
            rows, cut = integers(values[at]) or (None, False)
        if given and name == "alltoall_":
            rows = [prod(shape) for shape in given.shapes]  # of one element each
        elif given and rows == [] and not cut:  # no splits are equal parts
            even = given.shapes[0][0] if given.shapes and given.shapes[0] else 0
        elements = given.elements if given else None
        sides.append(Side(rows if rows or cut else None, cut, even, elements))
    given = into or out
    row_elements = None
    if name == "alltoall_":
        row_elements = 1
    elif given and given.shapes and given.shapes[0]:
        row_elements = prod(given.shapes[0][1:])
    return Collective(
        name=name,
        operation=operation,
        operator=True,
        sent=sides[0],
        received=sides[1],
        row_elements=row_elements,
        dtype=given.dtype if given else "",
        size=given.size if given else 0,
        peer=whole(values[2]) if operation == "send_recv" and len(values) > 2 else None,
    )


def recorded(
    name: str, told: Mapping[str, Any], tensors: Tensors | None = None
) -> Collective:
    """Parse a ``record_param_comms`` with the attributes of an execution trace.

    Only profiles also have ``pg_ranks``, ``seq``, ``src_rank`` and ``dst_rank``.
    ``tensors`` is the input, for files without ``dtype`` and ``in_msg_nelems``.
    """
    dtype, size = element_type(told.get("dtype", ""))
    into = whole(told.get("in_msg_nelems"))
    if tensors:
        dtype, size = (dtype, size) if size else (tensors.dtype, tensors.size)
        into = tensors.elements if into is None else into
    sides = []
    for side, elements in (("in", into), ("out", whole(told.get("out_msg_nelems")))):
        # an empty list may stand for a list of tensors of any sizes
        rows, cut = integers(told.get(f"{side}_split_size")) or (None, False)
        sides.append(Side(rows if rows or cut else None, cut, None, elements))
    sequence = whole(told.get("seq"))
    return Collective(
        name=name,
        operation=operation_of(name),
        sent=sides[0],
        received=sides[1],
        dtype=dtype,
        size=size,
        group=told,
        sequence=-1 if sequence is None else sequence,
        peer=whole(told.get("dst_rank" if name == "send" else "src_rank")),
    )


# ---- process groups -----------------------------------------------------------------


class Groups:
    """Process groups of the calls in the file of one rank.

    ``listed`` is torch's list of ``{"pg_name", "pg_desc", "ranks", "group_size"}``,
    where no ranks means all; other values are treated as an empty list.  ``stated`` is
    the number of ranks by the file, 0 if unknown.
    """

    def __init__(self, listed: Any, stated: int = 0) -> None:
        entries = listed if isinstance(listed, list) else []
        self.entries = [entry for entry in entries if isinstance(entry, dict)]
        sizes = [whole(e.get("group_size"), 1) for e in self.entries if not _ranks(e)]
        stated = stated or max((n or 0 for n in sizes), default=0)
        self.stated, _ = number_of_ranks(stated, "", ImportOptions())
        self.widths: defaultdict[str, set[int]] = defaultdict(set)
        """Sizes of groups that calls imply, by what identifies the group."""
        self.set_world(self.stated)

    def set_world(self, world: int) -> None:
        """Set the number of ranks of the run, by which the listed groups are known."""
        self.world = world
        self.named: list[tuple[set[str], Group]] = []
        for entry in self.entries:
            ranks = _ranks(entry)
            size = whole(entry.get("group_size", entry.get("pg_size")), 1)
            if not ranks:
                if size not in (None, self.stated, world):
                    continue  # the ranks of a proper subgroup are unknown
                ranks = tuple(range(min(MOST_RANKS, size or self.stated or world)))
            keys = ("pg_name", "pg_id", "backend_id", "uid")
            names = {str(entry[key]) for key in keys if key in entry}
            if ranks:
                group = self.group(ranks, str(entry.get("pg_desc", "")))
                self.named.append((names, group))

    @property
    def widest(self) -> int:
        """Size of the largest group of a call, 0 if unknown."""
        return max((w for widths in self.widths.values() for w in widths), default=0)

    def group(self, ranks: Sequence[int], described: str = "") -> Group:
        """Create the process group of the given ranks, with the described kind."""
        mesh = MESH.fullmatch(described)
        kind = mesh[1] if mesh else KINDS.get(described, "")
        if not kind:
            everyone = list(ranks) == list(range(self.world))
            kind = "world" if everyone and ranks else "other"
        return Group(kind=kind, ranks=tuple(ranks))

    def described(self, told: Mapping[str, Any]) -> Group | None:
        """Find the group of a ``record_param_comms`` by ranks, name or range."""
        kind, size = str(told.get("pg_desc", "")), whole(told.get("pg_size"), 1)
        ranks, cut = integers(told.get("pg_ranks")) or ([], True)
        if ranks and not cut and len(set(ranks)) == len(ranks):
            return self.group(ranks, kind)
        name = str(told.get("pg_name", ""))
        named = next((group for names, group in self.named if name in names), None)
        if named is not None and size in (None, len(named.ranks)):
            return named
        if size is not None and size == self.world:
            return self.group(range(size), kind)
        start = whole(told.get("global_rank_start"))
        stride = whole(told.get("global_rank_stride"), 1)
        if start is None or stride is None or not size:
            return None
        if start + stride * (size - 1) >= self.world:
            return None
        return self.group(range(start, start + stride * size, stride), kind)

    def of(self, call: Collective, rank: int) -> tuple[Group | None, str, bool]:
        """Return the group of a call, what it is inferred from, and whether all of its
        calls are known to be on it.

        Without a group in the file, it is that of all ranks if a call has a part for
        each, or if no call shows another group.  Its kind is "unknown" if the file has
        calls of other groups, but does not contain the group of this one; it is None
        if the call is known to be of a part of the ranks.
        """
        if (group := self.described(call.group)) is not None:
            return group, "", True
        width = call.width
        fits = {
            g.ranks: g
            for _, g in self.named
            if rank in g.ranks and width in (0, len(g.ranks))
        }
        if call.operator and len(fits) == 1:
            return next(iter(fits.values())), BY_SIZE, True
        sizes = {width} - {0} or (
            self.widths[call.identity] if call.identity else set()
        )
        if self.entries or not self.world or sizes - {self.world}:
            return None, "", True
        everyone = self.group(range(self.world))
        if sizes:
            return everyone, BY_WIDTH if width else BY_GROUP, True
        others = {w for widths in self.widths.values() for w in widths} - {self.world}
        if others or len(self.widths) > 1:
            return Group(kind=UNKNOWN, ranks=everyone.ranks), AMBIGUOUS, False
        return everyone, BY_DEFAULT, False


def _ranks(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """Parse the ranks of a listed group, () for none; older torch wrote an object."""
    told = entry.get("ranks", [])
    if isinstance(told, dict):
        told = sorted(whole(k) if whole(k) is not None else -1 for k in told)
    ranks, cut = integers(told) or ([], False)
    if cut or len(set(ranks)) != len(ranks) or max(ranks, default=0) >= MOST_RANKS:
        return ()
    return tuple(ranks)


# ---- rows ---------------------------------------------------------------------------


Times = tuple[int, int, int]
"""Issue, start and end in ns of the rank's clock."""
NO_TIMES = (UNKNOWN_TIME, UNKNOWN_TIME, UNKNOWN_TIME)


@dataclass(kw_only=True)
class RankFile:
    """Calls of one rank's file, in order."""

    path: Path
    rank: int
    groups: Groups
    calls: list[tuple[Function, Collective, Times]]
    steps: Mapping[int, tuple[int, int, int]]  # iteration, begin, end, by its ``at``
    step_source: Source = Source.ANNOTATED

    @property
    def span(self) -> tuple[int, int]:
        """First and last iteration, -1 without steps."""
        iterations = [iteration for iteration, _, _ in self.steps.values()]
        return min(iterations, default=-1), max(iterations, default=-1)


def read_ranks(
    read: Callable[[Path, int, Contents], RankFile],
    files: Sequence[Path],
    options: ImportOptions,
) -> Contents:
    """Read files that each hold one rank, and check that they are of one run.

    The number of ranks is, in this order: that of the options; that stated in a file;
    the number of files, if they are those of ranks 0, 1, 2 ...; the size of the
    largest group that a call implies.
    """
    contents = Contents()
    ranks = [read(file, options.ranks, contents) for file in files]
    for file in ranks:
        for _, call, _ in file.calls:
            file.groups.widths[call.identity] |= {call.width} - {0}
    ranks.sort(key=lambda file: (file.rank, file.span))
    for one, other in pairwise(ranks):
        if one.rank == other.rank and not 0 <= one.span[1] < other.span[0]:
            raise TraceError(
                f"a rank has one file, or one for each of several steps, but "
                f"{one.path.name} and {other.path.name} are both of rank {one.rank}: "
                "leave one of them out"
            )
    contents.world, contents.world_by = _number_of_ranks(ranks, options)
    inferred: Counter[tuple[Group, str]] = Counter()
    for file in ranks:
        if contents.world and file.rank >= contents.world:
            raise TraceError(
                f"{file.path.name} is of rank {file.rank}, but the run has "
                f"{contents.world} ranks: leave it out"
            )
        file.groups.set_world(contents.world)
        contents.files[file.rank] = file.path.name
        _add_rows(file, contents, inferred)
    for (group, reason), count in inferred.items():
        what = "unknown within ranks" if group.kind == UNKNOWN else "inferred as"
        kind = "" if group.kind == UNKNOWN else f"{group.kind} "
        contents.inferred.append(
            f"group of {count} calls {what} {kind}{rank_span(group.ranks)}: {reason}"
        )
    return contents


def _number_of_ranks(
    files: Sequence[RankFile], options: ImportOptions
) -> tuple[int, str]:
    """Return the number of ranks of a run, 0 if unknown, and what it is from."""
    stated = {f.groups.stated: f.path.name for f in files if f.groups.stated}
    if len(stated) > 1:
        (few, name), (many, other) = sorted(stated.items())[:2]
        raise TraceError(
            f"files of one run are imported together, but {name} is of {few} ranks and "
            f"{other} of {many}: leave one of them out"
        )
    widest = max(f.groups.widest for f in files)
    ranks = {f.rank for f in files}
    if options.ranks:
        return number_of_ranks(max(widest, *stated, 0), "", options)
    if stated:
        return number_of_ranks(max(stated), "the files, which state it", options)
    if len(ranks) > 1 and ranks == set(range(len(ranks))) and widest <= len(ranks):
        return len(ranks), "the number of files, one for each rank"
    by = "the largest group of a call, by its parts" if widest else ""
    return number_of_ranks(widest, by, options)


def _add_rows(
    file: RankFile, contents: Contents, inferred: Counter[tuple[Group, str]]
) -> None:
    """Add the rows and steps of one rank's file; count groups that are inferred."""
    begins, before, last = sorted(file.steps), len(contents.rows), -1
    threads: dict[int, int] = {}
    for function, call, (issue, start, end) in file.calls:
        row, why = _row(file, contents, call, inferred, len(contents.rows) - before)
        step = bisect_right(begins, function.at) - 1
        if row is not None and begins and step < 0:
            row, why = None, f"{call.operation} before the first step"
        thread = threads.setdefault(function.thread, len(threads))
        if row is None:
            contents.left_out[file.rank, why] += 1
            continue
        row.issue, row.start, row.end, row.thread = issue, start, end, thread
        row.direction, row.link = _direction_and_link(list(function.around()))
        row.iteration = file.steps[begins[step]][0] if begins else -1
        last = max(last, row.iteration)
        contents.rows.append(row)
    # the last step marker begins a step without calls
    spans = [file.steps[at] for at in begins if file.steps[at][0] <= last]
    contents.steps += [
        Step(file.rank, *span, source=file.step_source) for span in spans
    ]


def _row(
    file: RankFile,
    contents: Contents,
    call: Collective,
    inferred: Counter[tuple[Group, str]],
    number: int,
) -> tuple[Row | None, str]:
    """Build the row of a rank's n-th call; or return why it is left out."""
    group, reason, counted = file.groups.of(call, file.rank)
    if group is not None and reason:
        inferred[group, reason] += 1
    if group is None or file.rank not in group.ranks:
        size = f" of {call.width} ranks" if call.width else ""
        why = f"{call.operation} on a group{size} that the files do not list"
        if not (file.groups.entries or contents.world):
            why += ", in an unknown number of ranks: give --ranks"
        return None, why
    sequence = call.sequence if call.sequence >= 0 else BY_ORDER
    row = Row(
        rank=file.rank,
        operation=call.operation,
        group=group,
        dtype=call.dtype,
        row_bytes=0,  # a buffer has no rows
        sequence=sequence if counted or sequence >= 0 else UNNUMBERED,
    )
    if call.operation == "barrier":
        row.dtype, row.volume = "", 0
    elif call.operation == ALL_TO_ALL:
        row.row_bytes = _row_bytes(call)
        width = len(group.ranks)
        for name in ("sent", "received"):
            parts, wrong_parts = _bytes(getattr(call, name), call, row.row_bytes, width)
            setattr(row, name, parts)
            if wrong_parts:
                contents.contradictions.append(
                    f"{file.path.name}: call {number} of rank {file.rank} "
                    f"({ALL_TO_ALL}): {wrong_parts.format(side=name)}"
                )
    elif call.sent.elements is not None and call.size:
        row.volume = call.sent.elements * call.size
    if call.operation == "send_recv":
        me, peer = group.ranks.index(file.rank), call.peer
        if peer is None or peer >= len(group.ranks):
            return None, "send_recv with an unknown peer"
        row.peers = (me, peer) if call.name == "send" else (peer, me)
        row.sequence = BY_ORDER
    return row, ""


def _row_bytes(call: Collective) -> int:
    """Return the bytes of a row of an all-to-all, -1 if unknown."""
    if not call.size:
        return -1
    if call.row_elements is not None:
        return call.row_elements * call.size
    for side in (call.sent, call.received):
        if side.rows and not side.cut and sum(side.rows) and side.elements:
            elements, rest = divmod(side.elements, sum(side.rows))
            if not rest:
                return elements * call.size
    return -1


def _bytes(
    side: Side, call: Collective, row_bytes: int, width: int
) -> tuple[list[int], str]:
    """Return the bytes to or from each member, -1 where unknown, and a contradiction.

    The rows of a call must make up its buffer.
    """
    rows, cut = side.of(width)
    if not any(rows) and not cut:
        row_bytes = 0  # no rows: 0 bytes, even if the size of one is unknown
    parts = [n * row_bytes if row_bytes >= 0 else -1 for n in rows]
    buffer = side.elements * call.size if side.elements is not None else 0
    wrong_parts = ""
    if len(rows) > width or (len(rows) < width and not cut):
        wrong_parts = f"it has {len(rows)} splits in a group of {width}"
    elif side.elements is not None and call.size and min(parts, default=0) >= 0:
        total = sum(parts)
        if len(rows) == width and total != buffer:
            wrong_parts = (
                f"its splits make {total} bytes {{side}}, but its buffer has {buffer}"
            )
        elif total > buffer:
            wrong_parts = f"a part of its splits is more than {side.elements} elements"
    if wrong_parts:
        parts = []
    return [*parts, *[-1] * (width - len(parts))], wrong_parts


def _direction_and_link(around: Sequence[Function]) -> tuple[str, int]:
    """Infer a call's direction and autograd sequence number (-1 for none)."""
    link = next((f.sequence for f in around if f.sequence >= 0), -1)
    if not any(f.backward for f in around):
        return "forward", link
    nearest = next(f for f in around if f.sequence >= 0 or f.backward)
    return ("backward" if nearest.backward else "recompute"), link
