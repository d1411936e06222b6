"""Collective calls of a benchmark: buffers, arguments and expected results.

Element i of the data that rank r sends in a check is ``(31 i + 17 r + salt) mod 97``:
whole numbers, so that sums are exact, and different for neighboring elements, ranks and
checks.

In torch, all-reduce, broadcast and reduce work in place only.  Out of place, a copy
into the buffer and the call are timed together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.arrays import Int64
from moetraffic.patterns.bandwidth.collective import UNEVEN
from moetraffic.replay.backends.backend import Backend, Call
from moetraffic.replay.plan.program import REDUCTIONS

from .sweep import BenchmarkCall, Sweep

ROOT = 0


class Operation:
    """Collective call of one rank, prepared once and run many times."""

    def __init__(
        self,
        call: BenchmarkCall,
        sweep: Sweep,
        rank: int,
        ranks: int,
        moves: Backend,
    ) -> None:
        self.call = call
        self._rank, self._ranks = rank, ranks
        self._device = moves.device
        self._dtype = getattr(torch, sweep.dtype)
        width = sweep.element_bytes
        self.count = call.size_bytes // width  # elements of the size
        self._cells = np.zeros((ranks, ranks), np.int64)
        if call.collective == UNEVEN:
            self._cells = sweep.scaled(call.size_bytes) // width
        self.send, self.receive = self._buffers()
        self.run = self._bound(moves)

    def _empty(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=self._dtype, device=self._device)

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        whole, part = self.count, self.count // self._ranks
        rank, kind = self._rank, self.call.collective
        at_root = whole if rank == ROOT else 0
        cells = self._cells
        sends, receives = {
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
            "gather": (part, at_root),
            "scatter": (at_root, part),
            UNEVEN: (int(cells[rank].sum()), int(cells[:, rank].sum())),
        }.get(kind, (whole, whole))
        larger = self._empty(max(sends, receives))
        if self.call.place == "in":
            own = larger[rank * part : (rank + 1) * part]
            return (
                own if kind == "all_gather" else larger,
                own if kind == "reduce_scatter" else larger,
            )
        if sends > receives:
            return larger, self._empty(receives)
        return self._empty(sends), larger

    def _bound(self, moves: Backend) -> Callable[[], object]:
        """Bind the arguments of the call, so that a timed loop does nothing else."""
        send, receive, rank, ranks = self.send, self.receive, self._rank, self._ranks
        kind = self.call.collective
        if kind == "send_recv":
            both = [
                dist.P2POp(dist.isend, send, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, receive, (rank - 1) % ranks),
            ]

            def pass_on() -> None:
                for work in dist.batch_isend_irecv(both):
                    work.wait()

            return pass_on
        launch = moves.bind(
            Call(
                kind="all_to_all" if kind == UNEVEN else kind,
                group=0,
                send=send,
                receive=receive,
                send_bytes=self._cells[rank].tolist() if kind == UNEVEN else [],
                receive_bytes=self._cells[:, rank].tolist() if kind == UNEVEN else [],
                sender=ROOT if kind in ("broadcast", "scatter") else -1,
                receiver=ROOT if kind in ("reduce", "gather") else -1,
            )
        )
        in_one_buffer = kind in ("all_reduce", "broadcast", "reduce")
        copies = in_one_buffer and self.call.place == "out"

        def start() -> None:
            if copies:
                receive.copy_(send)
            work = launch()
            if work is not None:
                work.wait()

        return start

    # ---- the check -----------------------------------------------------------------

    def wrong(self, salt: int) -> int:
        """Run the call once on known values; return the wrong elements of this rank.

        ``salt`` is the seed of the values: different in each check, equal on all ranks.
        """
        self.receive.fill_(-1)
        sent = self._values(self._rank, 0, len(self.send), salt)
        self.send.copy_(self._tensor(sent))
        self.run()
        if self.call.collective in ("reduce", "gather") and self._rank != ROOT:
            return 0  # undefined on ranks other than the root
        expected = self._tensor(self._expected(salt))
        return int((self.receive != expected).sum().item())

    def _tensor(self, values: Int64) -> torch.Tensor:
        return torch.from_numpy(values).to(self._dtype).to(self._device)

    def _values(self, rank: int, first: int, count: int, salt: int) -> Int64:
        at = np.arange(first, first + count, dtype=np.int64)
        return np.asarray((31 * at + 17 * rank + salt) % 97, np.int64)

    def _expected(self, salt: int) -> Int64:
        rank, ranks, whole = self._rank, self._ranks, self.count
        kind, part = self.call.collective, self.count // self._ranks
        # parts that arrive: sender, first element, number of elements
        everyone = range(ranks)
        before, mine = self._cells[:, :rank].sum(axis=1), self._cells[:, rank]
        parts = {
            "all_reduce": [(r, 0, whole) for r in everyone],
            "reduce": [(r, 0, whole) for r in everyone],
            "reduce_scatter": [(r, rank * part, part) for r in everyone],
            "all_gather": [(r, 0, part) for r in everyone],
            "gather": [(r, 0, part) for r in everyone],
            "broadcast": [(ROOT, 0, whole)],
            "scatter": [(ROOT, rank * part, part)],
            "all_to_all": [(r, rank * part, part) for r in everyone],
            UNEVEN: [(r, int(before[r]), int(mine[r])) for r in everyone],
            "send_recv": [((rank - 1) % ranks, 0, whole)],
        }[kind]
        values = [self._values(r, first, count, salt) for r, first, count in parts]
        if kind in REDUCTIONS:
            return np.asarray(np.sum(values, axis=0), np.int64)
        return np.concatenate(values)
