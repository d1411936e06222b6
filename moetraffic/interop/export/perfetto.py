"""Export a trace to Chrome trace events, for Perfetto and chrome://tracing.

A rank is a process; its steps and its process groups are threads. A call is a complete
event (``ph`` X) from issue to end, with its bytes as ``args``; counters (``ph`` C) show
the number of active calls, the send rate, and the loss. ``ts`` and ``dur`` are
microseconds with three decimal places, so that nanoseconds are exact. Source: "Trace
Event Format" (Chromium), perfetto.dev "Visualizing external trace formats". Events of
one thread must nest: calls that overlap get separate threads.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common

from .call_selection import CallSelection, by_width, counted, issue_times, select_calls
from .exporter import Exporter, ExportOptions
from .rank_programs import MESSAGE, ProgramCall, programs

STEPS = 0  # thread of a rank's steps
UNTIMED = "calls of a rank whose times are unknown are left out"
COLORS = {  # chrome://tracing's names of reserved colors, by phase
    "dispatch": "thread_state_running",
    "combine": "thread_state_runnable",
    "combine_grad": "thread_state_iowait",
    "dispatch_grad": "rail_animation",
}


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write all calls with known times, on rank 0's clock, shifted to begin at 0.

    A file name that ends in .gz is compressed with gzip, which Perfetto reads too.
    """
    chosen = select_calls(trace, options)
    on = issue_times(trace, chosen.occurrences, last=True)
    about = {
        "source": Path(trace.name).name,
        "model": trace.meta.model,
        "origin": trace.meta.origin,
        "created": trace.meta.created,
    }
    lost: Counter[str] = Counter()
    with _opened(path) as file:
        file.write('{"displayTimeUnit": "ns", "otherData": ')
        file.write(json.dumps(about) + ', "traceEvents": [\n')
        between = ""
        for event in _events(trace, options, chosen, on, lost):
            file.write(between + json.dumps(event))
            between = ",\n"
        file.write("\n]}\n")
    return [
        *chosen.lost,
        "matrices are left out: a call has its rank's own bytes",
        *counted(lost),
    ]


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    if path.suffix == ".gz":
        # no name or time in the header: equal traces give equal files
        with (
            path.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            io.TextIOWrapper(packed, "utf-8") as text,
        ):
            yield text
    else:
        with path.open("w", encoding="utf-8") as plain:
            yield plain


def _events(
    trace: Trace,
    options: ExportOptions,
    chosen: CallSelection,
    on: Int64,
    lost: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Yield events; the last member issued call n at ``on[n]``, ns, rank 0's clock."""
    steps, wanted = trace.steps, options.iterations
    keep = np.array(
        [
            kind == "train" and (wanted is None or iteration in wanted)
            for iteration, kind in zip(
                steps.iteration.tolist(), steps.kind, strict=True
            )
        ],
        bool,
    )
    ranks = np.broadcast_to(np.arange(trace.meta.world), steps.start.shape)
    start = to_common(trace.clocks, ranks, steps.start)[keep]
    end = to_common(trace.clocks, ranks, steps.end)[keep]
    issued = [
        trace.times(chosen.occurrences[at])[0].ravel()
        for at in by_width(trace, chosen.occurrences)
    ]
    known = np.concatenate(issued)
    if not (known != UNKNOWN_TIME).any():
        raise TraceError(
            "a timeline needs times, but no call that fits has any: export a captured "
            "or replayed trace"
        )
    known = np.concatenate([known, start.ravel()])
    base = int(known[known != UNKNOWN_TIME].min())
    yield from _heads(trace)
    for at, rank in np.ndindex(start.shape):
        if UNKNOWN_TIME in (start[at, rank], end[at, rank]):
            continue
        begin, finish = int(start[at, rank]), int(end[at, rank])
        name = f"iteration {steps.iteration[keep][at]}"
        yield _complete(name, "step", rank, STEPS, (begin - base, finish - begin))
        loss = float(steps.loss[keep][at, rank])
        if np.isfinite(loss):
            yield _counter("loss", rank, finish - base, {"loss": loss})
    lanes: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
    for rank, calls in programs(trace, chosen):
        timed = [c for c in calls if UNKNOWN_TIME not in (c.issue_ns, c.end_ns)]
        lost[UNTIMED] += len(calls) - len(timed)
        for call in timed:
            lane, new = _lane(lanes[rank], call)
            if new:
                name = f"calls, {call.group.kind}"
                yield _named("thread_name", rank, lane, {"name": name})
            yield _slice(call, rank, lane, base, int(on[call.number]))
        yield from _counters(timed, rank, base, on)


def _us(ns: int) -> float:
    return round(ns / 1000, 3)


# ---- events ---------------------------------------------------------------------


def _lane(busy: dict[int, tuple[str, int]], call: ProgramCall) -> tuple[int, bool]:
    """Return a thread of the call's group kind that is free, and whether it is new.

    ``busy`` has the kind and the end of the last call of each thread of the rank.
    """
    kind = call.group.kind
    free = (n for n, (of, end) in busy.items() if of == kind and end <= call.issue_ns)
    lane = next(free, STEPS + 1 + len(busy))
    new = lane not in busy
    busy[lane] = kind, call.end_ns
    return lane, new


def _heads(trace: Trace) -> Iterator[dict[str, Any]]:
    for rank in range(trace.meta.world):
        node = trace.meta.nodes[rank] if rank < len(trace.meta.nodes) else ""
        name = f"rank {rank}" + (f" on {node}" if node else "")
        yield _named("process_name", rank, STEPS, {"name": name})
        yield _named("process_sort_index", rank, STEPS, {"sort_index": rank})
        yield _named("thread_name", rank, STEPS, {"name": "steps"})


def _named(what: str, rank: int, lane: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": args}


def _complete(
    name: str, category: str, rank: int, lane: int, span: tuple[int, int]
) -> dict[str, Any]:
    """Return a complete event with its start and duration in ns."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": rank,
        "tid": lane,
        "ts": _us(span[0]),
        "dur": _us(max(0, span[1])),
    }


def _slice(
    call: ProgramCall, rank: int, lane: int, base: int, on: int
) -> dict[str, Any]:
    site = call.site
    what = site.phase or site.label or site.operation
    sent, received = _moved(call)
    name = what if site.layer < 0 else f"{what} {site.layer}"
    category = f"{site.operation},{call.group.kind}"
    span = (call.issue_ns - base, call.duration_ns)
    event = _complete(name, category, rank, lane, span)
    event["args"] = {
        "iteration": call.iteration,
        "layer": site.layer,
        "micro-batch": site.slot,
        "direction": site.direction or "unknown",
        "source": site.source.name.lower(),
        "group": list(call.group.ranks),
        "bytes to others": sent,
        "bytes from others": received,
    }
    if on != UNKNOWN_TIME:
        event["args"]["waiting for others, us"] = _us(max(0, on - call.issue_ns))
    if site.phase in COLORS:
        event["cname"] = COLORS[site.phase]
    return event


def _moved(call: ProgramCall) -> tuple[int, int]:
    """Return the bytes that a rank sends to and receives from other ranks in a call.

    For other collectives: the rank's own buffer, in both directions.
    """
    me = call.member
    if call.site.operation == ALL_TO_ALL:
        own = int(call.bytes[me, me])
        return int(call.bytes[me].sum()) - own, int(call.bytes[:, me].sum()) - own
    size = int(call.bytes[me])
    if call.site.operation == MESSAGE and min(call.site.peers) >= 0:
        size = int(call.bytes[call.site.peers[0]])
        return (size, 0) if me == call.site.peers[0] else (0, size)
    return size, size


def _counters(
    calls: list[ProgramCall], rank: int, base: int, on: Int64
) -> Iterator[dict[str, Any]]:
    """Yield counter events of active calls and send rate."""
    changes: list[tuple[int, int, float]] = []
    for call in calls:
        begin = int(on[call.number])
        begin = call.issue_ns if begin == UNKNOWN_TIME else max(begin, call.issue_ns)
        if begin >= call.end_ns:
            continue
        rate = _moved(call)[0] / (call.end_ns - begin)  # bytes/ns: GB/s
        changes += [(begin, 1, rate), (call.end_ns, -1, -rate)]
    count, rates = 0, 0.0
    changes.sort()
    for at, (when, step, rate) in enumerate(changes):
        count, rates = count + step, rates + rate
        if at + 1 < len(changes) and changes[at + 1][0] == when:
            continue  # a counter has one value at a time
        rates = rates if count else 0.0
        yield _counter("on the wire", rank, when - base, {"calls": count})
        yield _counter("sending", rank, when - base, {"GB/s": round(rates, 6)})


def _counter(
    name: str, rank: int, when_ns: int, values: dict[str, float]
) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": rank, "ts": _us(when_ns), "args": values}


EXPORTER = Exporter(
    name="perfetto",
    what="a timeline: ranks as tracks, calls with their bytes, counters of on and off",
    readers="ui.perfetto.dev, chrome://tracing, Perfetto's trace_processor",
    limits="needs times; .json.gz is packed",
    suffix=".json.gz",
    write=write,
)
