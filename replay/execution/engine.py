"""One rank of a replay: verify every operation once, then run them all, timed."""

from __future__ import annotations

import time

import numpy as np
import torch

from moetraffic.launch import heartbeat
from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.replay.failure import RankError, at
from moetraffic.replay.plan.program import Plan
from moetraffic.trace.model import ALL_TO_ALL, Bool

from . import open_loop, sequential
from .binding import Binder, validate_kinds
from .buffers import Buffers
from .checking import check
from .control import compare_sizes, meet
from .pace import Pace, Schedule
from .streams import Streams
from .timed_pass import BEAT_EVERY_NS, TimedPass
from .timing import Timing


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
    pace
        When operations are issued.
    dtype
        The type in which is added up.
    graphs
        Whether a CUDA device gets an iteration's operations as one graph.
    passed
        Operations that another engine of this rank has counted before.

    Raises
    ------
    RankError
        If there is no memory for the buffers.
    ReplayError
        If the backend cannot do an operation.
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
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._program = plan.programs[rank]
        self._backend = backend
        self._pace = Pace() if pace is None else pace
        self._graphs = graphs
        validate_kinds(plan, self._program, backend)
        self._buffers = Buffers(self._program, backend)
        self._binder = Binder(plan, self._program, backend, self._buffers, dtype)
        self._counter = heartbeat.counter()
        self._passed = passed  # operations of the passes before

    def verify(self, chosen: Bool | None = None) -> None:
        """Run operations once, and check every byte that arrives.

        All ranks have agreed on the sizes of all operations before; the members of one
        that is run tell each other once more what they are about to send: gloo aborts
        the receiver of too much, and leaves old bytes where too little comes.

        Parameters
        ----------
        chosen
            ``[n]`` which of the plan's operations to run, the same on all ranks; None
            for all.

        Raises
        ------
        RankError
            If sizes or bytes differ from the plan, or a rank does not answer.
        """
        plan, rank, program = self._plan, self._rank, self._program
        beat_ns, done = time.monotonic_ns(), 0
        for n in plan.checking_order(rank).tolist():
            operation = int(program.operation[n])
            call = self._binder.call(n, torch.uint8)
            self._counter[0] = 2 * n + 1
            with at(rank, plan.name(operation)):
                if chosen is None or chosen[operation]:
                    self._compare_sizes(call, operation)
                    self._check(call, operation)
            self._counter[0] = 2 * n + 2
            now_ns, done = time.monotonic_ns(), done + 1
            if now_ns - beat_ns > BEAT_EVERY_NS:
                beat_ns = now_ns
                self._beat("verify", done)
        self._beat("verify", done)
        self._passed += len(program)

    def warm_up(self, iterations: int) -> None:
        """Run the first iterations untimed, one operation after the other.

        Raises
        ------
        RankError
            If a rank does not answer.
        """
        plan, program = self._plan, self._program
        first = np.unique(plan.iteration)[:iterations]
        if not len(first):
            return
        order = plan.checking_order(self._rank)
        early = plan.iteration[program.operation[order]] <= first[-1]
        for n in order[early].tolist():
            with at(self._rank, plan.name(int(program.operation[n]))):
                run(self._backend, self._binder.call(n))

    def run(self) -> Timing:
        """Run every operation at its pace, and time it.

        Raises
        ------
        RankError
            If a rank does not answer.
        """
        self._buffers.blank(0)  # what is added up again and again stays what it is
        timed = TimedPass(
            self._plan,
            self._program,
            self._binder,
            self._pace,
            self._meet,
            self._counter,
            self._passed,
        )
        if self._backend.device.type == "cuda":
            # torch's CUDA parts are looked at only where there is a device
            from .device_pass import DevicePass

            DevicePass(timed, self._backend.device, graphs=self._graphs).run()
        elif self._pace.schedule is Schedule.OPEN_LOOP:
            open_loop.run(timed)
        elif self._program.chained:
            sequential.run(timed)
        else:
            Streams(timed).run()
        self._passed += len(self._program)
        timed.beat()
        return timed.timing()

    def _meet(self) -> None:
        with at(self._rank, "the start of the timed pass"):
            meet(self._plan, self._backend)

    def _compare_sizes(self, call: Call, operation: int) -> None:
        """Tell all members, so not where only two of them take part."""
        members = self._plan.groups[call.group]
        if call.kind == ALL_TO_ALL:
            sends, receives = call.send_bytes, call.receive_bytes
        elif call.kind == "send_recv":
            return
        else:
            sends = receives = [int(self._plan.size[operation])] * len(members)
        compare_sizes(
            self._plan,
            self._rank,
            self._backend,
            operation,
            call.group,
            sends,
            receives,
        )

    def _check(self, call: Call, operation: int) -> None:
        wrong = check(
            self._backend,
            call,
            rank=self._rank,
            members=self._plan.groups[call.group],
            operation=operation,
        )
        if wrong is not None:
            source, what = wrong
            raise RankError(
                f"sent bytes that did not arrive at rank {self._rank} as they were, "
                f"{what}: check the network and the backend",
                rank=source,
                operation=self._plan.name(operation),
                cause="mismatch",
            )

    def _beat(self, stage: str, done: int) -> None:
        heartbeat.send("step", stage=stage, done=done, of=len(self._program))
