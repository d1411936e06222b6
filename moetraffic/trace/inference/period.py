"""Number the steps of a run that neither the program nor an optimizer marks.

A step is the shortest period of a rank's calls, or of its forward and backward passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Bool, Int64

from .agreement import fill_steps
from .calls import Calls

AT_LEAST = 0.95  # share of the calls or passes that must repeat after a period


def number_steps(every: Sequence[Calls]) -> dict[int, tuple[Int64, bool]] | None:
    """Return the step of each call by rank, and whether its last step is whole.

    None where no rank's calls have a period, or ranks contradict each other.
    """
    own = {calls.rank: steps for calls in every if (steps := _steps(calls)) is not None}
    numbered = fill_steps(every, {rank: step for rank, (step, _) in own.items()})
    if not own or numbered is None:
        return None
    whole = all(whole for _, whole in own.values())
    return {rank: (step, whole) for rank, step in numbered.items()}


def _steps(calls: Calls) -> tuple[Int64, bool] | None:
    """Return the step of each call of a rank, None if it is unknown."""
    if (
        not len(calls.table)
        or calls.where([not s.direction for s in calls.sites]).any()
    ):
        return None  # made by a thread whose pass is unknown
    if calls.backward.any():
        begins, whole = _periods_of_passes(calls)
    else:
        begins, whole = _periods_of_calls(calls)
    if not begins:
        return None
    places = np.arange(len(calls.table))
    return np.maximum(np.searchsorted(begins, places, side="right") - 1, 0), whole


def _periods_of_passes(calls: Calls) -> tuple[list[int], bool]:
    """Return the first calls of steps of forward and backward passes."""
    change = np.flatnonzero(np.diff(calls.backward.astype(np.int8))) + 1
    edges = [0, *change.tolist(), len(calls.kind)]
    if calls.backward[0]:
        edges.insert(0, 0)
    forward = list(zip(edges[:-1:2], edges[1::2], strict=True))
    ends = edges[2::2]  # of the backward passes; calls may follow the last one
    inside = _inside(calls, forward) | calls.between_stages
    begins = []
    for first, last in forward:
        # calls that no forward pass repeats end the step before
        outside = np.flatnonzero(~inside[first:last])
        begins.append(first + (int(outside[-1]) + 1 if len(outside) and first else 0))
    ended = [b > first for b, (first, _) in zip(begins, forward, strict=True)]
    if any(ended[1:]):
        starts = [0, *(begins[n] for n, end in enumerate(ended) if end and n)]
        rest = np.arange(len(calls.kind)) >= starts[-1]
        # only evaluations are without a backward pass
        whole = not (rest & calls.backward).any() and bool(
            (calls.table["evaluates"][rest & calls.exchange] > 0).all()
        )
        starts = [n for n in starts if n < len(calls.kind)]
        return (starts, whole) if _regular(calls, starts) else ([], False)
    if not _reduces(calls):
        return [], False  # nothing shows where a step ends
    words = [calls.kind[b:end].tobytes() for b, end in zip(begins, ends, strict=False)]
    ids = {word: n for n, word in enumerate(dict.fromkeys(words))}
    numbers = np.array([ids[word] for word in words])
    for period in range(1, len(numbers) // 2 + 1):
        if (numbers[period:] == numbers[:-period]).mean() >= AT_LEAST:
            return begins[: len(numbers) : period], len(numbers) % period == 0
    return [], False


def _regular(calls: Calls, starts: Sequence[int]) -> bool:
    """Return whether all steps but the last one make the same expert exchanges."""
    trains = calls.exchange & (calls.table["evaluates"] == 0)
    ends = [*starts[1:], len(calls.kind)]
    words = {
        calls.kind[first:end][trains[first:end]].tobytes()
        for first, end in zip(starts[:-1], ends, strict=False)
    }
    return len(words) <= 1


def _inside(calls: Calls, forward: Sequence[tuple[int, int]]) -> Bool:
    """Return which calls are of kinds that forward passes have after an all-to-all."""
    passes = calls.exchange | calls.routing
    kinds = set[int]()
    for first, last in forward:
        begun = np.flatnonzero(passes[first:last])
        if len(begun):
            kinds |= set(calls.kind[first + int(begun[0]) : last].tolist())
    return np.isin(calls.kind, list(kinds))


def _reduces(calls: Calls) -> bool:
    """Return whether gradients are reduced in a backward pass."""
    reduced = calls.where(
        [s.operation in ("all_reduce", "reduce_scatter") for s in calls.sites]
    )
    return bool((reduced & calls.backward).any())


def _periods_of_calls(calls: Calls) -> tuple[list[int], bool]:
    """Return the first calls of steps of a program without a backward pass."""
    word = calls.kind
    layered = calls.where([s.layer >= 0 for s in calls.sites])
    # calls that do not merely repeat with every layer
    distinct = layered | ~(calls.exchange | calls.routing)
    numbers, counts = np.unique(word, return_counts=True)
    gaps = {
        int(np.median(np.diff(np.flatnonzero(word == number))))
        for number in numbers[counts > 1]
    }
    for period in sorted(gaps):
        same = word[period:] == word[:-period]
        if len(word) < 3 * period or same.mean() < AT_LEAST:
            continue
        first = int(np.argmax(same))
        if not distinct[first : first + period].any():
            return [], False  # the period may be one layer
        begins = np.arange(first, len(word), period).tolist()
        begins[0] = 0
        return begins, len(word) - begins[-1] >= period
    return [], False
