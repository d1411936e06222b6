"""Published tables, presets, captured runs and golden traces, also of a wheel."""

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


def runs() -> tuple[str, ...]:
    """Names of the shipped runs; the file of one is ``path("run-NAME.h5")``.

    Examples
    --------
    >>> "top2-balanced" in runs()
    True
    """
    return tuple(sorted(p.stem[len("run-") :] for p in _HERE.glob("run-*.h5")))


__all__ = ["Published", "path", "published", "runs"]
