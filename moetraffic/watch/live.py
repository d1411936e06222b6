"""Watch a run while it is recorded: a generator of snapshots."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError, CaptureError, TraceError
from moetraffic.files import LOGS
from moetraffic.trace import Trace
from moetraffic.trace.inference.evaluations import TRAINED
from moetraffic.trace.iterations import layer_numbers
from moetraffic.trace.merge.log_folder import log_folder, members
from moetraffic.trace.merge.merging import merge_records
from moetraffic.trace.model import Meta

from .log_reader import LogReader
from .snapshot import Snapshot, layer_snapshots, step_columns
from .step_rows import NAN, StepRow, step_rows

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
    """Watch a run while it is recorded, from the logs of its ranks.

    The ranks are not contacted, and nothing is locked.  Steps, layers and phases that
    the program did not annotate are inferred as in a merge, from the new steps alone.

    Parameters
    ----------
    path
        Trace of the run, ``run.h5``, which may not exist yet, or its folder of logs,
        ``run.h5.logs``.
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
        If the folder of the trace does not exist or, without ``follow``, the run.
    AnalysisError
        If ``last`` or ``interval_s`` is not positive, or a layer is not in the run.
    TraceError
        If the path is a file of another kind.
    """
    if last < 1 or not 0 < interval_s < float("inf"):
        raise AnalysisError(
            f"a snapshot is of at least one step, every few seconds, but of {last} "
            f"steps every {interval_s} s: give positive numbers"
        )
    run = _Run(Path(path), last, layer_numbers(layers))
    if not follow and run.state() == "waiting":
        raise CaptureError(
            f"there is neither {run.path} nor {run.reader.folder}: start the capture, "
            "or wait for it by following (without --once)"
        )
    while True:
        snapshots = run.snapshots()
        yield from snapshots if follow else snapshots[-1:]
        if snapshots[-1].ended or not follow:
            return
        time.sleep(interval_s)


class _Run:
    """A run that is being watched, with the rows of its last steps."""

    def __init__(self, path: Path, last: int, layers: Sequence[int] | None) -> None:
        path = path.absolute().with_name(path.absolute().name.removesuffix(LOGS))
        if not path.parent.is_dir():
            raise CaptureError(
                f"a run is watched in the folder of its trace, but {path.parent} does "
                "not exist: name the output of the capture"
            )
        self.path, self._last, self._layers = path, last, layers
        self._begin()

    def _begin(self) -> None:
        self.reader = LogReader(log_folder(self.path), self._last)
        self._rows: deque[StepRow] = deque(maxlen=self._last)
        self._meta = Meta()  # of what was read last
        self._steps = self._trained = 0  # that were read, and of these with a backward
        self._failed = ""

    def state(self) -> str:
        """Return the state of the run; see :class:`Snapshot`."""
        written_s = [_modified_s(log) for log in self.reader.folder.glob("rank-*")]
        # logs of an incomplete run are kept after the merge
        if max(written_s, default=-1.0) > _modified_s(self.path):
            return "recording"
        return "merged" if self.path.exists() else "waiting"

    def snapshots(self) -> list[Snapshot]:
        """Read what is new, and summarize the last steps; each new one once or more."""
        state = self.state()
        snapshots = []
        fresh = False
        for rows in self._new_rows(state):
            if fresh:
                snapshots.append(self._snapshot("recording"))
            fresh = True
            self._rows.extend(rows)
        if state == "recording" and self.reader.closed:
            state = "closed"
        return [*snapshots, self._snapshot(state)]

    def _new_rows(self, state: str) -> Iterator[list[StepRow]]:
        """Read the new steps, at most ``last`` at a time.

        Of a written trace, the last ones that are known are read again: the merge may
        have inferred more than their part of the run shows.
        """
        if state == "merged":
            with Trace.open(self.path) as trace:
                self._meta, when = trace.meta, trace.iterations
                newest = self._rows[-1].iteration if self._rows else when.max(initial=0)
                known = int(np.searchsorted(when, newest, side="right"))
                self._rows.clear()
                for row in range(max(0, known - self._last), len(when), self._last):
                    yield step_rows(trace, when[row : row + self._last])
        elif state == "recording":
            for records in self.reader.poll():
                try:
                    # iterations keep the numbers that the program gives them
                    trace = merge_records(
                        records, self.reader.folder.name, split=False
                    ).trace
                except (CaptureError, TraceError) as error:
                    # logs are files: contradictions in them must not end the view
                    self._failed = str(error)
                    continue
                self._meta = trace.meta
                yield step_rows(trace, self._training(trace))
            if self.reader.replaced:
                self._begin()
                yield from self._new_rows(state)

    def _training(self, trace: Trace) -> Int64:
        """List the training iterations of a part of the run.

        In a run whose steps have a backward, steps without one are evaluations; a part
        of it may contain nothing else.
        """
        backward = [s.direction not in ("forward", "") for s in trace.sites]
        of_backward = np.array(backward, bool)[trace.occurrences.site]
        trained = np.isin(trace.iterations, trace.occurrences.iteration[of_backward])
        self._steps += len(trace.steps.iteration)
        self._trained += int(trained.sum())
        if self._trained < max(1, TRAINED * self._steps):
            return trace.iterations
        return np.asarray(trace.iterations[trained], np.int64)

    def _snapshot(self, state: str) -> Snapshot:
        rows = list(self._rows)
        layers = layer_snapshots(rows, self._meta.k)
        if self._layers is not None:
            known = {layer.layer for layer in layers}
            if known and (unknown := sorted(set(self._layers) - known)):
                raise AnalysisError(
                    f"snapshots are of the layers of a run, not of {unknown}: this run "
                    f"has the layers {sorted(known - {-1})}"
                )
            layers = tuple(layer for layer in layers if layer.layer in self._layers)
        progress = self.reader.progress()
        if state == "merged":
            every = tuple(range(self._meta.world))
            progress |= {"world": len(every), "ranks": every, "closed": every}
            progress |= {"ahead": 0, "idle_s": NAN, "log_bytes": NAN}
        return Snapshot(
            path=self.path,
            state=state,
            layers=layers,
            notes=tuple(self._notes(state, rows)),
            **step_columns(rows),
            **progress,
        )

    def _notes(self, state: str, rows: Sequence[StepRow]) -> Iterator[str]:
        """Explain what is missing, inferred or unknown."""
        meta = self._meta
        if state == "merged":
            yield from (f"missing: {part}" for part in meta.missing.split("; ") if part)
        else:
            yield from self.reader.notes()
            if self._failed:
                yield f"steps are left out: {self._failed}"
        if meta.schedule:
            yield f"layers and phases: {meta.schedule}"
        if meta.contradiction:
            yield f"rows sent: {meta.contradiction}"
        captures = members(self.path)
        if len(captures) > 1:
            yield (
                f"the command has {len(captures)} captures, this is the first: the "
                f"last one is {captures[-1].name}"
            )
        routed = any(r.of == "expert" for row in rows for r in row.layers.values())
        if routed and not meta.k:
            yield "noise floors are unavailable: experts per token (k) are unknown"


def _modified_s(path: Path) -> float:
    """Return when a file was modified, s since the epoch; -1 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0
