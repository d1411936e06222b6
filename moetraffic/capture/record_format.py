"""Binary format of the record log, from a training process to its committer.

The training process appends frames to a file: a kind, the CRC-32 and the length of the
payload, and the payload.

- ``WORDS``: int64 words, record after record.  A record begins with its kind and its
  length in words.
- ``MESSAGE``: JSON, a definition or information about the run.  Numbers in records are
  defined before they are used.  The first frame of a file repeats all messages of the
  files before it.

Fields of the records, after kind and length:

- ``CALL``: number (of the call on this rank), issue (ns), operation (index into
  OPERATIONS), group, place, dtype, thread, in_backward (1 while the autograd engine
  runs), grad (1 where autograd records), link (autograd sequence number, -1 for none),
  node (name of the running autograd node, -1 for none), source, destination, bytes (of
  this rank's input, for all but all-to-alls), row_bytes, rows_sent, rows_received,
  number of send splits and number of receive splits (0: equal splits), which follow
- ``END``: number, start, end
- ``STEP``: end, tokens, kind of step (-1: not stated), loss
- ``OPTIMIZER``: end, in_backward (1 within a backward pass), skipped (1 if the
  parameters were not updated)
- ``ROUTED``: issue, group, layer, label, thread, in_backward, grad, experts,
  has_dropped (0: unknown), tokens of the sample (0: none); token copies by expert
  follow, dropped copies, and the bytes of the tokens' bit sets, in whole words
- ``GAP``: number of lost calls
- ``PAUSE``: 1 if iterations that begin later are not recorded, 0 if they are

The first frame of a file also contains the version of the format: another version may
merge what a killed rank has left behind.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

from moetraffic.arrays import Int64

VERSION = 3
WORDS, MESSAGE = 1, 2
HEADER = struct.Struct("<iIq")

CALL, END, STEP, OPTIMIZER, ROUTED, GAP, PAUSE = 1, 2, 3, 4, 5, 6, 7
CALL_HEAD, ROUTED_HEAD = 21, 12  # words before the splits, before the token copies

OPERATIONS = (
    *("all_to_all", "all_reduce", "all_gather", "reduce_scatter", "reduce"),
    *("broadcast", "gather", "scatter", "barrier", "send_recv"),
)


def frame(kind: int, body: bytes) -> bytes:
    """Encode a frame: header with kind, checksum and length, and the payload."""
    return HEADER.pack(kind, zlib.crc32(body), len(body)) + body


def message(**fields: Any) -> bytes:
    """Encode keyword arguments as a JSON frame."""
    return frame(MESSAGE, json.dumps(fields).encode())


def loss_word(loss: float) -> int:
    """Encode a float64 loss as an int64 word with the same bits."""
    return int(np.float64(loss).view(np.int64))


def loss_of_word(word: int) -> float:
    """Decode a float64 loss from an int64 word with the same bits."""
    return float(np.int64(word).view(np.float64))


def words_of(body: bytes) -> Int64:
    """Decode the int64 words of a frame's payload."""
    return np.frombuffer(body, "<i8").astype(np.int64, copy=False)
