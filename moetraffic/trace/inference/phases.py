"""Classify forward all-to-alls as dispatch, combine, or auxiliary exchanges.

A combine returns the rows of its dispatch: its splits are those of an open dispatch
with sent and received bytes swapped.  Calls with splits proportional to a dispatch's
(routing probabilities, indices, scale factors) are its auxiliary exchanges, and small
even exchanges of integers before it are exchanges of counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .programs import BYTES_OF, EXCHANGE, ROUTER, CallSequence

COUNTS = "count_exchange"
PROBABILITIES = "probabilities"
INDICES = "indices"
SCALES = "scale_factors"
COMPANION = "companion"
SMALL = 4  # minimum size ratio of a dispatch to an auxiliary exchange, if all are even

UNREACHED = 1 << 30

Sort = tuple[object, ...]


@dataclass(eq=False)
class Unit:
    """All-to-alls of one MoE layer in one forward pass."""

    layer: int = -1  # where a hook or a router reported it
    place: int = -1  # index within its pass
    dispatch: int = -1  # call index of its first dispatch
    again: Unit | None = None  # the unit that this one recomputes


@dataclass(eq=False)
class Pass:
    """MoE layers of one uninterrupted forward pass of a micro-batch."""

    units: list[Unit] = field(default_factory=list)
    calls: list[ForwardCall] = field(default_factory=list)
    stack: list[ForwardCall] = field(default_factory=list)  # gradient pending
    reached: int = UNREACHED  # unit of the last gradient
    left: bool = False  # another forward pass began after its first gradient


@dataclass(eq=False)
class ForwardCall:
    """All-to-all with its inferred phase, label and layer."""

    at: int
    phase: str = ""
    label: str = ""
    unit: Unit | None = None


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Kinds of all-to-alls that were identified as expert exchanges."""

    sorts: frozenset[Sort]
    armed: bool  # a dispatch must follow a routing: others may be sequence parallelism
    uneven: bool = False  # the same holds for even calls of kinds that are uneven
    why_not: str = ""  # reason why there is none


def experts_sorts(programs: Iterable[CallSequence], *, mixture: bool) -> Experts:
    """Identify the kinds of all-to-alls that are expert exchanges, over all programs.

    Uneven all-to-alls are expert exchanges.  Where all are even, those after a count
    exchange or a routing are.  Without either, all are, but only in a run with
    all-to-alls of one size that is known to have experts.
    """
    uneven: set[Sort] = set()
    counted: set[Sort] = set()
    routed: set[Sort] = set()
    every: dict[Sort, set[int]] = {}
    routers = False
    for program in programs:
        before = ""
        for at, token in enumerate(program.word):
            if token.kind == ROUTER:
                routers, before = True, ROUTER
            if token.kind != EXCHANGE or token.label not in ("", COUNTS):
                continue
            if token.counts and program.even[at]:
                before = COUNTS
                continue
            if not program.even[at]:
                uneven.add(token.sort)
            if before and token.direction == "forward":
                (counted if before == COUNTS else routed).add(token.sort)
            before = ""
            size = program.bytes_of(at) // len(program.rank)
            every.setdefault(token.sort, set()).add(size)
    if uneven:
        return Experts(sorts=frozenset(uneven | counted), armed=False, uneven=True)
    if counted or routed:
        first = counted or routed
        sizes = set.union(*(every[s] for s in first))
        groups = {(s[0], s[1]) for s in first}
        same = {s for s, z in every.items() if z & sizes and (s[0], s[1]) in groups}
        return Experts(sorts=frozenset(first | same), armed=routers)
    one_size = len(set().union(*every.values())) == 1 and len(every) <= 2
    if every and one_size and mixture:
        return Experts(sorts=frozenset(every), armed=False)
    why = (
        "all all-to-alls send equal parts and no routing or count exchange was "
        "recorded: expert and sequence parallelism cannot be distinguished (register "
        "the router's class with capture.router)"
    )
    return Experts(sorts=frozenset(), armed=False, why_not=why if every else "")


class Forward:
    """Classifier of forward all-to-alls, which reads them in call order."""

    def __init__(self, program: CallSequence, experts: Experts) -> None:
        self.program, self.experts = program, experts
        self.passes: list[Pass] = []
        self.calls: dict[int, ForwardCall] = {}
        self.open: list[tuple[ForwardCall, list[ForwardCall]]] = []
        self.overlaps = False  # two layers may be open at once
        self.waiting: list[ForwardCall] = []  # count exchanges before their dispatch
        self._closed: ForwardCall | None = None  # the last combine
        self._unit: Unit | None = None
        self._pass: Pass | None = None
        self.routed: int | None = None  # layer of a routing without a dispatch yet

    def pause(self) -> None:
        """End the current forward pass, unless a dispatch has no combine yet."""
        if not self.open:
            self._pass = None

    def read(self, at: int) -> ForwardCall:
        """Classify the next forward all-to-all."""
        token = self.program.word[at]
        call = self.calls[at] = ForwardCall(at, token.phase, token.label)
        if token.label == COUNTS or (
            token.counts and self.program.even[at] and not token.label
        ):
            call.label = COUNTS
            self.waiting.append(call)
            return call
        ours = token.sort in self.experts.sorts
        if not token.phase and not token.label and (ours or self._beside(at)):
            self._place(call)
        if token.phase == "dispatch":
            self._assign_counts(token.group, Unit(layer=token.layer))
        elif call.unit is None:
            self._undo_counts(token.group)
        if not token.counts:
            self._current().stack.append(call)
            self._current().calls.append(call)
        return call

    def finish(self) -> None:
        """Discard dispatches without a combine; number the MoE layers of each pass."""
        for call, companions in self.open:
            for mine in (call, *companions):
                mine.phase = mine.label = ""
                mine.unit = None
        self.open = []
        for call in self.waiting:
            call.label = self.program.word[call.at].label
        used = {call.unit for call in self.calls.values()}
        for one in self.passes:
            one.units = [unit for unit in one.units if unit in used]
            for place, unit in enumerate(one.units):
                unit.place = place

    def _assign_counts(self, group: int, unit: Unit) -> None:
        """Assign the count exchanges of a group to the layer of its next dispatch."""
        for call in self.waiting:
            if self.program.word[call.at].group == group:
                call.unit = unit
        self.waiting = [c for c in self.waiting if c.unit is None]

    def _undo_counts(self, group: int) -> None:
        """Discard inferred count exchanges that no dispatch of their group followed."""
        word = self.program.word
        for call in self.waiting:
            if word[call.at].group == group:
                call.label = word[call.at].label
        self.waiting = [c for c in self.waiting if word[c.at].group != group]

    def _current(self) -> Pass:
        if self._pass is None:
            self._pass = Pass()
            self.passes.append(self._pass)
        return self._pass

    def _beside(self, at: int) -> bool:
        """Return whether a call is an auxiliary exchange of the open dispatch."""
        if not self.open:
            return False
        main = self.open[-1][0].at
        if self.program.word[at].group != self.program.word[main].group:
            return False
        program = self.program
        if program.even[at] and program.even[main]:
            if program.bytes_of(at) * SMALL > program.bytes_of(main):
                return False
            rows = [
                program.bytes_of(n) / max(1, program.word[n].row_bytes)
                for n in (at, main)
            ]
            return rows[0] == rows[1]
        return program.proportional(main, at) or program.turned(main, at)

    def _place(self, call: ForwardCall) -> None:
        """Classify an expert exchange as dispatch, combine or auxiliary exchange."""
        program, at = self.program, call.at
        mine = program.bytes_of(at)
        group = program.word[at].group
        for number in range(len(self.open) - 1, -1, -1):
            main, companions = self.open[number]
            if program.word[main.at].group != group:
                continue
            same, theirs = program.proportional(main.at, at), program.bytes_of(main.at)
            small = same and mine * SMALL <= theirs
            if not small and program.turned(main.at, at):
                self._combine(call, number)
                return
            if same and mine < theirs:
                self._accompany(call, main)
                companions.append(call)
                return
            if same and mine > theirs and number == len(self.open) - 1:
                # the auxiliary exchange came first: the larger call is the dispatch
                call.phase, call.unit = "dispatch", main.unit
                main.phase = ""
                self._accompany(main, call)
                self.open[number] = (call, [*companions, main])
                return
        last = self._closed
        if (
            last is not None
            and not self.open
            and program.word[last.at].group == group
            and program.proportional(last.at, at)
            and mine * SMALL <= program.bytes_of(last.at)
        ):
            self._accompany(call, last)
            return
        even = self.experts.uneven and bool(program.even[at])
        announced = self.routed is not None or bool(self.waiting)
        if (self.experts.armed or even) and not announced:
            return  # no routing or counts before it: it belongs to attention
        self._dispatch(call)

    def _dispatch(self, call: ForwardCall) -> None:
        if not self.open or self._unit is None:
            self._unit = Unit(dispatch=call.at)
            self._current().units.append(self._unit)
        unit, token = self._unit, self.program.word[call.at]
        if token.layer >= 0:
            unit.layer = token.layer
        elif self.routed is not None and unit.layer < 0:
            unit.layer = self.routed
        self.routed = None
        call.phase, call.unit = "dispatch", unit
        self._assign_counts(token.group, unit)
        self._closed = None
        self.open.append((call, []))

    def _combine(self, call: ForwardCall, number: int) -> None:
        # a call after a count exchange is the dispatch of another chunk: its bytes do
        # not show that where parts are equal
        self.overlaps |= bool(self.waiting) and bool(self.program.even[call.at])
        main, _ = self.open.pop(number)
        call.phase, call.unit = "combine", main.unit
        layer = self.program.word[call.at].layer
        if layer >= 0 and call.unit is not None and call.unit.layer < 0:
            call.unit.layer = layer
        self._closed = call

    def _accompany(self, call: ForwardCall, main: ForwardCall) -> None:
        token, beside = self.program.word[call.at], self.program.word[main.at]
        call.unit, call.phase = main.unit, ""
        if token.counts:
            call.label = INDICES
        elif beside.row_bytes == BYTES_OF.get(beside.dtype, 2):
            call.label = COMPANION  # sent as lists: a row is an element
        elif token.row_bytes == BYTES_OF.get(token.dtype, 2):
            call.label = PROBABILITIES
        else:
            call.label = SCALES
