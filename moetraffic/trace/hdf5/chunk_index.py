"""Read the extensible-array chunk index of an HDF5 dataset with one unlimited axis.

The elements hold, for each chunk in order: address, stored bytes, and the mask of
filters that were skipped.  The first are in the index block, others in data blocks,
whose addresses are in the index block or in super blocks.

Source: HDF5 File Format Specification 3.0, VII.D "Extensible Array Index".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import UInt64

from .block import UNDEFINED, FileBytes, Malformed

PREFIX = 14  # bytes of a block before its own fields: name, version, client, header


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Element, block and page sizes from the header of an extensible array."""

    element: int  # bytes
    in_index: int  # elements in the index block
    least: int  # elements of the smallest data block
    pointers: int  # data blocks of the smallest super block that has a block of its own
    page: int  # elements of a page
    offset_bytes: int


def read_index(source: FileBytes, address: int, count: int) -> tuple[UInt64, UInt64]:
    """Read addresses and stored sizes of the first chunks, each ``[count]`` uint64.

    Raises
    ------
    Malformed
        If a chunk is missing, or was stored with filters skipped.
    """
    if not count:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    head = source.block(address, 72)
    head.expect(b"EAHD\0\1")
    element, bits, in_index, least, pointers, page = (head.number(1) for _ in range(6))
    head.take(32)  # counts of blocks
    stored = head.number(8)  # elements that are set
    head.take(8)  # allocated elements
    index = head.number(8)
    powers = all(n and n & (n - 1) == 0 for n in (least, pointers))
    if not (13 <= element <= 20 and 0 < bits <= 64 and powers and page <= 16):
        raise Malformed("an index of chunks has impossible sizes")
    if stored < count:
        raise Malformed(f"an index has {stored} of {count} chunks")
    shape = _Shape(
        element=element,
        in_index=in_index,
        least=least,
        pointers=pointers,
        page=1 << page,
        offset_bytes=(bits + 7) // 8,
    )
    raw = _elements(source, index, shape, count, bits)
    table = np.frombuffer(raw, np.uint8).reshape(count, element)
    if table[:, -4:].any():
        raise Malformed("a chunk was stored with filters skipped")
    sizes = np.zeros((count, 8), np.uint8)
    sizes[:, : element - 12] = table[:, 8:-4]
    addresses = np.ascontiguousarray(table[:, :8])
    return addresses.view("<u8")[:, 0], sizes.view("<u8")[:, 0]


def _elements(
    source: FileBytes, address: int, shape: _Shape, count: int, bits: int
) -> bytes:
    """Read the raw index elements of all blocks of an extensible array."""
    direct = 2 * (shape.pointers - 1)  # data blocks that the index block points to
    # super blocks without a block of their own: two of each size
    first = 2 * (shape.pointers.bit_length() - 1)
    every = 1 + bits - (shape.least.bit_length() - 1)
    size = shape.in_index * shape.element + 8 * (direct + max(0, every - first))
    block = source.block(address, PREFIX + size)
    block.expect(b"EAIB\0\1")
    block.take(8)
    parts = [block.take(shape.in_index * shape.element)]
    have = shape.in_index
    at_direct = [block.number(8) for _ in range(direct)]
    number = 0
    while have < count:
        blocks, each = 1 << (number // 2), shape.least << ((number + 1) // 2)
        if number < first:
            where, at_direct = at_direct[:blocks], at_direct[blocks:]
        else:
            where = _super_block(source, block.number(8), shape, blocks, each)
        for data in where:
            if have < count:
                some = min(each, count - have)
                parts.append(_data_block(source, data, shape, each, some))
                have += some
        number += 1
    return b"".join(parts)[: count * shape.element]


def _super_block(
    source: FileBytes, address: int, shape: _Shape, blocks: int, each: int
) -> list[int]:
    """Read the addresses of the data blocks from a super block."""
    if address == UNDEFINED:
        raise Malformed("a part of an index of chunks is missing")
    pages = each // shape.page if each > shape.page else 0
    bitmap = blocks * ((pages + 7) // 8)  # of pages in use
    size = PREFIX + shape.offset_bytes + bitmap + 8 * blocks
    block = source.block(address, size)
    block.expect(b"EASB\0\1")
    block.take(8 + shape.offset_bytes + bitmap)
    return [block.number(8) for _ in range(blocks)]


def _data_block(
    source: FileBytes, address: int, shape: _Shape, each: int, some: int
) -> bytes:
    """Read the first elements of a data block; large blocks are split into pages."""
    if address == UNDEFINED:
        raise Malformed("a part of an index of chunks is missing")
    head = PREFIX + shape.offset_bytes
    source.block(address, head).expect(b"EADB\0\1")
    at = address + head + (4 if each > shape.page else 0)
    parts = []
    while some > 0:
        here = min(shape.page, some) * shape.element
        parts.append(source.block(at, here).take(here))
        # the head of a paged block, and each of its pages, end with a checksum
        at += here + 4
        some -= shape.page
    return b"".join(parts)
