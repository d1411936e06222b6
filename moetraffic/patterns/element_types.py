"""Bytes of the element types that models are trained in."""

from __future__ import annotations

from .rules import choose

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
}


def element_bytes(dtype: str) -> int:
    """Bytes of an element.

    Raises
    ------
    LayoutError
        If there is no such type.
    """
    choose("an element type", dtype, ELEMENT_BYTES)
    return ELEMENT_BYTES[dtype]
