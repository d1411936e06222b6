"""Import torch.profiler profiles: Kineto's JSON in Chrome's trace format.

``{"traceEvents": [{"ph": "X", "name", "ts", "dur", "args"}], "distributedInfo": ...}``;
``ts`` and ``dur`` are microseconds, ``baseTimeNanoseconds`` is added to them.  Lists
of more than 30 entries are cut in ``record_param_comms``, left out in operators (torch
``profiler/util.cpp``, ``kTruncatLength``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetraffic.trace.model import UNKNOWN_TIME, Source

from .files import integers, number, rank_in_name, read_json, whole, words, wrong
from .rows import Contents, Importer, ImportOptions
from .torch_calls import (
    C10D,
    ENGINE,
    OF_NCCL,
    PARAMETERS,
    STEP,
    Collective,
    Function,
    Groups,
    RankFile,
    Tensors,
    Times,
    communication_name,
    element_type,
    operation_of,
    operator,
    paired,
    read_ranks,
    recorded,
)

GLOO = "gloo:"
NCCL = re.compile(r"nccl:(\w+)")  # an annotation of the backend around its work
OPTIMIZER = "Optimizer.step#"
NO_BYTES = "of which a profile has neither bytes nor destinations"
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


@dataclass
class Profile:
    """Events and metadata of a profile that describe collectives; times in ns."""

    about: dict[str, Any] = field(default_factory=dict)  # members but the events
    calls: list[Function] = field(default_factory=list)  # also record_param_comms
    functions: list[Function] = field(default_factory=list)  # of autograd
    gloo: list[Function] = field(default_factory=list)
    nccl: list[Function] = field(default_factory=list)  # annotations
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # iteration, end
    optimizers: list[tuple[int, int]] = field(default_factory=list)  # begin, end
    kernels: dict[int, tuple[int, int]] = field(default_factory=dict)  # External id
    seen: Counter[str] = field(default_factory=Counter)  # names of communication
    senders: Counter[str] = field(default_factory=Counter)  # names of kernels
    threads: dict[Any, int] = field(default_factory=dict)
    processes: dict[str, None] = field(default_factory=dict)  # that make the calls

    def take(self, event: dict[str, Any]) -> None:
        """Store an event that describes a collective or its context."""
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
            if sender := communication_name(name, kernel=True):
                self.senders[sender] += 1
            call = whole(args.get("External id"))
            if call is not None and "nccl" in name.lower():
                before = self.kernels.get(call, (begin, end))
                self.kernels[call] = (min(before[0], begin), max(before[1], end))
            return
        if category in ("gpu_user_annotation", "gpu_memcpy", "gpu_memset"):
            return
        thread = self.threads.setdefault(str(event.get("tid")), len(self.threads))
        function = Function(at=begin, end=end, thread=thread, name=name, arguments=args)
        if sender := communication_name(name, kernel=False):
            self.seen[sender] += 1
        if step := STEP.fullmatch(name):
            self.steps[begin] = int(step[1]), end
        elif name.startswith(OPTIMIZER):
            self.optimizers.append((begin, end))
        elif name == PARAMETERS or name.startswith(C10D):
            function.collective = str(args.get("Collective name"))
            self.calls.append(function)
            self.processes[str(event.get("pid"))] = None
        elif name.startswith(GLOO):
            self.gloo.append(function)
        elif NCCL.match(name):
            self.nccl.append(function)
        elif not name.startswith("_c10d_functional::"):  # has the next one's number
            sequence, engine = (
                whole(args.get("Sequence number")),
                name.startswith(ENGINE),
            )
            if sequence is not None or engine:
                function.sequence = -1 if sequence is None else sequence
                function.backward = engine or bool(whole(args.get("Fwd thread id")))
                function.arguments = {}
                self.functions.append(function)


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the profiles of all ranks."""
    return read_ranks(_read_rank, files, options)


def _read_rank(path: Path, _: int, contents: Contents) -> RankFile:
    """Read one rank's profile."""
    profile = _scanned(path)
    stated = profile.about.get("distributedInfo")
    stated = stated if isinstance(stated, dict) else {}
    rank = whole(stated.get("rank"))
    rank = rank_in_name(path) if rank is None else rank
    if rank is None:
        raise wrong(
            path,
            "neither its distributedInfo nor its name contains its rank",
            "name it like rank3.json",
        )
    _nest([*profile.calls, *profile.functions, *profile.nccl])
    annotations = _annotations(profile.nccl)
    gloo = _gloo_events(profile)
    base = whole(profile.about.get("baseTimeNanoseconds")) or 0
    calls = []
    for pair in paired(profile.calls):
        event = pair[0] or pair[1]
        assert event is not None
        own = gloo.get(_number(event)) if pair[0] else None
        tensors = _annotated(annotations.get(id(event)))
        call = _collective(pair, own, tensors)
        if call.operation:
            calls.append((event, call, _times(pair, own, profile, base)))
    steps = profile.steps or _steps_of_optimizers(profile)
    contents.nodes[rank] = words(profile.about.get("host_name"))
    contents.seen += profile.seen + profile.senders
    for name, count in profile.senders.items():
        if not OF_NCCL.search(name):  # of no collective of torch
            contents.left_out[rank, f"kernels {name}, {NO_BYTES}"] += count
    return RankFile(
        path=path,
        rank=rank,
        groups=Groups(stated.get("pg_config"), whole(stated.get("world_size")) or 0),
        calls=calls,
        steps={
            begin: (iteration, begin + base, end + base)
            for begin, (iteration, end) in steps.items()
        },
        step_source=Source.ANNOTATED if profile.steps else Source.LINKED,
    )


def _scanned(path: Path) -> Profile:
    profile = Profile()

    def keep(value: dict[str, Any]) -> dict[str, Any] | None:
        """Store an event; others remain in the document."""
        if "ph" not in value:
            return value
        profile.take(value)
        return None

    about = read_json(path, keep)
    if not isinstance(about, list) and "traceEvents" not in (about or {}):
        raise wrong(path, "it has no traceEvents", "say which format it is with --from")
    profile.about = about if isinstance(about, dict) else {}
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


def _nest(events: Iterable[Function]) -> None:
    """Set the innermost enclosing event of each event on its thread."""

    def begin(event: Function) -> tuple[int, int, bool, int]:
        return event.thread, event.at, event.name == PARAMETERS, -event.end

    around: list[Function] = []
    for event in sorted(events, key=begin):
        while around and (
            around[-1].thread != event.thread or event.end > around[-1].end + SLACK
        ):
            around.pop()
        event.outer = around[-1] if around else None
        around.append(event)


def _annotations(events: Iterable[Function]) -> dict[int, Function]:
    """Return the first of NCCL's annotations inside each call, by the call's ``id``.

    A nameless record_param_comms, of releases that did not write its arguments, is
    given the name in its annotation.
    """
    first: dict[int, Function] = {}
    for event in sorted(events, key=lambda e: e.at):
        for call in event.around():
            first.setdefault(id(call), event)
            if call.name == PARAMETERS and not operation_of(call.collective):
                call.collective = event.name.removeprefix("nccl:")
    return first


def _number(event: Function) -> int:
    """Return the number that torch gave the recorded function, -1 for none."""
    number = whole(event.arguments.get("Record function id"))
    return -1 if number is None else number


def _gloo_events(profile: Profile) -> dict[int, Function]:
    """Return Gloo's event of each c10d operator, by the operator's number.

    It is the event with the first number of Gloo after the operator's.
    """
    numbers = sorted(_number(e) for e in profile.calls if e.name != PARAMETERS)
    events: dict[int, Function] = {}
    for event in sorted(profile.gloo, key=_number):
        at = bisect_left(numbers, _number(event)) - 1
        if at >= 0 and numbers[at] >= 0:
            events.setdefault(numbers[at], event)
    return events


def _times(
    pair: tuple[Function | None, Function | None],
    gloo: Function | None,
    profile: Profile,
    base: int,
) -> Times:
    """Return when a call was issued, and its kernels or Gloo's event ran."""
    issue, *_ = (event.at for event in pair if event)
    ids = [whole(e.arguments.get("External id")) for e in reversed(pair) if e]
    spans = [profile.kernels[i] for i in ids if i in profile.kernels]
    spans += [(gloo.at, gloo.end)] if gloo else []
    if not spans:
        return issue + base, UNKNOWN_TIME, UNKNOWN_TIME
    return issue + base, spans[0][0] + base, spans[0][1] + base


def _collective(
    pair: tuple[Function | None, Function | None],
    gloo: Function | None,
    annotated: Tensors | None,
) -> Collective:
    """Parse a call from its c10d operator and record_param_comms.

    Gloo's event is the only source of the type of listed tensors; ``annotated`` is the
    input according to NCCL's annotation, for records without one.
    """
    event, parameters = pair
    call = Collective()
    if parameters is not None:
        told = {name: parameters.arguments.get(key) for name, key in ATTRIBUTES.items()}
        call = recorded(parameters.collective, told, annotated)
    if event is None:
        return call
    shapes, types, values = (
        event.arguments.get(name)
        for name in ("Input Dims", "Input type", "Concrete Inputs")
    )
    own_types = gloo.arguments.get("Input type") if gloo else None
    listed_type = own_types[0] if isinstance(own_types, list) and own_types else ""

    def tensors(at: int) -> Tensors | None:
        if not (isinstance(shapes, list) and isinstance(types, list)):
            return None  # no shapes recorded
        if not 0 <= at < min(len(shapes), len(types)):
            return None
        if types[at] == "TensorList":  # earlier releases leave out its shapes
            return _tensors(shapes[at], listed_type) if shapes[at] else None
        return _tensors([shapes[at]], types[at])

    own = operator(
        event.name, values if isinstance(values, list) else [], tensors, annotated
    )
    return own.completed(call)


def _tensors(shapes: Any, name: Any) -> Tensors | None:
    lists = [integers(shape) for shape in (shapes if isinstance(shapes, list) else [0])]
    if None in lists:
        return None
    return Tensors([tuple(told[0]) for told in lists if told], *element_type(name))


def _annotated(event: Function | None) -> Tensors | None:
    """Parse the input of a collective from NCCL's annotation."""
    shapes, types = (
        event.arguments.get(name) if event else None
        for name in ("Input Dims", "Input type")
    )
    if not (isinstance(shapes, list) and isinstance(types, list) and shapes and types):
        return None
    return _tensors(shapes, types[0]) if len(set(map(str, types))) == 1 else None


def matches(_: Path, beginning: str) -> bool:
    """Return whether a file begins like a profile."""
    marks = ('"traceEvents"', '"schemaVersion"', '"ph"')
    return beginning[:1] in ("{", "[") and any(mark in beginning for mark in marks)


IMPORTER = Importer(
    name="profiler",
    what="torch.profiler's export_chrome_trace",
    matches=matches,
    read=read,
)
