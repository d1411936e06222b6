"""A panel in a checked file: rows are inflated and compared when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.model import MOST_BYTES

from .checksum import block_checksum, checksums, joined, of_blocks
from .codec import decode

if TYPE_CHECKING:
    from .container import Container
    from .structure import Stored

GAP_BYTES = 4096  # between chunks that are read together
SPAN_BYTES = 4 << 20  # that are read together, at the most; one chunk at least


class FilePanel:
    """A panel ``[N, ...]`` in a checked file; rows are inflated and verified."""

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
        self._block_sums: npt.NDArray[np.uint32] | None = None  # of whole chunks

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape; the first axis counts rows."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes that the panel takes in the file, without its checksums."""
        return int(self._sizes.sum())

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows ``start`` up to ``stop``, each compared with its checksum.

        Raises
        ------
        TraceError
            If a chunk or a row is damaged.
        """
        if not 0 <= start <= stop <= self._shape[0]:
            raise IndexError(f"rows {start}:{stop} of {self._shape[0]}")
        out = np.empty((stop - start, *self._shape[1:]), self._dtype)
        deep = self._chunk[0]
        # the chunks of which all rows are asked for, and the rows on either side
        whole = range(-(-start // deep), stop // deep)
        if self._chunk[1:] != self._shape[1:] or not whole:
            self._read_some(start, out)
        else:
            head, tail = whole.start * deep - start, whole.stop * deep - start
            self._read_some(start, out[:head])
            self._read_whole(whole, out[head:tail])
            self._read_some(start + tail, out[tail:])
        if self._counts and out.size:
            self._refuse_strange(out)
        return out

    def _read_whole(self, numbers: range, out: npt.NDArray[Any]) -> None:
        """Rows of all of these chunks, which are as wide as the panel.

        Each call that lets go of the interpreter costs two threads more than it takes:
        the file is read and the sum compared for many chunks at once.
        """
        deep = self._chunk[0]
        for at, raw in enumerate(self._stored(numbers)):
            self._decoded(numbers[at], raw, out[at * deep : (at + 1) * deep])
        if self._block_sums is None:
            blocks = len(self._sums) // deep
            sums = self._sums[: blocks * deep].reshape(blocks, deep)
            self._block_sums = of_blocks(sums, self._row_bytes)
        known: list[int] = self._block_sums[numbers.start : numbers.stop].tolist()
        if block_checksum(out) != joined(known, deep * self._row_bytes):
            self._verify(out, numbers.start * deep)

    def _read_some(self, start: int, out: npt.NDArray[Any]) -> None:
        """Rows from a start on, of chunks of any shape and of which some are wanted."""
        stop, deep = start + len(out), self._chunk[0]
        steps = [
            range(0, n, c)
            for n, c in zip(self._shape[1:], self._chunk[1:], strict=True)
        ]
        beside = math.prod(len(s) for s in steps)  # chunks of the same rows
        for top in range(start - start % deep, stop, deep):
            a, b = max(top, start), min(top + deep, stop)
            part = out[a - start : b - start]
            for place, corner in enumerate(np.ndindex(*(len(s) for s in steps))):
                left = tuple(s[i] for s, i in zip(steps, corner, strict=True))
                number = top // deep * beside + place
                (raw,) = self._stored(range(number, number + 1))
                block = self._decoded(number, raw)
                cut = tuple(
                    slice(x, min(x + c, n))
                    for x, c, n in zip(
                        left, self._chunk[1:], self._shape[1:], strict=True
                    )
                )
                inner = tuple(slice(0, c.stop - c.start) for c in cut)
                part[(slice(None), *cut)] = block[(slice(a - top, b - top), *inner)]
            self._verify(part, a)

    @property
    def _row_bytes(self) -> int:
        return math.prod(self._shape[1:]) * self._dtype.itemsize

    def _verify(self, part: npt.NDArray[Any], first: int) -> None:
        """Compare rows with their checksums."""
        stored = self._sums[first : first + len(part)].tolist()
        found = checksums(part)
        if found != stored:
            wrong = next(n for n, sum_ in enumerate(stored) if found[n] != sum_)
            raise self._container.damaged(
                f"row {first + wrong} of {self._name} has changed"
            )

    def _refuse_strange(self, rows: npt.NDArray[Any]) -> None:
        # below zero is, without a sign, above all others: one look for both
        most = int(rows.view(f"<u{rows.itemsize}").max())
        if most >= 1 << (8 * rows.itemsize - 1):
            raise self._container.damaged(f"a count in {self._name} is below zero")
        if most > MOST_BYTES:
            raise self._container.damaged(f"a count in {self._name} is absurdly large")

    def _stored(self, numbers: range) -> Iterator[memoryview]:
        """What the file holds of each of the chunks; neighbors are read together."""
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
