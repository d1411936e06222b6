"""Lines of a summary, and what fits into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 160
"""Characters of a line, two of a terminal of 80 columns; details yield to it."""

LONG = 320
"""Characters of a line of claims; a line of claim names alone may be longer."""

STEP = "recommendation"
"""Basis of a line that names commands, not conclusions."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of a summary."""

    topic: str
    text: str
    basis: str  # "claims", "figure", "data" or "recommendation"

    def __str__(self) -> str:
        # commands can be copied to the end of the line
        return f"{self.topic}: {self.text}" + "." * (self.basis != STEP)


def fitted(
    topic: str,
    items: Sequence[tuple[str, str]],
    between: str = "; ",
    width: int = WIDTH,
) -> str:
    """Join items, each long or, from the last one on, short, to fit into a line."""
    texts = [long for long, _ in items]
    for at in reversed(range(len(items))):
        if len(f"{topic}: {between.join(texts)}.") <= width:
            break
        texts[at] = items[at][1]
    return between.join(texts)
