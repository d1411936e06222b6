"""Published tables, presets and golden traces, where an installed wheel finds them."""

from __future__ import annotations

from pathlib import Path

from .published import Published, published

_HERE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Path of a file that ships with moetraffic.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    found = _HERE / name
    if not found.is_file():
        shipped = sorted(p.name for p in _HERE.iterdir() if p.suffix != ".py")
        raise FileNotFoundError(f"moetraffic ships no {name}, but {', '.join(shipped)}")
    return found


__all__ = ["Published", "path", "published"]
