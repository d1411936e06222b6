"""Pass on the records of iterations that are recorded, and leave out the others.

Iterations are recorded whole or not at all, and keep their numbers: every N-th one,
none from the first iteration that begins after a pause until the first one that begins
after it has ended, and none after the maximum size is reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.merge import log_format as log
from moetraffic.trace.merge.iterations import Ended, Mark, ended_iterations

EXCHANGE = log.OPERATIONS.index("all_to_all")
MOST_HELD = 1 << 20  # words of the iteration under way that are not written yet
NOTHING = np.zeros(0, np.int64)


class Sampling:
    """Filter between the queue and the log.

    The words since the last end of a step are held back: the iteration under way.
    ``is_gradient`` tells whether the calls in a context are those of gradients.
    """

    def __init__(self, every: int, is_gradient: Callable[[int], bool]) -> None:
        self._every, self._is_gradient = every, is_gradient
        self._filters = every > 1  # otherwise all iterations so far are recorded
        self._held = NOTHING
        self._begun = False  # calls of the iteration under way were passed on
        self._iteration = 0  # under way; without a filter, not counted
        self._marked = False  # the program calls step()
        # whether iterations are left out, from each of these first iterations on
        self._pauses: list[tuple[int, bool]] = []
        self._stop = -1  # first iteration after the maximum size
        self._ended = [0, 0]  # steps and optimizer steps

    @property
    def stopped(self) -> bool:
        """Whether iterations are left out because of the maximum size."""
        return 0 <= self._stop < self._iteration or (
            self._stop == self._iteration and len(self._held) > 0
        )

    def stop(self) -> None:
        """Record no iteration that begins later."""
        if self._stop < 0:
            self._filters, self._stop = True, self._iteration + 1

    def pass_on(self, words: Int64, *, last: bool = False) -> Int64:
        """Return the words to write; ``last`` is whether nothing follows."""
        words = np.concatenate([self._held, words])
        starts = log.starts_of(words)
        kinds = words[starts]
        self._filters |= bool((kinds == log.PAUSE).any())
        if self._filters:
            passed, self._held = self._filter(words, starts, kinds, last=last)
            return passed
        edge, is_held = 0, len(self._held) > 0
        if len(ends := np.flatnonzero(np.isin(kinds, (log.STEP, log.OPTIMIZER)))):
            # an optimizer step is the end only if nothing of its iteration follows
            place = int(ends[-1]) + int(kinds[ends[-1]] == log.STEP)
            edge = int(starts[place]) if place < len(starts) else len(words)
            self._begun, is_held = bool(kinds[ends[-1]] == log.OPTIMIZER), True
        if last or not is_held or len(words) > MOST_HELD + edge:
            self._begun, edge = self._begun or len(words) > edge, len(words)
        self._held = words[edge:]
        return words[:edge]

    def _filter(
        self, words: Int64, starts: Int64, kinds: Int64, *, last: bool
    ) -> tuple[Int64, Int64]:
        """Split words into those to write, and those of the iteration under way."""
        is_call = np.isin(kinds, (log.CALL, log.ROUTED))
        calls, before = np.flatnonzero(is_call), np.cumsum(is_call)
        settles, in_backward = self._settles(words, starts[calls])
        ends = np.flatnonzero(np.isin(kinds, (log.STEP, log.OPTIMIZER)))
        marks, of_step = [], dict[int, int]()
        for place in ends.tolist():
            number, end, again = words[starts[place] + 2 : starts[place] + 5].tolist()
            kind = int(kinds[place])
            within = kind == log.OPTIMIZER and again == 1
            marks.append(Mark(kind, int(before[place]), end, number, within))
            if kind == log.STEP:
                of_step[number] = place
        # the first step() shows that optimizer steps ended no iterations before
        withdrawn = not self._marked and bool(of_step) and self._iteration > 0
        if of_step and not self._marked:
            self._marked, self._iteration = True, 0
        ended = ended_iterations(
            marks,
            settles,
            in_backward,
            marked=self._marked,
            first=self._iteration,
            whole=last,
        )
        if withdrawn and ended:
            ended[0] = ended[0]._replace(recorded=False)
        for place in np.flatnonzero(kinds == log.PAUSE).tolist():
            first = self._next_whole(int(before[place]), ended, settles)
            self._pauses.append((first, bool(words[starts[place] + 2])))

        # cut the records behind each iteration
        edges = np.append(starts, len(words))
        calls = np.append(calls, len(kinds))
        written: list[Int64] = []
        first, skipped = 0, list[tuple[Ended, Int64]]()
        for stop in ended:
            explicit = stop.step >= 0
            place = of_step[stop.step] + 1 if explicit else int(calls[stop.calls])
            part = words[edges[first] : edges[place]]
            if stop.recorded and self._records(stop.number):
                written += [self._skip(skipped), part]
                skipped = []
            else:
                skipped.append((stop, part))
            for n in ends[(ends >= first) & (ends < place)].tolist():
                which = int(kinds[n] == log.OPTIMIZER)
                self._ended[which] = int(words[starts[n] + 2]) + 1
            first = place
        written.append(self._skip(skipped))
        if ended:
            self._iteration, self._begun = ended[-1].number + 1, False
        held = words[edges[first] :]
        if last and self._records(self._iteration):
            written.append(held)
        passed = np.concatenate(written)
        return without(passed, (log.PAUSE,)), without(held, (log.PAUSE,))

    def _settles(self, words: Int64, starts: Int64) -> tuple[Bool, Bool]:
        """Return masks of the calls that settle ends, and of those in backward."""
        routed = words[starts] == log.ROUTED
        in_backward = words[starts + np.where(routed, 8, 9)] == 1
        exchange = ~routed & (words[starts + 4] == EXCHANGE)
        gradient = [
            self._is_gradient(context) for context in words[starts + 6].tolist()
        ]
        return routed | exchange | in_backward | np.array(gradient, bool), in_backward

    def _next_whole(self, calls: int, ended: Sequence[Ended], settles: Bool) -> int:
        """Return the first iteration of which no call is among the first ``calls``."""
        iteration, first, begun = self._iteration, 0, self._begun
        for stop in ended:
            if stop.calls <= calls:
                iteration, first, begun = stop.number + 1, stop.calls, False
        return iteration + int(begun or bool(settles[first:calls].any()))

    def _records(self, iteration: int) -> bool:
        paused = [paused for first, paused in self._pauses if first <= iteration]
        stopped = 0 <= self._stop <= iteration
        return iteration % self._every == 0 and paused[-1:] != [True] and not stopped

    def _skip(self, skipped: Sequence[tuple[Ended, Int64]]) -> Int64:
        """Replace iterations that are not recorded by a record of their number.

        What belongs to calls of recorded iterations is kept.
        """
        if not skipped:
            return NOTHING
        stop, kept, groups = skipped[-1][0], list[Int64](), Counter[int]()
        for _, words in skipped:
            starts = log.starts_of(words)
            calls = starts[words[starts] == log.CALL]
            collective = (words[calls + 13] < 0) & (words[calls + 14] < 0)
            groups.update(words[calls[collective] + 5].tolist())
            routed = starts[words[starts] == log.ROUTED]
            dropped = (log.CALL, log.ROUTED, log.STEP, log.OPTIMIZER, log.PAUSE)
            kept.append(without(words, dropped, words[calls + 2], words[routed + 2]))
        counts = [value for pair in sorted(groups.items()) for value in pair]
        length = log.SKIP_HEAD + len(counts)
        head = log.SKIP, length, len(skipped), stop.end, int(stop.step >= 0)
        return np.array([*head, *self._ended, *counts, *np.concatenate(kept).tolist()])


def without(
    words: Int64, kinds: Sequence[int], calls: Int64 = NOTHING, routed: Int64 = NOTHING
) -> Int64:
    """Remove records of some kinds, ends of some calls, and counts of some routings."""
    starts = log.starts_of(words)
    kind, number = words[starts], words[starts + 2]
    drop = np.isin(kind, kinds)
    drop |= (kind == log.END) & np.isin(number, calls)
    drop |= (kind == log.COUNTS) & np.isin(number, routed)
    if not drop.any():
        return words
    return words[np.repeat(~drop, np.diff(np.append(starts, len(words))))]
