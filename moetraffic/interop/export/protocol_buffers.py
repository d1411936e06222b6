"""Encode messages in the Protocol Buffers wire format.

A field is its number and wire type as a varint, then a varint (type 0) or a length and
that number of bytes (type 2).  Source: "Encoding",
protobuf.dev/programming-guides/encoding.  Numbers are non-negative, so that int32,
int64 and uint64 have the same encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

VARINT, BYTES = 0, 2
SMALL = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a varint.

    Examples
    --------
    >>> varint(1).hex(), varint(150).hex(), varint(2**64 - 1).hex()
    ('01', '9601', 'ffffffffffffffffff01')
    """
    if 0 <= value < 0x80:
        return SMALL[value]
    if not 0 <= value < 1 << 64:
        raise ValueError(f"a varint has 64 bits, which {value} does not fit")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode an integer or boolean field, also if zero."""
    return varint(field << 3 | VARINT) + varint(value)


def content(field: int, value: bytes) -> bytes:
    """Encode a field of bytes or of a nested message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """Encode a string field in UTF-8."""
    return content(field, value.encode())


def packed(field: int, values: Sequence[int]) -> bytes:
    """Encode a packed repeated integer field; empty for no values."""
    if not values:
        return b""
    return content(field, b"".join(map(varint, values)))


def delimited(message: bytes) -> bytes:
    """Prefix a message with its length as a varint."""
    return varint(len(message)) + message
