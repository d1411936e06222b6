"""What moves the bytes: gloo, NCCL, or a class that another package brings.

A backend has three methods.  Buffers are ``torch.uint8`` tensors on its device; an
all-to-all sends the parts of one buffer, in the order of the group's ranks, and fills
another likewise.  A third party adds one with an entry point of its name in the group
``moetraffic.backends`` and proves it with ``tests/replay/test_backends.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Protocol

import torch
import torch.distributed as dist

from moetraffic.errors import ReplayError
from moetraffic.launch import Seat, rendezvous

ENTRY_POINTS = "moetraffic.backends"


class Backend(Protocol):
    """Moves bytes between ranks."""

    device: torch.device
    """Where buffers must lie; known after :meth:`start`."""

    def start(
        self, seat: Seat, groups: Sequence[tuple[int, ...]], timeout_s: float
    ) -> None:
        """Meet the other ranks and make the groups, all ranks the same in order.

        Parameters
        ----------
        seat
            Which rank this is.
        groups
            World ranks of each group, ascending.  All-to-alls name a group by its
            index here.
        timeout_s
            How long an operation may take before it must fail.
        """
        ...

    def all_to_all(
        self,
        group: int,
        receive: torch.Tensor,
        send: torch.Tensor,
        receive_bytes: list[int],
        send_bytes: list[int],
    ) -> tuple[int, int]:
        """Exchange, and return when ``receive`` is complete.

        Parameters
        ----------
        group
            Index of the group; this rank is a member.
        receive
            ``[sum(receive_bytes)]`` uint8.
        send
            ``[sum(send_bytes)]`` uint8.
        receive_bytes, send_bytes
            ``[W]`` bytes from and to each member.

        Returns
        -------
        tuple of int
            When the exchange began and ended, ns of ``time.monotonic_ns``.

        Raises
        ------
        RuntimeError
            If another rank did not answer in time, or is gone.
        """
        ...

    def stop(self) -> None:
        """Leave the other ranks; the backend is not used again."""
        ...


class Gloo:
    """``torch.distributed`` on CPUs, over TCP.

    The call blocks until the bytes are there, so an exchange begins with the call.
    """

    name = "gloo"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._groups: list[dist.ProcessGroup] = []

    def start(
        self, seat: Seat, groups: Sequence[tuple[int, ...]], timeout_s: float
    ) -> None:
        """See :meth:`Backend.start`."""
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            self.name,
            init_method=rendezvous(),
            rank=seat.rank,
            world_size=seat.world,
            timeout=timeout,
        )
        world = dist.group.WORLD
        assert world is not None
        everyone = tuple(range(seat.world))
        self._groups = [
            world if g == everyone else dist.new_group(list(g), timeout=timeout)
            for g in groups
        ]

    def all_to_all(
        self,
        group: int,
        receive: torch.Tensor,
        send: torch.Tensor,
        receive_bytes: list[int],
        send_bytes: list[int],
    ) -> tuple[int, int]:
        """See :meth:`Backend.all_to_all`."""
        begin = time.monotonic_ns()
        dist.all_to_all_single(
            receive, send, receive_bytes, send_bytes, group=self._groups[group]
        )
        return begin, time.monotonic_ns()

    def stop(self) -> None:
        """See :meth:`Backend.stop`."""
        self._groups = []
        dist.destroy_process_group()


class Nccl(Gloo):
    """``torch.distributed`` on NVIDIA GPUs, one a local rank.

    CUDA events on the stream tell how long an exchange took; its end is when the host
    saw the event, its beginning that minus the duration.
    """

    name = "nccl"

    def start(
        self, seat: Seat, groups: Sequence[tuple[int, ...]], timeout_s: float
    ) -> None:
        """See :meth:`Backend.start`."""
        found = torch.cuda.device_count()
        if seat.local_rank >= found:
            raise ReplayError(
                "NCCL needs a CUDA device for each rank of a host, but local rank "
                f"{seat.local_rank} finds {found}: use --backend gloo, or fewer ranks "
                "a host"
            )
        self.device = torch.device("cuda", seat.local_rank)
        torch.cuda.set_device(self.device)
        super().start(seat, groups, timeout_s)

    def all_to_all(
        self,
        group: int,
        receive: torch.Tensor,
        send: torch.Tensor,
        receive_bytes: list[int],
        send_bytes: list[int],
    ) -> tuple[int, int]:
        """See :meth:`Backend.all_to_all`."""
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record()
        super().all_to_all(group, receive, send, receive_bytes, send_bytes)
        after.record()
        after.synchronize()
        end = time.monotonic_ns()
        return end - round(before.elapsed_time(after) * 1e6), end


BACKENDS: Mapping[str, Callable[[], Backend]] = {"gloo": Gloo, "nccl": Nccl}
"""The built-in backends."""


def backend(name: str) -> Backend:
    """The backend of that name, built in or brought by an installed package.

    Raises
    ------
    ReplayError
        If there is none.
    """
    if name in BACKENDS:
        return BACKENDS[name]()
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        made: Backend = others[name].load()()
        return made
    raise ReplayError(
        f"the backend is one of {', '.join([*BACKENDS, *others])}, not {name!r}: "
        "choose one of these, or install the package that brings it"
    )
