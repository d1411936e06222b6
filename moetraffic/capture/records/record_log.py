"""Record log: the files to which a rank appends records until they are committed.

The training process appends to ``records-000000.log``, ``records-000001.log`` ... in
the rank's folder of segments.  Its committer process follows the files, commits their
records as segments, and deletes files whose records are all committed.  What has been
appended survives the death of both processes, but not a power failure, because only
segments are synchronized with the disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetraffic.capture.record_format import HEADER, MESSAGE, VERSION, WORDS, message
from moetraffic.errors import CaptureError
from moetraffic.trace.segments.store import RECORDS

FILE_BYTES = 4 << 20
"""Size at which a new file is begun.  A committer that is started again reads at most
two files again."""
READ_BYTES = 1 << 20
MOST_FRAME_BYTES = 1 << 30


class DamagedLog(CaptureError):
    """Raised at a damaged frame of a record log, after the frames before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole frames that are appended to the log at once."""

    data: bytes
    messages: tuple[dict[str, Any], ...] = ()  # of the MESSAGE frames in it
    steps: int = 0  # ended steps whose records are in this chunk or an earlier one
    request: int = 0  # number of the last flush request that this chunk completes


def log_path(own: Path, number: int) -> Path:
    """Return the path of a file of the log in a rank's folder."""
    return own / f"records-{number:06d}.log"


def log_numbers(own: Path) -> list[int]:
    """List the numbers of the log's files in a rank's folder, in order."""
    names = [path.stem.rpartition("-")[2] for path in own.glob(RECORDS)]
    return sorted(int(name) for name in names if name.isdigit())


class LogWriter:
    """Appends chunks to the files of a rank's record log.

    ``own`` is the rank's folder; ``about``, the description of the capture, begins
    every file.

    Raises
    ------
    OSError
        If the first file cannot be written.
    """

    def __init__(self, own: Path, about: dict[str, Any]) -> None:
        self._own, self._about = own, about
        self._messages: list[dict[str, Any]] = []
        self._file, self._size = -1, 0
        self._number = -1
        self._starts: dict[int, int] = {}  # bytes of the log before each file
        self.appended = 0  # bytes of all files
        self._begin()

    def append(self, chunk: Chunk) -> None:
        """Append a chunk whole, to a new file if the current one is full.

        Raises
        ------
        OSError
            If it cannot be written; then nothing of it is in the log.
        """
        if self._size >= FILE_BYTES:
            self._begin()
        try:
            self._write(chunk.data)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            self._begin()  # a limit on the size of files: continue in another one
            self._write(chunk.data)
        self._messages += chunk.messages

    def position(self, number: int, offset: int) -> int:
        """Return the bytes of the log before an offset in a file."""
        return self._starts.get(number, 0) + offset

    def close(self) -> None:
        """Close the current file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _begin(self) -> None:
        number = self._number + 1
        path = log_path(self._own, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o666)
        earlier = self._file, self._size
        self._file, self._size = file, 0
        try:
            self._write(message(about=self._about, messages=self._messages))
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            self._file, self._size = earlier
            raise
        self._number = number
        self._starts[number] = self.appended - self._size
        if earlier[0] >= 0:
            os.close(earlier[0])

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self.appended += len(data)


class LogReader:
    """Reads the frames of a rank's record log while it is being written.

    ``own`` is the rank's folder, ``number`` that of the first file to read.
    """

    def __init__(self, own: Path, number: int) -> None:
        self._own = own
        self.number, self.offset = number, 0  # of the next frame
        self._file = os.open(log_path(own, number), os.O_RDONLY | os.O_CLOEXEC)
        self._unread = bytearray()

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Read the frames that are there: number of the file, kind and payload.

        Raises
        ------
        DamagedLog
            If a frame is damaged.
        """
        while True:
            # looked for first: the rank writes no more to a file once there is a next
            following = log_path(self._own, self.number + 1).exists()
            part = os.read(self._file, READ_BYTES)
            self._unread += part
            yield from self._whole()
            if part:
                continue
            if not following:
                return
            os.close(self._file)
            self.number, self.offset = self.number + 1, 0
            self._unread.clear()
            path = log_path(self._own, self.number)
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _whole(self) -> Iterator[tuple[int, int, bytes]]:
        """Split off the whole frames that have been read."""
        unread = self._unread
        while len(unread) >= HEADER.size:
            kind, checksum, length = HEADER.unpack_from(unread)
            if kind not in (WORDS, MESSAGE) or not 0 <= length <= MOST_FRAME_BYTES:
                raise self._damaged()
            end = HEADER.size + length
            if len(unread) < end:
                return
            body = bytes(unread[HEADER.size : end])
            if zlib.crc32(body) != checksum:
                raise self._damaged()
            del unread[:end]
            self.offset += end
            yield self.number, kind, body

    def close(self) -> None:
        """Close the current file."""
        os.close(self._file)

    def _damaged(self) -> DamagedLog:
        return DamagedLog(
            f"{log_path(self._own, self.number)} is damaged at byte {self.offset}: "
            "later records are lost"
        )


def read_header(body: bytes) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """Decode the first frame of a file: the capture, and all messages before."""
    header = json.loads(body)
    about = header["about"]
    if about["version"] != VERSION:
        raise CaptureError(
            f"the record log has version {about['version']!r}, but this moetraffic "
            f"reads version {VERSION}: merge with the moetraffic that captured"
        )
    return about, header["messages"]
