"""Find dispatches, combines and their companions among the calls of a MoE layer.

1. A *unit* is the all-to-alls of one call of a module, or of one routing
   (:func:`gather_units`).
2. Units with the same sequence of calls have the same roles.  A combine returns the
   rows of its dispatch: its splits are the dispatch's with sent and received swapped,
   in all units.  Calls with splits proportional to a dispatch's (probabilities,
   indices, scale factors) accompany it; small even exchanges of integers before it are
   exchanges of counts (:func:`find_roles`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.model import Source

from .calls import Calls

COUNTS = "count_exchange"
COMPANION = "companion"
SMALL = 4  # minimum size ratio of a dispatch to a companion, if all are even
FEW = 8  # up to this number, row sizes distinguish kinds of calls

EVEN = (
    "all all-to-alls send equal parts and no routing or count exchange was recorded: "
    "expert and sequence parallelism cannot be distinguished (register the router's "
    "class with capture.router)"
)


class Role(NamedTuple):
    """Phase of a call, or its label if it only accompanies a dispatch."""

    phase: str = ""
    label: str = ""


class Token(NamedTuple):
    """Attributes of a call that are equal in all units with the same roles."""

    group: int  # its ranks, in the unit's order of first use
    width: int  # ranks of the group
    dtype: str
    row_bytes: int  # 0 where calls of this type have many sizes

    @property
    def counts(self) -> bool:
        """Whether the call sends integers of at least 16 bits."""
        return self.dtype.startswith(("int", "uint")) and self.dtype[-1] != "8"


Word = tuple[Token, ...]


@dataclass(eq=False)
class Unit:
    """All-to-alls of one call of a module, or between two routings, of one rank."""

    rank: int
    iteration: int
    recomputed: bool
    module: int = 0  # number from 1 on, 0: unknown
    layer: int = -1  # that the program, a hook or a router reports
    linked: bool = False  # by a hook, which may number layers of a stage alone
    routed: bool = False  # a routing precedes
    several: bool = False  # part of a call of a module with several dispatches
    trained: bool = True  # part of a training pass
    calls: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)

    @property
    def dispatches(self) -> int:
        """Number of dispatches."""
        return sum(role.phase == "dispatch" for role in self.roles)

    @property
    def has_several(self) -> bool:
        """Whether one call of a module has dispatches of unknown layers."""
        return self.layer < 0 and (self.several or self.dispatches > 1)


def gather_units(calls: Calls, gradient: Int64) -> list[Unit]:
    """Collect the units of a rank, in order of their first calls.

    ``gradient`` is the index of the first gradient of each call, ``[n]``; n for none.
    After it, the module has been called again.
    """
    units: list[Unit] = []
    # by direction and calling module, or annotated layer: state and the current unit
    current: dict[tuple[bool, int, int], tuple[tuple[int, ...], Unit]] = {}
    routed: dict[bool, tuple[int, bool]] = {}  # routing without a later call
    ends: dict[int, int] = {}  # first gradient by unit
    gradients = np.cumsum(calls.where([s.direction == "backward" for s in calls.sites]))
    sent = calls.bare & calls.where(
        [s.direction in ("forward", "recompute") for s in calls.sites]
    )
    for place in np.flatnonzero(sent | calls.routing).tolist():
        row = calls.table[place]
        site = calls.sites[row["site"]]
        linked, again = site.source == Source.LINKED, site.direction != "forward"
        if calls.routing[place]:
            routed[again] = site.layer, linked
            continue
        number, iteration = int(row["module_call"]), int(row["iteration"])
        key = again, number >> 1, -1 if number else site.layer
        # recomputed calls without a module are one unit between two gradients
        block = int(gradients[place]) if again and not number else 0
        state = number, iteration, int(row["thread"]), block
        before, unit = current.get(key, (None, None))
        routing = routed.pop(again, None)
        if (
            unit is None
            or before != state
            or place > ends[id(unit)]
            or (routing is not None and (unit.routed or not number))
        ):
            unit = Unit(calls.rank, iteration, again, number >> 1, site.layer, linked)
            # with a gradient in between, but the same input
            unit.several = before == state and bool(number)
            units.append(unit)
            # a module that is recomputed has been called to its end
            current.pop((not again, *key[1:]), None)
            current[key], ends[id(unit)] = (state, unit), len(calls.table)
        if routing is not None:
            unit.routed = True
            if unit.layer < 0 or (unit.linked and not routing[1]):
                unit.layer, unit.linked = routing
        unit.calls.append(place)
        ends[id(unit)] = min(ends[id(unit)], int(gradient[place]))
    return [u for u in units if u.module or u.layer >= 0 or u.recomputed]


def find_roles(every: Sequence[Calls], units: Sequence[Unit], *, mixture: bool) -> str:
    """Set the roles of the calls of all units; return why there are none, "" if any.

    ``mixture``: the run is known to have experts.
    """
    of_rank = {calls.rank: calls for calls in every}
    sizes: dict[tuple[int, str], set[int]] = defaultdict(set)
    for calls in every:
        for site in calls.sites:
            width = len(calls.groups[site.group].ranks)
            sizes[width, site.dtype].add(site.row_bytes)
    words: dict[Word, list[Unit]] = defaultdict(list)
    word_of = {}
    for unit in units:
        word = word_of[id(unit)] = _word(of_rank[unit.rank], unit, sizes)
        words[word].append(unit)
    exchanged = [calls.exchange & (calls.size > 0) for calls in every]
    uneven = any((e & ~c.even).any() for e, c in zip(exchanged, every, strict=True))
    size = {
        s for e, c in zip(exchanged, every, strict=True) for s in c.size[e].tolist()
    }
    announced = any(unit.routed for unit in units) or any(
        token.counts for word in words for token in word
    )
    plain = mixture and not uneven and not announced and len(size) == 1
    for word, members in words.items():
        sequence = _Sequence.of(word, [(of_rank[u.rank], u.calls) for u in members])
        for routed in (False, True):
            roles = sequence.roles(announced=routed, plain=plain)
            for unit in members:
                if unit.routed == routed:
                    unit.roles = roles
    # recomputed calls have the roles of the first calls of their module: a combine
    # whose result is not needed is not recomputed
    first: dict[tuple[int, int, int], set[tuple[Word, tuple[Role, ...]]]] = defaultdict(
        set
    )
    for unit in units:
        if not unit.recomputed:
            key = unit.rank, unit.module, unit.layer
            first[key].add((word_of[id(unit)], tuple(unit.roles)))
    _find_modules(of_rank, units)
    for unit in units:
        if unit.recomputed:
            word, length = word_of[id(unit)], len(unit.calls)
            possible = {
                roles[:length]
                for whole, roles in first[unit.rank, unit.module, unit.layer]
                if whole[:length] == word
            }
            unit.roles = list(*possible) if len(possible) == 1 else []
    named = any(unit.dispatches for unit in units)
    return EVEN if size and not (uneven or announced or named) else ""


def _find_modules(of_rank: dict[int, Calls], units: Sequence[Unit]) -> None:
    """Find the modules of recomputed calls that no module makes, by their bytes."""
    forward: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for unit in units:
        if not unit.recomputed:
            forward[unit.rank, unit.iteration].append(unit)
    for unit in units:
        if not unit.recomputed or unit.module or unit.layer >= 0:
            continue
        volume, count = of_rank[unit.rank].volume, len(unit.calls)
        repeated = {
            (first.module, first.layer, first.linked)
            for first in forward[unit.rank, unit.iteration]
            if len(first.calls) >= count
            and (volume[first.calls[:count]] == volume[unit.calls]).all()
        }
        if len(repeated) == 1:
            unit.module, unit.layer, unit.linked = repeated.pop()


def _word(calls: Calls, unit: Unit, sizes: dict[tuple[int, str], set[int]]) -> Word:
    groups: dict[tuple[int, ...], int] = {}
    tokens = []
    for number in calls.table["site"][unit.calls].tolist():
        site = calls.sites[number]
        ranks = calls.groups[site.group].ranks
        few = len(sizes[len(ranks), site.dtype]) <= FEW
        group = groups.setdefault(ranks, len(groups))
        row_bytes = site.row_bytes if few else 0
        tokens.append(Token(group, len(ranks), site.dtype, row_bytes))
    return tuple(tokens)


@dataclass(frozen=True, kw_only=True)
class _Sequence:
    """Calls of all units with the same tokens, ``[N, n, ...]``."""

    word: Word  # [n]
    volume: Int64  # [N, n, 2] fingerprints of the bytes sent and received
    share: Int64  # [N, n, 2] of their proportions
    size: Int64  # [n] bytes of all units
    even: Bool  # [n] in all units

    @classmethod
    def of(cls, word: Word, units: Sequence[tuple[Calls, list[int]]]) -> _Sequence:
        return cls(
            word=word,
            volume=np.stack([calls.volume[places] for calls, places in units]),
            share=np.stack([calls.share[places] for calls, places in units]),
            size=np.sum([calls.size[places] for calls, places in units], axis=0),
            even=np.all([calls.even[places] for calls, places in units], axis=0),
        )

    def ends(self, call: int, main: int) -> bool:
        """Return whether a call may be the combine of a dispatch."""
        word, small = self.word, self.size[call] * SMALL <= self.size[main]
        prints = self.share
        if word[call].dtype == word[main].dtype:
            prints = self.volume
        turned = (prints[:, main] == prints[:, call, ::-1]).all()
        same = (self.share[:, call] == self.share[:, main]).all()
        in_group = word[call].group == word[main].group
        return bool(turned) and in_group and not (small and same)

    def accompanies(self, call: int, main: int) -> bool:
        """Return whether a call may be a companion of a larger one."""
        word, size = self.word, self.size
        if word[call].group != word[main].group or size[call] >= size[main]:
            return False
        if self.even[call] and self.even[main]:
            rows = [size[n] // max(1, word[n].row_bytes) for n in (call, main)]
            return bool(size[call] * SMALL <= size[main] and rows[0] == rows[1])
        return bool((self.share[:, call] == self.share[:, main]).all())

    def roles(self, *, announced: bool, plain: bool) -> list[Role]:
        """Return the role of each call.

        ``announced``: a routing precedes; ``plain``: all all-to-alls of the run are of
        experts.
        """
        roles = [Role()] * len(self.word)
        counts: list[int] = []  # exchanges of counts before their dispatch
        # dispatches without a combine yet, and the calls that accompany each
        opened: dict[int, list[tuple[int, str]]] = {}
        for call, token in enumerate(self.word):
            if token.counts and self.even[call]:
                counts.append(call)
                continue
            # counts announce a dispatch, which may look like a combine of equal parts
            next_one = bool(counts) and bool(self.even[call])
            partners = [d for d in reversed(opened) if self.ends(call, d)]
            last = next(reversed(opened), -1)
            if partners and not next_one:
                dispatch = partners[0]
                roles[dispatch], roles[call] = Role("dispatch"), Role("combine")
                for number, label in opened.pop(dispatch):
                    roles[number] = Role("", label)
                announced = False
            elif last >= 0 and self.accompanies(call, last):
                opened[last].append((call, COMPANION))
            elif last >= 0 and self.accompanies(last, call):
                # the companion came first: the larger call is the dispatch
                opened[call] = [*opened.pop(last), (last, COMPANION)]
            elif plain or announced or counts or not self.even[call]:
                opened[call] = [(number, COUNTS) for number in counts]
                counts, announced = [], False
        return roles
