"""Bind the operations of a program to buffers and to calls of the backend."""

from __future__ import annotations

import torch

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import Backend, Call, Launch
from moetraffic.replay.plan.program import KINDS, Plan, Program
from moetraffic.replay.scratch_file import release
from moetraffic.trace.model import ALL_TO_ALL

from .buffers import Buffers

REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Kinds of operations that compute sums."""

_SQUARE = KINDS.index(ALL_TO_ALL)


def validate_kinds(plan: Plan, program: Program, backend: Backend) -> None:
    """Check that a backend supports all kinds of operations of a program.

    Raises
    ------
    ReplayError
        If the backend lacks some.
    """
    used = {KINDS[k] for k in set(program.kind.tolist())}
    lacking = sorted(used - set(backend.kinds))
    if lacking:
        raise ReplayError(
            f"the backend {backend.name} has {', '.join(sorted(backend.kinds))}, but "
            f"{plan.source} holds {', '.join(lacking)}: choose another --backend, or "
            "replay without these by --no-dense"
        )


class Binder:
    """Creates backend calls for the operations of a rank's program.

    Parameters
    ----------
    plan, program
        The plan and the program of this rank.
    backend
        Backend, already started.
    buffers
        Buffers of the program.
    dtype
        Type in which reductions compute; bytes if the size of a buffer is not a
        multiple of it.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        backend: Backend,
        buffers: Buffers,
        dtype: torch.dtype,
    ) -> None:
        self._plan = plan
        self._program = program
        self._backend = backend
        self._buffers = buffers
        self._dtype = dtype

    def call(self, n: int, dtype: torch.dtype | None = None) -> Call:
        """Create the call of the n-th operation; ``dtype`` is for reductions."""
        program, plan = self._program, self._plan
        stream, kind = int(program.stream[n]), int(program.kind[n])
        send = self._buffers.send(stream, int(program.send_size[n]))
        receive = self._buffers.receive(stream, int(program.receive_size[n]))
        if kind == _SQUARE:
            return Call(
                kind=ALL_TO_ALL,
                group=int(program.group[n]),
                send=send,
                receive=receive,
                send_bytes=program.sends(n).tolist(),
                receive_bytes=program.receives(n).tolist(),
            )
        name, operation = KINDS[kind], int(program.operation[n])
        if name in REDUCTIONS:
            as_type = dtype or self._dtype
            width = as_type.itemsize
            if not (len(send) % width or len(receive) % width):
                send, receive = send.view(as_type), receive.view(as_type)
        return Call(
            kind=name,
            group=int(program.group[n]),
            send=send,
            receive=receive,
            send_bytes=[],
            receive_bytes=[],
            sender=int(plan.sender[operation]),
            receiver=int(plan.receiver[operation]),
        )

    def launch(self, n: int) -> Launch:
        """Return the callable that starts the n-th operation."""
        return self._backend.bind(self.call(n))

    def launches(self, begin: int, end: int) -> list[Launch]:
        """Return the callables that start operations of the range [begin, end)."""
        made = [self.launch(n) for n in range(begin, end)]
        if end < len(self._program):  # a long program is bound block by block
            release(self._program.send_bytes)
            release(self._program.receive_bytes)
        return made
