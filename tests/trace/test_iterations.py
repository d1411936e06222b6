"""Iterations as people write them."""

from __future__ import annotations

import sys

import pytest

from moetraffic.errors import TraceError
from moetraffic.trace.iterations import iteration_range


@pytest.mark.parametrize(
    ("text", "iterations"),
    [
        (None, None),
        ("3:5", range(3, 5)),
        (":5", range(5)),
        ("0:1", range(1)),
        ("2:", range(2, sys.maxsize)),
    ],
)
def test_ranges_are_read_as_in_python(text: str, iterations: range) -> None:
    assert iteration_range(text) == iterations


@pytest.mark.parametrize(
    "text", ["", "3", "5:3", "3:3", "a:b", "-1:4", "1:2:3", "9" * 30 + ":"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="are A:B with A below B"):
        iteration_range(text)
