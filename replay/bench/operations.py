"""The collectives: their buffers, the call, and what must have arrived.

Element i of what rank r sends in a check is ``(31 i + 17 r + salt) mod 97``: whole
numbers, so that sums are exact, and different for neighbors in place, rank and check.

In torch, all-reduce, broadcast and reduce work in one buffer only.  Out of place they
are the copy into that buffer and the call, timed together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from moetraffic.patterns.collective import UNEVEN

from .sweep import BenchmarkCall, Sweep

Int64 = npt.NDArray[np.int64]

ROOT = 0


class Operation:
    """A rank's part in one call: make it, issue it many times, check it.

    Parameters
    ----------
    call, sweep
        What and how.
    rank, ranks
        Which of how many.
    device
        Where buffers lie.
    """

    def __init__(
        self,
        call: BenchmarkCall,
        sweep: Sweep,
        rank: int,
        ranks: int,
        device: torch.device,
    ) -> None:
        self.call = call
        self._rank, self._ranks = rank, ranks
        self._device = device
        self._dtype = getattr(torch, sweep.dtype)
        width = sweep.element_bytes
        self.count = call.size_bytes // width  # elements of the size
        if call.collective == UNEVEN:
            self._cells = sweep.scaled(call.size_bytes) // width
        else:
            self._cells = np.zeros((ranks, ranks), np.int64)
        self.send, self.receive = self._buffers()
        self.run = self._bound()

    # ---- buffers and the call ------------------------------------------------------

    def _empty(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=self._dtype, device=self._device)

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        whole, part = self.count, self.count // self._ranks
        rank, kind = self._rank, self.call.collective
        in_place = self.call.place == "in"
        root = rank == ROOT
        if kind == "all_gather":
            receive = self._empty(whole)
            if in_place:
                return receive[rank * part : (rank + 1) * part], receive
            return self._empty(part), receive
        if kind == "reduce_scatter":
            send = self._empty(whole)
            if in_place:
                return send, send[rank * part : (rank + 1) * part]
            return send, self._empty(part)
        if kind == "gather":
            return self._empty(part), self._empty(whole if root else 0)
        if kind == "scatter":
            return self._empty(whole if root else 0), self._empty(part)
        if kind == UNEVEN:
            sent, got = self._cells[rank].sum(), self._cells[:, rank].sum()
            return self._empty(int(sent)), self._empty(int(got))
        receive = self._empty(whole)
        return (receive if in_place else self._empty(whole)), receive

    def _bound(self) -> Callable[[], None]:
        """The call with its arguments, so that a timed loop does nothing else."""
        send, receive, ranks = self.send, self.receive, self._ranks
        kind, copies = self.call.collective, self.call.place == "out"
        if kind in ("all_reduce", "broadcast", "reduce"):

            def one_buffer() -> None:
                if copies:
                    receive.copy_(send)
                if kind == "all_reduce":
                    dist.all_reduce(receive)
                elif kind == "broadcast":
                    dist.broadcast(receive, ROOT)
                else:
                    dist.reduce(receive, ROOT)

            return one_buffer
        if kind == "all_gather":
            return lambda: _ignore(dist.all_gather_into_tensor(receive, send))
        if kind == "reduce_scatter":
            return lambda: _ignore(dist.reduce_scatter_tensor(receive, send))
        if kind == "all_to_all":
            return lambda: _ignore(dist.all_to_all_single(receive, send))
        if kind == UNEVEN:
            gets = self._cells[:, self._rank].tolist()
            gives = self._cells[self._rank].tolist()
            return lambda: _ignore(dist.all_to_all_single(receive, send, gets, gives))
        if kind == "gather":
            into = list(receive.chunk(ranks)) if self._rank == ROOT else None
            return lambda: _ignore(dist.gather(send, into, ROOT))
        if kind == "scatter":
            out = list(send.chunk(ranks)) if self._rank == ROOT else None
            return lambda: _ignore(dist.scatter(receive, out, ROOT))
        following, before = (self._rank + 1) % ranks, (self._rank - 1) % ranks
        both = [
            dist.P2POp(dist.isend, send, following),
            dist.P2POp(dist.irecv, receive, before),
        ]

        def pass_on() -> None:
            for work in dist.batch_isend_irecv(both):
                work.wait()

        return pass_on

    # ---- the check -----------------------------------------------------------------

    def wrong(self, salt: int) -> int:
        """Run it once on known values; how many elements are wrong here.

        Parameters
        ----------
        salt
            Another one each time, the same on all ranks.
        """
        self.receive.fill_(-1)
        self.send.copy_(self._tensor(self._sent(salt)))
        self.run()
        if self.call.collective in ("reduce", "gather") and self._rank != ROOT:
            return 0  # what the others hold then is nobody's business
        expected = self._tensor(self._expected(salt))
        return int((self.receive != expected).sum().item())

    def _tensor(self, values: Int64) -> torch.Tensor:
        return torch.from_numpy(values).to(self._dtype).to(self._device)

    def _values(self, rank: int, first: int, count: int, salt: int) -> Int64:
        at = np.arange(first, first + count, dtype=np.int64)
        return np.asarray((31 * at + 17 * rank + salt) % 97, np.int64)

    def _sent(self, salt: int) -> Int64:
        return self._values(self._rank, 0, len(self.send), salt)

    def _expected(self, salt: int) -> Int64:
        rank, ranks, whole = self._rank, self._ranks, self.count
        kind, part = self.call.collective, self.count // self._ranks

        def summed(first: int, count: int) -> Int64:
            every = [self._values(r, first, count, salt) for r in range(ranks)]
            return np.asarray(np.sum(every, axis=0), np.int64)

        if kind in ("all_reduce", "reduce"):
            return summed(0, whole)
        if kind == "reduce_scatter":
            return summed(rank * part, part)
        if kind in ("all_gather", "gather"):
            return np.concatenate(
                [self._values(r, 0, part, salt) for r in range(ranks)]
            )
        if kind == "broadcast":
            return self._values(ROOT, 0, whole, salt)
        if kind == "scatter":
            return self._values(ROOT, rank * part, part, salt)
        if kind == "all_to_all":
            return np.concatenate(
                [self._values(r, rank * part, part, salt) for r in range(ranks)]
            )
        if kind == UNEVEN:
            before = self._cells[:, :rank].sum(axis=1).tolist()
            mine = self._cells[:, rank].tolist()
            parts = zip(range(ranks), before, mine, strict=True)
            return np.concatenate([self._values(r, b, n, salt) for r, b, n in parts])
        return self._values((rank - 1) % ranks, 0, whole, salt)


def _ignore(_: object) -> None:
    """Collectives return a handle only where asked to go on at once."""
