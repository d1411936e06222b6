"""Buffers, calls, check and timing of a benchmark on one rank.

Element i of the data that rank r sends in a check is ``(31 i + 17 r + salt) mod 97``:
whole numbers, so that sums are exact, and different for neighboring elements, ranks and
checks.  Calls are as torch has them: all-reduce, broadcast and reduce in place, others
from one buffer into another.

The time of a call is the mean over the timed iterations on the slowest rank, as in
nccl-tests with ``--average 3``; its busbw is wire bytes over that time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import moetraffic
from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.patterns.collectives import UNEVEN, uneven_bytes, wire_bytes
from moetraffic.replay.agree import Meeting
from moetraffic.replay.failure import Watchdog, backend_errors, reporting, run_to_exit
from moetraffic.replay.plan.operations import REDUCTIONS
from moetraffic.replay.results.facts import stack_rows
from moetraffic.replay.run import write_result
from moetraffic.replay.transport import Transport
from moetraffic.result import Result

from .result import bench_result
from .sweep import START_S, Sweep, Timed

ROOT = 0
IN_PLACE = ("all_reduce", "broadcast", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
BLOCK = 1 << 20
"""Elements whose values are computed at a time."""


class Measurement:
    """A collective of one rank, with its buffers: prepared once, run many times."""

    def __init__(
        self, call: Timed, sweep: Sweep, rank: int, ranks: int, moves: Transport
    ) -> None:
        self.call, self.sweep, self.moves = call, sweep, moves
        self.rank, self.ranks = rank, ranks
        kind, size = call
        whole = size // sweep.element_bytes  # elements
        part = whole // ranks
        cells = np.full((ranks, ranks), part if kind == "all_to_all" else 0)
        if kind == UNEVEN:
            kind, cells = "all_to_all", sweep.scaled(size) // sweep.element_bytes
        at_root = whole if rank == ROOT else 0
        sends, receives = {
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
            "gather": (part, at_root),
            "scatter": (at_root, part),
            "all_to_all": (int(cells[rank].sum()), int(cells[:, rank].sum())),
        }.get(kind, (whole, whole))
        self.send, self.receive = self._empty(sends), self._empty(receives)
        if kind in IN_PLACE:
            self.send = self.receive
        self.arrivals = self._arrivals(kind, whole, part, cells)
        if kind == "send_recv":
            ends = (rank, (rank + 1) % ranks), ((rank - 1) % ranks, rank)
            self.launch = moves.together(
                0,
                [
                    moves.bind(
                        *(kind, 0, self.send, self.receive),
                        sender=sender,
                        receiver=receiver,
                        alone=False,
                    )
                    for sender, receiver in ends
                ],
            )
            return
        splits = kind == "all_to_all"
        self.launch = moves.bind(
            *(kind, 0, self.send, self.receive),
            cells[rank].tolist() if splits else (),
            cells[:, rank].tolist() if splits else (),
            sender=ROOT if kind in ("broadcast", "scatter") else -1,
            receiver=ROOT if kind in ("reduce", "gather") else -1,
        )

    def _empty(self, count: int) -> torch.Tensor:
        kind = getattr(torch, self.sweep.dtype)
        return torch.zeros(count, dtype=kind, device=self.moves.device)

    def run(self) -> None:
        """Run the collective once; on a device, launch it."""
        work = self.launch()
        if work is not None:
            work.wait()

    # ---- check -----------------------------------------------------------------------

    def _arrivals(
        self, kind: str, whole: int, part: int, cells: np.ndarray[Any, Any]
    ) -> list[tuple[Sequence[int], int, int]]:
        """List what arrives in order: who adds up, first element, elements."""
        rank, everyone = self.rank, range(self.ranks)
        if kind in ("reduce", "gather") and rank != ROOT:
            return []  # undefined
        if kind in REDUCTIONS:
            first = rank * part if kind == "reduce_scatter" else 0
            return [(everyone, first, len(self.receive))]
        if kind == "all_to_all":
            before = cells[:, :rank].sum(axis=1).tolist()
            return [([r], before[r], int(cells[r, rank])) for r in everyone]
        if kind in ("all_gather", "gather"):
            return [([sender], 0, part) for sender in everyone]
        if kind == "scatter":
            return [([ROOT], rank * part, part)]
        return [([(rank - 1) % self.ranks if kind == "send_recv" else ROOT], 0, whole)]

    def wrong(self, salt: int) -> int:
        """Run once on known values; return the wrong elements of this rank.

        ``salt`` is the seed of the values: different in each check, equal on all ranks.
        """
        self.receive.fill_(-1)
        for at, values in self._values([self.rank], 0, len(self.send), salt):
            self.send[at : at + len(values)].copy_(values)
        self.moves.barrier()
        self.run()
        wrong, begin = 0, 0
        for senders, first, count in self.arrivals:
            for at, values in self._values(senders, first, count, salt):
                received = self.receive[begin + at : begin + at + len(values)]
                wrong += int((received != values).sum().item())
            begin += count
        self.moves.barrier()
        return wrong

    def _values(
        self, senders: Sequence[int], first: int, count: int, salt: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the sums of some ranks' elements in blocks, with each block's place."""
        for at in range(0, count, BLOCK):
            index = first + np.arange(at, min(at + BLOCK, count), dtype=np.int64)
            total = np.zeros(len(index), np.int64)
            for sender in senders:
                total += (31 * index + 17 * sender + salt) % 97
            own().note()
            yield at, torch.from_numpy(total).to(self.send)

    # ---- time ------------------------------------------------------------------------

    def row(self, nodes: Sequence[str]) -> dict[str, Any]:
        """Check, warm up and time the collective, on all ranks at the same time."""
        sweep, moves, counter = self.sweep, self.moves, own().counter
        wrong = sum(self.wrong(salt) for salt in range(sweep.check))

        def repeat(times: int) -> float:
            moves.settle()
            moves.barrier()
            begin = time.perf_counter_ns()
            for _ in range(times):
                counter[0] += 1
                self.run()
                counter[0] += 1
            moves.settle()
            return (time.perf_counter_ns() - begin) / max(1, times)

        repeat(sweep.warm_up)
        slowest_ns = moves.most(repeat(sweep.iterations))
        kind, size = self.call
        wire = round(float(wire_bytes(kind, self.ranks, size)))
        if kind == UNEVEN:
            wire = uneven_bytes(sweep.scaled(size))[1]
        return {
            "collective": kind,
            "ranks": self.ranks,
            "span": len(set(nodes)),
            "size_bytes": size,
            "wire_bytes": wire,
            "count": size // sweep.element_bytes,
            "dtype": sweep.dtype,
            "redop": "sum" if kind in REDUCTIONS else "none",
            "root": ROOT if kind in ROOTED else -1,
            "time_us": slowest_ns / 1e3,
            "algbw_gbs": size / slowest_ns,
            "busbw_gbs": wire / slowest_ns,
            "wrong": int(moves.total(wrong)) if sweep.check else -1,
        }


def run_rank(sweep: Sweep, rank_env: RankEnvironment) -> Result | None:
    """Run one rank of a benchmark; return the result on rank 0, None on others.

    Raises
    ------
    MoetrafficError
        If the benchmark cannot start, or a rank failed.
    """
    began_s, rank, ranks = time.monotonic(), rank_env.rank, rank_env.world
    own().note("start-up", State.STARTING)
    watchdog = Watchdog(
        start_s=START_S, silence_s=sweep.silence_s, grace_s=sweep.timeout_s
    )
    torch.set_num_threads(1)
    calls = sweep.calls(ranks)
    watchdog.namer = lambda _, n: sweep.name(ranks, n)
    meeting = Meeting(rank_env, START_S, began_s)
    with reporting(meeting, watchdog.namer):
        settings = {"moetraffic": moetraffic.__version__, "settings": repr(sweep)}
        nodes = meeting.handshake(settings, "", lambda: np.zeros(0, np.int64), str)
        moves = Transport(sweep.backend)
        with backend_errors(rank, "the rendezvous"):
            moves.start(
                rank_env, (tuple(range(ranks)),), sweep.timeout_s, meeting.store
            )
        own().note("", State.READY, total=len(calls))
        rows = []
        for number, call in enumerate(calls):
            with backend_errors(rank, "{} of {} B".format(*call)):
                rows.append(Measurement(call, sweep, rank, ranks, moves).row(nodes))
            own().note(done=number + 1)
        stack = stack_rows(sweep.backend, moves.device)
        moves.stop()
    watchdog.stop()
    own().note(state=State.DONE)
    return None if rank else bench_result(sweep, rows, nodes, stack)


def main() -> None:
    """Be a rank: read the settings, and write the result on rank 0."""
    settings, output = map(Path, sys.argv[1:])
    rank_env = current_rank()
    assert rank_env is not None
    values = json.loads(settings.read_text())
    values["matrix"] = tuple(map(tuple, values["matrix"]))
    sweep = Sweep(**values)
    result = run_to_exit(lambda: run_rank(sweep, rank_env), rank_env)
    if result is not None:
        write_result(output, result)


if __name__ == "__main__":
    main()
