"""Log of one rank: records, frames and files, shared by its writer and its readers.

A rank appends frames to ``rank-00003-000000.log``, then to ``rank-00003-000001.log``
and so on.  A frame is a header (kind, CRC-32 and length of the body) and a body that
zlib has compressed:

- ``WORDS``: int64 words, record after record.  A record begins with its kind and its
  length in words;
- ``MESSAGE``: a JSON object.  Names in records (groups, contexts, element types,
  threads, autograd nodes) are numbers, which earlier messages define.

The first frame of a file is a message with all that the messages of earlier files said:
a reader may begin with any file.  Fields of messages: ``about`` (the capture),
``define`` (pairs of a kind of names and a name, which gets the next number),
``clocks``, ``facts`` (``omitted``, ``reasons``, ``ended``, ``k``, ``router``,
``stopped``: by the maximum size).

Fields of a record, after kind and length:

- ``CALL``: number (of the call on this rank), issue (ns), operation (index into
  OPERATIONS), group, context, dtype, thread, in_backward (1 while the autograd engine
  runs), grad (1 where autograd records), link (autograd sequence number, -1 for none),
  node (name of the running autograd node, -1 for none), source, destination, bytes (of
  this rank's input, for all but all-to-alls), row_bytes, rows_sent, rows_received,
  number of send splits and number of receive splits (0: equal splits), which follow
- ``END``: number of the call, start, end (ns)
- ``RAISED``: number of a call that raised an exception: nothing was sent
- ``STEP``: number of the explicit step, end, tokens, kind (-1: not stated), loss (bits)
- ``LOSS``: number of a step, its loss, which was read from a device later
- ``OPTIMIZER``: number of the optimizer step, end, in_backward (1 within a backward
  pass), skipped (1 if the parameters were not updated, -1 if that is read later)
- ``UNSCALED``: number of an optimizer step, skipped
- ``ROUTED``: number of the routing, issue, group, layer, context, thread, in_backward,
  grad
- ``COUNTS``: number of a routing, experts E, has_dropped, tokens S of the sample, k;
  then E token copies, E dropped copies if has_dropped, S x k expert ids
- ``LOST``: number of calls that came faster than they could be written
- ``SKIP``: iterations that were not recorded, end of the last one (ns), explicit (1 if
  the program's step() ended them), steps and optimizer steps until then, and pairs of
  a group and the number of its collectives
- ``PAUSE``: 1 if iterations that begin later are not recorded, 0 if they are; it is not
  in the log

``rank-00003.state`` has five int64 words, which the rank overwrites: VERSION, ended
explicit steps, optimizer steps, whether the recording was closed, and calls that could
not be written.  The rank holds a lock on it while it records.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import CaptureError

VERSION = 1
WORDS, MESSAGE = 1, 2
HEADER = struct.Struct("<III")
STATE = struct.Struct("<5q")

CALL, END, RAISED, STEP, LOSS, OPTIMIZER, UNSCALED = 1, 2, 3, 4, 5, 6, 7
ROUTED, COUNTS, LOST, SKIP, PAUSE = 8, 9, 10, 11, 12

CALL_FIELDS = (
    *("kind", "length", "number", "issue", "operation", "group", "context", "dtype"),
    *("thread", "in_backward", "grad", "link", "node", "source", "destination"),
    *("bytes", "row", "rows_sent", "rows_received", "sends", "receives"),
)
"""Words of a call before its splits."""
ROUTED_FIELDS = (
    *("kind", "length", "number", "issue", "group", "layer", "context", "thread"),
    *("in_backward", "grad"),
)
"""Words of a routing."""
CALL_HEAD, ROUTED_HEAD = len(CALL_FIELDS), len(ROUTED_FIELDS)
COUNTS_HEAD, SKIP_HEAD = 7, 7

OPERATIONS = (
    *("all_to_all", "all_reduce", "all_gather", "reduce_scatter", "reduce"),
    *("broadcast", "gather", "scatter", "barrier", "send_recv"),
)


class State(NamedTuple):
    """What a rank keeps up to date in its state file."""

    version: int = VERSION
    steps: int = 0  # ended by the program
    optimizer_steps: int = 0
    closed: int = 0  # 1: the recording was closed, and all records are in the log
    lost_calls: int = 0


class DamagedLog(CaptureError):
    """Raised at a damaged frame of a log, after the frames before it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame: words or a message, and the position behind it."""

    words: Int64 | None
    message: Mapping[str, Any] | None
    end: int


def frame(kind: int, content: bytes) -> bytes:
    """Encode a frame."""
    body = zlib.compress(content, 1)
    return HEADER.pack(kind, zlib.crc32(body), len(body)) + body


def message(fields: Mapping[str, Any]) -> bytes:
    """Encode a JSON frame."""
    return frame(MESSAGE, json.dumps(fields).encode())


def read_frames(path: Path, start: int = 0) -> Iterator[Frame]:
    """Read the whole frames of a log file from a position on.

    A frame that is not written to its end is left out.

    Raises
    ------
    DamagedLog
        If a frame is damaged.
    """
    with path.open("rb") as file:
        file.seek(start)
        while len(header := file.read(HEADER.size)) == HEADER.size:
            kind, checksum, length = HEADER.unpack(header)
            body = file.read(length)
            if len(body) < length:
                return
            if kind not in (WORDS, MESSAGE) or zlib.crc32(body) != checksum:
                raise DamagedLog(
                    f"{path} is damaged at byte {start}: its later records are lost"
                )
            content = zlib.decompress(body)
            start += HEADER.size + length
            if kind == WORDS:
                words = np.frombuffer(content, "<i8").astype(np.int64, copy=False)
                yield Frame(words, None, start)
            else:
                yield Frame(None, json.loads(content), start)


def starts_of(words: Int64) -> Int64:
    """Return the positions at which the records of some words begin."""
    starts, position, lengths = [], 0, words.tolist()
    while position < len(lengths):
        starts.append(position)
        position += lengths[position + 1]
    return np.array(starts, np.int64)


def read_state(path: Path) -> State:
    """Read the state of a rank.

    Raises
    ------
    CaptureError
        If it is no state of this version of moetraffic.
    """
    content = path.read_bytes()
    state = State(*STATE.unpack(content)) if len(content) == STATE.size else None
    if state is None or state.version != VERSION:
        raise CaptureError(
            f"{path} is no log of this moetraffic: merge with the moetraffic that "
            "captured"
        )
    return state


def log_file(folder: Path, rank: int, number: int) -> Path:
    """Return the path of one of the files of a rank's log."""
    return folder / f"rank-{rank:05d}-{number:06d}.log"


def state_file(folder: Path, rank: int) -> Path:
    """Return the path of the state of a rank."""
    return folder / f"rank-{rank:05d}.state"


def log_files(folder: Path, rank: int) -> list[Path]:
    """List the files of a rank's log, in order."""
    return sorted(folder.glob(f"rank-{rank:05d}-*.log"))


def ranks_of(folder: Path) -> list[int]:
    """List the ranks that have a log in a folder, ascending."""
    names = [entry.name for entry in os.scandir(folder)] if folder.is_dir() else []
    return sorted(
        {
            int(name[5:10])
            for name in names
            if name.startswith("rank-") and name.endswith((".log", ".state"))
        }
    )
