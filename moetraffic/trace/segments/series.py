"""Number the captures of one command (run.h5, run-2.h5, ...), and lock their merging.

A command may initialize torch.distributed more than once: again in the same processes,
in ranks that an elastic launcher restarts, in two jobs of a script.  Each time is a
separate capture.  The first has the requested name; the others are listed next to its
segments, in ``run.h5.segments/captures``, one file name per line.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.files import remedy

from .store import prepare, segments_folder

LIST = "captures"
MOST = 10_000
"""Limit of captures of one command: it stops programs that restart endlessly."""


def make_room(path: Path, *, force: bool) -> None:
    """Check that the output of a command's capture is free, before it starts.

    ``force`` removes the segments of an earlier capture of the trace ``path``.
    """
    with alone(path):
        prepare(path, force=force, overwrite="give --force")
        clear(path)


def clear(path: Path) -> None:
    """Delete the list of a command's captures, and its folder if it is then empty."""
    folder = segments_folder(path)
    folder.joinpath(LIST).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def members(path: Path) -> list[Path]:
    """List the trace paths of the command's captures, in order; ``path`` is first."""
    try:
        listed = segments_folder(path).joinpath(LIST).read_text().splitlines()
    except (OSError, ValueError):
        listed = []
    names = [name for name in listed if name and Path(name).name == name]
    return [path.with_name(name) for name in dict.fromkeys([path.name, *names])]


def join(path: Path, name: str = "", *, force: bool = False) -> Path:
    """Reserve the next capture name of the series, or register one reserved by rank 0.

    ``path`` is the requested trace, ``name`` what rank 0 reserved, to register it on
    another host's folder.  With ``force``, ``path`` itself may be replaced; other names
    never are.  Returns the path of this capture's trace.
    """
    folder = segments_folder(path)
    try:
        folder.mkdir(exist_ok=True)
        with folder.joinpath(LIST).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken = file.read().splitlines()
            chosen = name or _next(path, taken, force=force)
            if chosen not in taken:
                file.write(chosen + "\n")
    except OSError as error:
        raise CaptureError(
            f"the captures of a command are listed in {folder}, which cannot be "
            f"written ({error.strerror}): {remedy(error)}"
        ) from None
    return path.with_name(chosen)


def _next(path: Path, taken: list[str], *, force: bool) -> str:
    if path.name not in taken and (force or not path.exists()):
        return path.name
    for number in range(2, MOST):
        other = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not (
            other.name in taken or other.exists() or segments_folder(other).exists()
        ):
            return other.name
    raise CaptureError(
        f"a command has fewer than {MOST} captures, but so many names like "
        f"{path.name} are taken: choose another output"
    )


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock while preparing or merging into ``path``.

    The lock file is next to the trace, since its folder of segments is removed.
    """
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            # later code reports an unwritable folder with a better message
            yield
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is(fd, lock):
                break
        except OSError:
            break  # a file system without locks: exclusion is impossible
        os.close(fd)  # the previous holder removed the lock file: try again
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(fd)


def _is(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)
