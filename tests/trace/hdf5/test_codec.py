"""Chunks of every type are decoded exactly, and malformed streams are refused."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.trace.hdf5.codec import decode, encode


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("<i4", 200),
        ("<i4", 60_000),
        ("<i4", 2**31 - 1),
        ("<i8", 0),
        ("<i8", 100),
        ("<i8", 2**60),
        ("|u1", 200),
        ("<f8", 1),
    ],
)
def test_every_width_and_size(kind: str, most: int) -> None:
    values = (np.random.default_rng(0).random((7, 11)) * most).astype(kind)
    raw = encode(values, values.shape)
    assert np.array_equal(decode(raw, values.shape, values.dtype), values)


@pytest.mark.slow
def test_a_stream_is_compared_with_its_adler_unless_a_crc_follows() -> None:
    block = np.arange(60, dtype="<i4").reshape(3, 20)
    coded = bytearray(encode(block, block.shape))
    coded[-1] ^= 1
    with pytest.raises(ValueError, match="Adler-32"):
        decode(bytes(coded), block.shape, block.dtype)
    found = decode(bytes(coded), block.shape, block.dtype, summed=True)
    assert np.array_equal(found, block)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0x77), (0, 0x00), (1, 0x00), (1, 0x20 | 0x1F)],
)
def test_what_begins_like_no_zlib_stream_is_refused(at: int, value: int) -> None:
    block = np.arange(6, dtype="<i4")
    coded = bytearray(encode(block, block.shape))
    coded[at] = value
    with pytest.raises(ValueError, match="header"):
        decode(bytes(coded), block.shape, block.dtype, summed=True)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 1, 5, 6, 10, -5, -4, -1])
def test_a_stream_that_ends_early_is_refused(cut: int) -> None:
    block = np.arange(6, dtype="<i4")
    coded = encode(block, block.shape)
    with pytest.raises(ValueError, match="inflate"):
        decode(coded[:cut], block.shape, block.dtype, summed=True)


@pytest.mark.slow
def test_nothing_may_follow_a_stream() -> None:
    block = np.arange(6, dtype="<i4")
    coded = encode(block, block.shape)
    with pytest.raises(ValueError, match="inflates to"):
        decode(coded + b"\0", block.shape, block.dtype, summed=True)
