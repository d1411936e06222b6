"""Bytes come back to where they belong, by numpy and compiled alike."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.trace.hdf5 import unshuffle as way
from moetraffic.trace.hdf5.unshuffle import unshuffle


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
def test_every_width_and_size(kind: str, most: int, monkeypatch) -> None:
    values = (np.random.default_rng(0).random((7, 11)) * most).astype(kind)
    width = values.dtype.itemsize
    stored = values.reshape(-1, 1).view(np.uint8).T.tobytes()
    planes = np.frombuffer(stored, np.uint8).reshape(width, 77)
    for _ in range(2):
        out = np.full((7, 11), 3).astype(kind)
        unshuffle(planes, out)
        assert np.array_equal(out, values)
        # now what is worth compiling is compiled
        monkeypatch.setattr(way, "PATIENCE", 0)
