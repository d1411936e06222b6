"""Panels of a trace file whose chunks are inflated and verified when rows are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.model import MOST_BYTES

from .checksum import checksums
from .codec import decode

if TYPE_CHECKING:
    from .container import Container
    from .structure import Stored

GAP_BYTES = 4096  # largest gap between chunks that one read covers
SPAN_BYTES = 4 << 20  # most bytes of one read, unless one chunk is larger


class FilePanel:
    """Panel ``[N, ...]`` stored in a validated file, verified when rows are read."""

    def __init__(
        self,
        container: Container,
        name: str,
        stored: Stored,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        sums: npt.NDArray[np.uint32],
        *,
        counts: bool,
    ) -> None:
        self._container = container
        self._name = name
        self._shape = stored.shape
        self._dtype = stored.dtype
        self._chunk = stored.chunks
        self._offsets = offsets  # of each chunk, the rows' axis slowest
        self._sizes = sizes
        self._sums = sums
        self._counts = counts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the panel; the first axis counts rows."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the panel."""
        return self._dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes of the panel's chunks in the file, without its checksums."""
        return int(self._sizes.sum())

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows of the half-open range [start, stop) and verify their checksums.

        Raises
        ------
        TraceError
            If a chunk or a row is damaged.
        """
        if not 0 <= start <= stop <= self._shape[0]:
            raise IndexError(f"rows {start}:{stop} of {self._shape[0]}")
        out = np.empty((stop - start, *self._shape[1:]), self._dtype)
        deep, wide = self._chunk[0], self._chunk[1:] == self._shape[1:]
        steps = [
            range(0, n, c)
            for n, c in zip(self._shape[1:], self._chunk[1:], strict=True)
        ]
        beside = math.prod(len(s) for s in steps)  # chunks of the same rows
        first, last = start // deep * beside, -(-stop // deep) * beside
        for number, raw in enumerate(self._stored(range(first, last)), first):
            top, corner = number // beside * deep, number % beside
            a, b = max(top, start), min(top + deep, stop)
            part = out[a - start : b - start]
            if wide and len(part) == deep:
                self._decoded(number, raw, part)
            else:
                block = self._decoded(number, raw)
                at = np.unravel_index(corner, [len(s) for s in steps]) if steps else ()
                cut = tuple(
                    slice(s[i], min(s[i] + c, n))
                    for s, i, c, n in zip(
                        steps, at, self._chunk[1:], self._shape[1:], strict=True
                    )
                )
                inner = tuple(slice(0, c.stop - c.start) for c in cut)
                part[(slice(None), *cut)] = block[(slice(a - top, b - top), *inner)]
            if corner == beside - 1:
                self._verify(part, a)
        if self._counts and out.size:
            self._validate_counts(out)
        return out

    def _verify(self, part: npt.NDArray[Any], first: int) -> None:
        """Compare the CRC-32 of rows with the stored checksums."""
        stored = self._sums[first : first + len(part)].tolist()
        found = checksums(part)
        if found != stored:
            wrong = next(n for n, crc in enumerate(stored) if found[n] != crc)
            raise self._container.damaged(
                f"row {first + wrong} of {self._name} has changed"
            )

    def _validate_counts(self, rows: npt.NDArray[Any]) -> None:
        # as unsigned numbers, negative values exceed all others: one maximum for both
        most = int(rows.view(f"<u{rows.itemsize}").max())
        if most >= 1 << (8 * rows.itemsize - 1):
            raise self._container.damaged(f"a count in {self._name} is below zero")
        if most > MOST_BYTES:
            raise self._container.damaged(f"a count in {self._name} is too large")

    def _stored(self, numbers: range) -> Iterator[memoryview]:
        """Yield the stored bytes of each chunk; one read covers nearby chunks."""
        begin = self._offsets[numbers.start : numbers.stop].tolist()
        sizes = self._sizes[numbers.start : numbers.stop].tolist()
        ends = [a + size for a, size in zip(begin, sizes, strict=True)]
        first = 0
        for n in range(1, len(begin) + 1):
            if (
                n < len(begin)
                and 0 <= begin[n] - ends[n - 1] <= GAP_BYTES
                and ends[n] - begin[first] <= SPAN_BYTES
            ):
                continue
            try:
                span = memoryview(
                    self._container.pread(begin[first], ends[n - 1] - begin[first])
                )
            except OSError as error:
                raise self._container.damaged(
                    f"chunk {numbers[first]} of {self._name}: {error}"
                ) from None
            for k in range(first, n):
                at = begin[k] - begin[first]
                yield span[at : at + sizes[k]]
            first = n

    def _decoded(
        self, number: int, raw: memoryview, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        try:
            return decode(raw, self._chunk, self._dtype, out, summed=True)
        except ValueError as error:
            raise self._container.damaged(
                f"chunk {number} of {self._name}: {error}"
            ) from None
