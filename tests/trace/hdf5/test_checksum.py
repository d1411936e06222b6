"""A CRC of a block is known from those of its rows, and a stream without Adler-32."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.trace.hdf5.checksum import block_checksum, checksums, joined, of_blocks
from moetraffic.trace.hdf5.codec import decode, encode


@given(
    blocks=st.integers(0, 4),
    deep=st.integers(1, 17),
    cells=st.integers(1, 5000),
    kind=st.sampled_from(["<i4", "<i8", "|u1"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_blocks_have_the_sum_of_their_bytes(
    blocks: int, deep: int, cells: int, kind: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 120, (blocks * deep, cells)).astype(kind)
    sums = np.array(checksums(rows), np.uint32)
    assert sums.tolist() == [zlib.crc32(row.tobytes()) for row in rows]
    found = of_blocks(sums.reshape(blocks, deep), cells * rows.itemsize)
    parts = rows.reshape(blocks, deep, cells)
    assert found.tolist() == [zlib.crc32(part.tobytes()) for part in parts]
    assert found.tolist() == [block_checksum(part) for part in parts]
    assert joined(sums.tolist(), cells * rows.itemsize) == block_checksum(rows)


def test_a_stream_is_compared_with_its_adler_unless_a_crc_follows() -> None:
    block = np.arange(60, dtype="<i4").reshape(3, 20)
    coded = bytearray(encode(block, block.shape))
    coded[-1] ^= 1
    with pytest.raises(ValueError, match="Adler-32"):
        decode(bytes(coded), block.shape, block.dtype)
    found = decode(bytes(coded), block.shape, block.dtype, summed=True)
    assert np.array_equal(found, block)


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


@pytest.mark.parametrize("cut", [0, 1, 5, 6, 10, -5, -4, -1])
def test_a_stream_that_ends_early_is_refused(cut: int) -> None:
    block = np.arange(6, dtype="<i4")
    coded = encode(block, block.shape)
    with pytest.raises(ValueError, match="inflate"):
        decode(coded[:cut], block.shape, block.dtype, summed=True)


def test_nothing_may_follow_a_stream() -> None:
    block = np.arange(6, dtype="<i4")
    coded = encode(block, block.shape)
    with pytest.raises(ValueError, match="inflates to"):
        decode(coded + b"\0", block.shape, block.dtype, summed=True)
