"""Tables of the records of a rank: call sites, groups, and the current window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int32, Int64, UInt8
from moetraffic.trace.choices import packed_bytes, resized
from moetraffic.trace.model import (
    PLACEMENT,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Site,
    SiteNumbers,
    Source,
)
from moetraffic.trace.segments.segment import EVENT, STEP

EVENT_BYTES = 200


@dataclass(slots=True)
class CallEvent:
    """A recorded collective or routing: call site, times and row of its splits."""

    site: int
    iteration: int
    sequence: int
    issue: int
    payload: int
    transposed: int = 0
    thread: int = 0
    grad: int = -1
    link: int = -1
    block: int = 0
    start: int = UNKNOWN_TIME
    end: int = UNKNOWN_TIME


@dataclass
class RecordWindow:
    """Recorded calls and steps since the last committed segment."""

    events: list[CallEvent] = field(default_factory=list)
    steps: list[tuple[int, float, int, int, int, int, int]] = field(
        default_factory=list
    )
    kinds: list[str] = field(default_factory=list)
    splits: dict[int, SplitRows] = field(default_factory=dict)
    demand: dict[int, list[Any]] = field(default_factory=dict)
    choices: dict[int, list[UInt8]] = field(default_factory=dict)  # rows of demand
    bytes: int = 0

    def put_splits(self, sent: Int64, received: Int64) -> tuple[int, int]:
        """Store send and receive splits; return row and 1 if stored transposed."""
        self.bytes += 16 * len(sent)
        return self.splits.setdefault(len(sent), SplitRows()).put(sent, received)

    def put_routing(
        self, words: Int64, experts: int, has_dropped: int, tokens: int
    ) -> int:
        """Store a routing; return its row number.

        ``words`` are token copies by expert, dropped copies if ``has_dropped`` is 1
        (else unknown: -1), and the bit sets of ``tokens`` sampled tokens.
        """
        self.bytes += 8 * len(words)
        counts, behind = words[:experts], words[experts:]
        dropped = behind[:experts] if has_dropped else np.full_like(counts, -1)
        rows = self.demand.setdefault(experts, [])
        rows.append((counts, dropped))
        size = tokens * packed_bytes(experts)
        bits = behind[has_dropped * experts :].astype("<i8").view(np.uint8)[:size]
        self.choices.setdefault(experts, []).append(
            bits.reshape(tokens, packed_bytes(experts))
        )
        return len(rows) - 1

    def demand_panels(self) -> dict[int, Int32]:
        """Convert the routings to arrays ``[m, 2, E]``, by experts E."""
        return {e: np.asarray(rows, np.int32) for e, rows in self.demand.items()}

    def choice_panels(self) -> dict[int, UInt8]:
        """Convert the sampled tokens to arrays ``[m, S, B]``, by experts E."""
        tokens = {e: max(map(len, rows)) for e, rows in self.choices.items()}
        return {
            e: np.stack([resized(row, tokens[e]) for row in rows])
            for e, rows in self.choices.items()
            if tokens[e]
        }

    def add(self, event: CallEvent) -> CallEvent:
        """Add a call; return it."""
        self.events.append(event)
        self.bytes += EVENT_BYTES
        return event

    def take_last(self, count: int) -> list[CallEvent]:
        """Remove the last calls; return them."""
        first = len(self.events) - count
        last = self.events[first:]
        del self.events[first:]
        return last

    def put_in(self, iteration: int, events: Sequence[CallEvent]) -> None:
        """Add calls to an iteration."""
        for event in events:
            event.iteration = iteration
        self.events += events

    def withdraw_steps(self) -> None:
        """Assign all calls to iteration 0, which has not ended."""
        for event in self.events:
            event.iteration = 0
        self.steps.clear()
        self.kinds.clear()

    def end_iteration(
        self, step: tuple[Any, ...], kind: str, *, recorded: bool
    ) -> None:
        """Add the row of a step, or remove its calls if it is not recorded."""
        if recorded:
            self.steps.append(step)
            self.kinds.append(kind)
            return
        while self.events and self.events[-1].iteration == step[0]:
            self.events.pop()

    def event_table(self, *, numbered: bool) -> npt.NDArray[Any]:
        """Convert the recorded calls to an array, ``[n]`` EVENT.

        ``numbered`` is whether their iterations are known.
        """
        table = np.zeros(len(self.events), EVENT)
        for name in EVENT.names or ():
            table[name] = [getattr(event, name) for event in self.events]
        if not numbered:
            table["iteration"] = -1
        return table

    def step_table(self) -> npt.NDArray[Any]:
        """Convert the recorded steps to an array, ``[s]`` STEP."""
        return np.array(self.steps, STEP)


class SiteTable:
    """Table of call sites and process groups, numbered in order of first use."""

    def __init__(self) -> None:
        self._sites = SiteNumbers()
        self.groups: list[Group] = []
        self._calls: list[int] = []  # number of collectives by group
        self._numbers: dict[tuple[object, ...], int] = {}

    @property
    def sites(self) -> list[Site]:
        """Call sites, with the weakest sources of their calls."""
        return self._sites.sites

    @property
    def sequences(self) -> list[int]:
        """Number of collectives by group."""
        return list(self._calls)

    def restore(self, sequences: Sequence[int]) -> None:
        """Set the number of collectives of the groups that an earlier table had."""
        self._calls[: len(sequences)] = sequences

    def add_group(self, group: Group) -> int:
        """Add a process group; return its number."""
        self.groups.append(group)
        self._calls.append(0)
        return len(self.groups) - 1

    def at(
        self,
        operation: str,
        group: int,
        place: Sequence[object],
        direction: str,
        dtype: str,
        row_bytes: int,
        *,
        peers: tuple[int, int] = (-1, -1),
        experts: int = 0,
    ) -> tuple[int, int]:
        """Return the site number of a call and its index among its group's collectives.

        The index is -1 for calls that are not collective: routing, sends and receives.
        ``place`` holds layer, phase, label, and whether a hook set them.
        """
        which = (operation, group, *place, dtype, row_bytes, peers, experts)
        key = (*which, direction)
        number = self._numbers.get(key)
        if number is None:
            layer, phase, label, linked = place
            stated = Source.LINKED if linked else Source.ANNOTATED
            named = bool(phase or label)
            number = self._numbers[key] = self._sites.add(
                Site(
                    group=group,
                    operation=operation,
                    phase=str(phase),
                    layer=int(str(layer)),
                    direction=direction,
                    dtype=dtype,
                    row_bytes=row_bytes,
                    label=str(label),
                    peers=peers,
                    experts=experts,
                    # a program that names a call without a layer says that it has none
                    source=stated if layer != -1 or named else Source.UNKNOWN,
                )
            )
        if operation == ROUTING or peers != (-1, -1):
            return number, -1
        count = self._calls[group]
        self._calls[group] = count + 1
        return number, count


class SplitRows:
    """Table of split sizes without duplicates, also up to transposition."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], int] = {}
        self._rows: list[tuple[Int64, Int64]] = []

    def put(self, sent: Int64, received: Int64) -> tuple[int, int]:
        """Store a pair of splits; return row number and 1 if stored transposed."""
        key = (sent.tobytes(), received.tobytes())
        if key in self._known:
            return self._known[key], 0
        if key[::-1] in self._known:
            return self._known[key[::-1]], 1
        self._known[key] = len(self._rows)
        self._rows.append((sent, received))
        return self._known[key], 0

    def array(self, width: int) -> Int64:
        """Convert all pairs of splits to an array, ``[m, 2, W]`` int64 bytes."""
        return np.asarray(self._rows, np.int64).reshape(-1, 2, width)


def even_splits(rows: int, width: int) -> Int64:
    """Equal split sizes ``[width]`` int64 of an all-to-all without explicit splits."""
    return np.full(width, rows // width, np.int64)


def placements(
    sites: Sequence[Site],
    groups: Sequence[Group],
    configured: Mapping[int, Sequence[int]],
) -> npt.NDArray[Any]:
    """Build the expert placement of each routed layer, as configured or contiguous.

    Layers may be configured by numbers that only annotations have, see
    :mod:`moetraffic.trace.inference.router_layers`.  The result is ``[n]`` PLACEMENT.
    """
    rows = []
    routed = {
        (s.group, layer, s.experts)
        for s in sites
        if s.operation == ROUTING
        for layer in (s.layer, *configured)
    }
    for group, layer, experts in sorted(routed):
        ranks = groups[group].ranks
        if layer in configured:
            holders = [int(member) for member in configured[layer]]
            if len(holders) != experts or max(holders) >= len(ranks):
                continue  # invalid for this layer, hence unknown
        elif experts % len(ranks) == 0:
            holders = [e * len(ranks) // experts for e in range(experts)]
        else:
            continue  # unknown: no traffic matrix can be computed from the demand
        for expert, member in enumerate(holders):
            rows.append((group, layer, expert, 0, ranks[member], 0))
    return np.array(rows, PLACEMENT)
