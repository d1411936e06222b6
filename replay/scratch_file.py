"""Arrays that lie on disk where they are large, so that memory does not grow with them.

A replay goes through its program once, from the beginning to the end; what it has gone
through need not stay in memory.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import ReplayError

IN_MEMORY_BYTES = 32 << 20
"""An array up to this size is an ordinary one."""


def room(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike, fill: int = 0
) -> npt.NDArray[Any]:
    """An array, in memory or in a file that has no name and ends with this process.

    The file is where temporary files are (``TMPDIR``).

    Raises
    ------
    ReplayError
        If there is no room for it on that disk.
    """
    wanted = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    if int(np.prod(shape)) * wanted.itemsize <= IN_MEMORY_BYTES:
        return np.full(shape, fill, wanted)
    try:
        with tempfile.TemporaryFile(prefix="moetraffic-") as file:
            made: npt.NDArray[Any] = np.memmap(file, wanted, "w+", shape=shape)
    except OSError as error:
        raise ReplayError(
            "a long replay keeps its program and times in temporary files, but "
            f"{tempfile.gettempdir()} gave no room ({error.strerror}): set TMPDIR to a "
            "folder with space"
        ) from error
    if fill:
        made[...] = fill
    return made


def forget(array: npt.NDArray[Any]) -> None:
    """Let go of the memory behind an array of :func:`room`; what it holds stays."""
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
