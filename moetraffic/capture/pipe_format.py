"""Binary format of the pipe between a training process and its committer.

The training process writes frames into a pipe: a kind, a length, and so many bytes.

- ``WORDS``: int64 words, record after record.  A record begins with its kind and its
  length in words; the layouts are the lists below.
- ``TOLD``: JSON, a definition or a word about the run.  Numbers that words refer to
  are defined before they are used.

Both ends are processes of one program on one host; nothing of it is kept.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from moetraffic.trace.model import Int64

WORDS, TOLD = 1, 2
HEADER = struct.Struct("<qq")

CALL, END, STEP, OPTIMIZER, ROUTED, GAP = 1, 2, 3, 4, 5, 6

CALL_FIELDS = (
    "kind",
    "length",
    "number",  # of the call on this rank
    "issue",  # ns
    "operation",  # index into OPERATIONS
    "group",
    "place",
    "dtype",
    "thread",
    "in_backward",  # 1 while the autograd engine runs
    "grad",  # 1 where autograd records
    "link",  # autograd sequence number, -1 for none
    "node",  # name of the autograd node that runs, -1 for none
    "source",
    "destination",
    "bytes",  # of this rank's input, for all but all-to-alls
    "row_bytes",
    "rows_sent",
    "rows_received",
    "sends",  # how many splits follow: 0 means equal ones
    "receives",
)
CALL_HEAD = len(CALL_FIELDS)
END_FIELDS = ("kind", "length", "number", "start", "end")
STEP_FIELDS = ("kind", "length", "end", "tokens", "step_kind", "loss")
OPTIMIZER_FIELDS = ("kind", "length", "end")
ROUTED_FIELDS = (
    "kind",
    "length",
    "issue",
    "group",
    "layer",
    "label",
    "thread",
    "in_backward",
    "grad",
    "experts",
    "has_dropped",
)
ROUTED_HEAD = len(ROUTED_FIELDS)
GAP_FIELDS = ("kind", "length", "calls")

OPERATIONS = (
    "all_to_all",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
)


def frame(kind: int, body: bytes) -> bytes:
    """Encode a frame of the pipe."""
    return HEADER.pack(kind, len(body)) + body


def told(**words: Any) -> bytes:
    """Encode a frame of JSON."""
    return frame(TOLD, json.dumps(words).encode())


def loss_word(loss: float) -> int:
    """Encode a float64 as an int64 word."""
    return int(np.float64(loss).view(np.int64))


def loss_of_word(word: int) -> float:
    """Decode a float64 from an int64 word."""
    return float(np.int64(word).view(np.float64))


def words_of(body: bytes) -> Int64:
    """Decode the words of a frame."""
    return np.frombuffer(body, "<i8").astype(np.int64, copy=False)
