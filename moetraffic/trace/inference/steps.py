"""Number the steps of a run that neither the program nor an optimizer marks.

A step ends with collectives that no forward pass repeats, such as the reduction of the
gradients' norm, after its last backward pass.  Without such calls steps are unknown: a
period of the calls may be a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from moetraffic.trace.merge.rank_record import RANK_STEP, Record

from .agreement import fill_steps
from .calls import Calls, inferred_step

UNKNOWN_STEPS = (
    "steps are unknown: no optimizer, recorder.step() or collective after a backward "
    "pass shows where one ends"
)


def with_numbered_steps(record: Record, every: Sequence[Calls]) -> tuple[Record, str]:
    """Number the steps of all ranks; return the record, and a remark."""
    starts = {calls.rank: _starts(calls) for calls in every}
    own = {
        calls.rank: np.searchsorted(
            starts[calls.rank][1:], np.arange(len(calls.table)), side="right"
        )
        for calls in every
        if starts[calls.rank]
    }
    numbered = fill_steps(every, own) if own else None
    if numbered is None:
        return record, UNKNOWN_STEPS
    whole = all(_is_whole(c, starts[c.rank][-1]) for c in every if starts[c.rank])
    table, rows = record.calls.copy(), list[Any]()
    for calls in every:
        steps = numbered[calls.rank]
        table["iteration"][calls.place] = steps
        # what precedes the first call of a pass is set-up, and no part of a step
        of_pass = calls.exchange | calls.routing | calls.backward
        set_up = np.arange(len(steps)) < np.argmax(of_pass)
        for number in range(int(steps.max(initial=-1)) + whole):
            rows.append(
                inferred_step(calls, number, "train", (steps == number) & ~set_up)
            )
    record = replace(record, calls=table, steps=np.array(rows, RANK_STEP))
    return record, "steps inferred from the collectives between them"


def _starts(calls: Calls) -> list[int]:
    """Return the first calls of the steps of a rank; none if they are unknown."""
    if not calls.backward.any() or calls.undirected.any():
        return []
    change = np.flatnonzero(np.diff(calls.backward.astype(np.int8))) + 1
    edges = [0, *change.tolist(), len(calls.table)]
    if calls.backward[0]:
        edges.insert(0, 0)
    forward = list(zip(edges[:-1:2], edges[1::2], strict=True))
    # kinds of calls that forward passes have after an all-to-all
    passes, kinds = calls.exchange | calls.routing, set[int]()
    for first, last in forward:
        begun = np.flatnonzero(passes[first:last])
        if len(begun):
            kinds |= set(calls.kind[first + int(begun[0]) : last].tolist())
    outside = ~np.isin(calls.kind, list(kinds)) & ~calls.between_stages
    starts = [0]
    for first, last in forward:
        ends = np.flatnonzero(outside[first:last])
        if first and len(ends):
            starts.append(first + int(ends[-1]) + 1)
    trains = calls.exchange & (calls.table["evaluates"] == 0)
    words = {
        calls.kind[first:end][trains[first:end]].tobytes()
        for first, end in pairwise(starts)
    }
    # all steps but the last one make the same expert exchanges
    if len(starts) < 2 or len(words) > 1:
        return []
    return starts


def _is_whole(calls: Calls, start: int) -> bool:
    """Return whether the calls from the last start on are evaluations alone."""
    rest = np.arange(len(calls.table)) >= start
    evaluates = calls.table["evaluates"][rest & calls.exchange] > 0
    return bool(evaluates.all()) and not (rest & calls.backward).any()
