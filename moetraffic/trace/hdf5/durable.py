"""Files that are whole or absent: write aside, fsync, rename, fsync of the folder.

Whether a file can be written is found out before the work whose result it shall hold.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moetraffic.errors import MoetrafficError

SEGMENTS = ".segments"
"""What the folder of a capture's segments has behind the name of its trace."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def remedy(error: OSError) -> str:
    """What a user can do when the system refuses to write a file."""
    if error.errno in _FULL:
        return "make room or choose another folder"
    if error.errno in _FORBIDDEN:
        return "choose a folder that you may write to"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter name"
    return "choose another path"


def refuse_output(
    path: Path,
    *,
    force: bool,
    error: type[MoetrafficError] = MoetrafficError,
    overwrite: str = "give --force",
) -> None:
    """Refuse an output that could not be written, before any work is done for it.

    Parameters
    ----------
    path
        The file.
    force
        A file that is there may be replaced.
    error
        What to raise.
    overwrite
        How a user allows to replace a file, in words.

    Raises
    ------
    MoetrafficError
        Of the kind asked for: if the file exists and ``force`` is not set, it is a
        folder or a device, its folder does not exist or takes no file of this name.
    """
    folder = path.absolute().parent
    try:
        if "\0" in str(path):
            raise ValueError("no name has a NUL")
        if not path.name or path.is_dir():
            raise error(
                f"the output is a file, but {str(path)!r} is a folder: name a file in "
                "it"
            )
        if path.exists() and not path.is_file():
            raise error(
                f"the output is a file, but {path} is a device or a pipe: choose "
                "another path"
            )
        if path.exists() and not force:
            raise error(
                f"{path} exists and is not overwritten: choose another output, or "
                f"{overwrite}"
            )
        refuse_folder(folder, error=error)
        # the longest of the names that are written beside it
        beside = max((path.name + SEGMENTS, _temporary(path).name), key=len)
        folder.joinpath(beside).exists()
        with tempfile.TemporaryFile(dir=folder):
            return
    except (OSError, ValueError) as found:
        why = found.strerror if isinstance(found, OSError) else str(found)
        told = remedy(found) if isinstance(found, OSError) else "choose another path"
        raise error(f"{_short(path)} cannot be written ({why}): {told}") from None


def refuse_own_input(
    source: Path, output: Path, *, error: type[MoetrafficError] = MoetrafficError
) -> None:
    """Refuse to replace the file that the output is made from, under any name.

    Raises
    ------
    MoetrafficError
        Of the kind asked for.
    """
    try:
        same = output.exists() and output.samefile(source)
    except OSError:
        return  # what cannot be looked at is refused where it is opened
    if same:
        raise error(
            f"the output {output} is the input itself, which it would replace: choose "
            "another output"
        )


def refuse_outputs(
    outputs: Sequence[Path | None],
    sources: Sequence[Path | None] = (),
    *,
    force: bool,
    error: type[MoetrafficError] = MoetrafficError,
) -> None:
    """Refuse outputs that could not be written, are one file, or an input.

    Parameters
    ----------
    outputs
        Files; None where one is not asked for.
    sources
        Files that they are made from, likewise.
    force
        Files that are there may be replaced, but no source.
    error
        What to raise.

    Raises
    ------
    MoetrafficError
        Of the kind asked for, as of :func:`refuse_output` and
        :func:`refuse_own_input`.
    """
    files = [path for path in outputs if path is not None]
    for path in files:
        refuse_output(path, force=force, error=error)
        for source in sources:
            if source is not None:
                refuse_own_input(source, path, error=error)
    if len({path.absolute() for path in files}) < len(files):
        raise error(f"{files[0]} cannot hold two outputs: give each a name of its own")


def refuse_folder(folder: Path, *, error: type[MoetrafficError]) -> None:
    """Refuse an output's folder that does not exist; none is made unasked.

    Raises
    ------
    MoetrafficError
        Of the kind asked for.
    """
    if folder.exists() and not folder.is_dir():
        raise error(
            f"the folder of the output is {folder}, which is a file: choose another "
            "path"
        )
    if not folder.is_dir():
        raise error(
            f"the folder {_short(folder)} of the output does not exist: make it first"
        )


def _short(path: Path) -> str:
    """A path as people can read it in a sentence."""
    text = str(path)
    return text if len(text) <= 200 else f"{text[:80]}...{text[-40:]}"


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


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

    The block must have synchronized what it wrote.  After an error the temporary file
    is gone and ``path`` is what it was.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder; under its name it is whole or absent.

    Raises
    ------
    OSError
        As the system says.
    """
    aside = _temporary(folder)
    os.rename(folder, aside)
    shutil.rmtree(aside)


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
        """Synchronize to the disk, and raise what went wrong on the way.

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
