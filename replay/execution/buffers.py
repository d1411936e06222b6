"""The memory of a rank's operations, allocated once at the program's maximum."""

from __future__ import annotations

import numpy as np
import torch

from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.failure import RankError, first_line
from moetraffic.replay.plan.program import Program

from . import payload
from .payload import UInt8


class Buffers:
    """A send and a receive buffer for each stream, of the largest of its operations.

    Operations of a stream that overlap share them: what they carry then is no matter.

    Parameters
    ----------
    program
        What the rank does.
    backend
        Started; it gives the memory.

    Raises
    ------
    RankError
        If there is not that much memory.
    """

    def __init__(self, program: Program, backend: Backend) -> None:
        sizes = program.buffer_bytes
        streams = np.unique(program.stream).tolist()
        self._send: dict[int, torch.Tensor] = {}
        self._receive: dict[int, torch.Tensor] = {}
        try:
            for stream in streams:
                send, receive = program.stream_bytes(stream)
                self._send[stream] = backend.empty(send)
                self._receive[stream] = backend.empty(receive)
            # touch every page now, not in the first timed operation
            self.blank(payload.UNTOUCHED)
        except (RuntimeError, MemoryError) as error:
            raise RankError(
                f"has no memory for buffers of {sizes[0]} and {sizes[1]} bytes on "
                f"{backend.device} ({first_line(error)}): replay on a larger machine",
                rank=program.rank,
                operation="start-up",
                cause="own",
            ) from error

    def send(self, stream: int, size: int) -> torch.Tensor:
        """The first bytes of a stream's send buffer, uint8."""
        return self._send[stream][:size]

    def receive(self, stream: int, size: int) -> torch.Tensor:
        """The first bytes of a stream's receive buffer, uint8."""
        return self._receive[stream][:size]

    def blank(self, value: int) -> None:
        """Fill all buffers with one byte."""
        for buffer in (*self._send.values(), *self._receive.values()):
            buffer.fill_(value)


def load(buffer: torch.Tensor, values: UInt8) -> None:
    """Put these bytes at the beginning of a buffer."""
    buffer[: len(values)].copy_(torch.from_numpy(values))


def held(buffer: torch.Tensor) -> UInt8:
    """The bytes of a buffer, on the host."""
    there: UInt8 = buffer.cpu().numpy()
    return there
