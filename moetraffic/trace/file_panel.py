"""A panel in a checked file: rows are inflated and compared when they are asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .codec import checksums, decode
from .model import MOST_BYTES

if TYPE_CHECKING:
    from .container import Container
    from .structure import Stored


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
        steps = [
            range(0, n, c)
            for n, c in zip(self._shape[1:], self._chunk[1:], strict=True)
        ]
        beside = math.prod(len(s) for s in steps)  # chunks of the same rows
        for top in range(start - start % deep, stop, deep):
            a, b = max(top, start), min(top + deep, stop)
            part = out[a - start : b - start]
            if b - a == deep and self._chunk[1:] == self._shape[1:]:
                self._block(top // deep, part)
                self._verify(part, a)
                continue
            for place, corner in enumerate(np.ndindex(*(len(s) for s in steps))):
                left = tuple(s[i] for s, i in zip(steps, corner, strict=True))
                block = self._block(top // deep * beside + place)
                cut = tuple(
                    slice(x, min(x + c, n))
                    for x, c, n in zip(
                        left, self._chunk[1:], self._shape[1:], strict=True
                    )
                )
                inner = tuple(slice(0, c.stop - c.start) for c in cut)
                part[(slice(None), *cut)] = block[(slice(a - top, b - top), *inner)]
            self._verify(part, a)
        return out

    def _verify(self, part: npt.NDArray[Any], first: int) -> None:
        """Compare rows with their checksums, while they are still near."""
        stored = self._sums[first : first + len(part)].tolist()
        found = checksums(part)
        if found != stored:
            wrong = next(n for n, sum_ in enumerate(stored) if found[n] != sum_)
            raise self._container.damaged(
                f"row {first + wrong} of {self._name} has changed"
            )
        if self._counts and part.size:
            # below zero is, without a sign, above all others: one look for both
            most = int(part.view(f"<u{part.itemsize}").max())
            if most >= 1 << (8 * part.itemsize - 1):
                raise self._container.damaged(f"a count in {self._name} is below zero")
            if most > MOST_BYTES:
                raise self._container.damaged(
                    f"a count in {self._name} is absurdly large"
                )

    def _block(
        self, number: int, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        offset, size = int(self._offsets[number]), int(self._sizes[number])
        try:
            raw = self._container.pread(offset, size)
            return decode(raw, self._chunk, self._dtype, out)
        except (ValueError, OSError) as error:
            raise self._container.damaged(
                f"chunk {number} of {self._name}: {error}"
            ) from None
