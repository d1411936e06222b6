"""Replay the program of one rank: verify every operation once, then time all."""

from __future__ import annotations

import time

import numpy as np
import torch

from moetraffic.arrays import Bool
from moetraffic.launch import heartbeat
from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.replay.failure import RankError, backend_errors
from moetraffic.replay.plan.program import Plan, Timing

from .control import barrier
from .host_pass import StreamThreads, run_in_order
from .local_work import LocalWork, count_meetings
from .pace import Pace, Schedule
from .payload import fill_buffers, find_wrong
from .timed_pass import HEARTBEAT_EVERY_NS, Binder, TimedPass


class Engine:
    """Executes the program of one rank: verification, warm-up and timed passes.

    The backend is started with ``plan.groups`` and, after them, the group of all ranks.
    Another engine of this rank has counted ``passed`` operations before.  On a CUDA
    device an operation fails after ``timeout_s``; elsewhere the backend ends it.
    ``threads``: one thread for each stream, even where no operations overlap, so that
    passes with and without some of the operations run the same loop.

    Raises
    ------
    RankError
        If there is no memory for the buffers.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        backend: Backend,
        *,
        pace: Pace | None = None,
        dtype: torch.dtype = torch.float32,
        graphs: bool = False,
        passed: int = 0,
        timeout_s: float = 60.0,
        threads: bool = False,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._program = plan.programs[rank]
        self._backend = backend
        self._pace = Pace() if pace is None else pace
        self._graphs = graphs
        self._timeout_s = timeout_s
        self._threads = threads
        on_device = backend.device.type == "cuda"
        self._binder = Binder(plan, self._program, backend, dtype, batched=on_device)
        self._counter = heartbeat.counter()
        self._passed = passed  # operations of earlier passes

    def verify(self, chosen: Bool | None = None) -> None:
        """Run operations once and check every received byte.

        All ranks have agreed on the sizes of all operations before: gloo aborts a
        receiver of too many bytes, and leaves old bytes where too few arrive.

        ``chosen`` marks the operations of the plan to run, the same on all ranks; None
        means all.

        Raises
        ------
        RankError
            If bytes differ from the plan, or a rank does not respond.
        """
        plan, rank, program = self._plan, self._rank, self._program
        count, sent_ns = len(program), time.monotonic_ns()
        work = LocalWork(self._backend, len(plan.groups), plan.world)
        meetings, last = count_meetings(plan, chosen)
        attended = 0
        for done, n in enumerate(plan.checking_order(rank).tolist()):
            operation = int(program.operation[n])
            call = self._binder.call(n, torch.uint8)
            self._counter[0] = 2 * done + 1
            with backend_errors(rank, plan.name(operation)):
                if chosen is None or chosen[operation]:
                    due = int(meetings[operation])
                    self._check(call, operation, work, due - attended)
                    attended = due
            self._counter[0] = 2 * done + 2
            now_ns = time.monotonic_ns()
            if now_ns - sent_ns > HEARTBEAT_EVERY_NS or done + 1 == count:
                sent_ns = now_ns
                heartbeat.send("step", stage="verify", done=done + 1, of=count)
        with backend_errors(rank, "the end of the verification"):
            for _ in range(last - attended + 1):
                work.meet()
        self._passed += count

    def warm_up(self, iterations: int) -> None:
        """Run the first iterations untimed, one operation after the other.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        plan, program = self._plan, self._program
        first = np.unique(plan.iteration)[:iterations]
        if not len(first):
            return
        order = plan.checking_order(self._rank)
        early = plan.iteration[program.operation[order]] <= first[-1]
        sent_ns = time.monotonic_ns()
        for n in order[early].tolist():
            with backend_errors(self._rank, plan.name(int(program.operation[n]))):
                run(self._backend, self._binder.call(n))
            if (now_ns := time.monotonic_ns()) - sent_ns > HEARTBEAT_EVERY_NS:
                sent_ns = now_ns
                heartbeat.send("step", "the warm-up")

    def run(self) -> Timing:
        """Run a timed pass through the program and record the times of operations.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        self._binder.fill(0)  # repeated sums of zeros stay zero
        timed = TimedPass(
            self._plan,
            self._program,
            self._binder,
            self._pace,
            self._barrier,
            self._counter,
            self._passed,
        )
        if self._backend.device.type == "cuda":
            # torch's CUDA parts are imported only where there is a device
            from .device_pass import DevicePass

            DevicePass(
                timed,
                self._backend.device,
                graphs=self._graphs,
                timeout_s=self._timeout_s,
            ).run()
        elif self._pace.schedule is Schedule.OPEN_LOOP or (
            self._program.chained and not self._threads
        ):
            run_in_order(timed)
        else:
            StreamThreads(timed).run()
        self._passed += len(self._program)
        timed.send_heartbeat()
        return timed.timing()

    def _barrier(self) -> None:
        with backend_errors(self._rank, "the start of the timed pass"):
            barrier(self._plan, self._backend)

    def _check(
        self, call: Call, operation: int, work: LocalWork, meetings: int
    ) -> None:
        """Run an operation after some meetings of all ranks, and check its bytes."""
        rank, members = self._rank, self._plan.groups[call.group]
        fill_buffers(
            call,
            rank=rank,
            members=members,
            operation=operation,
            advance=work.chunks(),
        )
        for _ in range(meetings):
            work.meet()
        run(self._backend, call)
        wrong = find_wrong(
            call,
            rank=rank,
            members=members,
            operation=operation,
            advance=work.chunks(),
        )
        if wrong is not None:
            source, what = wrong
            raise RankError(
                f"sent bytes that did not arrive unchanged at rank {rank}, "
                f"{what}: check the network and the backend",
                rank=source,
                operation=self._plan.name(operation),
                cause="mismatch",
            )
