"""Collective calls of a benchmark: buffers, arguments and expected results.

Element i of the data that rank r sends in a check is ``(31 i + 17 r + salt) mod 97``:
whole numbers, so that sums are exact, and different for neighboring elements, ranks and
checks.

In torch, all-reduce, broadcast and reduce work in place only.  Out of place, a copy
into the buffer and the call are timed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.patterns.collectives import UNEVEN
from moetraffic.replay.backends.backend import Backend, Call
from moetraffic.replay.execution.local_work import Advance, LocalWork
from moetraffic.replay.plan.program import REDUCTIONS

from .sweep import BenchmarkCall, Sweep

ROOT = 0

_BLOCK = 1 << 16
"""Elements whose values are computed at a time."""


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
        self._work = LocalWork(moves, 0, ranks)

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
        advance = self._work.chunks()
        for at, values in self._values([self._rank], 0, len(self.send), salt, advance):
            self.send[at : at + len(values)].copy_(values)
        self._work.meet()
        self.run()
        wrong = 0
        # undefined on ranks other than the root of a reduce and a gather
        if self._rank == ROOT or self.call.collective not in ("reduce", "gather"):
            wrong = self._compare(salt)
        self._work.meet()
        return wrong

    def _compare(self, salt: int) -> int:
        """Count the received elements that are not as expected."""
        wrong, begin, advance = 0, 0, self._work.chunks()
        for senders, first, count in self._parts():
            for at, values in self._values(senders, first, count, salt, advance):
                received = self.receive[begin + at : begin + at + len(values)]
                wrong += int((received != values).sum().item())
            begin += count
        return wrong

    def _values(
        self,
        senders: Sequence[int],
        first: int,
        count: int,
        salt: int,
        advance: Advance,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the sums of some ranks' elements in blocks, with each block's place."""
        for at in range(0, count, _BLOCK):
            index = first + np.arange(at, min(at + _BLOCK, count), dtype=np.int64)
            total = np.zeros(len(index), np.int64)
            for sender in senders:
                total += (31 * index + 17 * sender + salt) % 97
            yield at, torch.from_numpy(total).to(self._dtype).to(self._device)
            advance(total.nbytes * len(senders))

    def _parts(self) -> list[tuple[Sequence[int], int, int]]:
        """List what arrives in order: who adds up, first element, elements."""
        rank, ranks, whole = self._rank, self._ranks, self.count
        kind, part = self.call.collective, self.count // self._ranks
        everyone = range(ranks)
        before, mine = self._cells[:, :rank].sum(axis=1), self._cells[:, rank]
        if kind in REDUCTIONS:
            first = rank * part if kind == "reduce_scatter" else 0
            return [(everyone, first, len(self.receive))]
        parts = {
            "all_gather": [(r, 0, part) for r in everyone],
            "gather": [(r, 0, part) for r in everyone],
            "broadcast": [(ROOT, 0, whole)],
            "scatter": [(ROOT, rank * part, part)],
            "all_to_all": [(r, rank * part, part) for r in everyone],
            UNEVEN: [(r, int(before[r]), int(mine[r])) for r in everyone],
            "send_recv": [((rank - 1) % ranks, 0, whole)],
        }[kind]
        return [([sender], first, count) for sender, first, count in parts]
