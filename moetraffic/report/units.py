"""Quantities as people read them."""

from __future__ import annotations

from collections.abc import Sequence


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


def rank_span(ranks: Sequence[int]) -> str:
    """World ranks, briefly.

    Examples
    --------
    >>> rank_span((0, 1, 2, 3)), rank_span((1, 3, 5, 7)), rank_span((2, 6))
    ('0 to 3', '1 to 7 by 2', '2, 6')
    """
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if len(ranks) > 3 and tuple(ranks) == tuple(
        range(ranks[0], ranks[-1] + 1, step or 1)
    ):
        by = f" by {step}" if step != 1 else ""
        return f"{ranks[0]} to {ranks[-1]}{by}"
    return ", ".join(map(str, ranks))
