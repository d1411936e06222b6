"""One rank of a replay: verify every operation once, then run them all, timed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from moetraffic.launch import heartbeat

from . import payload
from .agreement import compare_sizes, meet
from .backends import Backend
from .failure import RankError, at, first_line, lost
from .payload import UInt8
from .plan import Plan, Program
from .result import Timing

BEAT_EVERY_NS = 200_000_000
"""A heartbeat costs some microseconds, so not every operation has one."""

_PREPARED = 4096  # operations whose arguments are made in advance

Call = tuple[int, torch.Tensor, torch.Tensor, list[int], list[int]]
"""Arguments of ``Backend.all_to_all``."""


class Buffers:
    """A send and a receive buffer, allocated once at the program's maximum.

    Raises
    ------
    RankError
        If there is not that much memory.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        sizes = program.buffer_bytes
        try:
            self.send, self.receive = (
                torch.empty(size, dtype=torch.uint8, device=device) for size in sizes
            )
            # touch every page now, not in the first timed operation
            self.send.fill_(payload.UNTOUCHED)
            self.receive.fill_(payload.UNTOUCHED)
        except (RuntimeError, MemoryError) as error:
            raise RankError(
                f"has no memory for buffers of {sizes[0]} and {sizes[1]} bytes on "
                f"{device} ({first_line(error)}): replay on a larger machine",
                rank=program.rank,
                operation="start-up",
                cause="own",
            ) from error

    def load(self, values: UInt8) -> None:
        """Put these bytes into the send buffer."""
        self.send[: len(values)].copy_(torch.from_numpy(values))

    def received(self, size: int) -> UInt8:
        """The first bytes of the receive buffer, on the host."""
        there: UInt8 = self.receive[:size].cpu().numpy()
        return there


class Engine:
    """One rank that replays its program.

    Parameters
    ----------
    plan
        With this rank's program.
    rank
        Which rank this is.
    backend
        Started with ``plan.groups`` and, after them, the group of all ranks.
    """

    def __init__(self, plan: Plan, rank: int, backend: Backend) -> None:
        self._plan = plan
        self._rank = rank
        self._program = plan.programs[rank]
        self._backend = backend
        self._buffers = Buffers(self._program, backend.device)
        self._counter = heartbeat.counter()
        self._passed = 0  # operations of the pass before

    def verify(self) -> None:
        """Run every operation once, and check every size and every byte.

        Before an operation its members tell each other how much they will send: gloo
        aborts the receiver of too much, and leaves old bytes where too little comes.

        Raises
        ------
        RankError
            If sizes or bytes differ from the plan, or a rank does not answer.
        """
        plan, rank, backend, buffers = (
            self._plan,
            self._rank,
            self._backend,
            self._buffers,
        )
        beat_ns = time.monotonic_ns()
        for n, call in self._calls():
            group, receive, _, receives, sends = call
            operation = int(self._program.operation[n])
            members = plan.groups[group]
            self._counter[0] = 2 * n + 1
            with at(rank, plan.name(operation)):
                compare_sizes(plan, rank, backend, operation, group, sends, receives)
                out = np.empty(sum(sends), np.uint8)
                payload.fill(
                    out,
                    source=rank,
                    destinations=members,
                    operation=operation,
                    sizes=sends,
                )
                buffers.load(out)
                receive.fill_(payload.UNTOUCHED)
                backend.all_to_all(*call)
                self._compare_bytes(operation, members, receives)
            self._counter[0] = 2 * n + 2
            now_ns = time.monotonic_ns()
            if now_ns - beat_ns > BEAT_EVERY_NS:
                beat_ns = self._beat("verify", n, now_ns)
        self._beat("verify", len(self._program) - 1, time.monotonic_ns())
        self._passed = len(self._program)

    def run(self) -> Timing:
        """Run every operation as soon as the one before has ended, and time it.

        Raises
        ------
        RankError
            If a rank does not answer.
        """
        calls = self._calls()
        ready = next(calls, None)  # makes the first arguments before the clock runs
        with at(self._rank, "the start of the timed pass"):
            meet(self._plan, self._backend)
        times = np.empty((3, len(self._program)), np.int64)
        clock, move, counter = time.monotonic_ns, self._backend, self._counter
        passed, beat_ns, n = 2 * self._passed, clock(), 0
        try:
            while ready is not None:
                n, call = ready
                counter[0] = passed + 2 * n + 1
                issue = clock()
                start, end = move.all_to_all(*call)
                counter[0] = passed + 2 * n + 2
                times[0, n], times[1, n], times[2, n] = issue, start, end
                if end - beat_ns > BEAT_EVERY_NS:
                    beat_ns = self._beat("replay", n, end)
                ready = next(calls, None)
        except RuntimeError as error:
            name = self._plan.name(int(self._program.operation[n]))
            raise lost(self._rank, name, error) from error
        self._beat("replay", len(self._program) - 1, clock())
        return Timing(
            operation=self._program.operation,
            issue=times[0],
            start=times[1],
            end=times[2],
        )

    def _calls(self) -> Iterator[tuple[int, Call]]:
        """The arguments of each operation, made in blocks."""
        program, buffers = self._program, self._buffers
        for begin in range(0, len(program), _PREPARED):
            block: list[tuple[int, Call]] = []
            for n in range(begin, min(begin + _PREPARED, len(program))):
                sends = program.sends(n).tolist()
                receives = program.receives(n).tolist()
                receive = buffers.receive[: sum(receives)]
                send = buffers.send[: sum(sends)]
                group = int(program.group[n])
                block.append((n, (group, receive, send, receives, sends)))
            yield from block

    def _compare_bytes(
        self, operation: int, members: tuple[int, ...], receives: list[int]
    ) -> None:
        wrong = payload.verify(
            self._buffers.received(sum(receives)),
            destination=self._rank,
            sources=members,
            operation=operation,
            sizes=receives,
        )
        if wrong is not None:
            raise RankError(
                f"sent bytes that did not arrive at rank {self._rank} as they were, "
                f"{wrong}: check the network and the backend",
                rank=wrong.source,
                operation=self._plan.name(operation),
                cause="mismatch",
            )

    def _beat(self, stage: str, n: int, now_ns: int) -> int:
        heartbeat.beat("step", stage=stage, done=n + 1, of=len(self._program))
        return now_ns
