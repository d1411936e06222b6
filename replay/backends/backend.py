"""Operations of a replay by process groups of ``torch.distributed``.

A backend *binds* an operation to its buffers once, before any timing; the returned
callable runs in the timed loop and only starts the operation.  Methods of a process
group are called directly, without the checks in the functions of
``torch.distributed``: planning has made them.  The calls go through torch's dispatcher,
so the capture hook records every one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch import RankEnvironment, rendezvous
from moetraffic.launch.machine_resources import own_gpu

from .nccl_environment import NCCL_ENVIRONMENT
from .requirements import on_gpu, validate_backend

Groups = Sequence[tuple[int, ...]]
"""World ranks of each group, ascending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Collective or message of one rank, with its buffers.

    Buffers are one-dimensional tensors on the backend's device, of ``torch.uint8``, or
    for reductions of the type in which they compute.  With S as in
    :class:`~moetraffic.replay.plan.program.Plan` and W members, bytes are:

    ============== ========================== ==========================
    kind           ``send``                   ``receive``
    ============== ========================== ==========================
    all_to_all     sum of ``send_bytes``      sum of ``receive_bytes``
    all_reduce     0                          S: initially its own data
    reduce         0                          S: initially its own data
    broadcast      0                          S: on the sender, its data
    all_gather     S                          W S
    gather         S                          W S at the receiver, else 0
    reduce_scatter S                          S / W
    scatter        S at the sender, else 0    S / W
    send_recv      S at the sender, else 0    S at the receiver, else 0
    barrier        0                          0
    ============== ========================== ==========================

    Reductions may add in any order.  After a reduce, ``receive`` is defined on the
    receiver only.
    """

    kind: str  # of moetraffic.replay.plan.program.KINDS
    group: int  # index of the group; this rank is a member
    send: torch.Tensor
    receive: torch.Tensor
    send_bytes: list[int]  # [W] to each member; empty except for all-to-alls
    receive_bytes: list[int]  # [W] from each
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives


class Work(Protocol):
    """Handle of an operation that a backend has started."""

    def wait(self) -> object:
        """Wait until the operation has ended on this rank.

        On a CUDA device, return at once: work queued later on the current stream runs
        after the operation.

        Raises
        ------
        RuntimeError
            If another rank did not respond in time, or is lost.
        """
        ...


Launch = Callable[[], Work | None]
"""Callable that starts an operation, repeatedly; None if it has ended on return."""


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
    "barrier": (("barrier",), dist.BarrierOptions),
}
"""Methods of a process group, by name in new and old versions of torch, and options."""


def _method(kind: str, group: Any) -> Callable[..., Any]:
    names, _ = _METHODS[kind]
    found: Callable[..., Any]
    found = next(getattr(group, name) for name in names if hasattr(group, name))
    return found


class Backend:
    """Process groups of a backend that torch has: gloo, or one of another package."""

    def __init__(self, name: str = "gloo") -> None:
        self.name = name
        self.device = torch.device("cpu")  # of the buffers; known after start
        self._rank = 0
        self._members: list[tuple[int, ...]] = []
        self._groups: list[Any] = []

    def start(
        self, rank_env: RankEnvironment, groups: Groups, timeout_s: float
    ) -> None:
        """Connect to the other ranks and create the groups, in an order common to all.

        Groups with the same ranks are made separately: operations of different groups
        overlap.

        Parameters
        ----------
        rank_env
            Rank of this process.
        groups
            Operations name a group by its index here.
        timeout_s
            Time after which an operation must fail.
        """
        if on_gpu(self.name):
            self._use_gpu(rank_env)
        name = self.name.upper()
        if not getattr(dist, f"is_{self.name}_available", lambda: True)():
            raise ReplayError(
                f"the backend {self.name} is {name} inside torch, but torch "
                f"{torch.__version__} was built without it: build torch with {name}, "
                "or use --backend gloo"
            )
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            self.name,
            init_method=rendezvous(),
            rank=rank_env.rank,
            world_size=rank_env.world,
            timeout=timeout,
            # creates NCCL's communicators at once
            device_id=self.device if self.device.type == "cuda" else None,
        )
        self._rank = rank_env.rank
        self._members = [tuple(g) for g in groups]
        # an empty group is not used, and torch would make it one of all ranks; with a
        # device_id, NCCL's communicators are split from that of all ranks
        self._groups = [
            dist.new_group(list(g), timeout=timeout) if g else None for g in groups
        ]

    def _use_gpu(self, rank_env: RankEnvironment) -> None:
        try:
            gpu = own_gpu(rank_env.local_rank, torch.cuda.device_count())
        except LayoutError as error:
            raise ReplayError(
                f"the backend {self.name} needs a CUDA device for each rank of a host: "
                f"{error}, with --backend gloo"
            ) from None
        for name, value in NCCL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.device = torch.device("cuda", gpu)
        torch.cuda.set_device(self.device)

    def empty(self, size: int) -> torch.Tensor:
        """Allocate a buffer of ``[size]`` bytes, uint8."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def bind(self, call: Call) -> Launch:
        """Return a callable that starts this operation; it may be called repeatedly.

        The members of a group start its operations in the same order.  Different
        threads may start operations of different groups.
        """
        group, members = self._groups[call.group], self._members[call.group]
        kind, send, receive = call.kind, call.send, call.receive
        if kind == "send_recv":
            if call.sender == call.receiver:
                return partial(_copy, receive, send)
            if self._rank == call.sender:
                return partial(group.send, [send], members.index(call.receiver), 0)
            return partial(group.recv, [receive], members.index(call.sender), 0)
        method, (_, make_options) = _method(kind, group), _METHODS[kind]
        options, root = make_options(), max(call.sender, call.receiver)
        if root >= 0:
            options.rootRank = members.index(root)
        if kind in ("broadcast", "reduce"):
            options.rootTensor = 0
        if kind == "barrier" and receive.is_cuda:
            options.device_ids = [receive.device.index]
        at_root, width = self._rank == root, len(members)
        arguments: tuple[Any, ...] = ([receive],)
        if kind == "all_to_all":
            arguments = (receive, send, call.receive_bytes, call.send_bytes)
        elif kind in ("all_gather", "reduce_scatter"):
            arguments = (receive, send)
        elif kind == "gather":
            arguments = ([_parts(receive, width)] if at_root else [], [send])
        elif kind == "scatter":
            arguments = ([receive], [_parts(send, width)] if at_root else [])
        elif kind == "barrier":
            arguments = ()
        return partial(method, *arguments, options)

    def bind_batch(self, calls: Sequence[Call]) -> Launch:
        """Return a callable that starts messages of one group together.

        None of them waits for another, whatever their order; all end together.
        """
        launches = [self.bind(call) for call in calls]
        return lambda: Works(list(filter(None, (launch() for launch in launches))))

    def stop(self) -> None:
        """Destroy the process groups; the backend is not used again."""
        self._groups = []
        dist.destroy_process_group()


class Works:
    """Handle of operations that were started together."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait until all have ended."""
        for work in self._works:
            work.wait()


def _copy(receive: torch.Tensor, send: torch.Tensor) -> None:
    receive.copy_(send)


def _parts(tensor: torch.Tensor, members: int) -> list[torch.Tensor]:
    """Split a buffer into W equal parts, and an empty buffer into W empty parts."""
    return list(tensor.view(members, -1)) if len(tensor) else [tensor] * members


class GlooDuplex(Backend):
    """gloo backend with separate connections for the two directions of an all-to-all.

    gloo has one connection for each pair of ranks and group.  A rank sends after its
    peer has announced that it is ready to receive; where the peer sends as well, that
    announcement waits behind the peer's bytes.  So a pair exchanges bytes one direction
    after the other, and an all-to-all takes up to twice the time of the network.  Here
    bytes to higher and to lower ranks go at once, in groups of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._downward: list[Any] = []

    def start(
        self, rank_env: RankEnvironment, groups: Groups, timeout_s: float
    ) -> None:
        """Connect and create two process groups for each group."""
        super().start(rank_env, groups, timeout_s)
        timeout = timedelta(seconds=timeout_s)
        self._downward = [
            dist.new_group(list(g), timeout=timeout) if g else None for g in groups
        ]

    def bind(self, call: Call) -> Launch:
        """Bind an operation; an all-to-all is two, which run at once."""
        if call.kind != "all_to_all":
            return super().bind(call)
        members = self._members[call.group]
        me, width = members.index(self._rank), len(members)
        # bytes to and from lower ranks, and the rank itself, come first in the buffers
        lower = sum(call.send_bytes[: me + 1]), sum(call.receive_bytes[:me])
        none = [0] * width
        upward = (
            call.receive[: lower[1]],
            call.send[lower[0] :],
            [*call.receive_bytes[:me], *none[me:]],
            [*none[: me + 1], *call.send_bytes[me + 1 :]],
        )
        downward = (
            call.receive[lower[1] :],
            call.send[: lower[0]],
            [*none[:me], *call.receive_bytes[me:]],
            [*call.send_bytes[: me + 1], *none[me + 1 :]],
        )
        groups = (self._groups[call.group], self._downward[call.group])
        launches = [
            partial(_method("all_to_all", group), *parts, dist.AllToAllOptions())
            for group, parts in zip(groups, (upward, downward), strict=True)
        ]
        return lambda: Works([launch() for launch in launches])


NCCL_TIMEOUT_S = 86_400.0
"""Added to twice the replay's timeout to give NCCL's own timeout, s.

NCCL counts it from the launch, and launches run ahead of the device by an iteration.
The timed pass and the watchdog of the rank count from the last progress, end the rank
before this, and name the operation.
"""


class Nccl(Backend):
    """NCCL backend: one GPU per local rank, a communicator and a stream per group."""

    def __init__(self) -> None:
        super().__init__("nccl")

    def start(
        self, rank_env: RankEnvironment, groups: Groups, timeout_s: float
    ) -> None:
        """Connect as :meth:`Backend.start`, with a timeout that expires last."""
        super().start(rank_env, groups, NCCL_TIMEOUT_S + 2 * timeout_s)

    def bind(self, call: Call) -> Launch:
        """Bind an operation; a message is a batch of its own."""
        if call.kind == "send_recv" and call.sender != call.receiver:
            return self.bind_batch([call])
        return super().bind(call)

    def bind_batch(self, calls: Sequence[Call]) -> Launch:
        """Bind messages that are one group launch, as of ``batch_isend_irecv``.

        On communicators made at the start, torch runs every message outside of such a
        launch as an operation of the whole group, one after the other.
        """
        group = self._groups[calls[0].group]
        launches = [super(Nccl, self).bind(call) for call in calls]

        def launch() -> Work:
            group._start_coalescing(self.device)
            for one in launches:
                one()
            work: Work = group._end_coalescing(self.device)
            return work

        return launch


def create(name: str) -> Backend:
    """Create a backend by name: built in, or one that torch has registered.

    Raises
    ------
    ReplayError
        If there is no such backend.
    """
    validate_backend(name)
    if name == "gloo-duplex":
        return GlooDuplex()
    return Nccl() if name == "nccl" else Backend(name)


def run(backend: Backend, call: Call) -> None:
    """Run an operation once and wait until it has ended.

    Raises
    ------
    RuntimeError
        If another rank did not respond in time, or is lost.
    """
    work = backend.bind(call)()
    if work is not None:
        work.wait()
    if backend.device.type == "cuda":
        torch.cuda.current_stream(backend.device).synchronize()
