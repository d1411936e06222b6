"""Import torch.profiler profiles: Kineto's JSON in Chrome's trace format.

``{"traceEvents": [{"ph": "X", "name", "ts", "dur", "args"}], "distributedInfo": ...}``;
``ts`` and ``dur`` are microseconds, ``baseTimeNanoseconds`` is added to them.  Lists
of more than 30 entries are truncated in ``record_param_comms``, omitted in operators
(torch ``profiler/util.cpp``, ``kTruncatLength``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetraffic.trace.model import Group

from .autograd_direction import SLACK, UNNUMBERED, Functions, direction_and_link
from .element_type import element_type
from .imported_call import ImportedCall, RankRecord
from .json_reader import JsonStream, integers, number, opened, whole, words, wrong
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
    TruncatedList,
    call_of,
    width_of,
)

GLOO = "gloo:"
TENSOR_LIST = "TensorList"


@dataclass(slots=True)
class ProfileRow:
    """Profiler event that is related to a collective."""

    thread: int
    start: int  # ns
    end: int
    name: str
    args: dict[str, Any]


@dataclass
class Profile:
    """Events and metadata of a profile that describe collectives."""

    groups: Any = None
    rank: int | None = None
    world: int = 0
    host: str = ""
    base_ns: int = 0
    operators: list[ProfileRow] = field(default_factory=list)
    parameters: list[ProfileRow] = field(default_factory=list)
    gloo: list[ProfileRow] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    functions: Functions = field(default_factory=Functions)
    kernels: dict[int, tuple[int, int]] = field(default_factory=dict)  # External id
    threads: dict[Any, int] = field(default_factory=dict)


def read(path: Path, rank: int | None) -> tuple[RankRecord, int]:
    """Read one rank's profile; return its record and the number of ranks (0: unknown).

    Parameters
    ----------
    path
        The file.
    rank
        Rank in the file name, for profiles that do not contain it.

    Raises
    ------
    UnreadableFile
        If the file is not such a profile, or its rank is unknown.
    """
    profile = _scan(path)
    rank = profile.rank if profile.rank is not None else rank
    if rank is None:
        raise wrong(
            path,
            "neither its distributedInfo nor its name tells of which rank it is",
            "name it like rank3.json",
        )
    groups = ProfileGroups(profile.groups, profile.world)
    record = RankRecord(rank=rank, source=path.name, node=profile.host)
    steps = sorted(profile.steps, key=lambda s: s[1])
    begins = [start for _, start, _ in steps]
    threads: dict[int, int] = {}
    events = _gloo_events(profile)
    owners = _gloo_owners(profile, events, groups, rank)
    for operator, recorded in _together(profile):
        own = events.get(_number(operator)) if operator else None
        call = call_of(
            _operator(operator, own) if operator else None,
            _recorded(recorded, groups, rank) if recorded else None,
            groups,
            record,
            owners.get(own.thread) if own else None,
        )
        row = operator or recorded
        if call is None or row is None:
            continue
        call.issue = row.start + profile.base_ns
        call.thread = threads.setdefault(row.thread, len(threads))
        around = profile.functions.around(row.thread, row.start, row.end)
        call.direction, call.link = direction_and_link(around)
        at = bisect_right(begins, row.start) - 1
        if begins and at < 0:
            record.left_out[f"{call.operation} before the first step"] += 1
            continue
        call.iteration = steps[at][0] if begins else -1
        _times(call, profile, [recorded, operator], own)
        record.add(call)
    last = max((c.iteration for c in record.calls), default=-1)
    # the last step marker begins a step without calls
    for iteration, start, end in [s for s in steps if s[0] <= last]:
        record.steps.append((iteration, start + profile.base_ns, end + profile.base_ns))
    return record, groups.world


def _scan(path: Path) -> Profile:
    profile = Profile()
    seen = False
    with opened(path) as text:
        for name, value in JsonStream(path, text).members("traceEvents"):
            if name == "traceEvents":
                seen = True
                if isinstance(value, dict):
                    _take(profile, value)
            elif name == "distributedInfo" and isinstance(value, dict):
                profile.rank = whole(value.get("rank"))
                profile.world = whole(value.get("world_size")) or 0
                profile.groups = value.get("pg_config")
            elif name == "baseTimeNanoseconds":
                profile.base_ns = whole(value) or 0
            elif name == "host_name":
                profile.host = words(value)
    if not seen:
        raise wrong(path, "it has no traceEvents", "say which format it is with --from")
    return profile


def _take(profile: Profile, event: dict[str, Any]) -> None:
    """Store a profiler event that describes a collective or its context."""
    name, category, args = event.get("name"), event.get("cat"), event.get("args")
    start, length = number(event.get("ts")), number(event.get("dur"))
    if event.get("ph") != "X" or start is None or length is None:
        return
    if not isinstance(name, str) or abs(start) > 2e15 or not 0 <= length < 2e15:
        return
    begin = round(start * 1000)
    end = begin + round(length * 1000)
    args = args if isinstance(args, dict) else {}
    if category == "kernel":
        known = whole(args.get("External id"))
        if known is not None and "nccl" in name.lower():
            before = profile.kernels.get(known, (begin, end))
            profile.kernels[known] = (min(before[0], begin), max(before[1], end))
        return
    if category in ("gpu_user_annotation", "gpu_memcpy", "gpu_memset"):
        return
    thread = profile.threads.setdefault(str(event.get("tid")), len(profile.threads))
    step = STEP.fullmatch(name)
    if step:
        profile.steps.append((int(step[1]), begin, end))
    elif name == PARAMETERS:
        profile.parameters.append(ProfileRow(thread, begin, end, name, args))
    elif name.startswith(C10D):
        profile.operators.append(ProfileRow(thread, begin, end, name, args))
    elif name.startswith(GLOO):
        profile.gloo.append(ProfileRow(thread, begin, end, name, args))
    elif not name.startswith("_c10d_functional::"):  # shares the next one's number
        number_of = whole(args.get("Sequence number"))
        if number_of is not None or name.startswith(ENGINE):
            back = bool(whole(args.get("Fwd thread id"))) or name.startswith(ENGINE)
            told = UNNUMBERED if number_of is None else number_of
            profile.functions.add(thread, begin, end, told, back)


def _together(
    profile: Profile,
) -> Iterator[tuple[ProfileRow | None, ProfileRow | None]]:
    """Pair operators with the record_param_comms inside them, in call order."""
    rows = sorted(
        [*profile.operators, *profile.parameters],
        key=lambda r: (r.thread, r.start, r.name == PARAMETERS, -r.end),
    )
    found: list[tuple[ProfileRow | None, ProfileRow | None]] = []
    outer: ProfileRow | None = None
    inner: ProfileRow | None = None
    for row in rows:
        inside = (
            outer is not None
            and row.thread == outer.thread
            and row.end <= outer.end + SLACK
        )
        if inside:
            # the first of several: others are implementation details of a backend
            if row.name == PARAMETERS and inner is None and _counts(row):
                inner = row
                found[-1] = (outer if outer is not inner else None, inner)
            continue
        if row.name == PARAMETERS:
            if _counts(row):
                found.append((None, row))
            continue
        outer, inner = row, None
        found.append((row, None))
    found.sort(key=lambda pair: (pair[0] or pair[1]).start)  # type: ignore[union-attr]
    yield from found


def _counts(row: ProfileRow) -> bool:
    """Return whether a record_param_comms is a collective, not a wait or a setup."""
    return str(row.args.get("Collective name")) in RECORDED


def _operator(row: ProfileRow, own: ProfileRow | None) -> C10dOperator:
    """Parse input shapes, types and values of a c10d operator's profiler event.

    Parameters
    ----------
    own
        Gloo's event of the operator, the only source of the type of listed tensors.
    """
    name = row.name.removeprefix(C10D)
    shapes = row.args.get("Input Dims")
    types = row.args.get("Input type")
    values = row.args.get("Concrete Inputs")
    if not (isinstance(shapes, list) and isinstance(types, list)):
        return C10dOperator(name=name)  # recorded without shapes
    values = values if isinstance(values, list) else []
    own_types = own.args.get("Input type") if own else None
    gloo_type = own_types[0] if isinstance(own_types, list) and own_types else ""

    def tensors(at: int) -> InputTensors | None:
        if not 0 <= at < min(len(shapes), len(types)):
            return None
        listed = types[at] == TENSOR_LIST
        every = shapes[at] if listed else [shapes[at]]
        return _tensors(every, gloo_type if listed else types[at])

    def rows(at: int) -> TruncatedList | None:
        # an empty value is an omitted list of more than 30 numbers
        return integers(values[at]) if at < len(values) else None

    operation, source = OPERATORS.get(name, ("", -1))
    splits = name == "alltoall_base_"
    return C10dOperator(
        name=name,
        input=tensors(source),
        output=tensors(0) if source == 1 else None,
        output_rows=rows(3) if splits else None,
        input_rows=rows(4) if splits else None,
        peer=whole(values[2]) if operation == "send_recv" and len(values) > 2 else None,
    )


def _tensors(every: Any, named: Any) -> InputTensors | None:
    shapes = []
    for shape in every if isinstance(every, list) else [None]:
        told = integers(shape)
        if told is None:
            return None
        shapes.append(tuple(told[0]))
    dtype, size = element_type(str(named)) or ("", 0)
    return InputTensors(shapes=shapes, dtype=dtype, element_bytes=size)


def _gloo_events(profile: Profile) -> dict[int, ProfileRow]:
    """Match Gloo's profiler events to c10d operators by function number.

    torch numbers the functions that it records: the Gloo event of an operator has the
    first Gloo number after the operator's.
    """
    operators = sorted(_number(row) for row in profile.operators)
    found: dict[int, ProfileRow] = {}
    for row in sorted(profile.gloo, key=_number):
        at = bisect_left(operators, _number(row)) - 1
        if at >= 0 and operators[at] >= 0:
            found.setdefault(operators[at], row)
    return found


def _gloo_owners(
    profile: Profile, events: dict[int, ProfileRow], groups: ProfileGroups, rank: int
) -> dict[int, Group]:
    """Infer the process group of each Gloo worker thread.

    Gloo threads belong to one process group each.
    """
    owners: dict[int, Group] = {}
    contested = set()
    for row in profile.operators:
        own = events.get(_number(row))
        if own is None or own.thread == row.thread:
            continue
        width = width_of(_operator(row, own))
        group = groups.of_width(width, rank)
        if group is not None and owners.setdefault(own.thread, group) != group:
            contested.add(own.thread)
    return {thread: g for thread, g in owners.items() if thread not in contested}


def _number(row: ProfileRow) -> int:
    found = whole(row.args.get("Record function id"))
    return -1 if found is None else found


def _recorded(row: ProfileRow, groups: ProfileGroups, rank: int) -> RecordedCollective:
    """Parse a record_param_comms with the arguments of torch's saveNcclMeta."""
    args = row.args
    dtype, size = element_type(str(args.get("dtype", ""))) or ("", 0)
    sequence = whole(args.get("Seq"))
    name = str(args.get("Collective name"))
    told = args.get("Dst Rank" if name == "send" else "Src Rank")
    return RecordedCollective(
        name=name,
        group=_group(args, groups),
        dtype=dtype,
        element_bytes=size,
        input_elements=whole(args.get("In msg nelems")),
        output_elements=whole(args.get("Out msg nelems")),
        input_rows=integers(args.get("In split size")),
        output_rows=integers(args.get("Out split size")),
        sequence=-1 if sequence is None else sequence,
        peer=whole(told),
    )


def _group(args: dict[str, Any], groups: ProfileGroups) -> Group | None:
    described = str(args.get("Process Group Description", ""))
    size = whole(args.get("Group size"), 1)
    ranks = integers(args.get("Process Group Ranks"))
    if ranks and ranks[0] and not ranks[1] and len(set(ranks[0])) == len(ranks[0]):
        return groups.group(ranks[0], described)
    named = groups.named(str(args.get("Process Group Name", "")))
    if named is not None and size in (None, len(named.ranks)):
        return named
    first = whole(args.get("Global rank start"))
    stride = whole(args.get("Global rank stride"), 1)
    return groups.from_range(size, first, stride, described)


def _times(
    call: ImportedCall,
    profile: Profile,
    rows: list[ProfileRow | None],
    own: ProfileRow | None,
) -> None:
    """Set the start and end of a call from its GPU kernels or Gloo's event."""
    known = [whole(row.args.get("External id")) for row in rows if row]
    spans = [profile.kernels[k] for k in known if k in profile.kernels]
    if own:
        spans.append((own.start, own.end))
    if spans:
        call.start, call.end = (t + profile.base_ns for t in spans[0])
