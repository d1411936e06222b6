"""Bytes of the element types that models are trained in."""

from __future__ import annotations

from .rules import Rule, choose, refuse
from .values import Values, numbers

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
}


def element_bytes(dtype: Values) -> Values:
    """Bytes of an element.

    Parameters
    ----------
    dtype
        Its type, or its bytes, also as text.

    Raises
    ------
    LayoutError
        If there is no such type, or bytes are not above 0.
    """
    if isinstance(dtype, str) and not dtype[:1].isdigit():
        choose("an element type", dtype, ELEMENT_BYTES)
        return ELEMENT_BYTES[dtype]
    sizes = numbers("bytes of an element", dtype)
    text = "an element has bytes above 0, but it has {}: name its type, as bfloat16"
    refuse([Rule(sizes <= 0, text, (sizes,))])
    return sizes
