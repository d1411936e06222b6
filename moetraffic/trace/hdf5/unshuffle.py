"""Put the bytes of shuffled numbers back where they belong.

HDF5's shuffle stores the first byte of every element, then the second of every one, and
so on.  Counts are small, so that their upper bytes are zero in most chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import machine_code

Planes = npt.NDArray[np.uint8]
Unshuffle = Callable[[Planes, npt.NDArray[Any]], None]

SIGNATURE = "void(Array(uint8, 2, 'C', readonly=True), uint32[::1])"

PATIENCE = 1 << 27
"""Bytes that numpy unshuffles in a process before compiling is worth its second."""


class _Bill:
    """What numpy unshuffled in this process, and what is compiled."""

    bytes = 0
    four: Unshuffle | None = None
    here = machine_code.available()


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
            _Bill.four = machine_code.compiled(_four, SIGNATURE)
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


def _four(planes: Any, out: Any) -> None:
    """The same for elements of four bytes, as numba likes it."""
    for at in range(out.size):
        out[at] = (
            np.uint32(planes[0, at])
            | (np.uint32(planes[1, at]) << np.uint32(8))
            | (np.uint32(planes[2, at]) << np.uint32(16))
            | (np.uint32(planes[3, at]) << np.uint32(24))
        )
