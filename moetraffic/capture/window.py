"""What a rank recorded since its last commit, and how it becomes a segment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Meta,
    Site,
)
from moetraffic.trace.segment import EVENT, STEP, Segment

PENDING_S = 2.0  # how long a commit waits for works that have not ended


@dataclass(slots=True)
class Event:
    """One call, as the training thread notes it."""

    site: int
    iteration: int
    sequence: int
    issue: int
    row_bytes: int
    sent: Any = None  # rows to each member, token copies by expert, or bytes
    received: Any = None  # rows from each member, or dropped copies by expert
    end: int = UNKNOWN_TIME
    awaited: bool = False  # its end will be told


@dataclass
class Window:
    """Events and steps that wait for their commit."""

    events: list[Event] = field(default_factory=list)
    steps: list[tuple[int, Any, int, int, int]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    bytes: int = 0


def build_segment(
    window: Window,
    *,
    rank: int,
    index: int,
    final: bool,
    node: str,
    meta: Meta,
    groups: Sequence[Group],
    sites: Sequence[Site],
    placement: Mapping[int, Sequence[int]],
    clocks: Any,
    ended: str = "",
    left_out: str = "",
    steps_at_risk: int = 0,
) -> Segment:
    """Turn a window into a segment; runs beside the training.

    What can be wrong with a record was found where it was made: a defect here would
    cost the window.
    """
    _await_ends(window.events)
    events = np.zeros(len(window.events), EVENT)
    splits: dict[int, _Rows] = {}
    demand: dict[int, list[Any]] = {}
    for row, event in zip(events, window.events, strict=True):
        site = sites[event.site]
        payload, transposed = 0, 0
        if site.operation == ROUTING:
            mine = demand.setdefault(site.experts, [])
            dropped = event.received
            zero = np.zeros(site.experts, np.int32)
            mine.append((event.sent, zero if dropped is None else dropped))
            payload = len(mine) - 1
        elif site.operation == ALL_TO_ALL:
            rows = splits.setdefault(len(groups[site.group].ranks), _Rows())
            payload, transposed = rows.put(event)
        else:
            payload = int(event.sent)
        row["iteration"] = event.iteration
        row["site"] = event.site
        row["sequence"] = event.sequence
        row["issue"] = event.issue
        row["start"] = UNKNOWN_TIME
        row["link"] = -1
        row["end"] = event.end
        row["payload"] = payload
        row["transposed"] = transposed
    steps = np.zeros(len(window.steps), STEP)
    for at, (iteration, loss, tokens, start, end) in enumerate(window.steps):
        steps[at] = (iteration, _loss(loss), tokens, start, end)
    return Segment(
        rank=rank,
        index=index,
        final=final,
        node=node,
        meta=meta,
        groups=tuple(groups),
        sites=tuple(sites),
        events=events,
        steps=steps,
        kinds=tuple(window.kinds),
        splits={w: rows.array(w) for w, rows in splits.items()},
        demand={e: np.asarray(rows, np.int32) for e, rows in demand.items()},
        placements=_placements(sites, groups, placement),
        clocks=clocks,
        ended=ended,
        left_out=left_out,
        window=steps_at_risk,
    )


def _loss(value: Any) -> float:
    """A loss, which only now leaves the device that computed it."""
    try:
        return float(value)
    except Exception:
        # the device has failed: the other records of the window are still true
        return float("nan")


class _Rows:
    """Split rows, each kept once: the four all-to-alls of a layer share one."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], int] = {}
        self._rows: list[Any] = []

    def put(self, event: Event) -> tuple[int, int]:
        """Row number of an event's splits, and 1 if it is that row swapped."""
        sent = np.asarray(event.sent, np.int64) * event.row_bytes
        received = np.asarray(event.received, np.int64) * event.row_bytes
        key = (sent.tobytes(), received.tobytes())
        if key in self._known:
            return self._known[key], 0
        if key[::-1] in self._known:
            return self._known[key[::-1]], 1
        self._known[key] = len(self._rows)
        self._rows.append((sent, received))
        return self._known[key], 0

    def array(self, width: int) -> Any:
        return np.asarray(self._rows, np.int64).reshape(-1, 2, width)


def _await_ends(events: Sequence[Event]) -> None:
    """Give works still under way a moment; after it their end stays unknown."""
    deadline = time.monotonic() + PENDING_S
    for event in events:
        while (
            event.awaited and event.end == UNKNOWN_TIME and time.monotonic() < deadline
        ):
            time.sleep(0.001)


def _placements(
    sites: Sequence[Site], groups: Sequence[Group], told: Mapping[int, Sequence[int]]
) -> Any:
    """Where the experts of each routed layer are: as told, or contiguous."""
    rows = []
    routed = {(s.group, s.layer, s.experts) for s in sites if s.operation == ROUTING}
    for group, layer, experts in sorted(routed):
        ranks = groups[group].ranks
        if layer in told:
            holders = [int(member) for member in told[layer]]
            if len(holders) != experts or max(holders) >= len(ranks):
                continue  # it is no placement of this layer: none is known
        elif experts % len(ranks) == 0:
            holders = [e * len(ranks) // experts for e in range(experts)]
        else:
            continue  # unknown: no matrix between ranks can be told from the demand
        for expert, member in enumerate(holders):
            rows.append((group, layer, expert, 0, ranks[member], 0))
    return np.array(rows, PLACEMENT)
