"""Bounds-checked access to blocks of an HDF5 file's structure.

Every number of a file may be wrong.  A block is read at an address and length that
must lie in the file, fields are taken from it in order, and any violation is one error.
Checksums of HDF5's metadata are not compared: the content has checksums of its own
(``container``), which detect changes of the structure as well.

Layouts: HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = (1 << 64) - 1
"""The undefined address."""


class Malformed(ValueError):
    """The structure of a file differs from what the writer makes."""


class Block:
    """Bytes of a file, from which fields are taken in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
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
        """Take bytes that must equal these."""
        if self.take(len(want)) != want:
            raise Malformed(f"a piece of its structure does not begin with {want!r}")


class Source:
    """A file's bytes by address, with a limit on what is read as structure.

    Parameters
    ----------
    pread
        Function of an offset and a number of bytes.
    size
        Bytes of the file.
    """

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self._pread = pread
        self._size = size
        # cyclic structure would be read repeatedly
        self._left = 4 * size + (1 << 20)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def block(self, address: int, length: int) -> Block:
        """Read a block of the file.

        Raises
        ------
        Malformed
            If it is outside the file, or the limit is exceeded.
        """
        self._left -= length
        if not (0 <= address <= self._size - length and length >= 0 <= self._left):
            raise Malformed("an address of its structure is outside of the file")
        data = self._pread(address, length)
        if len(data) != length:
            raise Malformed("it became shorter while it was read")
        return Block(data)
