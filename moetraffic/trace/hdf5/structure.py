"""Parse the root group, datasets and attributes of an HDF5 file.

The HDF5 library trusts a file's structure: crafted metadata with valid checksums make
it divide by zero or loop forever.  This parser accepts exactly what ``image`` writes
(HDF5 1.10 objects: a version 3 superblock, version 2 object headers, chunks in
extensible arrays), and rejects everything else.

Source: HDF5 File Format Specification 3.0, II "Superblock", IV "Data Objects".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .block import UNDEFINED, Block, FileBytes, Malformed
from .heap import ATTRIBUTE_NAMES, LINK_NAMES, dense

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_LINKS = 1024
MOST_ATTRIBUTES = 64
MOST_ATTRIBUTE_BYTES = 64 << 10
MOST_MESSAGES = 512
MOST_HEADER_BYTES = 1 << 17

DATASPACE, LINK_INFO, DATATYPE, LINK, LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x08
FILTERS, ATTRIBUTE, CONTINUED, ATTRIBUTE_INFO = 0x0B, 0x0C, 0x10, 0x15
EXTERNAL = 0x07
SHARED = 0x02  # flag of a message that is stored elsewhere
CHUNKED, VIRTUAL, EXTENSIBLE_ARRAY = 2, 3, 4
NOTHING = 2  # a null dataspace
FLOAT64 = bytes.fromhex("203f000800000000004000340b0034ff030000")
"""Datatype message of float64: order and sign; size; offset, precision, exponent,
mantissa, bias (IV.A.2.d "Datatype Message", class 1)."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Shape, type, chunking and filters of a stored HDF5 dataset."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    filters: tuple[int, ...]
    index: int  # address of the index of its chunks


class Structure:
    """Root group of an HDF5 file: its links and attributes.

    Raises
    ------
    Malformed
        If it differs from the structure that ``image`` writes.
    """

    def __init__(self, source: FileBytes) -> None:
        self._source = source
        head = source.block(0, 48)
        head.expect(SIGNATURE + b"\x03\x08\x08")
        head.take(1)  # flags: open for writing
        base, extension = head.number(8), head.number(8)
        end = head.number(8)
        if base or extension != UNDEFINED:
            raise Malformed("its superblock is not one of a trace")
        if end > source.size:
            raise Malformed(f"it is cut off after {source.size} bytes")
        self._root = list(_messages(source, head.number(8)))
        self.links = dict(self._links())
        attributes = (ATTRIBUTE, ATTRIBUTE_INFO, ATTRIBUTE_NAMES, 17, 2)
        parts = self._parts(*attributes, MOST_ATTRIBUTES)
        self.attributes = dict(map(_attribute, parts))

    def dataset(self, name: str) -> Stored:
        """Read the storage layout of a dataset by its name."""
        address = self.links.get(name)
        if address is None:
            raise Malformed(f"/{name} is missing or no dataset")
        found: dict[int, Block] = {}
        for part, flags, block in _messages(self._source, address):
            if part in (DATASPACE, DATATYPE, LAYOUT, FILTERS, EXTERNAL, LINK_INFO):
                if part in found or flags & SHARED:
                    raise Malformed(f"/{name} has a part twice, or elsewhere")
                found[part] = block
        if LINK_INFO in found or not {DATASPACE, DATATYPE, LAYOUT} <= found.keys():
            raise Malformed(f"/{name} is missing or no dataset")
        if EXTERNAL in found:
            raise Malformed(f"/{name} has its data in another file")
        kind = _dtype(found[DATATYPE])
        shape = _shape(found[DATASPACE])
        if kind is None or shape is None:
            raise Malformed(f"/{name} has elements of another type than numbers")
        chunks, index = _layout(found[LAYOUT], name)
        if len(chunks) != len(shape) + 1 or chunks[-1] != kind.itemsize:
            raise Malformed(f"/{name} has chunks of another rank or type")
        return Stored(
            shape=shape,
            dtype=kind,
            chunks=chunks[:-1],
            filters=_filters(found[FILTERS]) if FILTERS in found else (),
            index=index,
        )

    def _links(self) -> Iterator[tuple[str, int | None]]:
        """Yield names of root links with the address of hard links, None for others."""
        for block in self._parts(LINK, LINK_INFO, LINK_NAMES, 11, 8, MOST_LINKS):
            block.expect(b"\1")
            flags = block.number(1)
            kind = block.number(1) if flags & 8 else 0
            block.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
            name = block.take(block.number(1 << (flags & 3))).decode()
            yield name, None if kind else block.number(8)

    def _parts(
        self, one: int, info: int, tree: int, record: int, order: int, most: int
    ) -> Iterator[Block]:
        """Yield links or attributes from root object messages and dense storage."""
        count = 0
        for kind, flags, block in self._root:
            found: Iterable[Block] = ()
            if kind == one and not flags & SHARED:
                found = (block,)
            elif kind == info:
                block.expect(b"\0")
                block.take(order if block.number(1) & 1 else 0)
                heap, names = block.number(8), block.number(8)
                found = dense(self._source, heap, names, tree, record, most)
            for part in found:
                count += 1
                if count > most:
                    raise Malformed(f"it has more than {most} datasets or attributes")
                yield part


def _messages(source: FileBytes, address: int) -> Iterator[tuple[int, int, Block]]:
    """Yield kind, flags and content of the messages of an object header, in order."""
    head = source.block(address, min(34, source.size - address))
    head.expect(b"OHDR\2")
    flags = head.number(1)
    width, times = 1 << (flags & 3), 16 if flags & 0x20 else 0
    times += 4 if flags & 0x10 else 0
    order = 2 if flags & 4 else 0
    head.take(times)
    size = head.number(width)
    start = 6 + times + width
    waiting = [(address + start, size, b"")]
    count = total = 0
    for at, length, mark in waiting:
        total += length
        if total > MOST_HEADER_BYTES:
            raise Malformed("an object's header is too long")
        block = source.block(at, length)
        block.expect(mark)
        # fewer bytes than a message header are a gap
        while block.left >= 4 + order:
            kind, part, own = block.number(1), block.number(2), block.number(1)
            block.take(order)
            content = Block(block.take(part))
            count += 1
            if count > MOST_MESSAGES:
                raise Malformed("an object's header has too many parts")
            if kind == CONTINUED:
                further, its = content.number(8), content.number(8)
                # its last 4 bytes are a checksum
                waiting.append((further, its - 4, b"OCHK"))
            else:
                yield kind, own, content


def _shape(block: Block) -> tuple[int, ...] | None:
    """Parse the axis lengths of a dataspace; () for a scalar, None for a null one."""
    block.expect(b"\2")
    rank, _, kind = block.number(1), block.number(1), block.number(1)
    if kind == NOTHING or rank > 8:
        return None
    return tuple(block.number(8) for _ in range(rank))


def _dtype(block: Block) -> np.dtype[Any] | None:
    """Parse the type of integers, float64 or fixed-width text; None for others."""
    kind = block.number(1) & 15
    if kind == 1:
        return np.dtype("<f8") if block.take(min(19, block.left)) == FLOAT64 else None
    bits, size = block.number(3), block.number(4)
    if kind == 3 and not bits & ~0x11 and 0 < size <= 1 << 16:
        return np.dtype(f"S{size}")
    whole = kind == 0 and not bits & ~8 and size in (1, 2, 4, 8)
    if whole and (block.number(2), block.number(2)) == (0, 8 * size):
        return np.dtype(f"<{'i' if bits else 'u'}{size}")
    return None


def _layout(block: Block, name: str) -> tuple[tuple[int, ...], int]:
    """Parse chunk lengths (element size last) and the address of the chunk index."""
    version, kind = block.number(1), block.number(1)
    if kind == VIRTUAL:
        raise Malformed(f"/{name} has its data in another file")
    if version != 4 or kind != CHUNKED:
        raise Malformed(f"/{name} is not stored in chunks")
    block.take(1)
    rank, width = block.number(1), block.number(1)
    chunks = tuple(block.number(width) for _ in range(rank))
    if not rank or not all(chunks) or block.number(1) != EXTENSIBLE_ARRAY:
        raise Malformed(f"/{name} has another index of its chunks")
    block.take(5)
    return chunks, block.number(8)


def _filters(block: Block) -> tuple[int, ...]:
    """Parse the numbers of a dataset's filters."""
    block.expect(b"\2")
    found = []
    for _ in range(block.number(1)):
        found.append(block.number(2))
        name = block.number(2) if found[-1] >= 256 else 0
        block.take(2)
        block.take(name + 4 * block.number(2))
    return tuple(found)


def _attribute(block: Block) -> tuple[str, str | int | float]:
    version, flags = block.number(1), block.number(1)
    if version != 3 or flags:
        raise Malformed("an attribute has a shared type")
    sizes = [block.number(2) for _ in range(3)]
    block.take(1)
    name = block.take(sizes[0]).rstrip(b"\0").decode()
    kind = _dtype(Block(block.take(sizes[1])))
    shape = _shape(Block(block.take(sizes[2])))
    if kind is None or shape != () or kind.itemsize > MOST_ATTRIBUTE_BYTES:
        raise Malformed(
            f"attribute {name} is neither a number nor text of fixed length"
        )
    raw = block.take(kind.itemsize)
    if kind.kind == "S":
        return name, raw.rstrip(b"\0").decode()
    value: int | float = np.frombuffer(raw, kind)[0].item()
    return name, value
