"""One rank of a replay: agreement, verification, warm-up, timed passes, results.

Ranks of a supervisor run ``python -m moetraffic.replay.rank OPTIONS RESULT``, files of
JSON; under torchrun and srun the command line calls :func:`run_rank`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import moetraffic
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.launch.board import Cause, State, own
from moetraffic.launch.devices import available_bytes
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.result import Result
from moetraffic.trace.storage import VERSION
from moetraffic.trace.trace import Trace

from . import clocks, host_loop, payload
from .agree import Meeting
from .device_loop import DevicePass
from .failure import RankError, Watchdog, backend_errors, reporting, run_to_exit
from .options import SAMPLE, Options
from .plan.operations import KINDS, REDUCTIONS, Plan
from .plan.program import Program, Timing, program
from .results.dry_run import by_rank, dry_run
from .results.facts import stack_rows
from .results.load import LoadMeter
from .results.ports import measure_ports
from .results.result import conclude
from .run import OnPlan, counted_name, passes, planned, write_result
from .sizes import check_sizes
from .transport import Bound, Transport, world_group

GATHERING = "the gathering of times"
WRITING = "the writing of the trace"
WRITING_S = 900.0
"""Longest time, in s, that writing the trace may take."""

BETWEEN_RUNS_S = 1.0
"""Pause between runs, s: the load of a machine or network lasts longer than a short
pass, and runs one right after the other would share it."""

LOCAL_BYTES_S = 1e8
"""Slowest rate at which a rank computes payloads, bytes/s: others wait for it."""

CHUNK = 1 << 24
"""Bytes after which a rank that computes payloads gives a sign of life."""

Times = dict[int, Timing]


def run_rank(
    options: Options, rank_env: RankEnvironment, on_plan: OnPlan | None = None
) -> Result | None:
    """Run one rank of a replay; return the result on rank 0, None on other ranks.

    ``on_plan`` gets the plan, and what is expected, when all ranks agree.
    """
    began_s = time.monotonic()
    own().note("start-up", State.STARTING)
    torch.set_num_threads(1)
    watchdog = None
    if not own().supervised:
        watchdog = Watchdog(
            start_s=options.start_timeout_s,
            silence_s=options.silence_s,
            grace_s=2 * options.grace_s,
        )
    own().note("the rendezvous")
    meeting = Meeting(rank_env, options.start_timeout_s, began_s)
    own().note("start-up")
    own_name: list[Callable[[int], str]] = []  # once operations are planned

    def name(rank: int, count: int) -> str:
        """Name an operation, also of another rank of this host, after a failure."""
        if rank == rank_env.rank or not own_name:
            return own_name[0](count) if own_name else ""
        with Trace.open(options.trace) as trace:
            replayed, plan = planned(options, trace)
            return counted_name(options, plan, program(replayed, plan, rank), count)

    if watchdog is not None:
        watchdog.start_s += options.start_timeout_s  # rank 0 may have started later
        watchdog.namer = name
    with reporting(meeting, name), Trace.open(options.trace) as trace:
        result = _replay(options, rank_env, meeting, trace, on_plan, own_name)
    own().note("", State.DONE)
    if watchdog is not None:
        watchdog.stop()
    return result


def _replay(
    options: Options,
    rank_env: RankEnvironment,
    meeting: Meeting,
    trace: Trace,
    on_plan: OnPlan | None,
    own_name: list[Callable[[int], str]],
) -> Result | None:
    rank, world, _ = rank_env
    if rank == 0:
        options.check_outputs()
    # ---- agreement, without the backend ----------------------------------------------
    replayed, plan = planned(options, trace, world)
    own_program = program(replayed, plan, rank)
    own_name.append(lambda count: counted_name(options, plan, own_program, count))
    nodes = meeting.handshake(
        {
            "moetraffic": moetraffic.__version__,
            "format": str(VERSION),
            "torch": torch.__version__,
            **options.common(),
        },
        plan.digest,
        lambda: plan.checksum.astype(np.int64),
        lambda n: plan.name(n) if n < len(plan) else "the plan's end",
    )
    check_sizes(meeting, plan, own_program)
    options.pace.check_program(plan, own_program, options.timeout_s)
    # ---- groups ----------------------------------------------------------------------
    patience_s = options.timeout_s + _computing_s(plan) * options.verifies
    groups = plan.used_groups
    if options.ports and world_group(groups, world) < 0:
        groups = (*groups, tuple(range(world)))
    transport = Transport(options.backend)
    with backend_errors(rank, "the creation of groups"):
        transport.start(rank_env, groups, patience_s)
    transport.timeout_s = options.timeout_s
    options.pace.check_device(transport.device.type)
    free, pool = available_bytes(), ""
    if transport.device.type == "cuda":
        free = torch.cuda.mem_get_info(transport.device)[0]
        pool = str(torch.cuda.get_device_properties(transport.device).uuid)
    meeting.memory(sum(own_program.buffer_bytes), free, pool)
    if on_plan is not None:
        on_plan(plan, dry_run(options, replayed, plan).verdict)
    knots = [clocks.measure(meeting, "start")]
    work = Passes(options, plan, own_program, transport, patience_s)
    own().note("", State.READY)
    # ---- passes ----------------------------------------------------------------------
    listed = passes(options, own_program)
    times: dict[str, list[Times]] = {}
    ports: list[dict[str, Any]] = []
    meter: LoadMeter | None = None
    for number, (name, of_pass) in enumerate(listed):
        if name == "verify":
            work.verify()
            continue
        if meter is None:
            own().note("the warm-up")
            work.warm_up()
            if options.ports:
                own().note("the measurement of ports")
                with backend_errors(rank, "the measurement of ports"):
                    ports = _ports(transport, nodes)
            meter = LoadMeter()
        elif name == "run":
            time.sleep(BETWEEN_RUNS_S)
        own().note("")
        timing = work.run(of_pass)
        own().note(GATHERING, within_s=options.start_timeout_s)
        times.setdefault(name, []).append(_gathered(meeting, f"pass {number}", timing))
        if name == "run" or number + 1 == len(listed):
            knots.append(clocks.measure(meeting, f"pass {number}"))
    assert meter is not None
    meters = meeting.gather("load", meter.read()[None])
    result = None
    if rank == 0:
        own().note(WRITING, within_s=WRITING_S)
        result = conclude(
            options,
            replayed,
            plan,
            times["run"],
            nodes=nodes,
            clocks=np.concatenate(knots),
            stack=stack_rows(options.backend, transport.device),
            meters=np.concatenate(meters),
            ports=ports,
            trials=list(
                zip(
                    *(times.get(name, []) for name in ("alone", "beside", "smallest")),
                    strict=True,
                )
            ),
        )
    transport.stop()
    return result


class Passes:
    """Passes of a rank through its program, with one set of buffers.

    ``patience_s``: longest time of an operation while ranks compute payloads.
    """

    def __init__(
        self,
        options: Options,
        plan: Plan,
        of_rank: Program,
        transport: Transport,
        patience_s: float = 60.0,
    ) -> None:
        self.options, self.plan, self.program = options, plan, of_rank
        self.transport, self.patience_s = transport, patience_s
        self.bound = Bound(plan, of_rank, transport)
        self.passed = 0  # operations of earlier passes

    def verify(self) -> None:
        """Run operations once, in the order of all ranks, and check every byte."""
        plan, options, counter = self.plan, self.options, own().counter
        chosen = np.ones(len(plan), bool)
        if options.verify == "sample":
            chosen = plan.sampled(SAMPLE)
        announced_s = (
            self.patience_s + 2 if self.patience_s > options.silence_s else 0.0
        )
        for done, n in enumerate(self._in_common_order()):
            operation = int(self.program.operation[n])
            counter[0] = 2 * (self.passed + done) + 1
            if chosen[operation]:
                own().note(done=self.passed + done)
                with backend_errors(self.program.rank, plan.name(operation)):
                    self._check(n, announced_s)
            counter[0] = 2 * (self.passed + done) + 2
        self.passed += len(self.program)

    def _check(self, n: int, announced_s: float) -> None:
        plan, of_rank, computed = self.plan, self.program, 0

        def advance(nbytes: int) -> None:
            nonlocal computed
            computed += nbytes
            if computed >= CHUNK:
                computed = 0
                own().note()

        send, receive = self.bound.buffers(n)
        payload.fill(plan, of_rank, n, (send, receive), advance)
        own().note(within_s=announced_s)
        self.transport.run(
            self.bound.bind(n, timeout_s=self.patience_s), self.patience_s
        )
        wrong = payload.find_wrong(plan, of_rank, n, receive, advance)
        if wrong is not None:
            source, what = wrong
            raise RankError(
                f"sent bytes that did not arrive unchanged at rank {of_rank.rank}, "
                f"{what}: check the network and the backend",
                rank=source,
                operation=plan.name(int(of_rank.operation[n])),
                cause=Cause.MISMATCH,
            )

    def warm_up(self) -> None:
        """Run one operation of each group, kind and size class, in a common order.

        Connections, algorithms and protocols depend on these; none is set up while
        operations are timed.
        """
        chosen = warmed(self.plan)
        for n in self._in_common_order():
            operation = int(self.program.operation[n])
            if chosen[operation]:
                own().note()
                with backend_errors(self.program.rank, self.plan.name(operation)):
                    self.transport.run(self.bound.bind(n))

    def run(self, of_pass: Program | None = None) -> Timing:
        """Run a timed pass through the program, or through one of its size or less."""
        bound = self.bound
        if of_pass is not None and of_pass is not self.program:
            bound = Bound(self.plan, of_pass, self.transport, like=bound)
        bound.clear()
        timed = host_loop.TimedPass(
            bound, self.options.pace, self._barrier, self.passed
        )
        if self.transport.device.type == "cuda":
            DevicePass(
                timed,
                self.transport.device,
                graphs=self.options.graphs,
                timeout_s=self.options.timeout_s,
                check=self.transport.check,
            ).run()
        else:
            host_loop.run(timed, overlap=bool(self.options.pairs))
        self.passed += len(bound.program)
        return timed.timing()

    def _in_common_order(self) -> list[int]:
        """Indices of the program's operations in the order of all ranks."""
        operation = self.program.operation
        place = np.full(len(self.plan), -1)
        place[operation] = np.arange(len(operation))
        order: list[int] = place[self.plan.order(operation)].tolist()
        return order

    def _barrier(self) -> None:
        with backend_errors(self.program.rank, "the start of the timed pass"):
            self.transport.barrier()


def warmed(plan: Plan) -> Bool:
    """Mark the operations of the warm-up, ``[n]``, the same on all ranks.

    The first of each group, kind, ends and size class, a factor of two.
    """
    order = plan.order(np.arange(len(plan)))
    size_class = np.log2(plan.largest_bytes + 1).astype(np.int64)
    columns = (plan.group, plan.kind, plan.sender, plan.receiver, size_class)
    keys = np.stack([column[order] for column in columns], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    chosen = np.zeros(len(plan), bool)
    chosen[order[first]] = True
    return chosen


def _computing_s(plan: Plan) -> float:
    """Return the longest time that a rank computes payloads in a verification, s."""
    sums = np.isin(plan.kind, [KINDS.index(kind) for kind in REDUCTIONS])
    nbytes = plan.largest_bytes + np.where(
        sums, plan.size * plan.width, plan.largest_bytes
    )
    return float(by_rank(plan, nbytes).max(initial=0)) / LOCAL_BYTES_S


def _gathered(meeting: Meeting, name: str, timing: Timing) -> Times:
    """Gather the times of all ranks on rank 0, where all wait for it; {} elsewhere."""
    columns = (timing.operation, timing.issue, timing.end, timing.due)
    tables = meeting.gather(name, np.stack(columns, axis=1).astype(np.int64))
    meeting.answer(name, str)
    return {
        rank: Timing(operation=t[:, 0], issue=t[:, 1], end=t[:, 2], due=t[:, 3])
        for rank, t in enumerate(tables)
    }


def _ports(transport: Transport, nodes: list[str]) -> list[dict[str, Any]]:
    """Measure the rates of all ranks' ports."""
    everyone = world_group(transport.groups, transport.world)
    buffers: dict[str, torch.Tensor] = {}

    def exchange(sends: Int64, receives: Int64) -> float:
        for name, sizes in (("send", sends), ("receive", receives)):
            size = int(sizes.sum())
            if name not in buffers or len(buffers[name]) < size:
                buffers[name] = transport.empty(size).zero_()
        own().note()
        launch = transport.bind(
            "all_to_all",
            everyone,
            buffers["send"][: int(sends.sum())],
            buffers["receive"][: int(receives.sum())],
            sends.tolist(),
            receives.tolist(),
        )
        transport.barrier()
        begin = time.monotonic_ns()
        transport.run(launch)
        return (time.monotonic_ns() - begin) / 1e9

    def gather(values: Float64) -> Float64:
        return transport.gathered(values.tolist())

    return measure_ports(transport.rank, nodes, exchange, gather)


def main(settings: str, result: str) -> None:
    """Run this process as a rank of a supervisor."""
    rank_env = current_rank()
    assert rank_env is not None

    def work() -> Result | None:
        return run_rank(Options.from_json(Path(settings).read_text()), rank_env)

    made = run_to_exit(work, rank_env)
    if made is not None:
        write_result(Path(result), made)


if __name__ == "__main__":
    main(*sys.argv[1:])
