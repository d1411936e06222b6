"""Timed pass of one rank: its buffers, prepared calls, times and heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import numpy as np
import torch

from moetraffic.launch import heartbeat
from moetraffic.replay.backends.backend import Backend, Call, Launch
from moetraffic.replay.failure import RankError, backend_error, first_line
from moetraffic.replay.plan.program import (
    KINDS,
    REDUCTIONS,
    UNKNOWN_GAP,
    Plan,
    Program,
    Timing,
)
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME

from . import payload
from .pace import Pace, Schedule, wait_until
from .prepared import BLOCK, PREPARED

HEARTBEAT_EVERY_NS = 200_000_000
"""Shortest interval between heartbeats, in ns; each costs some microseconds."""

_SQUARE = KINDS.index(ALL_TO_ALL)


class Binder:
    """Allocates the buffers of a program and creates backend calls for its operations.

    Each stream has a send and a receive buffer, as large as its largest operation
    needs.  Operations of a stream that overlap share them: the timed pass does not
    check bytes.

    ``batched``: the first of a batch of messages starts all of them.

    Reductions compute in ``dtype``, or in bytes if the size of a buffer is not a
    multiple of it.

    Raises
    ------
    RankError
        If there is not enough memory.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        backend: Backend,
        dtype: torch.dtype,
        *,
        batched: bool = False,
    ) -> None:
        self._plan = plan
        self._program = program
        self._backend = backend
        self._dtype = dtype
        self._batched = batched
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        try:
            for stream in np.unique(program.stream).tolist():
                send, receive = program.stream_bytes(stream)
                self._buffers[stream] = backend.empty(send), backend.empty(receive)
            # touch every page now, not in the first timed operation
            self.fill(payload.UNTOUCHED)
        except (RuntimeError, MemoryError) as error:
            send, receive = program.buffer_bytes
            raise RankError(
                f"has no memory for buffers of {send} and {receive} bytes on "
                f"{backend.device} ({first_line(error)}): replay on a larger machine",
                rank=program.rank,
                operation="start-up",
            ) from error

    def fill(self, value: int) -> None:
        """Set every byte of all buffers to a value."""
        for send, receive in self._buffers.values():
            send.fill_(value)
            receive.fill_(value)

    def call(self, n: int, dtype: torch.dtype | None = None) -> Call:
        """Create the call of the n-th operation; ``dtype`` is for reductions."""
        program, plan = self._program, self._plan
        kind, operation = int(program.kind[n]), int(program.operation[n])
        send, receive = self._buffers[int(program.stream[n])]
        send = send[: int(program.send_size[n])]
        receive = receive[: int(program.receive_size[n])]
        if kind == _SQUARE:
            return Call(
                kind=ALL_TO_ALL,
                group=int(program.group[n]),
                send=send,
                receive=receive,
                send_bytes=program.sends(n).tolist(),
                receive_bytes=program.receives(n).tolist(),
            )
        name = KINDS[kind]
        if name in REDUCTIONS:
            as_type = dtype or self._dtype
            width = as_type.itemsize
            if not (len(send) % width or len(receive) % width):
                send, receive = send.view(as_type), receive.view(as_type)
        return Call(
            kind=name,
            group=int(program.group[n]),
            send=send,
            receive=receive,
            send_bytes=[],
            receive_bytes=[],
            sender=int(plan.sender[operation]),
            receiver=int(plan.receiver[operation]),
        )

    def launch(self, n: int) -> Launch:
        """Return the callable that starts the n-th operation."""
        batch = self._program.batch
        if not self._batched:
            return self._backend.bind(self.call(n))
        if batch[n] < n:
            return _started
        end = n + 1
        while end < len(batch) and batch[end] == n:
            end += 1
        if end == n + 1:
            return self._backend.bind(self.call(n))
        return self._backend.bind_batch([self.call(m) for m in range(n, end)])

    def launches(self, begin: int, end: int) -> list[Launch]:
        """Return the callables that start operations of the range [begin, end)."""
        return [self.launch(n) for n in range(begin, end)]


def _started() -> None:
    """Start a message that the first of its batch has started."""


class TimedPass:
    """State of one timed pass through the program of a rank.

    ``counter`` is memory shared with the supervisor that counts operations entered and
    left; ``passed`` operations were counted in earlier passes.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        binder: Binder,
        pace: Pace,
        barrier: Callable[[], None],
        counter: memoryview,
        passed: int,
    ) -> None:
        count = len(program)
        self.plan = plan
        self.program = program
        self.binder = binder
        self.pace = pace
        self.barrier = barrier
        self.counter = counter
        self.base = 2 * passed  # value of the counter when the pass begins
        self.issue, self.end, self.due = np.full((3, count), UNKNOWN_TIME, np.int64)
        self.start = self.issue  # on a host an exchange begins with the call
        self.done = 0  # operations that have ended
        self._heartbeat_ns = 0

    def launches(self) -> Iterator[Launch]:
        """Return callables that start the operations, in program order.

        The first block is prepared before this returns: the whole program, unless it
        is longer than PREPARED.
        """
        count = len(self.program)
        step = count if count <= PREPARED else BLOCK

        def blocks() -> Iterator[list[Launch]]:
            for begin in range(0, count, max(step, 1)):
                yield self.binder.launches(begin, min(begin + step, count))

        prepared = blocks()
        return chain(next(prepared, []), chain.from_iterable(prepared))

    def iterations(self) -> list[tuple[int, int]]:
        """Return the half-open range of program indices of each iteration."""
        when = self.plan.iteration[self.program.operation]
        edges = np.flatnonzero(np.diff(when, prepend=when[:1] - 1, append=-1))
        return list(pairwise(edges.tolist()))

    def since_ns(self, n: int, begin_ns: int) -> int:
        """Return when the n-th operation's gap begins, given the begin of the pass."""
        after = int(self.program.after[n])
        return int(self.end[after]) if after >= 0 else begin_ns

    def batches(self, begin: int, end: int) -> list[range]:
        """Return the batches in a half-open range of program indices; most are one."""
        firsts = np.flatnonzero(self.program.batch[begin:end] == np.arange(begin, end))
        edges = [*(begin + firsts).tolist(), end]
        return [range(a, b) for a, b in pairwise(edges)]

    def ended(self, n: int, now_ns: int) -> None:
        """Record the end of the n-th operation."""
        self.end[n] = now_ns
        self.done += 1

    def wait_until_due(
        self, n: int, begin_ns: int, *, heartbeats: bool = True, early_ns: int = 0
    ) -> None:
        """Wait until, or some time before, the n-th operation is due; record when."""
        program, pace = self.program, self.pace
        open_loop = pace.schedule is Schedule.OPEN_LOOP
        gap_ns = int((program.due_ns if open_loop else program.gap_ns)[n])
        if not pace.timed or gap_ns == UNKNOWN_GAP:
            return
        if open_loop:
            due_ns = begin_ns + gap_ns
        else:
            due_ns = self.since_ns(n, begin_ns) + round(gap_ns * pace.factor)
        self.due[n] = due_ns
        due_ns -= early_ns
        if heartbeats:
            wait_until(due_ns, pace.gaps, self.alive)
        else:
            wait_until(due_ns, pace.gaps)

    def alive(self, now_ns: int) -> None:
        """Send a heartbeat unless one was sent within the shortest interval."""
        if now_ns - self._heartbeat_ns > HEARTBEAT_EVERY_NS:
            self._heartbeat_ns = now_ns
            self.send_heartbeat()

    def send_heartbeat(self) -> None:
        """Send the progress of this rank."""
        heartbeat.send("step", stage="replay", done=self.done, of=len(self.program))

    def failure(self, n: int, error: RuntimeError) -> RankError:
        """Convert an error of the n-th operation to a RankError that names it."""
        name = self.plan.name(int(self.program.operation[n]))
        return backend_error(self.program.rank, name, error)

    def timing(self) -> Timing:
        """Return the recorded times of all operations of the pass."""
        return Timing(
            operation=self.program.operation,
            issue=self.issue,
            start=self.start,
            end=self.end,
            due=self.due,
        )
