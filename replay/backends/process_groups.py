"""Backends on process groups of ``torch.distributed``: gloo, NCCL, MPI and UCC.

Methods of a process group are called directly, without the checks in the functions of
``torch.distributed``: planning has made them.  The calls go through torch's dispatcher,
so the capture hook records every one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment, rendezvous
from moetraffic.replay.plan.program import KINDS

from .backend import Backend, Call, Launch


class ProcessGroups:
    """Backend on process groups of ``torch.distributed``.

    Parameters
    ----------
    name
        Name of the backend in torch.
    """

    kinds = frozenset(KINDS)

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device("cpu")
        self._rank = 0
        self._members: list[tuple[int, ...]] = []
        self._groups: list[Any] = []

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Sequence[tuple[int, ...]],
        timeout_s: float,
    ) -> None:
        """Connect and create the process groups; see :meth:`Backend.start`."""
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            self.name,
            init_method=rendezvous(),
            rank=rank_env.rank,
            world_size=rank_env.world,
            timeout=timeout,
            **self._options(),
        )
        self._rank = rank_env.rank
        self._members = [tuple(g) for g in groups]
        # a scale may leave a group without ranks; torch would make it one of all ranks
        self._groups = [
            dist.new_group(list(g), timeout=timeout) if g else None for g in groups
        ]

    def _options(self) -> dict[str, Any]:
        return {}

    def empty(self, size: int) -> torch.Tensor:
        """Allocate a buffer of uint8; see :meth:`Backend.empty`."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def bind(self, call: Call) -> Launch:
        """Bind an operation to its buffers; see :meth:`Backend.bind`."""
        if call.kind == "send_recv" and call.sender == call.receiver:
            return partial(_copy, call.receive, call.send)
        return BINDERS[call.kind](
            self._groups[call.group], self._members[call.group], self._rank, call
        )

    def stop(self) -> None:
        """Destroy the process groups; see :meth:`Backend.stop`."""
        self._groups = []
        dist.destroy_process_group()


def _copy(receive: torch.Tensor, send: torch.Tensor) -> None:
    receive.copy_(send)


# ---- one operation each: (group, its members, this rank, call) -> Launch ---------


def _method(group: Any, *names: str) -> Any:
    """Return the first of the named methods that the installed torch provides."""
    return next(getattr(group, name) for name in names if hasattr(group, name))


def _all_to_all(group: Any, _: tuple[int, ...], __: int, call: Call) -> Launch:
    return partial(
        _method(group, "all_to_all_single", "alltoall_base"),
        call.receive,
        call.send,
        call.receive_bytes,
        call.send_bytes,
        dist.AllToAllOptions(),
    )


def _all_reduce(group: Any, _: tuple[int, ...], __: int, call: Call) -> Launch:
    return partial(group.allreduce, [call.receive], dist.AllreduceOptions())


def _all_gather(group: Any, _: tuple[int, ...], __: int, call: Call) -> Launch:
    gather = _method(group, "all_gather_single", "_allgather_base")
    return partial(gather, call.receive, call.send, AllgatherOptions())


def _reduce_scatter(group: Any, _: tuple[int, ...], __: int, call: Call) -> Launch:
    scatter = _method(group, "reduce_scatter_single", "_reduce_scatter_base")
    return partial(scatter, call.receive, call.send, dist.ReduceScatterOptions())


def _broadcast(group: Any, members: tuple[int, ...], _: int, call: Call) -> Launch:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = members.index(call.sender), 0
    return partial(group.broadcast, [call.receive], options)


def _reduce(group: Any, members: tuple[int, ...], _: int, call: Call) -> Launch:
    options = dist.ReduceOptions()
    options.rootRank, options.rootTensor = members.index(call.receiver), 0
    return partial(group.reduce, [call.receive], options)


def _gather(group: Any, members: tuple[int, ...], rank: int, call: Call) -> Launch:
    options = dist.GatherOptions()
    options.rootRank = members.index(call.receiver)
    into = [_parts(call.receive, len(members))] if rank == call.receiver else []
    return partial(group.gather, into, [call.send], options)


def _scatter(group: Any, members: tuple[int, ...], rank: int, call: Call) -> Launch:
    options = dist.ScatterOptions()
    options.rootRank = members.index(call.sender)
    out = [_parts(call.send, len(members))] if rank == call.sender else []
    return partial(group.scatter, [call.receive], out, options)


def _send_recv(group: Any, members: tuple[int, ...], rank: int, call: Call) -> Launch:
    if rank == call.sender:
        return partial(group.send, [call.send], members.index(call.receiver), 0)
    return partial(group.recv, [call.receive], members.index(call.sender), 0)


def _barrier(group: Any, _: tuple[int, ...], __: int, call: Call) -> Launch:
    options = dist.BarrierOptions()
    if call.receive.is_cuda:
        options.device_ids = [call.receive.device.index]
    return partial(group.barrier, options)


def _parts(tensor: torch.Tensor, members: int) -> list[torch.Tensor]:
    """Split a buffer into W equal parts, and an empty buffer into W empty parts."""
    return list(tensor.view(members, -1)) if len(tensor) else [tensor] * members


BINDERS: Mapping[str, Callable[[Any, tuple[int, ...], int, Call], Launch]] = {
    "all_to_all": _all_to_all,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


class Gloo(ProcessGroups):
    """gloo backend: buffers in host memory, over TCP."""

    def __init__(self) -> None:
        super().__init__("gloo")


class Nccl(ProcessGroups):
    """NCCL backend: one GPU per local rank, a communicator and a stream per group.

    Parameters
    ----------
    registered
        Whether buffers come from NCCL's allocator and are registered with every
        communicator, so that the network accesses them in place.
    """

    def __init__(self, *, registered: bool = False) -> None:
        super().__init__("nccl")
        self._registered = registered
        self._pools: list[Any] = []  # must live as long as their buffers

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Sequence[tuple[int, ...]],
        timeout_s: float,
    ) -> None:
        """Connect on the GPU of the local rank; see :meth:`Backend.start`."""
        found = torch.cuda.device_count()
        if rank_env.local_rank >= found:
            raise ReplayError(
                "NCCL needs a CUDA device for each rank of a host, but local rank "
                f"{rank_env.local_rank} finds {found}: use --backend gloo, or fewer "
                "ranks a host"
            )
        self.device = torch.device("cuda", rank_env.local_rank)
        torch.cuda.set_device(self.device)
        super().start(rank_env, groups, timeout_s)

    def _options(self) -> dict[str, Any]:
        return {"device_id": self.device}  # creates communicators at once

    def empty(self, size: int) -> torch.Tensor:
        """Allocate a buffer of uint8; see :meth:`Backend.empty`."""
        if not self._registered:
            return super().empty(size)
        world: Any = dist.group.WORLD
        nccl = world._get_backend(self.device)
        if not (hasattr(torch.cuda, "MemPool") and hasattr(nccl, "mem_allocator")):
            raise ReplayError(
                "buffers are registered with NCCL through memory pools, but torch "
                f"{torch.__version__} has none: upgrade torch, or leave out "
                "--registered"
            )
        # registration covers the memory of a pool at that time: one pool per buffer
        pool = torch.cuda.MemPool(nccl.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            made = super().empty(size)
        for group in (world, *self._groups):
            if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
                group._get_backend(self.device).register_mem_pool(pool)
        self._pools.append(pool)
        return made


class Mpi(ProcessGroups):
    """MPI backend on CPUs, if torch was built with MPI; mpirun starts the ranks."""

    kinds = frozenset(KINDS) - {"reduce_scatter"}  # not in torch's MPI

    def __init__(self) -> None:
        super().__init__("mpi")

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Sequence[tuple[int, ...]],
        timeout_s: float,
    ) -> None:
        """Connect and create the process groups; see :meth:`Backend.start`."""
        _require("MPI", dist.is_mpi_available())
        super().start(rank_env, groups, timeout_s)
        found = dist.get_rank(), dist.get_world_size()
        if found != (rank_env.rank, rank_env.world):
            dist.destroy_process_group()
            raise ReplayError(
                "MPI and the launcher must number ranks equally, but MPI has rank "
                f"{found[0]} of {found[1]}, the launcher {rank_env.rank} of "
                f"{rank_env.world}: start the ranks with mpirun, and set RANK and "
                "WORLD_SIZE from its variables"
            )

    def bind(self, call: Call) -> Launch:
        """Bind an operation; torch's MPI gathers into a list only."""
        if call.kind != "all_gather":
            return super().bind(call)
        group, members = self._groups[call.group], len(self._members[call.group])
        into = [_parts(call.receive, members)]
        return partial(group.allgather, into, [call.send], AllgatherOptions())


class Ucc(ProcessGroups):
    """UCC backend on CPUs, if torch was built with UCC."""

    def __init__(self) -> None:
        super().__init__("ucc")

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Sequence[tuple[int, ...]],
        timeout_s: float,
    ) -> None:
        """Connect and create the process groups; see :meth:`Backend.start`."""
        _require("UCC", dist.is_ucc_available())
        super().start(rank_env, groups, timeout_s)


def _require(name: str, available: bool) -> None:
    if not available:
        raise ReplayError(
            f"the backend {name.lower()} is {name} inside torch, but torch "
            f"{torch.__version__} was built without it: build torch with {name}, or "
            "use --backend gloo"
        )


BUILT_IN: Mapping[str, Callable[[], Backend]] = {
    "gloo": Gloo,
    "nccl": Nccl,
    "mpi": Mpi,
    "ucc": Ucc,
}
"""Built-in backends by name."""
