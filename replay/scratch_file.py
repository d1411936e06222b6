"""Allocate large arrays in temporary files, so that memory use stays bounded.

A replay goes through its program once, from the beginning to the end; parts already
executed need not stay in memory.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import ReplayError

IN_MEMORY_BYTES = 32 << 20
"""Largest size, in bytes, of an array that is kept in memory."""


def scratch_array(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike, fill: int = 0
) -> npt.NDArray[Any]:
    """Allocate an array in memory or, if large, in an unnamed temporary file.

    The file is in the folder of temporary files (``TMPDIR``), and is removed when this
    process ends.

    Raises
    ------
    ReplayError
        If the disk has no space for the array.
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
            f"{tempfile.gettempdir()} has no space ({error.strerror}): set TMPDIR to a "
            "folder with space"
        ) from error
    if fill:
        made[...] = fill
    return made


def release(array: npt.NDArray[Any]) -> None:
    """Release the memory behind a :func:`scratch_array`; its contents stay on disk."""
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
