"""Interface of communication backends: gloo, NCCL, or a plugin.

A backend *binds* an operation to its buffers once, before any timing; the returned
callable runs in the timed loop and only starts the operation.  A package adds a backend
with an entry point in the group ``moetraffic.backends`` and tests it with
:mod:`moetraffic.replay.backend_conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from moetraffic.launch import RankEnvironment

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


class Backend(Protocol):
    """Interface of a communication backend, which runs operations between ranks."""

    name: str

    @property
    def kinds(self) -> Collection[str]:
        """Supported operations, of :data:`~moetraffic.replay.plan.program.KINDS`."""
        ...

    device: torch.device
    """Device of the buffers; known after :meth:`start`."""

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
        ...

    def empty(self, size: int) -> torch.Tensor:
        """Allocate a buffer of ``[size]`` bytes, uint8, in the fastest memory."""
        ...

    def bind(self, call: Call) -> Launch:
        """Return a callable that starts this operation; it may be called repeatedly.

        The members of a group start its operations in the same order.  Different
        threads may start operations of different groups.
        """
        ...

    def bind_batch(self, calls: Sequence[Call]) -> Launch:
        """Return a callable that starts messages of one group together.

        None of them waits for another, whatever their order; all end together.
        """
        ...

    def stop(self) -> None:
        """Disconnect from the other ranks; the backend is not used again."""
        ...


def run(backend: Backend, call: Call) -> None:
    """Run an operation once and wait until it has ended.

    Raises
    ------
    RuntimeError
        If another rank did not respond in time, or is lost.
    """
    finish(backend, backend.bind(call)())


def finish(backend: Backend, work: Work | None) -> None:
    """Wait until a started operation has ended, also on a CUDA device."""
    if work is not None:
        work.wait()
    if backend.device.type == "cuda":
        torch.cuda.current_stream(backend.device).synchronize()
