"""Import torch.profiler profiles: Kineto's JSON in Chrome's trace format.

``{"traceEvents": [{"ph": "X", "name", "ts", "dur", "args"}], "distributedInfo": ...}``;
``ts`` and ``dur`` are microseconds, ``baseTimeNanoseconds`` is added to them.  Lists
of more than 30 entries are truncated in ``record_param_comms``, omitted in operators
(torch ``profiler/util.cpp``, ``kTruncatLength``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from moetraffic.trace.model import Group, Source

from .imported_call import ImportedCall, ImportedRank
from .importer import Importer, json_with, rank_by_rank
from .json_reader import JsonStream, integers, number, opened, whole, words, wrong
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
    recorded_collective,
    width_of,
)
from .unread_communication import beyond_torch, communication_name

GLOO = "gloo:"
OPTIMIZER = "Optimizer.step#"
NO_BYTES = "of which a profile has neither bytes nor destinations"
BACKEND = re.compile(r"nccl:(\w+)")  # an annotation of the backend around its work
TENSOR_LIST = "TensorList"
SLACK = 2  # ns: tolerance for rounding of floating-point microseconds
ATTRIBUTES = {  # of a record_param_comms: name in an execution trace, and here
    "dtype": "dtype",
    "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems",
    "in_split_size": "In split size",
    "out_split_size": "Out split size",
    "seq": "Seq",
    "src_rank": "Src Rank",
    "dst_rank": "Dst Rank",
    "pg_name": "Process Group Name",
    "pg_id": "Process Group ID",
    "pg_desc": "Process Group Description",
    "pg_size": "Group size",
    "pg_ranks": "Process Group Ranks",
    "global_rank_start": "Global rank start",
    "global_rank_stride": "Global rank stride",
}


@dataclass(kw_only=True, slots=True, eq=False)
class ProfileEvent(ProfiledFunction):
    """Profiler event that is related to a collective; ``at`` and ``end`` in ns."""

    end: int

    @property
    def number(self) -> int:
        """Number that torch gave the recorded function, -1 for none."""
        found = whole(self.arguments.get("Record function id"))
        return -1 if found is None else found


@dataclass
class Profile:
    """Events and metadata of a profile that describe collectives."""

    groups: Any = None
    rank: int | None = None
    world: int = 0
    host: str = ""
    base_ns: int = 0
    calls: list[ProfileEvent] = field(default_factory=list)  # also record_param_comms
    functions: list[ProfileEvent] = field(default_factory=list)  # of autograd
    gloo: list[ProfileEvent] = field(default_factory=list)
    backend: list[ProfileEvent] = field(default_factory=list)  # annotations of NCCL
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # iteration, end
    optimizers: list[tuple[int, int]] = field(default_factory=list)  # begin, end
    kernels: dict[int, tuple[int, int]] = field(default_factory=dict)  # External id
    seen: Counter[str] = field(default_factory=Counter)  # names of communication
    kernel_names: Counter[str] = field(default_factory=Counter)
    threads: dict[Any, int] = field(default_factory=dict)
    processes: dict[str, None] = field(default_factory=dict)  # that make the calls


def read(path: Path, rank: int | None, assumed: int = 0) -> tuple[ImportedRank, int]:
    """Read one rank's profile; return its record and number of ranks.

    The number is 0 if unknown, and ``assumed`` if that is not 0; ``rank`` is that in
    the file name, for files that do not contain it.
    """
    profile = _scan(path)
    rank = profile.rank if profile.rank is not None else rank
    if rank is None:
        raise wrong(
            path,
            "neither its distributedInfo nor its name contains its rank",
            "name it like rank3.json",
        )
    groups = ProfileGroups(profile.groups, profile.world, assumed)
    operators = [event for event in profile.calls if event.name != PARAMETERS]
    events = _gloo_events(operators, profile.gloo)
    owners = _gloo_owners(operators, events, groups, rank)
    base = profile.base_ns
    _nest([*profile.calls, *profile.functions, *profile.backend])
    annotations = _backend_annotations(profile.backend)
    pairs = paired(profile.calls)

    def parsed(operator: Any, recorded: Any) -> tuple[C10dOperator, RecordedCollective]:
        own = events.get(operator.number) if operator else None
        tensors = _annotated(annotations.get(id(operator or recorded)))
        return (
            _operator(operator, own, tensors) if operator else C10dOperator(),
            _recorded(recorded, groups, tensors) if recorded else RecordedCollective(),
        )

    for pair in pairs:
        groups.observe(*identity_and_width(*parsed(*pair)))
    record = ImportedRank(
        rank=rank,
        source=path.name,
        node=profile.host,
        stated=groups.stated,
        widest=groups.widest,
        seen=profile.seen + profile.kernel_names,
    )

    def build(operator: Any, recorded: Any) -> ImportedCall | None:
        own = events.get(operator.number) if operator else None
        known = owners.get(own.thread) if own else None
        call = call_of(*parsed(operator, recorded), groups, record, known)
        if call is None:
            return None
        call.issue = (operator or recorded).at + base
        ids = [whole(e.arguments.get("External id")) for e in (recorded, operator) if e]
        spans = [profile.kernels[i] for i in ids if i in profile.kernels]
        spans += [(own.at, own.end)] if own else []
        if spans:
            call.start, call.end = (time + base for time in spans[0])
        return call

    marks = profile.steps or _steps_of_optimizers(profile)
    steps = {
        begin: (iteration, begin + base, end + base)
        for begin, (iteration, end) in marks.items()
    }
    add_calls(record, pairs, steps, build)
    if not profile.steps:
        record.step_sources = {n: Source.LINKED for n, _, _ in record.steps}
    for name, count in profile.kernel_names.items():
        if beyond_torch(name):
            record.left_out[f"kernels {name}, {NO_BYTES}"] += count
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
    if len(profile.processes) > 1:
        first, second, *_ = profile.processes
        raise wrong(
            path,
            f"it is merged from several ranks, of the processes {first[:40]!r} and "
            f"{second[:40]!r}",
            "name the files of the ranks from which it was made",
        )
    return profile


def _steps_of_optimizers(profile: Profile) -> dict[int, tuple[int, int]]:
    """Return the steps that end with an optimizer, without ProfilerStep marks.

    Several optimizers without a collective between them end one step.
    """
    calls = sorted(event.at for event in profile.calls)
    steps: dict[int, tuple[int, int]] = {}
    begin = calls[0] if calls else 0
    for _, end in sorted(profile.optimizers):
        if bisect_left(calls, end) == bisect_left(calls, begin):
            last = max(steps, default=None)
            if last is not None:
                steps[last] = steps[last][0], end
        else:
            steps[begin] = len(steps), end
        begin = end
    if steps and bisect_left(calls, begin) < len(calls):
        steps[begin] = len(steps), max(e.end for e in profile.calls)
    return steps


def _take(profile: Profile, event: dict[str, Any]) -> None:
    """Store a profiler event that describes a collective or its context."""
    name, category, args = event.get("name"), event.get("cat"), event.get("args")
    category = category.lower() if isinstance(category, str) else ""
    start, length = number(event.get("ts")), number(event.get("dur"))
    if event.get("ph") != "X" or start is None or length is None:
        return
    if not isinstance(name, str) or abs(start) > 2e15 or not 0 <= length < 2e15:
        return
    begin = round(start * 1000)
    end = begin + round(length * 1000)
    args = args if isinstance(args, dict) else {}
    if category == "kernel":
        if sends := communication_name(name, kernel=True):
            profile.kernel_names[sends] += 1
        known = whole(args.get("External id"))
        if known is not None and "nccl" in name.lower():
            before = profile.kernels.get(known, (begin, end))
            profile.kernels[known] = (min(before[0], begin), max(before[1], end))
        return
    if category in ("gpu_user_annotation", "gpu_memcpy", "gpu_memset"):
        return
    thread = profile.threads.setdefault(str(event.get("tid")), len(profile.threads))
    one = ProfileEvent(at=begin, end=end, thread=thread, name=name, arguments=args)
    if sends := communication_name(name, kernel=False):
        profile.seen[sends] += 1
    if step := STEP.fullmatch(name):
        profile.steps[begin] = int(step[1]), end
    elif name.startswith(OPTIMIZER):
        profile.optimizers.append((begin, end))
    elif name == PARAMETERS:
        one.collective = str(args.get("Collective name"))
        profile.calls.append(one)
        profile.processes[str(event.get("pid"))] = None
    elif name.startswith(C10D):
        profile.calls.append(one)
        profile.processes[str(event.get("pid"))] = None
    elif name.startswith(GLOO):
        profile.gloo.append(one)
    elif BACKEND.match(name):
        profile.backend.append(one)
    elif not name.startswith("_c10d_functional::"):  # shares the next one's number
        sequence, engine = whole(args.get("Sequence number")), name.startswith(ENGINE)
        if sequence is not None or engine:
            one.sequence = -1 if sequence is None else sequence
            one.backward = engine or bool(whole(args.get("Fwd thread id")))
            one.arguments = {}
            profile.functions.append(one)


def _nest(events: Iterable[ProfileEvent]) -> None:
    """Set the innermost enclosing event of each event on its thread."""

    def begin(event: ProfileEvent) -> tuple[int, int, bool, int]:
        return event.thread, event.at, event.name == PARAMETERS, -event.end

    around: list[ProfileEvent] = []
    for event in sorted(events, key=begin):
        while around and (
            around[-1].thread != event.thread or event.end > around[-1].end + SLACK
        ):
            around.pop()
        event.outer = around[-1] if around else None
        around.append(event)


def _operator(
    event: ProfileEvent,
    own: ProfileEvent | None,
    annotated: InputTensors | None = None,
) -> C10dOperator:
    """Parse input shapes, types and values of a c10d operator's profiler event.

    ``own`` is Gloo's event of the operator, the only source of the type of listed
    tensors; ``annotated`` is the input according to NCCL's annotation, for operators
    without that of a list.
    """
    shapes = event.arguments.get("Input Dims")
    types = event.arguments.get("Input type")
    values = event.arguments.get("Concrete Inputs")
    if not (isinstance(shapes, list) and isinstance(types, list)):
        return C10dOperator(name=event.name.removeprefix(C10D))  # no shapes recorded
    own_types = own.arguments.get("Input type") if own else None
    gloo_type = own_types[0] if isinstance(own_types, list) and own_types else ""

    def tensors(at: int) -> InputTensors | None:
        if not 0 <= at < min(len(shapes), len(types)):
            return None
        listed = types[at] == TENSOR_LIST
        if listed and not shapes[at]:
            return None  # earlier releases leave out the shapes of a list
        every = shapes[at] if listed else [shapes[at]]
        return _tensors(every, gloo_type if listed else types[at])

    made = c10d_operator(
        event.name, values if isinstance(values, list) else [], tensors
    )
    return made if made.input else replace(made, input=annotated)


def _tensors(every: Any, named: Any) -> InputTensors | None:
    shapes = []
    for shape in every if isinstance(every, list) else [None]:
        told = integers(shape)
        if told is None:
            return None
        shapes.append(tuple(told[0]))
    dtype, size = element_type(str(named)) or ("", 0)
    return InputTensors(shapes=shapes, dtype=dtype, element_bytes=size)


def _backend_annotations(events: Iterable[ProfileEvent]) -> dict[int, ProfileEvent]:
    """Return the first of NCCL's annotations inside each call, by the call's ``id``.

    A nameless record_param_comms, of releases that did not write its arguments, is
    given the name in its annotation.
    """
    found: dict[int, ProfileEvent] = {}
    for event in sorted(events, key=lambda e: e.at):
        for call in event.around():
            found.setdefault(id(call), event)
            if call.name == PARAMETERS and call.collective not in RECORDED:
                call.collective = event.name.removeprefix("nccl:")
    return found


def _annotated(event: ProfileEvent | None) -> InputTensors | None:
    """Parse the input of a collective from NCCL's annotation."""
    if event is None:
        return None
    shapes, types = (event.arguments.get(n) for n in ("Input Dims", "Input type"))
    if not (isinstance(shapes, list) and isinstance(types, list) and types):
        return None
    same = len({str(one) for one in types}) == 1
    return _tensors(shapes, types[0]) if shapes and same else None


def _gloo_events(
    operators: Iterable[ProfileEvent], gloo: Iterable[ProfileEvent]
) -> dict[int, ProfileEvent]:
    """Match Gloo's profiler events to c10d operators by function number.

    torch numbers the functions that it records: the Gloo event of an operator has the
    first Gloo number after the operator's.
    """
    numbers = sorted(event.number for event in operators)
    found: dict[int, ProfileEvent] = {}
    for event in sorted(gloo, key=lambda e: e.number):
        at = bisect_left(numbers, event.number) - 1
        if at >= 0 and numbers[at] >= 0:
            found.setdefault(numbers[at], event)
    return found


def _gloo_owners(
    operators: Iterable[ProfileEvent],
    events: dict[int, ProfileEvent],
    groups: ProfileGroups,
    rank: int,
) -> dict[int, Group]:
    """Infer the process group of each Gloo worker thread, which has only one."""
    owners: dict[int, Group] = {}
    contested = set()
    for event in operators:
        own = events.get(event.number)
        if own is None or own.thread == event.thread:
            continue
        group = groups.of_width(width_of(_operator(event, own)), rank)
        if group is not None and owners.setdefault(own.thread, group) != group:
            contested.add(own.thread)
    return {thread: g for thread, g in owners.items() if thread not in contested}


def _recorded(
    event: ProfileEvent, groups: ProfileGroups, annotated: InputTensors | None = None
) -> RecordedCollective:
    """Parse a record_param_comms with the arguments of torch's saveNcclMeta.

    ``annotated`` is its input, for releases that did not write them.
    """
    told = {name: event.arguments.get(here) for name, here in ATTRIBUTES.items()}
    return recorded_collective(event.collective, told, groups, annotated)


IMPORTER = Importer(
    name="profiler",
    what="torch.profiler's export_chrome_trace",
    matches=json_with(['"traceEvents"'], ['"schemaVersion"'], ['"ph"']),
    read=partial(rank_by_rank, read),
)
