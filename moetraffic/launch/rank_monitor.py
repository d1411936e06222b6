"""Monitor running ranks: heartbeats, deadlines and termination."""

from __future__ import annotations

import json
import math
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import heartbeat
from .environment import FILE_STORE, RankEnvironment
from .rank_process import RankProcess
from .root_cause import OperationNamer, RankState, RootCause, first_failure

_LOOK_EVERY_S = 0.05
_REST_S = 2.0  # time for the kernel to end killed processes
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 16  # a line of the pipe without an end is dropped


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Heartbeat received from a rank: event, operation and fields."""

    rank: int
    event: str  # one of heartbeat.EVENTS
    operation: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class RankMonitor:
    """Starts, monitors and ends the rank processes of one launch."""

    def __init__(
        self,
        ranks: int,
        folder: Path,
        on_event: Callable[[Heartbeat], None] | None,
        rank_env: RankEnvironment | None = None,
    ) -> None:
        self._rank_env = rank_env
        self._folder = folder
        self._on_event = on_event
        self._began_s = time.monotonic()
        numbers = range(ranks) if rank_env is None else (rank_env.rank,)
        self.states = [RankState(rank=r, changed_s=self._began_s) for r in numbers]
        self._state_of = {s.rank: s for s in self.states}
        self._counter_bytes = heartbeat.COUNTER_BYTES * (max(numbers) + 1)
        self._processes: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._pipe, self._ranks_end = os.pipe()
        for fd in (self._pipe, self._ranks_end):
            os.set_blocking(fd, False)
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._unread = b""
        self._counters = folder / "counters"
        self._counters.write_bytes(bytes(self._counter_bytes))
        self._counted = self._counters.open("rb", buffering=0)
        self.not_started = ""
        self._patience = ""
        self.signals: list[int] = []  # received by this process, not yet forwarded
        self.interrupted = 0

    # ---- start -----------------------------------------------------------------

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start every rank; if one cannot be started, the others are ended."""
        inode = os.fstat(self._ranks_end).st_ino
        shared = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **environment,
            heartbeat.PIPE: f"{self._ranks_end}:{inode}",
            heartbeat.COUNTERS: str(self._counters),
        }
        if self._rank_env is None:
            shared[FILE_STORE] = str(self._folder / "store")
        for state in self.states:
            rank_env = self._rank_env or RankEnvironment(
                state.rank, len(self.states), state.rank
            )
            own = {
                "RANK": str(rank_env.rank),
                "WORLD_SIZE": str(rank_env.world),
                "LOCAL_RANK": str(rank_env.local_rank),
            }
            try:
                process = RankProcess(command, {**shared, **own}, [self._ranks_end])
            except OSError as error:
                self.not_started = f"could not be started: {error}"
                return
            self._processes.append(process)
            self._selector.register(process.stderr, selectors.EVENT_READ, process)

    # ---- watch -----------------------------------------------------------------

    def until_ended(self, start_s: float, operation_s: float, grace_s: float) -> None:
        """Wait until every rank has ended or a deadline has expired."""
        give_up_s = self._began_s if self.not_started else math.inf
        while True:
            self._listen(_LOOK_EVERY_S)
            now = time.monotonic()
            running = self._look(now)
            while self.signals:
                number = self.signals.pop(0)
                give_up_s = now if self.interrupted else min(give_up_s, now + grace_s)
                if not self.interrupted:
                    self.interrupted = number
                    for process in running:
                        process.send(number)
            if not running:
                return
            if any(s.exit_code not in (None, 0) for s in self.states):
                give_up_s = min(give_up_s, now + grace_s)
            late = self._late(now, start_s, operation_s)
            if late and give_up_s == math.inf:
                self._patience, give_up_s = late, now
            if now >= give_up_s:
                return

    def _late(self, now: float, start_s: float, operation_s: float) -> str:
        """Describe a deadline that a running rank has missed; "" if none."""
        running = [s for s in self.states if s.exit_code is None]
        if now - self._began_s > start_s and not all(s.ready for s in running):
            return f" within {start_s:g} s of its start"
        announced_s = max((s.within_s for s in running), default=0.0)
        for s in running:
            # on a busy machine a process may end long after it is done: it is not
            # blamed while another has announced a long operation without heartbeats
            longest_s = max(operation_s, announced_s if s.done else s.within_s)
            if s.ready and now - s.changed_s > longest_s:
                return f" for {longest_s:g} s"
        return ""

    def _look(self, now: float) -> list[RankProcess]:
        """Update exit codes and progress of all ranks; return the running ones."""
        raw = os.pread(self._counted.fileno(), self._counter_bytes, 0)
        counted = memoryview(raw).cast("q")
        for state in self.states:
            if state.entered != counted[state.rank]:
                state.entered = counted[state.rank]
                state.changed_s, state.within_s = now, 0.0
        for state, process in zip(self.states, self._processes, strict=False):
            if state.exit_code is None:
                state.exit_code = process.poll()
                state.ended_s = math.inf if state.exit_code is None else now
        return [p for p in self._processes if p.exit_code is None]

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, RankProcess):
                if not key.data.read():
                    self._selector.unregister(key.fileobj)
            else:
                self._read_heartbeats()

    def _read_heartbeats(self) -> None:
        """Read heartbeats from the pipe; ignore other data."""
        while True:
            try:
                chunk = os.read(self._pipe, _CHUNK)
            except BlockingIOError:
                return
            *lines, rest = (self._unread + chunk).split(b"\n")
            self._unread = rest if len(rest) < _LONGEST_LINE else b""
            for line in lines:
                try:
                    fields = json.loads(line)
                except ValueError:
                    continue  # other output that a rank wrote into the pipe
                if isinstance(fields, dict):
                    self._note(fields)
            if not chunk:
                return

    def _note(self, fields: dict[str, Any]) -> None:
        rank, name = fields.pop("rank", None), fields.pop("event", None)
        operation = fields.pop("operation", "")
        if not isinstance(rank, int) or rank not in self._state_of:
            return
        if name not in heartbeat.EVENTS or not isinstance(operation, str):
            return
        state = self._state_of[rank]
        state.last_event = name
        state.operation = operation or state.operation
        state.changed_s = time.monotonic()
        within_s = fields.get("within_s", 0.0)
        state.within_s = within_s if isinstance(within_s, (int, float)) else 0.0
        counted = fields.get("counted")
        if state.within_s and isinstance(counted, int):
            state.entered = counted
        state.ready |= name in ("ready", "enter", "exit", "step")
        state.done |= name == "done"
        if name == "error":
            state.error = {**fields, "operation": operation}
        if self._on_event is not None:
            event = Heartbeat(rank=rank, event=name, operation=operation, fields=fields)
            self._on_event(event)

    # ---- end -------------------------------------------------------------------

    def end(self) -> None:
        """Kill running ranks, read their remaining output and close all files."""
        now = time.monotonic()
        for state, process in zip(self.states, self._processes, strict=False):
            if process.poll() is None:
                state.stopped = process.stopped()
                state.killed = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.outlast(now + _REST_S)
        self._look(now)
        self._on_event = None  # remaining heartbeats serve the root cause only
        self._read_heartbeats()
        for state, process in zip(self.states, self._processes, strict=False):
            process.read()
            state.stderr = process.last_lines()
            process.close()
        self._selector.close()
        self._counted.close()
        os.close(self._pipe)
        os.close(self._ranks_end)
        self.duration_s = time.monotonic() - self._began_s

    def blame(self, namer: OperationNamer | None) -> RootCause | None:
        """Find the root cause of the failure from the states of all ranks."""
        if self.not_started:
            rank = self.states[len(self._processes)].rank
            return RootCause(rank=rank, operation="start-up", reason=self.not_started)
        return first_failure(self.states, namer, self._patience)
