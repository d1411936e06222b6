"""Operations of a replay by process groups of ``torch.distributed``.

An operation is *bound* to its buffers once, before any timing; the closure runs in the
timed loop and only starts the operation.  Methods of a process group are called
directly, without the checks in the functions of ``torch.distributed``: planning has
made them.  The calls go through torch's dispatcher, so the capture hook records them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch.devices import own_gpu
from moetraffic.launch.environment import RankEnvironment, rendezvous

from .failure import RankError, first_line
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
PREPARED, BLOCK = 1 << 16, 4096
"""Operations bound before timing; longer programs are bound in blocks."""


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

_METHODS: Mapping[str, tuple[tuple[str, ...], Callable[[], Any]]] = {
    "all_to_all": (("all_to_all_single", "alltoall_base"), dist.AllToAllOptions),
    "all_reduce": (("allreduce",), dist.AllreduceOptions),
    "all_gather": (("all_gather_single", "_allgather_base"), AllgatherOptions),
    "reduce_scatter": (
        ("reduce_scatter_single", "_reduce_scatter_base"),
        dist.ReduceScatterOptions,
    ),
    "broadcast": (("broadcast",), dist.BroadcastOptions),
    "reduce": (("reduce",), dist.ReduceOptions),
    "gather": (("gather",), dist.GatherOptions),
    "scatter": (("scatter",), dist.ScatterOptions),
}
"""Methods of a process group, by name in new and old versions of torch, and options."""


def partitions(groups: Groups, world: int) -> list[list[int]]:
    """Sort groups into sets of disjoint ones, which can be created at once.

    Without the first group of all ranks, which is torch's own.
    """
    sets: list[tuple[set[int], list[int]]] = []
    whole = world_group(groups, world)
    for number, ranks in enumerate(groups):
        if ranks and number != whole:
            free = next((s for s in sets if s[0].isdisjoint(ranks)), None)
            if free is None:
                free = set(), []
                sets.append(free)
            free[0].update(ranks)
            free[1].append(number)
    return [members for _, members in sets]


def world_group(groups: Groups, world: int) -> int:
    """Return the first group of all ranks, which is torch's own; -1: there is none."""
    return next((n for n, ranks in enumerate(groups) if len(ranks) == world), -1)


class Transport:
    """Process groups of one rank, and closures that start operations in them."""

    def __init__(self, name: str = "gloo") -> None:
        check_backend(name)
        self.name = name
        self.device = torch.device("cpu")  # of the buffers; known after start
        self.rank, self.world, self.timeout_s = 0, 1, 60.0
        self.groups: list[tuple[int, ...]] = []
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
        meet in the store.

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
        self.groups = [tuple(g) for g in groups]
        self._groups = self._created(patience)
        if self.name == "gloo-duplex":
            self._downward = self._created(patience, anew=True)
        self._one = torch.zeros(1, dtype=torch.float64, device=self.device)

    def _created(self, timeout: timedelta, *, anew: bool = False) -> list[Any]:
        """Create the groups of this rank; None in the places of others.

        ``anew``: also one for the group that is torch's own.
        """
        groups = self.groups
        created: list[Any] = [None] * len(groups)
        whole = world_group(groups, self.world)
        if whole >= 0 and not anew:
            created[whole] = dist.group.WORLD
        sets = partitions(groups, self.world) + [[whole]] * (anew and whole >= 0)
        splits = self.name == "nccl" and hasattr(dist, "split_group")
        for members in sets:
            ranks = [list(groups[n]) for n in members]
            own = [n for n in members if self.rank in groups[n]]
            if splits:
                made = dist.split_group(split_ranks=ranks, timeout=timeout)
                created[own[0] if own else members[0]] = made if own else None
                continue
            for number, of_group in zip(members, ranks, strict=True):
                made = dist.new_group(of_group, timeout=timeout)
                created[number] = made if number in own else None
        return created

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
        sender: int = -1,
        receiver: int = -1,
        timeout_s: float = 0.0,
        alone: bool = True,
    ) -> Launch:
        """Return a closure that starts an operation; it may be called repeatedly.

        Buffers are one-dimensional, with elements as in :func:`.plan.matrices.buffers`;
        ``sends`` and ``receives`` ``[W]`` are the elements of an all-to-all to and from
        each member.  ``sender`` and ``receiver`` are world ranks.  A message that is
        not ``alone`` is started by :meth:`together`.  The operation fails after
        ``timeout_s``; 0: that of the start.
        """
        pg, members = self._groups[group], self.groups[group]
        if kind == MESSAGE:
            if sender == receiver:
                return partial(_copy, receive, send)
            message: Launch = partial(pg.send, [send], members.index(receiver), 0)
            if self.rank != sender:
                message = partial(pg.recv, [receive], members.index(sender), 0)
            return self.together(group, [message]) if alone else message
        if kind == "barrier":  # torch's own blocks the host
            kind, receive = "all_reduce", torch.zeros_like(self._one)
        if self._downward and kind == "all_to_all":
            return self._duplex(group, send, receive, sends, receives, timeout_s)
        root = max(sender, receiver)
        options = self._options(kind, timeout_s)
        if root >= 0:
            options.rootRank = members.index(root)
        if kind in ("broadcast", "reduce"):
            options.rootTensor = 0
        arguments: tuple[Any, ...] = ([receive],)
        if kind == "all_to_all":
            arguments = receive, send, list(receives), list(sends)
        elif kind in ("all_gather", "reduce_scatter"):
            arguments = receive, send
        elif kind == "gather":
            pieces = _pieces(receive, len(members))
            arguments = [pieces] if self.rank == root else [], [send]
        elif kind == "scatter":
            pieces = _pieces(send, len(members))
            arguments = [receive], [pieces] if self.rank == root else []
        return partial(_method(kind, pg), *arguments, options)

    def _options(self, kind: str, timeout_s: float) -> Any:
        options = _METHODS[kind][1]()
        if self.device.type == "cpu":
            options.timeout = timedelta(seconds=timeout_s or self.timeout_s)
        return options

    def together(self, group: int, launches: Sequence[Launch]) -> Launch:
        """Return a closure that starts messages of a group, which all end together.

        With NCCL this is one launch, as of ``batch_isend_irecv``.  A single message
        needs it, too: on communicators made at the start, torch runs a message outside
        of such a launch as an operation of the whole group, one after the other.
        """
        pg = self._groups[group]

        def coalesced() -> Work:
            pg._start_coalescing(self.device)
            for launch in launches:
                launch()
            work: Work = pg._end_coalescing(self.device)
            return work

        if self.device.type == "cuda":
            return coalesced
        if len(launches) == 1:
            return launches[0]
        return lambda: Works([launch() for launch in launches])

    def _duplex(
        self,
        group: int,
        send: torch.Tensor,
        receive: torch.Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        timeout_s: float,
    ) -> Launch:
        """Bind an all-to-all as two, to higher and to lower ranks, which run at once.

        gloo has one connection for each pair of ranks and group.  A rank sends after
        its peer has announced that it is ready to receive; where the peer sends as
        well, that announcement waits behind the peer's bytes.  So a pair exchanges
        bytes one direction after the other, in up to twice the time of the network.
        """
        own = self.groups[group].index(self.rank)
        none = [0] * len(sends)
        # bytes to and from lower ranks, and the rank itself, come first in the buffers
        out, into = sum(sends[: own + 1]), sum(receives[:own])
        upward = (
            *(receive[:into], send[out:]),
            *([*receives[:own], *none[own:]], [*none[: own + 1], *sends[own + 1 :]]),
        )
        downward = (
            *(receive[into:], send[:out]),
            *([*none[:own], *receives[own:]], [*sends[: own + 1], *none[own + 1 :]]),
        )
        options = self._options("all_to_all", timeout_s)
        launches = [
            partial(_method("all_to_all", pg), *arguments, options)
            for pg, arguments in (
                (self._groups[group], upward),
                (self._downward[group], downward),
            )
        ]
        return lambda: Works([launch() for launch in launches])

    # ---- one operation, and small values of all ranks --------------------------------

    def run(self, launch: Launch, timeout_s: float = 0.0) -> None:
        """Run an operation once and wait until it has ended."""
        work = launch()
        if work is not None:
            work.wait()
        self.settle(timeout_s)

    def settle(self, timeout_s: float = 0.0) -> None:
        """Wait until the current stream of a device has ended, polling."""
        if self.device.type == "cpu":
            return
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        until_s = time.monotonic() + (timeout_s or self.timeout_s)
        while not event.query():
            self.check()
            if time.monotonic() > until_s:
                raise RuntimeError(f"timed out after {timeout_s or self.timeout_s:g} s")
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

    def most(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        return float(self.gathered([value]).max())

    def total(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        return float(self.gathered([value]).sum())


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
        self.batched = transport.device.type == "cuda"
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

    def bind(self, n: int, *, timeout_s: float = 0.0, alone: bool = True) -> Launch:
        """Return the closure that starts the n-th operation."""
        program, plan = self.program, self.plan
        operation = int(program.operation[n])
        send, receive = self.buffers(n)
        return self.transport.bind(
            KINDS[program.kind[n]],
            int(program.group[n]),
            send,
            receive,
            program.sends(n).tolist(),
            program.receives(n).tolist(),
            sender=int(plan.sender[operation]),
            receiver=int(plan.receiver[operation]),
            timeout_s=timeout_s,
            alone=alone,
        )

    def launch(self, n: int) -> Launch:
        """Return the closure of the n-th operation, or of the batch that it begins."""
        batch = self.program.batch
        if not self.batched:
            return self.bind(n)
        if batch[n] < n:
            return _started
        end = n + 1
        while end < len(batch) and batch[end] == n:
            end += 1
        if end == n + 1:
            return self.bind(n)
        launches = [self.bind(m, alone=False) for m in range(n, end)]
        return self.transport.together(int(self.program.group[n]), launches)

    def launches(self) -> Iterator[Launch]:
        """Return the closures of all operations, in program order.

        The first block is bound before this returns: the whole program, unless it is
        longer than PREPARED.
        """
        count = len(self.program)
        step = max(1, count if count <= PREPARED else BLOCK)

        def blocks() -> Iterator[list[Launch]]:
            for begin in range(0, count, step):
                yield [self.launch(n) for n in range(begin, min(begin + step, count))]

        made = blocks()
        return chain(next(made, []), chain.from_iterable(made))


class Works:
    """Handle of operations that were started together."""

    def __init__(self, works: Sequence[Work | None]) -> None:
        self.works = [work for work in works if work is not None]

    def wait(self) -> None:
        """Wait until all have ended."""
        for work in self.works:
            work.wait()


def _method(kind: str, group: Any) -> Callable[..., Any]:
    method: Callable[..., Any] = next(
        getattr(group, name) for name in _METHODS[kind][0] if hasattr(group, name)
    )
    return method


def _dtype(name: str) -> torch.dtype:
    """Return torch's element type of a name; float32 for one that is not summed."""
    dtype: torch.dtype = getattr(torch, name if name in DTYPES else "float32")
    return dtype


def _copy(receive: torch.Tensor, send: torch.Tensor) -> None:
    receive.copy_(send)


def _started() -> None:
    """Start a message that the first of its batch has started."""


def _pieces(tensor: torch.Tensor, members: int) -> list[torch.Tensor]:
    """Split a buffer into W equal parts, and an empty buffer into W empty parts."""
    return list(tensor.view(members, -1)) if len(tensor) else [tensor] * members
