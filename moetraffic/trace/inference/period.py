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

from moetraffic.trace.model import Bool, Int64

AT_LEAST = 0.95  # share of the calls that must repeat after a period


@dataclass(frozen=True, kw_only=True)
class InferredSteps:
    """Inferred steps of one rank, in order; the first begins with the record."""

    begins: tuple[int, ...]  # index of each step's first call
    kinds: tuple[str, ...]
    whole: tuple[bool, ...]  # whether the record contains the whole step


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Attributes of each call of a rank, ``[n]``, from which steps are inferred."""

    symbol: Int64  # the same for calls of the same kind
    backward: Bool
    exchange: Bool  # all-to-alls
    between: Bool  # sends and receives
    reduces: Bool  # all_reduce
    group: Int64
    distinct: Bool  # calls that do not merely repeat with every layer


def find_steps(traits: Traits) -> InferredSteps | None:
    """Infer the steps of a rank from its calls; None where they are inconclusive.

    Parameters
    ----------
    traits
        Of its calls, in order.
    """
    blocks = _blocks(traits.backward)
    if len(blocks) < 2:
        repeated = _repeated(traits)
        if repeated is not None:
            return repeated
        if len(blocks) == 1 and traits.exchange.any():
            return InferredSteps(begins=(0,), kinds=("train",), whole=(True,))
        return None
    return _Blocks(traits, blocks).steps()


def _blocks(backward: Bool) -> list[tuple[int, int, int]]:
    """Return the first forward, first backward and end call index of each block."""
    change = np.flatnonzero(np.diff(backward.astype(np.int8))) + 1
    edges = [0, *change.tolist(), len(backward)]
    if len(backward) and backward[0]:
        edges.insert(0, 0)  # the record begins within a backward pass
    count = (len(edges) - 1) // 2
    return [(edges[2 * k], edges[2 * k + 1], edges[2 * k + 2]) for k in range(count)]


Word = tuple[int, ...]


class _Blocks:
    """Forward-backward blocks of a rank, and the forward pass that they share."""

    def __init__(self, traits: Traits, blocks: list[tuple[int, int, int]]) -> None:
        self.traits, self.blocks = traits, blocks
        self.piped = bool(traits.between.any())
        kept = ~traits.between
        self.position = [np.flatnonzero(kept[a:b]) + a for a, b, _ in blocks]
        self.forward = [self._word(p) for p in self.position]
        self.backward = [
            self._word(np.flatnonzero(kept[b:c]) + b) for _, b, c in blocks
        ]
        last = blocks[-1][2]
        self.tail_at = np.flatnonzero(kept[last:]) + last
        self.tail = self._word(self.tail_at)
        exchanges = set(np.unique(traits.symbol[traits.exchange]).tolist())
        self.exchanges = exchanges
        self.cut_short = self._begins_within()
        self.pass_ = self._pass()
        self.of_pass = set(self.pass_)
        # calls before the pass in each block
        self.before = [
            w[: len(w) - _common_end(w, self.pass_)] if w else () for w in self.forward
        ]

    def _word(self, positions: Int64) -> Word:
        return tuple(self.traits.symbol[positions].tolist())

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

    def steps(self) -> InferredSteps:
        leads = self._leads()
        lead = self._usual_lead(leads)
        ends = {k: self._end_of_step(self.before[k], lead) for k in leads if k}
        usual = _usual(ends.values())
        begins, kinds, whole = [0], ["train"], [not self.cut_short]
        first = self._evaluated(self.before[0], lead) if not self.cut_short else 0
        if first is not None and self._is_evaluation(self.before[0][first:], lead):
            # an evaluation before the first step
            kinds[0] = "evaluation"
            begins.append(self._at(0, len(self.before[0]) - len(lead)))
            kinds.append("train")
            whole.append(True)
        sizes = np.diff([*leads, len(self.blocks)])
        blocks = Counter(sizes.tolist()[:-1] or sizes.tolist()).most_common(1)[0][0]
        for lead_block, size in zip(leads, sizes.tolist(), strict=True):
            if lead_block:
                ended = len(ends[lead_block])
                if self._skipped(ends[lead_block], usual):
                    kinds[-1] = "skipped"
                begins.append(self._at(lead_block, ended))
                kinds.append("train")
                whole.append(True)
                rest = self.before[lead_block][ended:]
                if self._is_evaluation(rest, lead):
                    kinds[-1] = "evaluation"
                    begins.append(
                        self._at(lead_block, len(self.before[lead_block]) - len(lead))
                    )
                    kinds.append("train")
                    whole.append(True)
            if size > blocks and size % blocks == 0 and not self.piped and usual:
                # steps without synchronization were skipped
                for k in range(lead_block + blocks, lead_block + size, blocks):
                    kinds[-1] = "skipped"
                    begins.append(self.blocks[k][0])
                    kinds.append("train")
                    whole.append(True)
        self._add_tail(begins, kinds, whole, usual, short=sizes[-1] < blocks)
        return InferredSteps(
            begins=tuple(begins), kinds=tuple(kinds), whole=tuple(whole)
        )

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
            return sorted({*found, *(k for k, p in enumerate(passes) if p and k)})
        if not self.piped and self._reduced_in_all():
            return every
        return found

    def _reduced_at_end(self) -> bool:
        """Return whether reductions occur only after the last block: a single step."""
        traits, last = self.traits, self.blocks[-1][2]
        end = set(self.tail) - self.of_pass
        reduced = set(np.unique(traits.symbol[last:][traits.reduces[last:]]).tolist())
        return bool(end & reduced) and not traits.reduces[:last].any()

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
        traits = self.traits
        in_pass = np.isin(traits.symbol, self.pass_) & ~traits.backward
        theirs = np.unique(traits.group[in_pass & traits.reduces])
        mine = traits.reduces & traits.backward & ~np.isin(traits.group, theirs)
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
        rest = [_after_end(self.before[k], self.of_pass) for k in leads]
        return _usual(rest)

    def _end_of_step(self, before: Word, lead: Word) -> Word:
        """Return the calls before a block's forward pass that end the previous step."""
        at = self._evaluated(before, lead)
        return before[: len(before) - len(lead)] if at is None else before[:at]

    def _evaluated(self, before: Word, lead: Word) -> int | None:
        """Return the index where an evaluation's passes begin; None if none do."""
        end = len(before) - len(lead)
        for at in range(end):
            if before[at] in self.of_pass and self._is_evaluation(before[at:], lead):
                return at
        return None

    def _is_evaluation(self, calls: Word, lead: Word) -> bool:
        calls = calls[: len(calls) - len(lead)] if lead else calls
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

    def _add_tail(
        self,
        begins: list[int],
        kinds: list[str],
        whole: list[bool],
        usual: Word,
        *,
        short: bool,
    ) -> None:
        """Append the steps formed by the calls after the last backward pass."""
        at = next(
            (n for n, s in enumerate(self.tail) if s in self.of_pass and self.pass_),
            len(self.tail),
        )
        end, rest = self.tail[:at], self.tail[at:]
        if rest and not self._exchanged(rest) and not _contains(rest, self.pass_):
            end, rest = self.tail, ()
        if (usual and not end) or (not usual and short):
            whole[-1] = False  # the record ends before the step does
            return
        if len(end) < len(usual):
            if rest and self._skipped(end, usual):
                kinds[-1] = "skipped"
            else:
                whole[-1] = False
        elif not usual:
            whole[-1] = self.backward[-1] in self.backward[:-1]
        if rest:
            count = len(end)
            begins.append(
                int(self.tail_at[count - 1]) + 1 if count else self.blocks[-1][2]
            )
            own = self._exchanged(self.pass_)
            done = self._exchanged(rest)
            passed = not self.piped and (done % own == 0 if own else True)
            kinds.append("evaluation" if passed else "train")
            whole.append(passed)


def _usual(words: Iterable[Word]) -> Word:
    """Return the most frequent call sequence; the first one among equals."""
    return max(Counter(words).most_common(1), default=((), 0))[0]


def _after_end(before: Word, of_pass: set[int]) -> Word:
    """Return the calls after the last one that does not occur in a forward pass."""
    last = max((n for n, s in enumerate(before) if s not in of_pass), default=-1)
    return before[last + 1 :]


def _common_end(a: Word, b: Word) -> int:
    """Return the length of the common suffix of two call sequences."""
    count = 0
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        count += 1
    return count


def _contains(word: Word, part: Word) -> bool:
    """Return whether a call sequence contains another as a contiguous part."""
    if not part:
        return False
    return any(
        word[at : at + len(part)] == part for at in range(len(word) - len(part) + 1)
    )


def _repeated(traits: Traits) -> InferredSteps | None:
    """Infer the steps of a forward-only program as the shortest period of its calls."""
    word = traits.symbol
    numbers, counts = np.unique(word, return_counts=True)
    gaps = set()
    for number in numbers[counts > 1]:
        gaps.add(int(np.median(np.diff(np.flatnonzero(word == number)))))
    for period in sorted(gaps):
        same = word[period:] == word[:-period]
        if len(word) < 3 * period or same.mean() < AT_LEAST:
            continue
        first = int(np.argmax(same))
        if not traits.distinct[first : first + period].any():
            return None  # the period may be one layer
        # steps begin relative to a call that occurs once, so that extra calls do not
        # shift them
        unit = word[first : first + period]
        once = next((u for u in unit.tolist() if (unit == u).sum() == 1), None)
        if once is None:
            begins = list(range(first, len(word), period))
        else:
            ahead = int(np.argmax(unit == once))
            begins = [int(p) - ahead for p in np.flatnonzero(word == once)]
        begins = [0, *(b for b in begins[1:] if b > 0)]
        done = len(word) - begins[-1] >= period
        return InferredSteps(
            begins=tuple(begins),
            kinds=("train",) * len(begins),
            whole=(True,) * (len(begins) - 1) + (done,),
        )
    return None
