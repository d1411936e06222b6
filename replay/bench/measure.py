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
from typing import Any

import numpy as np
import torch

import moetraffic
from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment
from moetraffic.patterns.collectives import wire_bytes
from moetraffic.replay.agree import meeting
from moetraffic.replay.failure import backend_errors
from moetraffic.replay.plan.operations import REDUCTIONS
from moetraffic.replay.results.facts import stack_rows
from moetraffic.replay.run import rank_result
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
        at_root = whole if rank == ROOT else 0
        sends, receives = {
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
            "gather": (part, at_root),
            "scatter": (at_root, part),
        }.get(kind, (whole, whole))
        self.send, self.receive = self._empty(sends), self._empty(receives)
        if kind in IN_PLACE:
            self.send = self.receive
        self.arrivals = self._arrivals(kind, whole, part)
        if kind == "send_recv":
            ends = (rank, (rank + 1) % ranks), ((rank - 1) % ranks, rank)
            both = self.send, self.receive
            self.launch = moves.messages(0, [(*both, *pair) for pair in ends])
            return
        splits = [part] * ranks if kind == "all_to_all" else []
        root = ROOT if kind in ROOTED else -1
        self.launch = moves.bind(
            *(kind, 0, self.send, self.receive, splits, splits), root=root
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
        self, kind: str, whole: int, part: int
    ) -> list[tuple[Sequence[int], int, int]]:
        """List what arrives in order: who adds up, first element, elements."""
        rank, everyone = self.rank, range(self.ranks)
        if kind in ("reduce", "gather") and rank != ROOT:
            return []  # undefined
        if kind in REDUCTIONS:
            first = rank * part if kind == "reduce_scatter" else 0
            return [(everyone, first, len(self.receive))]
        if kind == "all_to_all":
            return [([sender], rank * part, part) for sender in everyone]
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
        every = moves.gathered([repeat(sweep.iterations), wrong])
        slowest_ns, wrong = float(every[:, 0].max()), int(every[:, 1].sum())
        kind, size = self.call
        wire = round(float(wire_bytes(kind, self.ranks, size)))
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
            "wrong": wrong if sweep.check else -1,
        }


def run_rank(sweep: Sweep, rank_env: RankEnvironment) -> Result | None:
    """Run one rank of a benchmark; return the result on rank 0, None on others.

    Raises
    ------
    MoetrafficError
        If the benchmark cannot start, or a rank failed.
    """
    rank, ranks, _ = rank_env
    calls = sweep.calls(ranks)
    with meeting(
        rank_env,
        lambda _, n: sweep.name(ranks, n),
        start_s=START_S,
        silence_s=sweep.silence_s,
        grace_s=sweep.timeout_s,
    ) as met:
        settings = {"moetraffic": moetraffic.__version__, "settings": repr(sweep)}
        nodes = met.handshake(settings)
        moves = Transport(sweep.backend)
        with backend_errors(rank, "the rendezvous"):
            moves.start(rank_env, (tuple(range(ranks)),), sweep.timeout_s, met.store)
        own().note("", State.READY, total=len(calls))
        rows = []
        for number, call in enumerate(calls):
            with backend_errors(rank, "{} of {} B".format(*call)):
                rows.append(Measurement(call, sweep, rank, ranks, moves).row(nodes))
            own().note(done=number + 1)
        stack = stack_rows(sweep.backend, moves.device)
        moves.stop()
    return None if rank else bench_result(sweep, rows, nodes, stack)


def run(settings: str, rank_env: RankEnvironment) -> Result | None:
    """Run a rank of :func:`moetraffic.replay.run.start_ranks`."""
    return run_rank(Sweep(**json.loads(settings)), rank_env)


if __name__ == "__main__":
    rank_result(sys.argv[1], sys.argv[2], run)
