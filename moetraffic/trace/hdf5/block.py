"""Pieces of an HDF5 file's structure, read with bounds.

Every number of a file may be a lie.  A block is cut out of the file by an address and
a length that must lie in it, fields are taken from it one after another, and whatever
does not fit is one error.  Checksums of HDF5's metadata are not compared: what a file
says is compared with checksums of its own (``container``), which find a change in the
structure as well.

Layouts: HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = (1 << 64) - 1
"""The address of what is not there."""


class Malformed(ValueError):
    """The structure of a file is not one that the writer makes."""


class Block:
    """Bytes of a file, from which fields are taken in their order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next bytes."""
        start = self._at
        self._at = start + count
        if not start <= self._at <= len(self._data):
            raise Malformed("a piece of its structure is cut off")
        return self._data[start : self._at]

    def number(self, width: int) -> int:
        """The next bytes as an unsigned little-endian number."""
        return int.from_bytes(self.take(width), "little")

    def expect(self, want: bytes) -> None:
        """Take bytes that must be these."""
        if self.take(len(want)) != want:
            raise Malformed(f"a piece of its structure does not begin with {want!r}")


class Source:
    """A file's bytes by address, of which only so many are read as structure.

    Parameters
    ----------
    pread
        Bytes from an offset on, at most so many.
    size
        Bytes of the file.
    """

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self._pread = pread
        self._size = size
        # structure that leads round in a circle is read again and again
        self._left = 4 * size + (1 << 20)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def block(self, address: int, length: int) -> Block:
        """A piece of the file.

        Raises
        ------
        Malformed
            If it does not lie in the file, or more was read than the file has.
        """
        self._left -= length
        if not (0 <= address <= self._size - length and length >= 0 <= self._left):
            raise Malformed("an address of its structure is outside of the file")
        data = self._pread(address, length)
        if len(data) != length:
            raise Malformed("it became shorter while it was read")
        return Block(data)
