"""Atomic file output: write a temporary file, fsync, rename, fsync the folder.

Output paths are checked before the computation whose result they will hold.
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

LOGS = ".logs"
"""Suffix, after the trace file name, of the folder that holds a capture's logs."""

_REMEDIES = (
    dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room or choose another folder")
    | dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "choose a folder that you may write to",
    )
    | {
        errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
        errno.ENAMETOOLONG: "choose a shorter name",
    }
)


def remedy(error: OSError) -> str:
    """Suggest a remedy for a failed write, as a clause of an error message."""
    return _REMEDIES.get(error.errno or 0, "choose another path")


@contextmanager
def write_errors(
    path: Path | str, *, error: type[MoetrafficError] = MoetrafficError
) -> Iterator[None]:
    """Raise what prevents writing ``path`` as an error of one sentence."""
    try:
        yield
    except OSError as failure:
        raise error(
            f"{path} cannot be written ({failure.strerror or failure}): "
            f"{remedy(failure)}"
        ) from None


def validate_output(
    path: Path,
    *,
    force: bool,
    error: type[MoetrafficError] = MoetrafficError,
    overwrite: str = "give --force",
) -> None:
    """Check that an output file can be written, before computing its content.

    ``force`` allows replacing an existing file, and ``overwrite`` says how a user
    allows that, for the message.  Errors are of class ``error``.
    """
    folder = path.absolute().parent
    with write_errors(_short(path), error=error):
        for wrong, what in (
            (
                "\0" in str(path),
                f"{_short(path)} cannot be written (a file name has no NUL): choose "
                "another path",
            ),
            (
                not path.name or path.is_dir(),
                f"the output is a file, but {str(path)!r} is a folder: name a file in "
                "it",
            ),
            (
                path.exists() and not path.is_file(),
                f"the output is a file, but {path} is a device or a pipe: choose "
                "another path",
            ),
            (
                path.exists() and not force,
                f"{path} exists and is not overwritten: choose another output, or "
                f"{overwrite}",
            ),
        ):
            if wrong:
                raise error(what)
        validate_folder(folder, error=error)
        # the longest name that is written next to the output must be valid
        beside = max((path.name + LOGS, _temporary(path).name), key=len)
        folder.joinpath(beside).exists()
        tempfile.TemporaryFile(dir=folder).close()


def validate_other_than_input(
    source: Path, output: Path, *, error: type[MoetrafficError] = MoetrafficError
) -> None:
    """Check that an output path does not refer to its own input file."""
    try:
        same = output.exists() and output.samefile(source)
    except OSError:
        return  # an unreadable file is reported when it is opened
    if same:
        raise error(
            f"the output {output} is the input itself, which it would replace: choose "
            "another output"
        )


def validate_outputs(
    outputs: Sequence[Path | None],
    sources: Sequence[Path | None] = (),
    *,
    force: bool,
    error: type[MoetrafficError] = MoetrafficError,
) -> None:
    """Check that output files are writable, distinct, and not input files.

    An output is None if it was not requested.  ``force`` allows replacing existing
    files, except ``sources``.
    """
    files = [path for path in outputs if path is not None]
    for path in files:
        validate_output(path, force=force, error=error)
        for source in sources:
            if source is not None:
                validate_other_than_input(source, path, error=error)
    if len({path.absolute() for path in files}) < len(files):
        raise error(f"{files[0]} cannot hold two outputs: give each a name of its own")


def validate_folder(folder: Path, *, error: type[MoetrafficError]) -> None:
    """Check that the parent folder of an output file exists."""
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
    """Abbreviate a path for an error message."""
    text = str(path)
    return text if len(text) <= 200 else f"{text[:80]}...{text[-40:]}"


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Call fsync on a folder, so that a rename in it survives a power failure."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: memoryview | bytes) -> None:
    """Write a file atomically by way of a temporary file and a rename.

    Raises
    ------
    OSError
        If the disk is full or the folder missing; no partial file is left.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_text(
    path: Path, text: str, *, error: type[MoetrafficError] = MoetrafficError
) -> None:
    """Write a text file that appears under its name complete, or not at all.

    Raises an error of class ``error`` if it cannot be written.
    """
    with write_errors(path, error=error):
        write_whole(path, text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file name that replaces ``path`` when the block succeeds.

    The block must call fsync on the file.  After an error the temporary file is
    removed and ``path`` is unchanged.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: rename it first, then delete its content.

    Raises
    ------
    OSError
        If it cannot be removed.
    """
    aside = _temporary(folder)
    os.rename(folder, aside)
    shutil.rmtree(aside)


class DeferredErrorFile(io.FileIO):
    """File object for HDF5 that defers write errors until :meth:`settle`.

    HDF5 cannot close a file whose last writes failed, and aborts the interpreter when
    it tries again at exit.  So writes always succeed, and the caller checks afterwards.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        super().__init__(os.open(path, flags, 0o666), "r+")
        self._error: OSError | None = None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the file; bytes whose write failed read as zeros."""
        got = super().readinto(buffer)
        buffer[got:] = bytes(len(buffer) - got)
        return len(buffer)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        """Write all data; an error is kept and raised by :meth:`settle`."""
        rest, at = memoryview(data).cast("B"), self.tell()
        self.seek(at + len(rest))
        while rest and self._error is None:
            try:
                done = os.pwrite(self.fileno(), rest, at)
            except OSError as error:
                self._error = error
            else:
                rest, at = rest[done:], at + done
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Set the file size; without one, to the current position."""
        size = self.tell() if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self.fileno(), size)
            except OSError as error:
                self._error = error
        return size

    def settle(self) -> None:
        """Call fsync, after raising the first error of a deferred write.

        Raises
        ------
        OSError
            If a write failed.
        """
        if self._error is not None:
            raise self._error
        os.fsync(self.fileno())
