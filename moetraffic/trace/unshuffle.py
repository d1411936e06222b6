"""Put the bytes of shuffled numbers back where they belong.

HDF5's shuffle stores the first byte of every element, then the second of every one, and
so on.  Counts are small, so that their upper bytes are zero in most chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Planes = npt.NDArray[np.uint8]

PATIENCE = 1 << 27
"""Bytes that numpy unshuffles in a process before compiling is worth its second."""


class _Bill:
    """What numpy unshuffled in this process, and what is compiled."""

    bytes = 0
    four: Callable[[Planes, npt.NDArray[Any]], None] | None = None
    here = find_spec("numba") is not None


def unshuffle(planes: Planes, out: npt.NDArray[Any]) -> None:
    """Fill an array from its planes of bytes.

    Parameters
    ----------
    planes
        ``[width, cells]`` uint8: the n-th bytes of all elements, lowest first.
    out
        Contiguous, of as many cells of that width.
    """
    width, cells = planes.shape
    if width == 4 and _Bill.here:
        _Bill.bytes += planes.size
        if _Bill.four is None and _Bill.bytes > PATIENCE:
            _Bill.four = _compiled()
        if _Bill.four is not None:
            _Bill.four(planes, out.reshape(-1).view(np.uint32))
            return
    used = [at for at in range(width) if planes[at].any()]
    if 2 * len(used) > width:
        as_bytes = out.reshape(-1).view(np.uint8).reshape(cells, width)
        for at in range(width):
            as_bytes[:, at] = planes[at]
        return
    number = out.reshape(-1).view(f"<u{width}")
    if max(used, default=0) < 2:
        low = planes[0].astype("<u2")
        if 1 in used:
            upper = planes[1].astype("<u2")
            upper <<= 8
            low |= upper
        np.copyto(number, low)
        return
    np.copyto(number, planes[0])
    for at in used:
        if at:
            part = planes[at].astype(number.dtype)
            part <<= 8 * at
            number |= part


def _compiled() -> Callable[[Planes, npt.NDArray[Any]], None]:
    """The same for elements of four bytes, by numba."""
    numba: Any = import_module("numba")

    def four(planes: Any, out: Any) -> None:
        for at in range(out.size):
            out[at] = (
                np.uint32(planes[0, at])
                | (np.uint32(planes[1, at]) << np.uint32(8))
                | (np.uint32(planes[2, at]) << np.uint32(16))
                | (np.uint32(planes[3, at]) << np.uint32(24))
            )

    made: Callable[[Planes, npt.NDArray[Any]], None] = numba.njit(
        "void(Array(uint8, 2, 'C', readonly=True), uint32[::1])", nogil=True
    )(four)
    return made
