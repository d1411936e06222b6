"""Streaming reader of length-prefixed Protocol Buffers messages.

A field is its number and wire type as a varint, then a varint (type 0), 8 bytes (1), a
length and that number of bytes (2), or 4 bytes (5)
(protobuf.dev/programming-guides/encoding).  A file holds messages, each after its
length.  No schema is needed: an importer picks fields by number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from .json_reader import LARGEST_VALUE, opened_bytes, wrong

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
LONGEST = 10  # bytes of a varint
Field = tuple[int, int | bytes]
"""Number of a field, and its unsigned number or its bytes."""


def messages(path: Path) -> Iterator[list[Field]]:
    """Iterate over the messages of a file, each as the list of its fields."""
    with opened_bytes(path) as stream:
        while first := stream.read(1):
            prefix = first
            while prefix[-1] & 0x80 and len(prefix) < LONGEST:
                more = stream.read(1)
                if not more:
                    raise wrong(path, "it ends within the length of a message")
                prefix += more
            length, _ = _varint(path, prefix, 0)
            if length > LARGEST_VALUE:
                raise wrong(path, f"a message has more than {LARGEST_VALUE} bytes")
            message = stream.read(length)
            if len(message) < length:
                raise wrong(path, "it ends within a message")
            yield list(fields(path, message))


def fields(path: Path, message: bytes) -> Iterator[Field]:
    """Iterate over the fields of a message."""
    at = 0
    while at < len(message):
        key, at = _varint(path, message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(path, message, at)
            yield number, value
            continue
        length = {FIXED_64: 8, FIXED_32: 4}.get(kind, 0)
        if kind == BYTES:
            length, at = _varint(path, message, at)
        if not length and kind != BYTES:
            raise wrong(path, f"a field has wire type {kind}")
        if length > len(message) - at:
            raise wrong(path, "a field is longer than its message")
        part = message[at : at + length]
        at += length
        if kind == BYTES:
            yield number, part
        else:
            yield number, int(struct.unpack("<Q" if length == 8 else "<I", part)[0])


def signed(value: int) -> int:
    """Convert the varint of an int32 or int64 field to its signed value."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _varint(path: Path, data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return it and the index after it."""
    value = 0
    for place, byte in enumerate(data[at : at + LONGEST]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise wrong(path, "it has a number that is no varint")
