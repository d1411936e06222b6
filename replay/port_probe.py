"""Measure the rates of the ranks' ports, and an even all-to-all, before a replay.

The estimates are those of :mod:`moetraffic.replay.results.ports`.  Every rank computes
the same from times that all ranks exchange, so that all agree on the next sizes.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from moetraffic.arrays import Float64, Int64
from moetraffic.launch import heartbeat
from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.replay.execution.control import barrier, gathered
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL

from .failure import backend_errors
from .results.ports import (
    DIRECTIONS,
    Pair,
    Ports,
    least_rate,
    port_rates,
    settled,
    single_cells,
)

PLACE = "the measurement of ports"
LONG_S = 0.2
"""Time that a measurement of the larger size aims at, s; with 0.06 s rates of
sending ports were off by up to 11%, presumably by TCP's slow start."""

PART = 4
"""The larger of two sizes over the smaller."""

REPETITIONS, MOST_REPEATED = 5, 3
"""Least measurements of each port, and factor up to which they are repeated."""

LEAST, MOST = 1 << 16, 1 << 25
"""Bytes of the first size that is tried, and of the largest."""

_ROUNDS = 8  # in which shares are adapted, at most
_GROWN = 1.05  # factor by which a rate grows in a round that is not the last
_BENCH = 10  # even all-to-alls that are timed together


class PortProbe:
    """Measures the ports of all ranks; every rank runs it at the same time."""

    def __init__(self, plan: Plan, rank: int, backend: Backend) -> None:
        self._plan = plan
        self._rank = rank
        self._backend = backend
        self._send = backend.empty(MOST)
        self._receive = backend.empty(MOST)

    def run(self) -> Ports:
        """Measure all ports and an even all-to-all.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        with backend_errors(self._rank, PLACE):
            # Step 1: even shares
            even_shares = np.ones((2, self._plan.world))
            rates = self._round(even_shares, self._first_size(), 2)[0]
            # Step 2: shares that follow the rates, until none of these grows
            for _ in range(_ROUNDS):
                before = rates
                rates = np.maximum(rates, self._round(rates, None, 2)[0])
                if (rates < _GROWN * before).all():
                    break
            # Step 3: the measurement
            samples = self._round(rates, None, REPETITIONS)[1]
            even = self._even_bytes()
            return Ports(
                rates=port_rates(samples, rates),
                bench_bytes=even * self._plan.world,
                bench_busbw_gbs=self._bench(even),
            )

    def _round(
        self, rates: Float64, size: int | None, repetitions: int
    ) -> tuple[Float64, dict[tuple[int, str], list[Pair]]]:
        """Measure each port; return rates ``[2, R]`` bytes/s and all measurements."""
        samples: dict[tuple[int, str], list[Pair]] = {
            (rank, way): [] for rank in range(self._plan.world) for way in DIRECTIONS
        }
        for number in range(MOST_REPEATED * repetitions):
            for (rank, way), pairs in samples.items():
                if number < repetitions or not settled(pairs):
                    pairs.append(self._pair(rank, way, rates, size))
        found = [
            [least_rate(samples[rank, way]) for rank in range(self._plan.world)]
            for way in DIRECTIONS
        ]
        return np.array(found), samples

    def _pair(self, rank: int, way: str, rates: Float64, size: int | None) -> Pair:
        """Time a smaller and a larger transfer of a port, of LONG_S without a size."""
        own, others = rates if way == DIRECTIONS[0] else rates[::-1]
        total = _bounded(own[rank] * LONG_S) if size is None else size
        timed = []
        for nbytes in (total // PART, total):
            cells = single_cells(rank, way, nbytes, others)
            timed.append((float(cells.sum()), self._time(cells)))
        return timed[0], timed[1]

    def _first_size(self) -> int:
        """Find bytes that take a quarter of LONG_S or more, of all ranks at once."""
        size, even = LEAST, np.ones((self._plan.world,) * 2, np.int64)
        np.fill_diagonal(even, 0)
        while size < MOST:
            took = self._time(even * (size // self._plan.world))
            if took > LONG_S / 4:
                break
            size *= 2
        return size

    def _even_bytes(self) -> int:
        """Bytes to each rank of an all-to-all as large as the plan's median one."""
        mine = self._plan.kind == KINDS.index(ALL_TO_ALL)
        moved = self._plan.bottleneck_bytes[mine]
        median = int(np.median(moved)) if len(moved) else LEAST
        return _bounded(median) // max(1, self._plan.world - 1)

    def _bench(self, each: int) -> float:
        """Measure busbw of an even all-to-all in a loop, as nccl-tests does, GB/s."""
        world = self._plan.world
        cells = np.full((world, world), each, np.int64)
        self._time(cells)
        took = self._time(cells, times=_BENCH) / _BENCH
        return each * (world - 1) / took / 1e9

    def _time(self, cells: Int64, *, times: int = 1) -> float:
        """Run an all-to-all; return its time on the slowest rank, s."""
        heartbeat.send("step", PLACE)
        everyone = len(self._plan.groups)
        sends, receives = cells[self._rank], cells[:, self._rank]
        call = Call(
            kind=ALL_TO_ALL,
            group=everyone,
            send=self._send[: int(sends.sum())],
            receive=self._receive[: int(receives.sum())],
            send_bytes=sends.tolist(),
            receive_bytes=receives.tolist(),
        )
        barrier(self._plan, self._backend)
        begin = time.monotonic_ns()
        for _ in range(times):
            run(self._backend, call)
        if self._backend.device.type == "cuda":
            torch.cuda.synchronize(self._backend.device)
        own = np.array([time.monotonic_ns() - begin], "<i8")
        return int(gathered(self._backend, everyone, self._plan.world, own).max()) / 1e9


def _bounded(nbytes: float) -> int:
    return int(min(max(nbytes, LEAST), MOST // 2))
