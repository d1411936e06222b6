"""Files that a replay writes: the replayed trace, dataclasses as JSON.

The disk may be full when a long replay ends.  Its times cannot be measured again, so
the trace is then saved in another folder, which the error message names.

In JSON, NaN is null, and null is NaN where a float is expected.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from moetraffic.errors import ReplayError, TraceError
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import Plan
from moetraffic.tables import plain
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size

WRITING = "the writing of the trace"
WRITING_S = 900.0
"""Longest time, in s, that writing the trace may take."""


def check_disk_space(trace: Trace, file: Path, plan: Plan, out: Path) -> None:
    """Check that the disk has space for the replayed trace.

    The replayed trace holds the same columns as the trace that is replayed, for the
    occurrences in the plan.

    Raises
    ------
    ReplayError
        If the folder has less free space.
    """
    operations = len(plan) / max(1, len(trace.occurrences))
    # a replay on fewer ranks has smaller matrices
    share = min(1.0, operations) * min(1.0, plan.world / trace.meta.world) ** 2
    needed = int(file.stat().st_size * share)
    free = shutil.disk_usage(out.absolute().parent).free
    if needed > free:
        raise ReplayError(
            f"{out} will take about {byte_size(needed)}, but its disk has "
            f"{byte_size(free)} free: make room or choose another folder"
        )


def write(trace: Trace, out: Path, *, force: bool, rank: int) -> None:
    """Write the replayed trace or, if that fails, save it in another folder.

    Raises
    ------
    RankError
        If it could not be written as requested; naming the file it was saved to.
    """
    try:
        trace.save(out, force=force)
        return
    except TraceError as error:
        reason = str(error)
    saved = _save_elsewhere(trace, out)
    raise RankError(
        f"{reason}; the replay is done and its trace "
        + (f"is kept as {saved}" if saved else "could not be kept in any folder"),
        rank=rank,
        operation=WRITING,
    )


def _save_elsewhere(trace: Trace, out: Path) -> Path | None:
    temporary = Path(tempfile.gettempdir()).absolute()
    # persistent disks first, then one in memory
    home = Path(os.path.expanduser("~"))  # stays "~" for a user without a home
    for folder in (temporary, Path.cwd(), home, Path("/dev/shm")):
        if folder == out.absolute().parent or not os.access(folder, os.W_OK):
            continue
        path = folder / f"{out.stem}-kept-{os.getpid()}{out.suffix}"
        try:
            trace.save(path)
        except TraceError:
            continue  # this one is full as well
        return path
    return None


# ---- JSON ------------------------------------------------------------------------


Record = TypeVar("Record")


def to_json(kind: str, value: Any, *, indent: int | None = None) -> str:
    """Format a dataclass as a JSON object with an entry ``kind``."""
    return json.dumps({"kind": kind, **plain(value)}, indent=indent)


def from_json(of: type[Record], text: str) -> Record:
    """Read a dataclass that :func:`to_json` wrote.

    Raises
    ------
    ReplayError
        If the document is not such an object.
    """
    try:
        made = _typed(of, json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayError(
            f"a record of {of.__name__} is a JSON object of its fields, but is not "
            f"({error}): give a file that moetraffic replay wrote"
        ) from None
    assert isinstance(made, of)
    return made


def _typed(of: Any, value: Any) -> Any:
    """Convert a JSON value to a type, such as a dataclass or a tuple."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (kind,) = (each for each in inner if each is not NoneType)
        return _typed(kind, value)
    if is_dataclass(of) and isinstance(of, type):
        hints = get_type_hints(of)
        named = (f for f in fields(of) if f.init)
        return of(**{f.name: _typed(hints[f.name], value[f.name]) for f in named})
    if origin is tuple:
        return tuple(_typed(inner[0], each) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return {_typed(inner[0], k): _typed(inner[1], v) for k, v in value.items()}
    if of is float:
        return float("nan") if value is None else float(value)
    if of in (int, str, bool):
        return of(value)
    raise TypeError(f"{of} is not written as JSON")
