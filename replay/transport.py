"""Operations of a replay by process groups of ``torch.distributed``.

An operation is *bound* to its buffers once, before any timing; the closure runs in the
timed loop and only starts the operation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch.board import own
from moetraffic.launch.devices import own_gpu
from moetraffic.launch.environment import RankEnvironment, rendezvous

from .failure import RankError, backend_errors, first_line
from .options import check_backend, on_gpu
from .plan.operations import KINDS, MESSAGE, REDUCTIONS, Plan
from .plan.program import Program

Groups = Sequence[tuple[int, ...]]
"""World ranks of each group, ascending; () for one that is not used."""

NCCL_ENVIRONMENT = {
    # more streams than hardware queues would wait for each other
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # kernels of communicators that overlap run in the order of their launches
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    # errors and timeouts are found here, by polling, and name rank and operation
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Variables that NCCL and CUDA read at the start, where the environment lacks them."""

NCCL_TIMEOUT_S = 86_400.0
"""NCCL's own timeout, s.  It counts from the launch, and launches run ahead of the
device by an iteration; those of this module count from the last progress."""

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
"""Element types in which all backends sum."""

POLL_S = 50e-6
PREPARED = 1 << 16
"""Operations that are bound before timing; later ones are when it is their turn."""


class Work(Protocol):
    """Handle of an operation that has been started."""

    def wait(self) -> object:
        """Wait until the operation has ended on this rank.

        On a CUDA device, return at once: work queued later on the current stream runs
        after the operation.
        """
        ...


Launch = Callable[[], Work | None]
"""Closure that starts an operation, repeatedly; None if it has ended on return."""

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def partitions(groups: Groups, numbers: Sequence[int]) -> list[list[int]]:
    """Sort some groups into sets of disjoint ones, which can be created at once."""
    sets: list[tuple[set[int], list[int]]] = []
    for number in numbers:
        ranks = groups[number]
        free = next((s for s in sets if s[0].isdisjoint(ranks)), None)
        if free is None:
            free = set(), []
            sets.append(free)
        free[0].update(ranks)
        free[1].append(number)
    return [members for _, members in sets]


class Transport:
    """Process groups of one rank, and closures that start operations in them."""

    def __init__(self, name: str = "gloo") -> None:
        check_backend(name)
        self.name = name
        self.device = torch.device("cpu")  # of the buffers; known after start
        self.rank, self.world, self.timeout_s = 0, 1, 60.0
        self.groups: list[tuple[int, ...]] = []
        self.everyone = 0  # index of a group of all ranks, which is torch's own
        self._groups: list[Any] = []
        self._downward: list[Any] = []  # of gloo-duplex

    # ---- groups ----------------------------------------------------------------------

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Groups,
        timeout_s: float,
        store: Any = None,
    ) -> None:
        """Connect to the other ranks and create the groups.

        Groups with the same ranks are made separately: operations of different groups
        overlap.  NCCL's communicator of all ranks is split once for a set of disjoint
        groups.  Groups of other backends are made one by one, but only their members
        meet in the store.  One of all ranks is added where there is none.

        Operations name a group by its index; they fail after ``timeout_s``.  ``store``
        is one of torch that all ranks share; None for one of the environment.
        """
        self.rank, self.world, _ = rank_env
        self.timeout_s = timeout_s
        if on_gpu(self.name):
            for name, value in NCCL_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            try:
                gpu = own_gpu(rank_env.local_rank, torch.cuda.device_count())
            except LayoutError as error:
                raise ReplayError(
                    f"the backend {self.name} needs a CUDA device for each rank of a "
                    f"host: {error}, with --backend gloo"
                ) from None
            self.device = torch.device("cuda", gpu)
            torch.cuda.set_device(self.device)
        torch_name = self.name.removesuffix("-duplex")
        if not getattr(dist, f"is_{torch_name}_available", lambda: True)():
            raise ReplayError(
                f"the backend {self.name} is inside torch, but torch "
                f"{torch.__version__} was built without it: build torch with it, or "
                "use --backend gloo"
            )
        on_device = self.device.type == "cuda"
        patience = timedelta(
            seconds=timeout_s + (timeout_s + NCCL_TIMEOUT_S) * on_device
        )
        dist.init_process_group(
            torch_name,
            init_method=None if store is not None else rendezvous(),
            store=store,
            rank=self.rank,
            world_size=self.world,
            timeout=patience,
            # creates NCCL's communicators at once, and lets groups be split from it
            device_id=self.device if on_device else None,
        )
        everyone = tuple(range(self.world))
        self.groups = [*groups, *[everyone] * (everyone not in groups)]
        self.everyone = self.groups.index(everyone)
        used = [n for n, ranks in enumerate(self.groups) if ranks]
        others = [n for n in used if n != self.everyone]
        self._groups = self._created(others, patience)
        self._groups[self.everyone] = dist.group.WORLD
        if self.name == "gloo-duplex":
            self._downward = self._created(used, patience)
        self._one = torch.zeros(1, dtype=torch.float64, device=self.device)

    def _created(self, numbers: Sequence[int], timeout: timedelta) -> list[Any]:
        """Create some groups; None in the places of those without this rank."""
        groups = self.groups
        created: list[Any] = [None] * len(groups)
        if self.name != "nccl" or not hasattr(dist, "split_group"):
            for number in numbers:
                made = dist.new_group(list(groups[number]), timeout=timeout)
                created[number] = made if self.rank in groups[number] else None
            return created
        for members in partitions(groups, numbers):
            ranks = [list(groups[n]) for n in members]
            made = dist.split_group(split_ranks=ranks, timeout=timeout)
            for number in members:
                created[number] = made if self.rank in groups[number] else None
        return created

    def set_timeout(self, timeout_s: float) -> None:
        """Set after which time an operation fails, s."""
        self.timeout_s = timeout_s
        if self.name.startswith("gloo"):
            for pg in filter(None, {*self._groups, *self._downward}):
                _set_pg_timeout(timedelta(seconds=timeout_s), pg)

    def stop(self) -> None:
        """Destroy the process groups; the transport is not used again."""
        self._groups, self._downward = [], []
        dist.destroy_process_group()

    # ---- operations of a program -----------------------------------------------------

    def empty(self, size: int) -> torch.Tensor:
        """Allocate a buffer of ``[size]`` bytes, uint8."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def bind(
        self,
        kind: str,
        group: int,
        send: torch.Tensor,
        receive: torch.Tensor,
        sends: Sequence[int] = (),
        receives: Sequence[int] = (),
        *,
        root: int = -1,
    ) -> Launch:
        """Return a closure that starts a collective; it may be called repeatedly.

        Buffers are one-dimensional, with elements as in :func:`.plan.matrices.buffers`;
        ``sends`` and ``receives`` ``[W]`` are the elements of an all-to-all to and from
        each member, and ``root`` a world rank.
        """
        members = self.groups[group]
        common: dict[str, Any] = {"group": self._groups[group], "async_op": True}
        if kind == "all_to_all":
            if self._downward:
                return self._duplex(group, send, receive, sends, receives)
            pg = self._groups[group]
            # what dist.all_to_all_single calls, without its checks: 5 us less
            method = getattr(pg, "all_to_all_single", pg.alltoall_base)
            options = dist.AllToAllOptions()
            return partial(method, receive, send, list(receives), list(sends), options)
        if kind == "barrier":  # torch's own blocks the host
            return partial(dist.all_reduce, torch.zeros_like(self._one), **common)
        if kind == "all_reduce":
            return partial(dist.all_reduce, receive, **common)
        if kind == "all_gather":
            return partial(_all_gather, receive, send, **common)
        if kind == "reduce_scatter":
            return partial(_reduce_scatter, receive, send, **common)
        if kind == "broadcast":
            return partial(dist.broadcast, receive, src=root, **common)
        if kind == "reduce":
            return partial(dist.reduce, receive, dst=root, **common)
        own = self.rank == root
        if kind == "gather":
            pieces = _pieces(receive, len(members)) if own else None
            return partial(dist.gather, send, pieces, dst=root, **common)
        pieces = _pieces(send, len(members)) if own else None
        return partial(dist.scatter, receive, pieces, src=root, **common)

    def messages(
        self, group: int, given: Sequence[tuple[torch.Tensor, torch.Tensor, int, int]]
    ) -> Launch:
        """Return a closure that starts messages of a group, which all end together.

        Each has a send and a receive buffer, sender and receiver.  With NCCL this is
        one launch.  A single message needs it, too: on communicators made at the start,
        torch runs a message outside of such a launch as an operation of the whole
        group, one after the other.
        """
        pg, copies, others = self._groups[group], [], []
        for send, receive, sender, receiver in given:
            if sender == receiver:
                copies.append(partial(receive.copy_, send))
            elif self.rank == sender:
                others.append(dist.P2POp(dist.isend, send, receiver, pg))
            else:
                others.append(dist.P2POp(dist.irecv, receive, sender, pg))

        def launch() -> Work | None:
            for copy in copies:
                copy()
            return Works(dist.batch_isend_irecv(others)) if others else None

        return launch

    def _duplex(
        self,
        group: int,
        send: torch.Tensor,
        receive: torch.Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
    ) -> Launch:
        """Bind an all-to-all as two, to higher and to lower ranks, which run at once.

        gloo has one connection for each pair of ranks and group.  A rank sends after
        its peer has announced that it is ready to receive; where the peer sends as
        well, that announcement waits behind the peer's bytes.  So a pair exchanges
        bytes one direction after the other, in up to twice the time of the network.
        """
        place = self.groups[group].index(self.rank)
        higher = place + 1
        none = [0] * len(sends)
        # bytes to and from lower ranks, and the rank itself, come first in the buffers
        out, into = sum(sends[:higher]), sum(receives[:place])
        upward = partial(
            dist.all_to_all_single,
            *(receive[:into], send[out:]),
            *([*receives[:place], *none[place:]], [*none[:higher], *sends[higher:]]),
            group=self._groups[group],
            async_op=True,
        )
        downward = partial(
            dist.all_to_all_single,
            *(receive[into:], send[:out]),
            *([*none[:place], *receives[place:]], [*sends[:higher], *none[higher:]]),
            group=self._downward[group],
            async_op=True,
        )
        return lambda: Works([upward(), downward()])

    # ---- one operation, and small values of all ranks --------------------------------

    def run(self, launch: Launch) -> None:
        """Run an operation once and wait until it has ended."""
        work = launch()
        if work is not None:
            work.wait()
        self.settle()

    def settle(self) -> None:
        """Wait until the current stream of a device has ended, polling."""
        if self.device.type == "cpu":
            return
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        until_s = time.monotonic() + self.timeout_s
        while not event.query():
            self.check()
            if time.monotonic() > until_s:
                raise RuntimeError(f"timed out after {self.timeout_s:g} s")
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise the error of a communicator of NCCL that has failed."""
        for pg in filter(None, self._groups if self.name == "nccl" else ()):
            backend = pg._get_backend(self.device)
            error: Any = getattr(backend, "get_error", int)()
            if getattr(error, "value", 0):
                raise RuntimeError(f"NCCL reports {error.name.lower()}")

    def barrier(self) -> None:
        """Wait until every rank has called this function: a one-element all-reduce."""
        self.run(partial(dist.all_reduce, self._one, async_op=True))

    def gathered(self, values: Sequence[float]) -> npt.NDArray[np.float64]:
        """Gather a few numbers ``[k]`` of every rank, ``[R, k]``, on all, as a sum."""
        table = torch.zeros((self.world, len(values)), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        table = table.to(self.device)
        self.run(partial(dist.all_reduce, table, async_op=True))
        return np.asarray(table.cpu().numpy())

    def exchange(self, sends: Int64, receives: Int64) -> float:
        """Run an all-to-all of all ranks when they are ready; return its time, s.

        ``sends`` and ``receives`` ``[R]`` are bytes to and from each rank.
        """
        launch = self.bind(
            "all_to_all",
            self.everyone,
            self.empty(int(sends.sum())).zero_(),
            self.empty(int(receives.sum())).zero_(),
            sends.tolist(),
            receives.tolist(),
        )
        self.barrier()
        begin = time.monotonic_ns()
        self.run(launch)
        return (time.monotonic_ns() - begin) / 1e9


class Bound:
    """Program of a rank with its buffers: closures of its operations.

    Each stream has a send and a receive buffer, as large as its largest operation
    needs.  Operations of a stream that overlap share them: the timed pass does not
    check bytes.  On a device the first of a batch of messages starts all of them.
    ``like`` has buffers that are large enough for this program, too.

    Sums compute in the element type of their site, or in bytes if the size of a buffer
    is no multiple of it.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        transport: Transport,
        *,
        like: Bound | None = None,
    ) -> None:
        self.plan, self.program, self.transport = plan, program, transport
        self._prepared: list[Launch] = []
        self._dtypes = [_dtype(site.dtype) for site in plan.sites]
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        if like is not None:
            self._buffers = like._buffers
            return
        try:
            for stream in np.unique(program.stream).tolist():
                send, receive = program.stream_bytes(stream)
                self._buffers[stream] = transport.empty(send), transport.empty(receive)
            self.clear()
        except (RuntimeError, MemoryError) as error:
            send, receive = program.buffer_bytes
            raise RankError(
                f"has no memory for buffers of {send} and {receive} bytes on "
                f"{transport.device} ({first_line(error)}): replay on a larger machine",
                rank=program.rank,
                operation="start-up",
            ) from error

    def clear(self) -> None:
        """Set all bytes to zero, so that repeated sums stay zero; touches all pages."""
        for send, receive in self._buffers.values():
            send.zero_()
            receive.zero_()

    def buffers(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the send and receive buffer of the n-th operation."""
        program = self.program
        send, receive = self._buffers[int(program.stream[n])]
        send = send[: int(program.send_size[n])]
        receive = receive[: int(program.receive_size[n])]
        if KINDS[program.kind[n]] in REDUCTIONS:
            dtype = self._dtypes[self.plan.site[program.operation[n]]]
            width = dtype.itemsize
            if not (len(send) % width or len(receive) % width):
                return send.view(dtype), receive.view(dtype)
        return send, receive

    def bind(self, n: int) -> Launch:
        """Return the closure that starts the n-th operation."""
        program, plan = self.program, self.plan
        operation, kind = int(program.operation[n]), KINDS[program.kind[n]]
        if kind == MESSAGE:
            return self._messages(range(n, n + 1))
        return self.transport.bind(
            kind,
            int(program.group[n]),
            *self.buffers(n),
            program.sends(n).tolist(),
            program.receives(n).tolist(),
            root=int(max(plan.sender[operation], plan.receiver[operation])),
        )

    def _messages(self, rows: range) -> Launch:
        program, plan = self.program, self.plan
        calls = program.operation[rows.start : rows.stop]
        ends = zip(
            plan.sender[calls].tolist(), plan.receiver[calls].tolist(), strict=True
        )
        messages = [
            (*self.buffers(n), *pair) for n, pair in zip(rows, ends, strict=True)
        ]
        return self.transport.messages(int(program.group[rows.start]), messages)

    def prepare(self) -> None:
        """Set all bytes to zero, and bind the operations, up to PREPARED."""
        self.clear()
        count = min(len(self.program), PREPARED)
        self._prepared = [self._launch(n) for n in range(count)]

    def launch(self, n: int) -> Launch:
        """Return the closure of the n-th operation, or of the batch that it begins."""
        return self._prepared[n] if n < len(self._prepared) else self._launch(n)

    def _launch(self, n: int) -> Launch:
        batch = self.program.batch
        if self.transport.device.type == "cpu":
            return self.bind(n)
        if batch[n] < n:
            return _started
        end = int(np.searchsorted(batch, n, side="right"))
        return self.bind(n) if end == n + 1 else self._messages(range(n, end))

    # ---- passes that are not timed ---------------------------------------------------

    def common_order(self) -> list[int]:
        """Indices of the program's operations in the order of all ranks."""
        operation = self.program.operation
        place = np.full(len(self.plan), -1)
        place[operation] = np.arange(len(operation))
        order: list[int] = place[self.plan.order(operation)].tolist()
        return order

    def warm_up(self) -> None:
        """Run one operation of each group, kind and size class, in a common order.

        Connections, algorithms and protocols depend on these; none is set up while
        operations are timed.  A size class is a factor of two.
        """
        plan = self.plan
        order = plan.order(np.arange(len(plan)))
        size_class = np.log2(plan.largest_bytes + 1).astype(np.int64)
        columns = (plan.group, plan.kind, plan.sender, plan.receiver, size_class)
        keys = np.stack([column[order] for column in columns], axis=1)
        _, first = np.unique(keys, axis=0, return_index=True)
        chosen = set(order[first].tolist())
        for n in self.common_order():
            operation = int(self.program.operation[n])
            if operation in chosen:
                own().note()
                with backend_errors(self.program.rank, plan.name(operation)):
                    self.transport.run(self.bind(n))


class Works:
    """Handle of operations that were started together."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works

    def wait(self) -> None:
        """Wait until all have ended."""
        for work in self.works:
            work.wait()


def _dtype(name: str) -> torch.dtype:
    """Return torch's element type of a name; float32 for one that is not summed."""
    dtype: torch.dtype = getattr(torch, name if name in DTYPES else "float32")
    return dtype


def _started() -> None:
    """Start a message that the first of its batch has started."""


def _pieces(tensor: torch.Tensor, members: int) -> list[torch.Tensor]:
    """Split a buffer into W equal parts, and an empty buffer into W empty parts."""
    return list(tensor.view(members, -1)) if len(tensor) else [tensor] * members
