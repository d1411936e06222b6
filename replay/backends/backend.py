"""What moves the bytes: gloo, NCCL, MPI, UCC, or a class that another package brings.

A backend *binds* an operation to its buffers, once, before any clock runs; what it
gives back is called in the timed loop, and does nothing but start the operation.  A
third party adds one with an entry point of its name in the group
``moetraffic.backends`` and proves it with :mod:`moetraffic.replay.backend_conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment

ENTRY_POINTS = "moetraffic.backends"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One operation of one rank, with its buffers.

    Buffers are one-dimensional tensors on the backend's device, of ``torch.uint8``, or
    where something is added up of the type in which it is.  With S as
    :class:`~moetraffic.replay.plan.program.Plan` says and W members, bytes are:

    ============== ========================== ==========================
    kind           ``send``                   ``receive``
    ============== ========================== ==========================
    all_to_all     sum of ``send_bytes``      sum of ``receive_bytes``
    all_reduce     0                          S: begins as this rank's
    reduce         0                          S: begins as this rank's
    broadcast      0                          S: the sender's begins as its
    all_gather     S                          W S
    gather         S                          W S at the receiver, else 0
    reduce_scatter S                          S / W
    scatter        S at the sender, else 0    S / W
    send_recv      S at the sender, else 0    S at the receiver, else 0
    barrier        0                          0
    ============== ========================== ==========================

    What is added up is added up in any order.  After a reduce ``receive`` means
    something at the receiver alone.
    """

    kind: str  # of moetraffic.replay.plan.program.KINDS
    group: int  # index of the group; this rank is a member
    send: torch.Tensor
    receive: torch.Tensor
    send_bytes: list[int]  # [W] to each member; empty but for all-to-alls
    receive_bytes: list[int]  # [W] from each
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives


class Work(Protocol):
    """An operation that was started."""

    def wait(self) -> object:
        """Return when it has ended here.

        On a CUDA device, return at once: what is queued on the current stream from now
        on runs after it.

        Raises
        ------
        RuntimeError
            If another rank did not answer in time, or is gone.
        """
        ...


Launch = Callable[[], Work | None]
"""Starts an operation, again and again; None says that it has ended already."""


class Backend(Protocol):
    """Moves bytes between ranks."""

    name: str

    @property
    def kinds(self) -> Collection[str]:
        """What it can do, of :data:`~moetraffic.replay.plan.program.KINDS`."""
        ...

    device: torch.device
    """Where buffers must lie; known after :meth:`start`."""

    def start(
        self,
        rank_env: RankEnvironment,
        groups: Sequence[tuple[int, ...]],
        timeout_s: float,
    ) -> None:
        """Meet the other ranks and make the groups, all ranks the same in order.

        Groups are made even where two have the same ranks: operations of different
        groups overlap.

        Parameters
        ----------
        rank_env
            Which rank this is.
        groups
            World ranks of each group, ascending.  Operations name a group by its
            index here.
        timeout_s
            How long an operation may take before it must fail.
        """
        ...

    def empty(self, size: int) -> torch.Tensor:
        """A buffer of ``[size]`` bytes, uint8, where operations are fastest."""
        ...

    def bind(self, call: Call) -> Launch:
        """What starts this operation; it may be called often.

        The members of a group start its operations in one order.  Different threads
        may start operations of different groups.
        """
        ...

    def stop(self) -> None:
        """Leave the other ranks; the backend is not used again."""
        ...


def run(backend: Backend, call: Call) -> None:
    """Run an operation once, and return when it has ended.

    Raises
    ------
    RuntimeError
        If another rank did not answer in time, or is gone.
    """
    work = backend.bind(call)()
    if work is not None:
        work.wait()
    if backend.device.type == "cuda":
        torch.cuda.current_stream(backend.device).synchronize()


def backend(name: str, *, registered: bool = False) -> Backend:
    """The backend of that name, built in or brought by an installed package.

    Parameters
    ----------
    name
        As it is called.
    registered
        Whether buffers are registered with the network's library, which NCCL alone
        handshakes.

    Raises
    ------
    ReplayError
        If there is none.
    """
    from .process_groups import BUILT_IN, Nccl

    if registered:
        if name != "nccl":
            raise ReplayError(
                f"buffers are registered with NCCL, but the backend is {name}: choose "
                "--backend nccl, or leave out --registered"
            )
        return Nccl(registered=True)

    if name in BUILT_IN:
        return BUILT_IN[name]()
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        made: Backend = others[name].load()()
        return made
    raise ReplayError(
        f"the backend is one of {', '.join([*BUILT_IN, *others])}, not {name!r}: "
        "choose one of these, or install the package that brings it"
    )
