"""Which all-to-alls are dispatches and combines, told from a program's forward calls.

A combine sends back what its dispatch brought: its splits are those of an open dispatch
with sending and receiving swapped.  What travels beside a dispatch in the same
proportions (routing probabilities, indices, scale factors) is its companion, and small
integers in equal parts before it tell how many rows will come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .programs import BYTES_OF, EXCHANGE, ROUTER, CallSequence, Token

COUNTS = "count_exchange"
PROBABILITIES = "probabilities"
INDICES = "indices"
SCALES = "scale_factors"
COMPANION = "companion"
SMALL = 4  # a companion is at least so many times smaller, where all parts are equal

Sort = tuple[object, ...]


@dataclass(eq=False)
class Unit:
    """The calls of one MoE layer in one pass."""

    told: int = -1  # its layer, where a hook or a router said so
    place: int = -1  # the how-manieth of its pass
    passed: Pass | None = None
    dispatch: int = -1  # its first dispatch
    again: Unit | None = None  # the unit that this one computes again


@dataclass(eq=False)
class Pass:
    """The layers that a micro-batch runs through in one go."""

    units: list[Unit] = field(default_factory=list)
    stack: list[ForwardCall] = field(default_factory=list)  # whose backward is to come
    checked: bool = False  # a backward of it was seen


@dataclass(eq=False)
class ForwardCall:
    """What a call of the word turned out to be."""

    at: int
    phase: str = ""
    label: str = ""
    unit: Unit | None = None


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Which sorts of all-to-alls are experts'."""

    sorts: frozenset[Sort]
    armed: bool  # a dispatch follows a routing: sequence parallelism looks the same
    why_not: str = ""  # why none is, in words


def experts_sorts(programs: Iterable[CallSequence], *, mixture: bool) -> Experts:
    """Tell experts' all-to-alls from others', over all programs.

    Uneven ones are experts'.  Where all are even, those that follow a count exchange or
    a routing are; where nothing says so, only a run that is known to have experts, or
    that sends rows of several experts to each rank, has them, and nothing else may be
    sent all to all in it.

    Parameters
    ----------
    programs
        Of all ranks.
    mixture
        Whether the run is known to have experts.
    """
    uneven: set[Sort] = set()
    counted: set[Sort] = set()
    routed: set[Sort] = set()
    every: dict[Sort, set[int]] = {}
    rows: set[int] = set()
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
            if token.row_bytes:
                rows.add(size // (2 * token.width * token.row_bytes))
    if uneven:
        return Experts(sorts=frozenset(uneven | counted), armed=False)
    if counted or routed:
        first = counted or routed
        sizes = set.union(*(every[s] for s in first))
        groups = {(s[0], s[1]) for s in first}
        same = {s for s, z in every.items() if z & sizes and (s[0], s[1]) in groups}
        return Experts(sorts=frozenset(first | same), armed=routers)
    one_size = len(set().union(*every.values())) == 1 and len(every) <= 2
    if every and one_size and (mixture or min(rows, default=1) > 1):
        return Experts(sorts=frozenset(every), armed=False)
    why = ""
    if every:
        why = (
            "all all-to-alls send equal parts and no routing or count exchange was "
            "seen: experts' and sequence parallelism's look the same"
        )
    return Experts(sorts=frozenset(), armed=False, why_not=why)


class Forward:
    """Reads forward calls one by one; recomputed ones are another reader's.

    Parameters
    ----------
    program
        Whose calls they are.
    experts
        Which sorts of all-to-alls are experts'.
    """

    def __init__(self, program: CallSequence, experts: Experts) -> None:
        self.program, self.experts = program, experts
        self.passes: list[Pass] = []
        self.calls: dict[int, ForwardCall] = {}
        self.open: list[tuple[ForwardCall, list[ForwardCall]]] = []
        self.waiting: list[ForwardCall] = []  # count exchanges before their dispatch
        self._closed: ForwardCall | None = None  # the last combine
        self._unit: Unit | None = None
        self._pass: Pass | None = None
        self._routed: int | None = None  # layer of a routing without a dispatch yet

    def routing(self, token: Token) -> None:
        """A router decided."""
        self._routed = token.layer

    def pause(self) -> None:
        """Something else begins; if no exchange is under way, a pass ends."""
        if not self.open:
            self._pass = None

    def read(self, at: int) -> ForwardCall:
        """Take the next forward all-to-all."""
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
        if call.unit is None:
            self._nothing_announced(token.group)
        if not token.counts:
            self._current().stack.append(call)
        return call

    def finish(self) -> None:
        """What never came back was no dispatch."""
        for call, companions in self.open:
            for mine in (call, *companions):
                mine.phase = mine.label = ""
                mine.unit = None
        self.open = []
        for call in self.waiting:
            call.label = self.program.word[call.at].label
        for one in self.passes:
            used = {id(c.unit) for c in self.calls.values() if c.unit is not None}
            one.units = [u for u in one.units if id(u) in used]
            for place, unit in enumerate(one.units):
                unit.place, unit.passed = place, one

    def _nothing_announced(self, group: int) -> None:
        """What looked like counts was none, unless that was told."""
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
        """Whether a call of another sort travels beside an open dispatch."""
        if not self.open:
            return False
        main = self.open[-1][0].at
        if self.program.word[at].group != self.program.word[main].group:
            return False
        program = self.program
        if program.even[at] and program.even[main]:
            small = program.bytes_of(at) * SMALL <= program.bytes_of(main)
            return small and self._rows(at) == self._rows(main)
        return program.alike(main, at) or program.turned(main, at)

    def _rows(self, at: int) -> float:
        """Rows of a call in all steps."""
        return self.program.bytes_of(at) / max(1, self.program.word[at].row_bytes)

    def _place(self, call: ForwardCall) -> None:
        """Say what an experts' all-to-all is."""
        program, at = self.program, call.at
        mine = program.bytes_of(at)
        group = program.word[at].group
        for number in range(len(self.open) - 1, -1, -1):
            main, companions = self.open[number]
            if program.word[main.at].group != group:
                continue
            alike, theirs = program.alike(main.at, at), program.bytes_of(main.at)
            small = alike and mine * SMALL <= theirs
            if not small and program.turned(main.at, at):
                self._combine(call, number)
                return
            if alike and mine < theirs:
                self._accompany(call, main)
                companions.append(call)
                return
            if alike and mine > theirs and number == len(self.open) - 1:
                # the smaller one came first
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
            and program.alike(last.at, at)
            and mine * SMALL <= program.bytes_of(last.at)
        ):
            self._accompany(call, last)
            return
        if self.experts.armed and self._routed is None and not self.waiting:
            return  # nothing announced a dispatch: it is attention's
        self._dispatch(call)

    def _dispatch(self, call: ForwardCall) -> None:
        if not self.open or self._unit is None:
            self._unit = Unit(dispatch=call.at)
            self._current().units.append(self._unit)
        unit, token = self._unit, self.program.word[call.at]
        if token.layer >= 0:
            unit.told = token.layer
        elif self._routed is not None and unit.told < 0:
            unit.told = self._routed
        self._routed = None
        call.phase, call.unit = "dispatch", unit
        for one in self.waiting:
            if self.program.word[one.at].group == token.group:
                one.unit = unit
        self.waiting = [c for c in self.waiting if c.unit is None]
        self._closed = None
        self.open.append((call, []))

    def _combine(self, call: ForwardCall, number: int) -> None:
        main, _ = self.open.pop(number)
        call.phase, call.unit = "combine", main.unit
        layer = self.program.word[call.at].layer
        if layer >= 0 and call.unit is not None and call.unit.told < 0:
            call.unit.told = layer
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
