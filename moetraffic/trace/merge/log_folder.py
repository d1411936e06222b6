"""Folder of a capture's logs (``run.h5.logs``): prepare, lock, list and remove them.

A command may initialize torch.distributed more than once: again in the same processes,
in ranks that an elastic launcher restarts, in two jobs of a script.  Each time is a
capture of its own.  The first has the requested name, later ones are ``run-2.h5`` and
so on; all are listed in ``run.h5.logs/captures``, one file name per line.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.files import LOGS, remedy, validate_output

from .log_format import log_files, ranks_of, state_file

FORCE = "allow it with force=True (--force)"
SMALLEST_LIMIT = 8 << 20
"""Least limit on file sizes, in bytes, with which a capture starts."""
LOCK_S = 0.5  # a process that asks who records holds the lock for a moment
LIST = "captures"
MOST = 10_000
"""Limit of captures of one command: it stops programs that restart endlessly."""


def log_folder(path: Path) -> Path:
    """Return the folder of the logs that are merged into the trace ``path``."""
    return path.with_name(path.name + LOGS)


def prepare(path: Path, *, force: bool, overwrite: str = FORCE) -> None:
    """Check that a capture can be written, and clear its folder of logs.

    One process calls this for all ranks, before any of them records.  Logs of an
    earlier capture are rejected, of any rank: merging would mix the two captures.
    ``force`` removes them, and ``overwrite`` says how a user allows that, for the
    message.
    """
    validate_output(path, force=force, error=CaptureError, overwrite=overwrite)
    limit = file_size_limit()
    if limit is not None and limit < SMALLEST_LIMIT:
        raise CaptureError(
            f"a capture needs files of at least {SMALLEST_LIMIT >> 20} MiB, but the "
            f"limit on file sizes is {limit} bytes: raise it with ulimit -f"
        )
    folder = log_folder(path)
    if folder.exists() and not folder.is_dir():
        raise CaptureError(
            f"a capture keeps its logs in {folder}, which is a file: choose another "
            "output"
        )
    if busy := recording(folder):
        raise _occupied(folder, busy[0])
    ranks = ranks_of(folder)
    earlier = sum(bool(log_files(folder, rank)) for rank in ranks)
    if earlier and not force:
        raise _earlier(folder, earlier, overwrite)
    try:
        for rank in ranks:
            _remove_files(folder, rank)
        remove_if_empty(folder)
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be cleared ({error.strerror}): {remedy(error)}"
        ) from None


def file_size_limit() -> int | None:
    """Return the largest size in bytes of a file of this process; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def lock_state(folder: Path, rank: int, *, force: bool) -> int:
    """Create and lock the state file of a rank, and return its descriptor.

    The lock lasts until the descriptor is closed.  ``force`` removes this rank's log of
    an earlier capture.

    Raises
    ------
    CaptureError
        If another process records this rank, a log of an earlier capture is there, or
        the folder cannot be written.
    """
    path = state_file(folder, rank)
    with contextlib.ExitStack() as on_failure:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (state := _lock(path, LOCK_S)) is None:
                raise _occupied(folder, rank)
            on_failure.callback(os.close, state)
            earlier = log_files(folder, rank)
            if earlier and not force:
                raise _earlier(folder, 1, FORCE)
            for log in earlier:
                log.unlink(missing_ok=True)
            os.ftruncate(state, 0)
        except OSError as error:
            raise CaptureError(
                f"a capture needs a folder to write to, but {path} cannot be made or "
                f"locked ({error.strerror}): {remedy(error)}"
            ) from None
        on_failure.pop_all()
    return state


def recording(folder: Path) -> list[int]:
    """List the ranks that record into a folder."""
    return [r for r in ranks_of(folder) if _is_locked(state_file(folder, r))]


def discard(folder: Path, rank: int) -> None:
    """Delete the log of a rank that has ended, and the folder if it is then empty."""
    with contextlib.suppress(OSError):
        _remove_files(folder, rank)
        remove_if_empty(folder)


def remove_if_empty(folder: Path) -> None:
    """Delete a folder without logs, unless a rank records into it.

    Other files of the folder are kept.
    """
    ranks = ranks_of(folder)
    if recording(folder) or any(log_files(folder, rank) for rank in ranks):
        return
    for rank in ranks:
        _remove_files(folder, rank)
    if folder.is_dir() and not any(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            folder.rmdir()


def _remove_files(folder: Path, rank: int) -> None:
    for path in (*log_files(folder, rank), state_file(folder, rank)):
        path.unlink(missing_ok=True)


def _lock(path: Path, patience_s: float) -> int | None:
    """Create and lock a file; None if another process holds it for so long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        state = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(state), os.stat(path)):
                return state
        except FileNotFoundError:
            pass  # removed by its last holder at this moment
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            os.close(state)
            raise
        os.close(state)
    return None


def _is_locked(path: Path) -> bool:
    try:
        state = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(state, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks: then nothing records there
    finally:
        os.close(state)
    return False


def _occupied(folder: Path, rank: int) -> CaptureError:
    return CaptureError(
        f"only one capture can write to a folder at a time, but {folder} is in use by "
        f"a running one (rank {rank}): choose another output"
    )


def _earlier(folder: Path, ranks: int, overwrite: str) -> CaptureError:
    return CaptureError(
        f"{folder} holds the logs of {ranks} ranks of an earlier capture: merge them "
        f"(moetraffic merge {folder}), remove the folder, or {overwrite}"
    )


# ---- captures of one command ---------------------------------------------------------


def make_room(path: Path, *, force: bool) -> None:
    """Check that the output of a command's capture is free, before it starts.

    ``force`` removes the logs of an earlier capture of the trace ``path``.
    """
    with alone(path):
        prepare(path, force=force, overwrite="give --force")
        clear(path)


def clear(path: Path) -> None:
    """Delete the list of a command's captures, and its folder if it is then empty."""
    folder = log_folder(path)
    folder.joinpath(LIST).unlink(missing_ok=True)
    remove_if_empty(folder)


def members(path: Path) -> list[Path]:
    """List the trace paths of the command's captures, in order; ``path`` is first."""
    try:
        names = log_folder(path).joinpath(LIST).read_text().splitlines()
    except (OSError, ValueError):
        names = []
    valid = [name for name in names if name and Path(name).name == name]
    return [path.with_name(name) for name in dict.fromkeys([path.name, *valid])]


def join(path: Path, name: str = "", *, force: bool = False) -> Path:
    """Reserve the next name of a command's captures, or list one that rank 0 reserved.

    ``path`` is the requested trace; ``name`` is what rank 0 reserved, to list it in the
    folder of another host.  With ``force``, ``path`` itself may be replaced; other
    names never are.  Returns the path of this capture's trace.
    """
    folder = log_folder(path)
    try:
        folder.mkdir(exist_ok=True)
        with folder.joinpath(LIST).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken = file.read().splitlines()
            name = name or _next_name(path, taken, force=force)
            if name not in taken:
                file.write(name + "\n")
    except OSError as error:
        raise CaptureError(
            f"the captures of a command are listed in {folder}, which cannot be "
            f"written ({error.strerror}): {remedy(error)}"
        ) from None
    return path.with_name(name)


def _next_name(path: Path, taken: list[str], *, force: bool) -> str:
    if path.name not in taken and (force or not path.exists()):
        return path.name
    for number in range(2, MOST):
        other = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not (other.name in taken or other.exists() or log_folder(other).exists()):
            return other.name
    raise CaptureError(
        f"a command has fewer than {MOST} captures, but so many names like "
        f"{path.name} are taken: choose another output"
    )


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock while preparing or merging into ``path``.

    The lock file is next to the trace, since its folder of logs is removed.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        held = _lock(lock, math.inf)
    except OSError:
        # no locks, or a folder that later code reports with a better message
        held = None
    try:
        yield
    finally:
        if held is not None:
            lock.unlink(missing_ok=True)
            os.close(held)
