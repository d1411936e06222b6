"""Quantities as people read them."""

from __future__ import annotations


def byte_size(count: float) -> str:
    """Bytes with a decimal prefix.

    Examples
    --------
    >>> byte_size(999), byte_size(2_500_000)
    ('999 B', '2.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
