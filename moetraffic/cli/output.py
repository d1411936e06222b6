"""How the verbs speak: tables for people, JSON for programs, progress for both."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from moetraffic.report.terminal import Paper, say

# a log or a pipe has no width of its own: tables keep theirs
WIDTH = None if sys.stdout.isatty() else 120
console = Paper(width=WIDTH)


class Tick(Protocol):
    """Tells how far a long work has come."""

    def __call__(self, done: int, note: str = "") -> None:
        """``done`` of the total, with a few words."""
        ...


def print_json(value: Any) -> None:
    """Print one JSON document; what is not a number is null."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """One JSON document; what is not a number is null."""
    return json.dumps(_plain(value), indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress(
    title: str, total: int, *, quiet: bool = False, plain: bool = False
) -> Iterator[Tick]:
    """A bar on a terminal, and otherwise about ten plain lines, on standard error."""
    if quiet:
        yield lambda done, note="": None
    elif sys.stderr.isatty() and not plain:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=Paper(stderr=True),
        ) as bars:
            task = bars.add_task(title, total=total, note="")
            yield lambda done, note="": bars.update(task, completed=done, note=note)
    else:
        every = max(1, total // 10)

        def line(done: int, note: str = "") -> None:
            if done % every == 0 or done == total:
                say(f"{title}: {done}/{total} {note}".rstrip())

        yield line
