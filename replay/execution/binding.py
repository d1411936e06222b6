"""Buffers of a rank's program, and calls of the backend that use them."""

from __future__ import annotations

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import Backend, Call, Launch
from moetraffic.replay.failure import RankError, first_line
from moetraffic.replay.plan.program import KINDS, Plan, Program
from moetraffic.replay.scratch_file import release
from moetraffic.trace.model import ALL_TO_ALL

from . import payload

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
    """Allocates the buffers of a program and creates backend calls for its operations.

    Each stream has a send and a receive buffer, as large as its largest operation
    needs.  Operations of a stream that overlap share them: the timed pass does not
    check bytes.

    Parameters
    ----------
    plan, program
        The plan and the program of this rank.
    backend
        Backend, already started; it allocates the memory.
    dtype
        Type in which reductions compute; bytes if the size of a buffer is not a
        multiple of it.

    Raises
    ------
    RankError
        If there is not enough memory.
    """

    def __init__(
        self, plan: Plan, program: Program, backend: Backend, dtype: torch.dtype
    ) -> None:
        self._plan = plan
        self._program = program
        self._backend = backend
        self._dtype = dtype
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        try:
            for stream in np.unique(program.stream).tolist():
                send, receive = program.stream_bytes(stream)
                self._buffers[stream] = backend.empty(send), backend.empty(receive)
            # touch every page now, not in the first timed operation
            self.fill(payload.UNTOUCHED)
        except (RuntimeError, MemoryError) as error:
            send, receive = program.buffer_bytes
            raise RankError(
                f"has no memory for buffers of {send} and {receive} bytes on "
                f"{backend.device} ({first_line(error)}): replay on a larger machine",
                rank=program.rank,
                operation="start-up",
                cause="own",
            ) from error

    def fill(self, value: int) -> None:
        """Set every byte of all buffers to a value."""
        for send, receive in self._buffers.values():
            send.fill_(value)
            receive.fill_(value)

    def call(self, n: int, dtype: torch.dtype | None = None) -> Call:
        """Create the call of the n-th operation; ``dtype`` is for reductions."""
        program, plan = self._program, self._plan
        kind = int(program.kind[n])
        send, receive = self._buffers[int(program.stream[n])]
        send = send[: int(program.send_size[n])]
        receive = receive[: int(program.receive_size[n])]
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
