"""Bytes of the element types that models are trained in."""

from __future__ import annotations

from moetraffic.errors import LayoutError

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
    found = ELEMENT_BYTES.get(dtype)
    if found is None:
        raise LayoutError(
            f"an element type is one of {', '.join(ELEMENT_BYTES)}, not {dtype!r}: "
            "choose one"
        )
    return found
