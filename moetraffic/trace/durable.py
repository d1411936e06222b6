"""Files that are whole or absent: write aside, fsync, rename, fsync of the folder."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: memoryview | bytes) -> None:
    """Write a file that appears under its name complete, or not at all.

    Raises
    ------
    OSError
        As the system says (disk full, folder vanished); nothing is left behind.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place when the block ends well.

    The block must have synchronised what it wrote.  After an error the temporary file
    is gone and ``path`` is what it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class ForgivingFile(io.RawIOBase):
    """A file for HDF5 to write to, which remembers the first error instead of raising.

    HDF5 cannot close a file whose last writes failed, and brings the interpreter down
    when it tries again at exit.  So it is told that all went well, and whoever opened
    the file asks :meth:`settle` afterwards.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._fd = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
        )
        self._at = 0
        self._end = 0
        self._error: OSError | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def writable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; the end is what was written, also where the disk refused it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read; beyond what the disk took there are zeros."""
        got = os.pread(self._fd, len(buffer), self._at)
        buffer[:] = got + bytes(len(buffer) - len(got))
        self._at += len(buffer)
        return len(buffer)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        """Write all of it, or remember why not."""
        rest, at = memoryview(data).cast("B"), self._at
        while rest and self._error is None:
            try:
                done = os.pwrite(self._fd, rest, at)
            except OSError as error:
                self._error = error
            else:
                rest, at = rest[done:], at + done
        self._at += memoryview(data).nbytes
        self._end = max(self._end, self._at)
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend."""
        self._end = self._at if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self._fd, self._end)
            except OSError as error:
                self._error = error
        return self._end

    def settle(self) -> None:
        """Synchronise to the disk, and raise what went wrong on the way.

        Raises
        ------
        OSError
            The first error that a write met.
        """
        if self._error is not None:
            raise self._error
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        if not self.closed:
            os.close(self._fd)
        super().close()
