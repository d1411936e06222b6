"""Infer the step boundaries of a rank from the order of its calls.

A training step is one or more blocks of forward calls followed by backward calls.  The
common suffix of all blocks' forward calls is the forward pass.  Calls before it that do
not occur in a forward pass (gradients, their norm, parameters) end a step, and passes
before it without a backward are an evaluation.  The steps of a program without a
backward are the shortest period of its calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Int64

from .calls import Calls

AT_LEAST = 0.95  # share of the calls that must repeat after a period

Word = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NumberedSteps:
    """Step number of each of a rank's calls, and the kind of each step."""

    step: Int64  # [n], from 0, non-decreasing
    kinds: tuple[str, ...]
    whole: tuple[bool, ...]  # whether the record contains the whole step


@dataclass
class _Step:
    """Inferred step of one rank."""

    begin: int  # index of its first call
    kind: str = "train"
    whole: bool = True


def find_steps(calls: Calls) -> NumberedSteps | None:
    """Infer the steps of a rank from its calls; None where they are inconclusive."""
    if calls.where([not s.direction for s in calls.sites]).any():
        return None  # made by a thread whose pass is unknown
    blocks = _blocks(calls.backward)
    if len(blocks) > 1:
        found = _Blocks(calls, blocks).steps()
    else:
        found = _repeated(calls)
        if not found and len(blocks) == 1 and calls.exchange.any():
            found = [_Step(0)]
    if not found:
        return None
    begins = [s.begin for s in found]
    every = np.arange(len(calls.table))
    return NumberedSteps(
        step=np.searchsorted(begins, every, side="right") - 1,
        kinds=tuple(s.kind for s in found),
        whole=tuple(s.whole for s in found),
    )


def _blocks(backward: Bool) -> list[tuple[int, int, int]]:
    """Return the first forward, first backward and end call index of each block."""
    change = np.flatnonzero(np.diff(backward.astype(np.int8))) + 1
    edges = [0, *change.tolist(), len(backward)]
    if len(backward) and backward[0]:
        edges.insert(0, 0)  # the record begins within a backward pass
    count = (len(edges) - 1) // 2
    return [(edges[2 * k], edges[2 * k + 1], edges[2 * k + 2]) for k in range(count)]


class _Blocks:
    """Forward-backward blocks of a rank, and the forward pass that they share."""

    def __init__(self, calls: Calls, blocks: list[tuple[int, int, int]]) -> None:
        self.calls, self.blocks = calls, blocks
        self.reduces = calls.where([s.operation == "all_reduce" for s in calls.sites])
        self.piped = bool(calls.between_stages.any())
        kept = ~calls.between_stages & ~_once(calls, blocks)
        self.position = [np.flatnonzero(kept[a:b]) + a for a, b, _ in blocks]
        self.forward = [self._word(p) for p in self.position]
        self.backward = [
            self._word(np.flatnonzero(kept[b:c]) + b) for _, b, c in blocks
        ]
        last = blocks[-1][2]
        self.tail_at = np.flatnonzero(kept[last:]) + last
        self.tail = self._word(self.tail_at)
        self.exchanges = set(np.unique(calls.kind[calls.exchange]).tolist())
        self.cut_short = self._begins_within()
        self.pass_ = self._pass()
        self.of_pass = set(self.pass_)
        # calls before the pass in each block
        self.before = [
            w[: len(w) - _common_end(w, self.pass_)] if w else () for w in self.forward
        ]

    def _word(self, positions: Int64) -> Word:
        return tuple(self.calls.kind[positions].tolist())

    def _exchanged(self, word: Iterable[int]) -> int:
        return sum(s in self.exchanges for s in word)

    def _begins_within(self) -> bool:
        """Return whether the record begins in the middle of a forward pass."""
        later = [self._exchanged(w) for w in self.forward[1:] if w or not self.piped]
        first = self._exchanged(self.forward[0])
        return bool(later) and first < min(later)

    def _pass(self) -> Word:
        """Return the common suffix of the forward calls of all blocks."""
        words = set(self.forward[1:])
        if not self.cut_short:
            words.add(self.forward[0])
        if self.piped:
            words.discard(())  # only sends between two backward passes
        if not words:
            return ()
        found, *rest = sorted(words)
        for word in rest:
            found = found[len(found) - _common_end(found, word) :]
        return found

    def steps(self) -> list[_Step]:
        """Return the steps in order; the first begins with the record."""
        leads = self._leads()
        if not leads:
            return []
        lead = self._usual_lead(leads)
        evaluated = {k: self._evaluated(k, lead) for k in leads}
        ends = {k: self._end_of_step(k, evaluated[k], lead) for k in leads if k}
        if any(self._exchanged(end) for end in ends.values()):
            return []  # a forward pass that is neither of a step nor an evaluation
        usual = _usual(ends.values())
        sizes = np.diff([*leads, len(self.blocks)]).tolist()
        blocks = Counter(sizes[:-1] or sizes).most_common(1)[0][0]
        found = [_Step(0, whole=not self.cut_short)]
        for block, size in zip(leads, sizes, strict=True):
            if block:
                if self._skipped(ends[block], usual):
                    found[-1].kind = "skipped"
                found.append(_Step(self._at(block, len(ends[block]))))
            if evaluated[block] is not None:
                # an evaluation precedes the step
                found[-1].kind = "evaluation"
                begin = self._at(block, len(self.before[block]) - len(lead))
                found.append(_Step(begin))
            if size > blocks and size % blocks == 0 and not self.piped and usual:
                # steps without synchronization were skipped
                for k in range(block + blocks, block + size, blocks):
                    found[-1].kind = "skipped"
                    found.append(_Step(self.blocks[k][0]))
        self._add_tail(found, usual, short=sizes[-1] < blocks)
        return found

    def _leads(self) -> list[int]:
        """Return the index of the first forward-backward block of each step."""
        foreign = [bool(set(b) - self.of_pass) for b in self.before]
        passes = [
            not self.piped and self._exchanged(b) > 0 and not f
            for b, f in zip(self.before, foreign, strict=True)
        ]
        found = [0] + [k for k in range(1, len(self.blocks)) if foreign[k] or passes[k]]
        every = list(range(len(self.blocks)))
        if not any(foreign[1:]):
            if self._reduced_at_end():
                return [0]
            found = self._synchronized() or (self._period() if self.piped else every)
            if not self.piped and self._unsynchronized():
                return []
            return sorted({*found, *(k for k, p in enumerate(passes) if p and k)})
        if not self.piped and self._reduced_in_all():
            return every
        return found

    def _reduced_at_end(self) -> bool:
        """Return whether reductions occur only after the last block: a single step."""
        last = self.blocks[-1][2]
        end = set(self.tail) - self.of_pass
        after = self.calls.kind[last:][self.reduces[last:]]
        return bool(end & set(after.tolist())) and not self.reduces[:last].any()

    def _unsynchronized(self) -> bool:
        """Return whether no call but all-to-alls shows where a step ends."""
        calls = self.calls
        return bool((calls.exchange | calls.routing).all()) and len(self.blocks) > 1

    def _synchronized(self) -> list[int]:
        """Return the blocks after a backward with extra synchronization calls."""
        inner = [set(w) for w in self.backward[1:-1] or self.backward]
        common = set.intersection(*inner)
        more = [bool(set(w) - common) for w in self.backward]
        if not any(more) or all(more[:-1]):
            return []
        return [0] + [k + 1 for k in range(len(more) - 1) if more[k]]

    def _reduced_in_all(self) -> bool:
        """Return whether gradients are reduced in every block, as in DDP.

        Reductions on groups that also reduce in the forward are of tensor parallelism.
        """
        calls = self.calls
        group = np.array([s.group for s in calls.sites], np.int64)[calls.table["site"]]
        in_pass = np.isin(calls.kind, self.pass_) & ~calls.backward
        theirs = np.unique(group[in_pass & self.reduces])
        mine = self.reduces & calls.backward & ~np.isin(group, theirs)
        return all(mine[b:c].any() for _, b, c in self.blocks)

    def _period(self) -> list[int]:
        """Return the first block of each step by the shortest period of blocks."""
        pairs = list(zip(self.forward, self.backward, strict=True))
        ids = {p: n for n, p in enumerate(dict.fromkeys(pairs))}
        numbers = np.array([ids[p] for p in pairs])
        for period in range(1, len(numbers) // 2 + 1):
            if (numbers[1 + period :] == numbers[1:-period]).mean() >= AT_LEAST:
                return list(range(0, len(numbers), period))
        return list(range(len(numbers)))

    def _usual_lead(self, leads: Sequence[int]) -> Word:
        """Return the usual forward calls before a pipelined step's first backward."""
        if not self.piped:
            return ()
        return _usual(_after_end(self.before[k], self.of_pass) for k in leads)

    def _end_of_step(self, block: int, evaluated: int | None, lead: Word) -> Word:
        """Return the calls before a block's forward pass that end the previous step."""
        before = self.before[block]
        return before[: len(before) - len(lead) if evaluated is None else evaluated]

    def _evaluated(self, block: int, lead: Word) -> int | None:
        """Return the index where an evaluation's passes begin; None if none do."""
        before = self.before[block]
        calls = before[: len(before) - len(lead)]
        starts = [at for at, kind in enumerate(calls) if kind in self.of_pass]
        if not block and self.cut_short:
            starts = [0]
        return next((at for at in starts if self._is_evaluation(calls[at:])), None)

    def _is_evaluation(self, calls: Word) -> bool:
        mine = self._exchanged(calls)
        if mine:
            own = self._exchanged(self.pass_)
            return bool(own) and mine >= own and self._begins_pass(calls)
        return bool(self.pass_) and _contains(calls, self.pass_)

    def _begins_pass(self, calls: Word) -> bool:
        """Return whether the calls begin a forward pass, by their first all-to-all."""
        first = next(s for s in self.pass_ if s in self.exchanges)
        return next(s for s in calls if s in self.exchanges) == first

    def _skipped(self, end: Word, usual: Word) -> bool:
        """Return whether a step's final calls are a proper subset of the usual ones."""
        less, more = Counter(end), Counter(usual)
        return less != more and not less - more

    def _at(self, block: int, count: int) -> int:
        """Return the index of the call after the first ``count`` calls of a block."""
        if count == 0:
            return self.blocks[block][0]
        return int(self.position[block][count - 1]) + 1

    def _add_tail(self, found: list[_Step], usual: Word, *, short: bool) -> None:
        """Append the steps formed by the calls after the last backward pass."""
        at = next(
            (n for n, s in enumerate(self.tail) if s in self.of_pass and self.pass_),
            len(self.tail),
        )
        end, rest = self.tail[:at], self.tail[at:]
        if rest and not self._exchanged(rest) and not _contains(rest, self.pass_):
            end, rest = self.tail, ()
        if (usual and not end) or (not usual and short):
            found[-1].whole = False  # the record ends before the step does
            return
        if len(end) < len(usual):
            if rest and self._skipped(end, usual):
                found[-1].kind = "skipped"
            else:
                found[-1].whole = False
        elif not usual:
            found[-1].whole = self.backward[-1] in self.backward[:-1]
        if rest:
            begin = int(self.tail_at[len(end) - 1]) + 1 if end else self.blocks[-1][2]
            own = self._exchanged(self.pass_)
            passed = not self.piped and (not own or self._exchanged(rest) % own == 0)
            kind = "evaluation" if passed else "train"
            found.append(_Step(begin, kind=kind, whole=passed))


def _once(calls: Calls, blocks: list[tuple[int, int, int]]) -> Bool:
    """Return a mask of the calls of kinds that only one block's forward has, ``[n]``.

    Set-up is no part of a forward pass, even if it lies within one: DDP rebuilds its
    buckets in the second step, after the layers before the wrapped module.
    """
    last = blocks[-1][2]
    parts = [*((a, b) for a, b, _ in blocks), (last, len(calls.kind))]
    seen = np.concatenate([np.unique(calls.kind[a:b]) for a, b in parts])
    kinds, number = np.unique(seen, return_counts=True)
    single = np.isin(calls.kind, kinds[number == 1])
    single[last:] = False
    return np.asarray(single & ~calls.exchange & ~calls.routing, bool)


def _usual(words: Iterable[Word]) -> Word:
    """Return the most frequent call sequence; the first one among equals."""
    return max(Counter(words).most_common(1), default=((), 0))[0]


def _after_end(before: Word, of_pass: set[int]) -> Word:
    """Return the calls after the last one that does not occur in a forward pass."""
    last = max((n for n, s in enumerate(before) if s not in of_pass), default=-1)
    return before[last + 1 :]


def _common_end(a: Word, b: Word) -> int:
    """Return the length of the common suffix of two call sequences."""
    pairs = enumerate(zip(reversed(a), reversed(b), strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _contains(word: Word, part: Word) -> bool:
    """Return whether a call sequence contains another as a contiguous part."""
    return any(
        word[at : at + len(part)] == part for at in range(len(word) - len(part) + 1)
    )


def _repeated(calls: Calls) -> list[_Step]:
    """Infer the steps of a forward-only program as the shortest period of its calls."""
    word = calls.kind
    layered = calls.where([s.layer >= 0 for s in calls.sites])
    # calls that do not merely repeat with every layer
    distinct = layered | ~(calls.exchange | calls.routing)
    numbers, counts = np.unique(word, return_counts=True)
    gaps = set()
    for number in numbers[counts > 1]:
        gaps.add(int(np.median(np.diff(np.flatnonzero(word == number)))))
    for period in sorted(gaps):
        same = word[period:] == word[:-period]
        if len(word) < 3 * period or same.mean() < AT_LEAST:
            continue
        first = int(np.argmax(same))
        if not distinct[first : first + period].any():
            return []  # the period may be one layer
        # steps begin relative to a call that occurs once, so that extra calls do not
        # shift them
        unit = word[first : first + period]
        once = next((u for u in unit.tolist() if (unit == u).sum() == 1), None)
        begins = np.arange(first, len(word), period)
        if once is not None:
            begins = np.flatnonzero(word == once) - int(np.argmax(unit == once))
        found = [_Step(0), *(_Step(b) for b in begins[1:].tolist() if b > 0)]
        found[-1].whole = len(word) - found[-1].begin >= period
        return found
    return []
