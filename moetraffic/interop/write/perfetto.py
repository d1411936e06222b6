"""Export a trace to Chrome trace events, for Perfetto and chrome://tracing.

A rank is a process; its steps and its process groups are threads.  A call is a complete
event (``ph`` X) from issue to end, with its bytes as ``args``; counters (``ph`` C) show
the number of active calls, the send rate, and the loss.  ``ts`` and ``dur`` are
microseconds with three decimal places, so that nanoseconds are exact.  Source: "Trace
Event Format" (Chromium), perfetto.dev "Visualizing external trace formats".  Events of
one thread must nest: calls that overlap get separate threads.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common

from .exporter import Exporter, ExportOptions
from .frames import by_width, calls, select_calls

if TYPE_CHECKING:
    import pandas

STEPS = 0  # thread of a rank's steps
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
    chosen, lost = select_calls(trace, options)
    timeline = Timeline(trace, options, chosen)
    about = {
        "source": Path(trace.name).name,
        "model": trace.meta.model,
        "origin": trace.meta.origin,
        "created": trace.meta.created,
    }
    with ExitStack() as stack:
        raw: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # no name or time in the header: equal traces give equal files
            raw = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        file = stack.enter_context(io.TextIOWrapper(raw, "utf-8"))
        file.write('{"displayTimeUnit": "ns", "otherData": ')
        file.write(json.dumps(about) + ', "traceEvents": [\n')
        for number, event in enumerate(timeline.events()):
            file.write(",\n" * (number > 0) + json.dumps(event))
        file.write("\n]}\n")
    lost.append("matrices are left out: a call has its rank's own bytes")
    if timeline.untimed:
        lost.append(
            f"{timeline.untimed} calls of a rank whose times are unknown are left out"
        )
    return lost


class Timeline:
    """Events of the selected calls, in ns after the first time."""

    def __init__(self, trace: Trace, options: ExportOptions, chosen: Int64) -> None:
        self.trace, self.options, self.chosen = trace, options, chosen
        self.untimed = 0
        steps, wanted = trace.steps, options.iterations
        kept = np.array(steps.kind) == "train"
        if wanted is not None:
            kept &= np.isin(steps.iteration, wanted)
        ranks = np.broadcast_to(np.arange(trace.meta.world), steps.start.shape)
        self.start = to_common(trace.clocks, ranks, steps.start)[kept]
        self.end = to_common(trace.clocks, ranks, steps.end)[kept]
        self.iteration, self.loss = steps.iteration[kept], steps.loss[kept]
        issues = [trace.times(chosen[rows])[0] for rows in by_width(trace, chosen)]
        known = np.concatenate([issue.ravel() for issue in issues])
        if not (known != UNKNOWN_TIME).any():
            raise TraceError(
                "a timeline needs times, but no call that fits has any: export a "
                "captured or replayed trace"
            )
        known = np.concatenate([known, self.start.ravel()])
        self.base = int(known[known != UNKNOWN_TIME].min())

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield all events: names, steps and losses, then calls in blocks."""
        nodes = self.trace.meta.nodes
        for rank in range(self.trace.meta.world):
            node = f" on {nodes[rank]}" if rank < len(nodes) and nodes[rank] else ""
            yield _named("process_name", rank, STEPS, {"name": f"rank {rank}{node}"})
            yield _named("process_sort_index", rank, STEPS, {"sort_index": rank})
            yield _named("thread_name", rank, STEPS, {"name": "steps"})
        for step, rank in np.ndindex(self.start.shape):
            begin, end = int(self.start[step, rank]), int(self.end[step, rank])
            if UNKNOWN_TIME in (begin, end):
                continue
            name = f"iteration {self.iteration[step]}"
            yield self.slice(name, "step", rank, STEPS, begin, end)
            if np.isfinite(loss := float(self.loss[step, rank])):
                yield self.counter("loss", rank, end, {"loss": loss})
        # by rank: kind of group and end of the last call of each thread
        threads: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for table in calls(self.trace, self.chosen):
            timed = (table["issue"] != UNKNOWN_TIME) & (table["end"] != UNKNOWN_TIME)
            self.untimed += int((~timed).sum())
            for rank, rows in table[timed].groupby("rank"):
                for call in rows.itertuples():
                    yield from self.call(call, threads[rank])
                yield from self.counters(rows, rank)

    def call(self, call: Any, threads: list[tuple[str, int]]) -> Iterator[Any]:
        """Yield the slice of a call, after the name of its thread if it is new."""
        site = self.trace.sites[call.site]
        group = self.trace.groups[site.group]
        free = (
            n
            for n, (kind, end) in enumerate(threads)
            if kind == group.kind and end <= call.issue
        )
        thread = next(free, len(threads))
        if thread == len(threads):
            threads.append(("", 0))
            name = {"name": f"calls, {group.kind}"}
            yield _named("thread_name", call.rank, STEPS + 1 + thread, name)
        threads[thread] = group.kind, call.end
        what = site.phase or site.label or site.operation
        event = self.slice(
            what if site.layer < 0 else f"{what} {site.layer}",
            f"{site.operation},{group.kind}",
            call.rank,
            STEPS + 1 + thread,
            call.issue,
            call.end,
        )
        event["args"] = {
            "iteration": call.iteration,
            "layer": site.layer,
            "micro-batch": site.slot,
            "direction": site.direction or "unknown",
            "source": site.source.name.lower(),
            "group": list(group.ranks),
            "bytes to others": call.sent,
            "bytes from others": call.received,
        }
        if call.last != UNKNOWN_TIME:
            waiting = max(0, call.last - call.issue)
            event["args"]["waiting for others, us"] = _us(waiting)
        if site.phase in COLORS:
            event["cname"] = COLORS[site.phase]
        yield event

    def counters(self, rows: pandas.DataFrame, rank: int) -> Iterator[dict[str, Any]]:
        """Yield counter events of active calls and send rate."""
        begin = np.maximum(rows["issue"], rows["last"])  # UNKNOWN_TIME is less
        rows = rows.assign(begin=begin)[begin < rows["end"]]
        changes: list[tuple[int, int, float]] = []
        columns = (rows[n].tolist() for n in ("begin", "end", "sent"))
        for start, end, sent in zip(*columns, strict=True):
            rate = sent / (end - start)  # bytes/ns: GB/s
            changes += [(start, 1, rate), (end, -1, -rate)]
        count, rates = 0, 0.0
        changes.sort()
        for number, (when, step, rate) in enumerate(changes):
            count, rates = count + step, rates + rate
            if number + 1 < len(changes) and changes[number + 1][0] == when:
                continue  # a counter has one value at a time
            rates = rates if count else 0.0
            yield self.counter("on the wire", rank, when, {"calls": count})
            yield self.counter("sending", rank, when, {"GB/s": round(rates, 6)})

    def slice(
        self, name: str, category: str, rank: int, thread: int, begin: int, end: int
    ) -> dict[str, Any]:
        """Return a complete event."""
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": rank,
            "tid": thread,
            "ts": _us(begin - self.base),
            "dur": _us(max(0, end - begin)),
        }

    def counter(
        self, name: str, rank: int, when: int, values: dict[str, float]
    ) -> dict[str, Any]:
        """Return a counter event."""
        time = _us(when - self.base)
        return {"ph": "C", "name": name, "pid": rank, "ts": time, "args": values}


def _us(ns: int) -> float:
    return round(ns / 1000, 3)


def _named(what: str, rank: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


EXPORTER = Exporter(
    name="perfetto",
    what="a timeline: ranks as tracks, calls with their bytes, counters of on and off",
    readers="ui.perfetto.dev, chrome://tracing, Perfetto's trace_processor",
    limits="needs times; .json.gz is packed",
    suffix=".json.gz",
    write=write,
)
