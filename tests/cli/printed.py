"""What commands print in a log."""

from __future__ import annotations

import re


def unwrapped(printed: str) -> str:
    """Join the lines of each sentence: all but the first are indented."""
    return re.sub(r"\n  (?=\S)", " ", printed)
