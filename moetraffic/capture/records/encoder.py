"""Encode records as int64 words for the committer."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from moetraffic.arrays import UInt8
from moetraffic.capture.annotate import CallContext
from moetraffic.capture.input_validation import demand_of, loss_value
from moetraffic.capture.record_format import (
    CALL,
    CALL_HEAD,
    END,
    OPTIMIZER,
    PAUSE,
    ROUTED,
    ROUTED_HEAD,
    STEP,
    loss_word,
)
from moetraffic.capture.token_sample import choice_bits


class Encoder:
    """Encoder of records as int64 words, which numbers the names in them."""

    def __init__(self) -> None:
        self._names: dict[str, dict[Any, int]] = {
            name: {} for name in ("group", "place", "dtype", "thread", "node")
        }
        self._defined: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()

    def definitions(self) -> list[dict[str, Any]]:
        """Return the definitions of names numbered since the last call."""
        return [self._defined.popleft() for _ in range(len(self._defined))]

    def encode(self, record: Sequence[Any], words: list[int]) -> None:
        """Encode a record and append its int64 words to a list.

        A record is ``(CALL, ...)`` as in :data:`~.call_recording.Record`,
        ``(END, number, start, end)``, ``(STEP, end, tokens, kind, loss)``,
        ``(OPTIMIZER, end, in_backward, skipped)``, ``(PAUSE, paused)`` or ``(ROUTED,
        issue, group, layer, label, thread, in_backward, grad, demand, dropped,
        sample)``, where ``sample`` is None or the number of tokens, and the experts of
        those that there are, as from :meth:`.TokenSample.take`.

        Raises
        ------
        TypeError, ValueError
            If the token copies of a routing are invalid, which were read from a device.
        """
        kind = record[0]
        if kind == CALL:
            self._call(record, words)
        elif kind == END:
            words += (END, 5, *record[1:4])
        elif kind == STEP:
            words += (STEP, 6, *record[1:4], loss_word(loss_value(record[4])))
        elif kind == OPTIMIZER:
            _, end, in_backward, skipped = record
            # a flag, or tensors of a gradient scaler, which are read from a device
            if not isinstance(skipped, bool):
                skipped = any(float(found) > 0 for found in skipped)
            words += (OPTIMIZER, 5, end, int(in_backward), int(skipped))
        elif kind == PAUSE:
            words += (PAUSE, 3, int(record[1]))
        else:
            # fmt: off
            (_, issue, group, layer, label, thread, again, grad, demand, dropped,
             sample) = record
            # fmt: on
            if not isinstance(demand, list):
                demand, dropped = demand_of(demand, dropped)
            lists = [demand] if dropped is None else [demand, dropped]
            tokens, bits = 0, []
            if sample is not None:
                tokens, taken = sample
                bits = _as_words(choice_bits(taken, len(demand), tokens))
            words += (
                *(ROUTED, ROUTED_HEAD + len(lists) * len(demand) + len(bits), issue),
                *(self.number("group", group), layer),
                self.number("place", CallContext(label=label, linked=bool(label))),
                *(self.number("thread", thread), again, int(grad), len(demand)),
                *(len(lists) - 1, tokens),
            )
            for counts in (*lists, bits):
                words += counts

    def _call(self, record: Sequence[Any], words: list[int]) -> None:
        # fmt: off
        (_, number, issue, operation, group, place, dtype, thread, again, grad, link,
         node, described) = record
        source, destination, size, shape, filled, sent, received = described
        # fmt: on
        ran = -1 if node is None else self.number("node", node)
        row = dtype.itemsize * math.prod(shape[1:]) if shape else 0
        words += (
            *(CALL, CALL_HEAD + len(sent) + len(received), number, issue, operation),
            *(self.number("group", group), self.number("place", place)),
            *(self.number("dtype", dtype), self.number("thread", thread)),
            *(again, int(grad), link, ran, source, destination, size, row),
            *(shape[0] if shape else 0, filled[0] if filled else 0),
            *(len(sent), len(received)),
        )
        words += sent
        words += received

    def number(self, kind: str, name: Any) -> int:
        """Return the number of a name, defining it on first use (thread-safe)."""
        known = self._names[kind]
        number = known.get(name)
        if number is None:
            with self._lock:
                number = known.get(name)
                if number is None:
                    number = len(known)
                    self._defined.append({"define": kind, "name": _json_value(name)})
                    known[name] = number
        return number


def _as_words(data: UInt8) -> list[int]:
    """Convert bytes to int64 words, filled up with zeros."""
    flat = np.zeros(-(-data.size // 8) * 8, np.uint8)
    flat[: data.size] = data.reshape(-1)
    words: list[int] = flat.view("<i8").tolist()
    return words


def _json_value(name: Any) -> Any:
    """Convert a name (context, dtype or text) to a JSON value."""
    if isinstance(name, CallContext):
        return [name.layer, name.phase, name.label, name.linked, name.block]
    if isinstance(name, torch.dtype):
        return str(name).removeprefix("torch.")
    return name
