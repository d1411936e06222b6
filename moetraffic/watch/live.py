"""Watch a run while it is recorded: a generator of snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError, CaptureError, TraceError
from moetraffic.files import SEGMENTS
from moetraffic.trace import Trace
from moetraffic.trace.inference.inference import TRAINED
from moetraffic.trace.iterations import layer_numbers
from moetraffic.trace.merge.merging import merge_segments
from moetraffic.trace.model import Source
from moetraffic.trace.segments.segment import Segment
from moetraffic.trace.segments.series import members
from moetraffic.trace.segments.store import RANKS, segments_folder
from moetraffic.units import rank_span

from .segment_reader import SegmentReader
from .snapshot import Snapshot, layers_of
from .step_rows import StepRows, joined, step_rows

LAST = 32
"""Default number of steps of a snapshot."""

INTERVAL_S = 2.0
"""Default time between two snapshots, in s."""


def watch_run(
    path: str | Path,
    *,
    last: int = LAST,
    layers: Sequence[int] | str | int | None = None,
    interval_s: float = INTERVAL_S,
    follow: bool = True,
) -> Iterator[Snapshot]:
    """Watch a run while it is recorded, from its committed segments.

    Each segment is read once; the ranks are not contacted, and nothing is locked.
    Steps, layers and phases that the program did not annotate are inferred as in a
    merge, from the new steps alone.

    Parameters
    ----------
    path
        Trace of the run, ``run.h5``, which may not exist yet, or its folder of
        segments, ``run.h5.segments``.
    last
        Number of the newest steps in a snapshot.
    layers
        MoE layers to show; all if None.
    interval_s
        Time between two snapshots, in s.
    follow
        False: yield one snapshot, of what is recorded now.

    Yields
    ------
    Snapshot
        One per interval, or more, so that every new step is in one of them.  The last
        one is when all ranks have closed their records or the trace has been written.

    Raises
    ------
    CaptureError
        If the folder of the trace does not exist or, without ``follow``, the run does
        not.
    AnalysisError
        If ``last`` is less than 1, ``interval_s`` is not positive, or the run has none
        of the layers.
    TraceError
        If the path is a file of another kind.
    """
    if last < 1 or not 0 < interval_s < float("inf"):
        raise AnalysisError(
            f"a snapshot is of at least one step, every few seconds, but of {last} "
            f"steps every {interval_s} s: give positive numbers"
        )
    watched = _Watched(Path(path), last, layer_numbers(layers))
    if not follow and watched.state() == "waiting":
        raise CaptureError(
            f"there is neither {watched.path} nor {watched.reader.folder}: start the "
            "capture, or wait for it by following (without --once)"
        )
    while True:
        for snapshot in watched.snapshots():
            if follow:
                yield snapshot
        if not follow:
            yield snapshot
        if snapshot.ended or not follow:
            return
        time.sleep(interval_s)


class _Watched:
    """A run that is being watched, with the rows of its last steps."""

    def __init__(self, path: Path, last: int, layers: Sequence[int] | None) -> None:
        path = path.absolute()
        if path.name.endswith(SEGMENTS):
            path = path.with_name(path.name.removesuffix(SEGMENTS))
        if not path.parent.is_dir():
            raise CaptureError(
                f"a run is watched in the folder of its trace, but {path.parent} does "
                "not exist: name the output of the capture"
            )
        self.path, self._last, self._layers = path, last, layers
        self.reader = SegmentReader(segments_folder(path), last)
        self._rows: StepRows | None = None
        self._restarts = 0
        self._steps = self._trained = 0
        self._hidden = 0  # evaluations inferred inside steps that an optimizer marked
        self._fresh = 0  # steps that no snapshot has had
        self._inferred = self._failed = ""

    def state(self) -> str:
        """Return the state of the run; see :class:`Snapshot`."""
        segments = any(self.reader.folder.glob(RANKS))
        try:
            merged_s = self.path.stat().st_mtime
        except OSError:
            return "recording" if segments else "waiting"
        # segments of an incomplete run are kept after the merge
        newest = max(self.reader.written_s, self._newest() if segments else 0.0)
        return "recording" if segments and merged_s < newest else "merged"

    def _newest(self) -> float:
        """Return when the folder of a rank was last changed, s since the epoch."""
        times = []
        for own in self.reader.folder.glob(RANKS):
            try:
                times.append(own.stat().st_mtime)
            except OSError:
                continue  # the merge has removed it
        return max(times, default=0.0)

    def snapshots(self) -> Iterator[Snapshot]:
        """Read what is new, and summarize the last steps; each new one once or more."""
        state = self.state()
        if state == "recording":
            yield from self._read()
            closed = self.reader.closed()
            ranks = self.reader.ranks
            if ranks and len(closed) == len(ranks):
                yield from self._read()  # what came before the last rank closed
                state = "closed"
        self._fresh = 0
        if state == "merged":
            yield from self._of_trace()
        else:
            yield self._of_segments(state)

    def _of_segments(self, state: str) -> Snapshot:
        """Summarize the last steps that were read from segments."""
        ranks, closed = self.reader.ranks, self.reader.closed()
        rows = self._rows
        notes = list(self._notes(rows, ranks))
        age = time.time() - self.reader.written_s
        return self._snapshot(
            rows,
            state=state,
            world=self.reader.world,
            ranks=tuple(ranks),
            closed=tuple(sorted(closed)),
            ahead=self.reader.ahead,
            idle_s=max(0.0, age) if self.reader.read else float("nan"),
            notes=tuple(notes),
        )

    def _snapshot(self, rows: StepRows | None, **about: Any) -> Snapshot:
        """Summarize rows; ``about`` has the other fields of the snapshot."""
        nothing = np.zeros(0)
        found = layers_of(rows) if rows is not None else ()
        if self._layers is not None:
            there = {each.layer for each in found}
            if found and (unknown := sorted(set(self._layers) - there)):
                raise AnalysisError(
                    f"snapshots are of the layers of a run, not of {unknown}: this run "
                    f"has the layers {sorted(there - {-1})}"
                )
            found = tuple(each for each in found if each.layer in self._layers)
        return Snapshot(
            path=self.path,
            iteration=np.zeros(0, np.int64) if rows is None else rows.iteration,
            duration_s=nothing if rows is None else rows.duration_s,
            loss=nothing if rows is None else rows.loss,
            bytes=_summed(rows, "bytes"),
            local_bytes=_summed(rows, "local_bytes"),
            time_share=nothing if rows is None else rows.busy,
            layers=found,
            **about,
        )

    # ---- segments ------------------------------------------------------------------

    def _read(self) -> Iterator[Snapshot]:
        """Read new steps; yield a snapshot before steps that it lacks leave it."""
        for segments in self.reader.poll():
            if self.reader.restarts != self._restarts:
                self._restarts, self._rows = self.reader.restarts, None
                self._steps = self._trained = self._hidden = self._fresh = 0
            try:
                trace = merge_segments(segments, self.reader.folder.name).trace
            except (CaptureError, TraceError) as error:
                # segments come from files: contradictions must not end the view
                self._failed = str(error)
                continue
            meta = trace.meta
            self._inferred = "; ".join(
                filter(None, (meta.schedule, meta.contradiction))
            )
            shift = self._shift(segments, trace)
            kept = self._training(trace)
            if len(kept):
                if self._fresh and self._fresh + len(kept) > self._last:
                    yield self._of_segments("recording")
                    self._fresh = 0
                self._fresh += len(kept)
                parts = [self._rows] if self._rows is not None else []
                new = step_rows(trace, kept)
                new = replace(new, iteration=new.iteration + shift)
                self._rows = joined([*parts, new]).last(self._last)

    def _shift(self, segments: Sequence[Segment], trace: Trace) -> int:
        """Return what turns a part's step numbers into those of the whole run.

        A part in which evaluations were inferred is numbered from 0.
        """
        marked = np.unique(np.concatenate([s.steps["iteration"] for s in segments]))
        shift = int(marked[0] + self._hidden - trace.steps.iteration[0])
        self._hidden += len(trace.steps.iteration) - len(marked)
        return shift

    def _training(self, trace: Trace) -> Int64:
        """List the training iterations of a part of the run.

        In a run whose steps have a backward, steps without one are evaluations; a part
        of it may contain nothing else.
        """
        train = trace.iterations
        backward = np.array(
            [s.direction not in ("forward", "") for s in trace.sites], bool
        )
        with_backward = np.unique(
            trace.occurrences.iteration[backward[trace.occurrences.site]]
        )
        trained = np.isin(train, with_backward)
        self._steps += len(trace.steps.iteration)
        self._trained += int(trained.sum())
        if self._trained and self._trained >= TRAINED * self._steps:
            return np.asarray(train[trained], np.int64)
        return train

    def _notes(self, rows: StepRows | None, ranks: Sequence[int]) -> Iterator[str]:
        reader = self.reader
        if reader.read and not reader.marked:
            yield (
                "steps are unknown: the program marks none so far (recorder.step(), or "
                "an optimizer)"
            )
        if reader.world > len(ranks) and not reader.virtual:
            yield (
                f"{len(ranks)} of {reader.world} ranks are seen: loads and bytes are "
                "those of these ranks, as the others have no segments in this folder"
            )
        for rank, step in sorted(reader.stopped.items()):
            yield f"rank {rank} has no record after step {step}: later steps lack it"
        if reader.lacking:
            yield f"{reader.lacking} steps are left out: a rank's record is incomplete"
        if reader.unreadable:
            yield (
                f"{len(reader.unreadable)} segments cannot be read: "
                f"{reader.unreadable[-1]}"
            )
        if self._failed:
            yield f"steps are left out: {self._failed}"
        if rows is not None and rows.source == Source.INFERRED:
            yield "steps: inferred from the period of the calls"
        if self._inferred:
            yield f"layers and phases: {self._inferred}"
        yield from self._others()
        yield from _load_notes(rows)

    def _others(self) -> Iterator[str]:
        """Name later captures of the same command."""
        others = members(self.path)[1:]
        if others:
            yield (
                f"the command has {len(others) + 1} captures, this is the first: the "
                f"last one is {others[-1].name}"
            )

    # ---- trace ---------------------------------------------------------------------

    def _of_trace(self) -> Iterator[Snapshot]:
        """Summarize the new steps of a written trace, or its last ones."""
        with Trace.open(self.path) as trace:
            meta, when = trace.meta, trace.iterations
            missing = [part for part in meta.missing.split("; ") if part]
            notes = [f"missing: {part}" for part in missing]
            if meta.schedule:
                notes.append(f"layers and phases: {meta.schedule}")
            if meta.contradiction:
                notes.append(f"rows sent: {meta.contradiction}")
            every = tuple(range(meta.world))
            seen = len(when)
            if self._rows is not None:
                newest = self._rows.iteration[-1:]
                seen = int(np.searchsorted(when, newest, side="right")[0])
            for stop in (*range(seen + self._last, len(when), self._last), len(when)):
                kept = when[max(0, stop - self._last) : stop]
                rows = step_rows(trace, kept) if len(kept) else None
                yield self._snapshot(
                    rows,
                    state="merged" if stop == len(when) else "recording",
                    world=meta.world,
                    ranks=every,
                    closed=every,
                    ahead=0,
                    idle_s=float("nan"),
                    notes=(*notes, *self._others(), *_load_notes(rows)),
                )


def _summed(rows: StepRows | None, name: str) -> Float64:
    """Sum a column over all layers, ``[n]``."""
    if rows is None:
        return np.zeros(0)
    columns = [getattr(each, name) for each in rows.layers.values()]
    return np.asarray(sum(columns, np.zeros(len(rows.iteration))), np.float64)


def _load_notes(rows: StepRows | None) -> Iterator[str]:
    """Explain which loads, noise floors and times are unavailable."""
    if rows is None:
        return
    named = {number: each for number, each in rows.layers.items() if number >= 0}
    experts = [n for n, each in named.items() if each.of == "expert"]
    ranks = [n for n, each in named.items() if each.of == "rank"]
    if ranks:
        layers = "layer" if len(ranks) == 1 else "layers"
        yield (
            f"{layers} {rank_span(ranks)}: the router was not observed, so the load is "
            "the bytes that each rank receives in dispatch, without a noise floor"
        )
    if experts and not rows.k:
        yield "noise floors are unavailable: experts per token (k) are unknown"
    if rows.layers and np.isnan(rows.busy).all():
        yield (
            "share of step time is unavailable: times of all-to-alls or of steps are "
            "unknown"
        )
