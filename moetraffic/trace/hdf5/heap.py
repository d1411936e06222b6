"""Read densely stored HDF5 links and attributes: fractal heap and version 2 B-tree.

The tree's records hold identifiers of objects, which the heap stores.  All records are
traversed; names are not looked up by hash.

Source: HDF5 File Format Specification 3.0, III.A.2 "Version 2 B-trees", III.G
"Fractal Heap"; block sizes of the doubling table as in III.G.
"""

from __future__ import annotations

from collections.abc import Iterator

from .block import UNDEFINED, Block, FileBytes, Malformed

MOST_OBJECT_BYTES = 1 << 17
MOST_DEPTH = 6

HUGE_OBJECTS = 1  # types of B-trees: of objects too large for the heap's blocks,
LINK_NAMES = 5  # of links by name,
ATTRIBUTE_NAMES = 8  # of attributes by name


class Heap:
    """Block layout of an HDF5 fractal heap, read from its header."""

    def __init__(self, source: FileBytes, address: int) -> None:
        head = source.block(address, 142)
        head.expect(b"FRHP\0")
        self._source = source
        self.id_bytes, filtered = head.number(2), head.number(2)
        head.take(1)  # flags
        most_managed = head.number(4)
        head.take(8)  # next identifier of a huge object
        self._huge_objects = head.number(8)  # address of their tree
        head.take(80)  # free space, and counts of objects
        self._width = head.number(2)  # blocks in a row of the doubling table
        self._first, self._largest = head.number(8), head.number(8)  # bytes of a block
        bits = head.number(2)
        head.take(2)  # initial rows of the root block
        self._root = head.number(8)  # address of the root block
        self._rows = head.number(2)  # of the root block, 0 if it is the only block
        self._offset_bytes = (bits + 7) // 8
        # wide enough for the largest block, or the largest object in one
        widest = min(self._largest, most_managed)
        self._length_bytes = (widest.bit_length() + 6) // 8
        if not (
            not filtered
            and 0 < self._width <= 64
            and 0 < self._first <= self._largest <= 1 << 20
            and self._rows <= 64
            and 0 < self.id_bytes <= 32
            and bits <= 64
        ):
            raise Malformed("a heap has impossible sizes")

    def object(self, name: bytes, most: int) -> Block:
        """Read the heap object with the given identifier.

        The heap has at most ``most`` objects.
        """
        fields = Block(name)
        kind = fields.number(1)
        if kind == 0x10:
            return self._huge(fields.number(self.id_bytes - 1), most)
        if kind != 0:
            raise Malformed("an object of a heap is of an unknown kind")
        offset = fields.number(self._offset_bytes)
        length = fields.number(self._length_bytes)
        return self._block(self._address(offset, length), length)

    def _block(self, address: int, length: int) -> Block:
        if length > MOST_OBJECT_BYTES:
            raise Malformed(f"an object of a heap has {length} bytes")
        return self._source.block(address, length)

    def _address(self, offset: int, length: int) -> int:
        if not self._rows and offset + length <= self._first:
            return self._root + offset
        start = 0
        for row in range(self._rows):
            size = self._first << max(0, row - 1)
            if size > self._largest:
                break  # rows of indirect blocks: no root group of a trace is this large
            if offset < start + size * self._width:
                column, within = divmod(offset - start, size)
                if within + length > size:
                    raise Malformed("an object is in two blocks of its heap")
                place = 13 + self._offset_bytes + 8 * (row * self._width + column)
                return self._source.block(self._root + place, 8).number(8) + within
            start += size * self._width
        raise Malformed("an object is outside of its heap")

    def _huge(self, number: int, most: int) -> Block:
        for record in records(self._source, self._huge_objects, HUGE_OBJECTS, 24, most):
            address, length = record.number(8), record.number(8)
            if record.number(8) == number:
                return self._block(address, length)
        raise Malformed("an object of a heap is missing")


def dense(
    source: FileBytes, heap: int, tree: int, kind: int, record: int, most: int
) -> Iterator[Block]:
    """Iterate over the objects of HDF5 dense link or attribute storage.

    ``heap`` and ``tree`` are addresses, ``kind`` LINK_NAMES or ATTRIBUTE_NAMES,
    ``record`` the bytes of a record of the tree, ``most`` the limit of objects.
    """
    if heap == UNDEFINED:
        return
    objects = Heap(source, heap)
    for fields in records(source, tree, kind, record, most):
        if kind == LINK_NAMES:
            fields.take(4)  # the hash
        yield objects.object(fields.take(objects.id_bytes), most)


def records(
    source: FileBytes, address: int, kind: int, size: int, most: int
) -> Iterator[Block]:
    """Iterate over the records of a version 2 B-tree, at most ``most`` of them."""
    if address == UNDEFINED:
        return
    head = source.block(address, 38)
    head.expect(b"BTHD\0" + bytes([kind]))
    node, record_size, depth = head.number(4), head.number(2), head.number(2)
    head.take(2)  # split and merge thresholds of nodes
    root, count, total = head.number(8), head.number(2), head.number(8)
    if total > most:
        raise Malformed(f"it has {total} datasets or attributes, more than {most}")
    if record_size != size or depth > MOST_DEPTH or node > 1 << 16:
        raise Malformed("a tree has impossible sizes")
    seen = 0
    for seen, record in enumerate(
        _node(source, root, kind, size, node, count, depth), 1
    ):
        if seen > total:
            break
        yield record
    if seen != total:
        raise Malformed("a tree has another number of records than its header states")


def _node(
    source: FileBytes, at: int, kind: int, size: int, node: int, count: int, depth: int
) -> Iterator[Block]:
    if not count:
        return
    block = source.block(at, node)
    block.expect((b"BTIN\0" if depth else b"BTLF\0") + bytes([kind]))
    here = [block.take(size) for _ in range(count)]
    if depth:
        width, totals = _widths(node, size, depth)
        for _ in range(count + 1):
            child, its = block.number(8), block.number(width)
            block.take(totals[depth - 1] if depth > 1 else 0)
            yield from _node(source, child, kind, size, node, its, depth - 1)
    for record in here:
        yield Block(record)


def _widths(node: int, size: int, depth: int) -> tuple[int, list[int]]:
    """Return the byte widths of a child's record count, and of its total by depth."""
    below = max(1, (node - 10) // size)
    count, totals = (below.bit_length() + 7) // 8, [0]
    for _ in range(1, depth):
        pointer = 8 + count + totals[-1]
        inner = max(1, (node - 10 - pointer) // (size + pointer))
        below = (inner + 1) * below + inner
        totals.append((below.bit_length() + 7) // 8)
    return count, totals
