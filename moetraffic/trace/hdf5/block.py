"""Bounds-checked access to the structural blocks of an HDF5 file.

Every number of a file may be wrong.  A block is read at an address and length that
must lie in the file, fields are taken from it in order, and any violation is one error.
Checksums of HDF5's metadata are not compared: the content has checksums of its own
(``container``), which detect changes of the structure as well.

Layouts: HDF5 File Format Specification, version 3.0.
"""

from __future__ import annotations

from collections.abc import Callable

UNDEFINED = (1 << 64) - 1
"""Value of HDF5's undefined address."""


class Malformed(ValueError):
    """Raised if the structure of an HDF5 file differs from the supported subset."""


class Block:
    """Byte block of a file from which fields are read in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of unread bytes in the block."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """Read the next ``count`` bytes of the block."""
        start = self._at
        self._at = start + count
        if not start <= self._at <= len(self._data):
            raise Malformed("a piece of its structure is cut off")
        return self._data[start : self._at]

    def number(self, width: int) -> int:
        """Read the next bytes as an unsigned little-endian integer."""
        return int.from_bytes(self.take(width), "little")

    def expect(self, want: bytes) -> None:
        """Read the next bytes and require that they equal the given ones."""
        if self.take(len(want)) != want:
            raise Malformed(f"a piece of its structure does not begin with {want!r}")


class FileBytes:
    """Random access to a file's bytes, with a limit on the structure bytes read.

    ``pread`` is a function of an offset and a number of bytes.
    """

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self._pread = pread
        self.size = size
        # bounds the work on cyclic structures, which would be read without end
        self._left = 4 * size + (1 << 20)

    def block(self, address: int, length: int) -> Block:
        """Read a block of the file at an address.

        Raises
        ------
        Malformed
            If it is outside the file, or the limit is exceeded.
        """
        self._left -= length
        if not (0 <= address <= self.size - length and length >= 0 <= self._left):
            raise Malformed("an address of its structure is outside of the file")
        data = self._pread(address, length)
        if len(data) != length:
            raise Malformed("it became shorter while it was read")
        return Block(data)
