"""Send and receive buffers of a rank, allocated once at the largest size needed."""

from __future__ import annotations

import numpy as np
import torch

from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.failure import RankError, first_line
from moetraffic.replay.plan.program import Program

from . import payload


class Buffers:
    """Send and receive buffers of each stream, as large as its largest operation.

    Operations of a stream that overlap share its buffers: the timed pass does not check
    bytes.

    Parameters
    ----------
    program
        Program of the rank.
    backend
        Backend, already started; it allocates the memory.

    Raises
    ------
    RankError
        If there is not enough memory.
    """

    def __init__(self, program: Program, backend: Backend) -> None:
        self._send: dict[int, torch.Tensor] = {}
        self._receive: dict[int, torch.Tensor] = {}
        try:
            for stream in np.unique(program.stream).tolist():
                send, receive = program.stream_bytes(stream)
                self._send[stream] = backend.empty(send)
                self._receive[stream] = backend.empty(receive)
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

    def send(self, stream: int, size: int) -> torch.Tensor:
        """Return the first ``size`` bytes of a stream's send buffer, uint8."""
        return self._send[stream][:size]

    def receive(self, stream: int, size: int) -> torch.Tensor:
        """Return the first ``size`` bytes of a stream's receive buffer, uint8."""
        return self._receive[stream][:size]

    def fill(self, value: int) -> None:
        """Set every byte of all buffers to a value."""
        for buffer in (*self._send.values(), *self._receive.values()):
            buffer.fill_(value)
