"""Read a file that may be bad, in every way that a user would, and say how it went.

The ways: ``right`` (read, and all numbers are those that were written), ``refused``
(one sentence of the library), ``altered`` (read, and something differs: right only
where a file was rewritten on purpose), ``raised`` (an exception that is no refusal).
What a process cannot say of itself (killed, out of time, too much memory) is said by
``campaign``.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import MoetrafficError
from moetraffic.trace import PHASES, ROUTING, Trace
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.segments.segment import Segment, read_segment

MOST_MEMORY = 256 << 20  # bytes that reading one file may take
PIECE_BYTES = 8 << 20
WORDS = 1000  # of a refusal, at most


@dataclass(frozen=True)
class Judged:
    """How it went, and what was said."""

    outcome: str
    said: str = ""
    peak: int = 0  # bytes of memory that it took


def judged(read: Callable[..., str], *arguments: Any) -> Judged:
    """What became of reading, in a process whose memory is limited."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _memory("VmRSS")
    most = _memory("VmSize") + 2 * MOST_MEMORY
    free = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (most, free))
    try:
        found = _judged(read, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (free, free))
    peak = max(0, _memory("VmHWM") - before)
    outcome = "memory" if peak > MOST_MEMORY else found.outcome
    return replace(found, outcome=outcome, peak=peak)


def _memory(field: str) -> int:
    """Bytes that /proc/self/status tells of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def _judged(read: Callable[..., str], arguments: tuple[Any, ...]) -> Judged:
    try:
        same = read(*arguments)
    except MoetrafficError as error:
        said = str(error)
        if "MemoryError" in said:
            return Judged("memory", said)
        if "\n" in said or len(said) > WORDS:
            return Judged("raised", f"no sentence: {said[:300]!r}")
        return Judged("refused", said)
    except MemoryError as error:
        return Judged("memory", repr(error))
    except Exception as error:
        return Judged("raised", f"{type(error).__name__}: {str(error)[:300]}")
    return Judged(same)


def trace_file(path: Path, truth: Trace | None) -> str:
    """Open a trace and read all of it; "right" if it says what ``truth`` says."""
    with Trace.open(path) as trace:
        same = truth is not None and _same_tables(trace, truth)
        for name, panel in trace.panels.items():
            row = int(np.prod(panel.shape[1:])) * panel.dtype.itemsize
            deep = max(1, PIECE_BYTES // max(1, row))
            for start in range(0, panel.shape[0], deep):
                stop = min(start + deep, panel.shape[0])
                part = panel.read(start, stop)
                if same and truth is not None:
                    whole = truth.panels[name].read(start, stop)
                    same = part.dtype == whole.dtype and np.array_equal(part, whole)
        if same:
            return "right"  # what it answers is what a sound trace answers
        use(trace)
    return "altered"


def use(trace: Trace) -> None:
    """Ask what users ask; the library may refuse each question by itself."""
    asked: list[Any] = [
        lambda: trace.order(0),
        lambda: trace.members(trace.find(operation=ROUTING)[:5]),
    ]
    if "xarray" in sys.modules:  # importing it takes seconds: the campaign may
        asked.append(trace.to_xarray)
    sites = np.unique(trace.occurrences.site)[:40]
    for site in sites.tolist():
        of = np.flatnonzero(trace.occurrences.site == site)[[0, -1]]
        iteration = int(trace.occurrences.iteration[of[0]])
        asked += [
            lambda of=of: trace.times(of),
            lambda of=of: trace.complete(of),
            lambda of=of: _counts(trace.demand(of)),
            lambda of=of: _counts(trace.dropped(of)),
            lambda of=of: _counts(trace.wire(of)),
            lambda of=of: _counts(trace.volume(of)),
        ]
        layer, phase = trace.sites[site].layer, trace.sites[site].phase
        for what in ("wire", "demand") if phase in PHASES else ():
            asked.append(
                lambda i=iteration, la=layer, ph=phase, w=what: _counts(
                    trace.matrix(i, la, ph, of=w).values
                )
            )
    for question in asked:
        try:
            question()
        except MoetrafficError:
            continue


def _counts(values: Any) -> None:
    if values.size and values.min() < 0:
        raise ArithmeticError("a count came out below zero")


def _same_tables(a: Trace, b: Trace) -> bool:
    return (
        repr(a.meta) == repr(b.meta)  # NaN is NaN here
        and a.groups == b.groups
        and a.sites == b.sites
        and [s.sources for s in a.sites] == [s.sources for s in b.sites]
        and a.programs == b.programs
        and a.steps.kind == b.steps.kind
        and np.array_equal(a.placements, b.placements)
        and np.array_equal(a.clocks, b.clocks)
        and a.panels.keys() == b.panels.keys()
        and all(a.panels[n].shape == b.panels[n].shape for n in a.panels)
        and all(
            np.array_equal(getattr(a.occurrences, n), getattr(b.occurrences, n))
            for n in ("iteration", "site", "sequence")
        )
        and all(
            np.array_equal(
                getattr(a.steps, n), getattr(b.steps, n), equal_nan=n == "loss"
            )
            for n in ("iteration", "loss", "tokens", "start", "end")
        )
        and np.array_equal(a.steps.source, b.steps.source)
        and np.array_equal(a.steps.kind_source, b.steps.kind_source)
    )


def segment_file(path: Path, truth: Segment | None) -> str:
    """Read a segment; "right" if it says what ``truth`` says."""
    there = read_segment(path)
    return "right" if truth is not None and same_segment(there, truth) else "altered"


def same_segment(a: Segment, b: Segment) -> bool:
    """Whether two segments say the same."""
    for name, value in vars(b).items():
        other = getattr(a, name)
        if name in ("splits", "demand"):
            same = value.keys() == other.keys() and all(
                np.array_equal(value[k], other[k]) for k in value
            )
        elif isinstance(value, np.ndarray):
            same = value.tobytes() == other.tobytes()
        else:
            same = repr(value) == repr(other)
        if not same:
            return False
    return True


def segment_folder(folder: Path, truths: dict[str, Trace]) -> str:
    """Merge a folder of segments, one of which may be bad.

    "right" if nothing was missing and the trace is that of all segments; "left out" if
    a sentence says that a segment is, and the trace is that of the others.
    """
    merged = merge(folder)
    for panel in merged.trace.panels.values():
        panel.read(0, panel.shape[0])
    told = [m for m in merged.missing if "a segment is left out" in m]
    truth = truths["without" if told else "whole"]
    tables = ("groups", "sites")
    same = all(getattr(merged.trace, t) == getattr(truth, t) for t in tables)
    same = same and all(
        np.array_equal(
            panel.read(0, panel.shape[0]),
            truth.panels[name].read(0, panel.shape[0]),
        )
        for name, panel in merged.trace.panels.items()
        if merged.trace.panels.keys() == truth.panels.keys()
        and panel.shape == truth.panels[name].shape
    )
    same = same and len(merged.trace.occurrences) == len(truth.occurrences)
    if told and same:
        return "left out"
    return "right" if same else "altered"
