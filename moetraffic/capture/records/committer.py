"""Committer of a rank: builds segments from the records of its log.

A committer that is started again continues where the last committed segment ended: it
takes the records since its last checkpoint again, without building the segments that
exist (:mod:`.log_follower`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.capture.iteration_boundaries import IterationBoundaries
from moetraffic.capture.record_format import (
    CALL,
    CALL_HEAD,
    END,
    GAP,
    OPERATIONS,
    OPTIMIZER,
    PAUSE,
    ROUTED_HEAD,
    STEP,
    loss_of_word,
)
from moetraffic.errors import CaptureError
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    ROUTING,
    STEP_KINDS,
    Group,
    Meta,
    Source,
)
from moetraffic.trace.segments.segment import Segment
from moetraffic.trace.segments.store import SegmentWriter

from .call_direction import Directions
from .checkpoint import Position, plain, restore
from .commit_file import CommitFile
from .record_tables import (
    CallEvent,
    RecordWindow,
    SiteTable,
    even_splits,
    placements,
)
from .recorded_iterations import RecordedIterations

WINDOW_BYTES = 4 << 20
PENDING_S = 2.0  # how long a commit waits for calls that have not ended
COMMIT_S = 4.0  # between commits: writing a segment takes as long as 2,000 records
IDLE_S = 10.0  # time until calls of a run without steps are committed
TAKEN_WORDS = 2 << 20  # of the log, most of which may not be recorded


class Committer:
    """Builder and writer of the trace segments of one rank.

    ``about`` is the training process' description of the capture; ``notes`` receives
    notes on commits, between which are at least ``pause_s`` seconds, except of windows
    of many bytes.
    """

    def __init__(
        self,
        about: dict[str, Any],
        writer: SegmentWriter,
        notes: CommitFile | None = None,
        *,
        pause_s: float = COMMIT_S,
    ) -> None:
        meta = {**about["meta"], "nodes": tuple(about["meta"]["nodes"])}
        self._meta = Meta(**meta)
        self._rank, self._node = int(about["rank"]), str(about["node"])
        self._writer, self._notes = writer, notes
        self._placement = {
            int(layer): members for layer, members in about["placement"].items()
        }
        self._window_steps = max(1, int(about["window"]) // 2)
        self._pause_s = pause_s
        self.position: Position = (0, 0)
        self._committed: deque[tuple[int, Position]] = deque()
        self._resumed: tuple[Position, dict[str, Any]] | None = None
        self._ends = [0, 0]  # records of steps, and of optimizer steps
        self._window, self._sites = RecordWindow(), SiteTable()
        begun = int(about["begun"])
        self._boundaries = IterationBoundaries(begun=begun, first=begun)
        self._recorded = RecordedIterations(every=self._meta.every)
        self._most_bytes = int(about.get("most_bytes", 0))
        self._taken = 0  # words since the last commit
        self._directions = Directions()
        self._training_threads = about.get("threads")
        self._names: dict[str, list[Any]] = {}
        self._groups: dict[str, int] = {}
        self._open: dict[int, CallEvent] = {}  # calls that have not ended
        self.index = 0  # of the next segment
        self._continued = False  # the window begins within an iteration
        self._full_since = self._last_commit = time.monotonic()
        self._full, self._full_steps = False, 0
        self._clocks: list[tuple[int, int, int, int]] = []
        self._left_out, self._ended, self._routed_k = "", "", 0
        self.closed = False

    # ---- continuing an earlier committer ------------------------------------------

    def resume(
        self,
        checkpoint: tuple[Position, dict[str, Any]] | None,
        committed: Sequence[tuple[int, Position]],
    ) -> None:
        """Continue after the last committed segment.

        ``checkpoint`` is the position from which on records are taken again, and
        :meth:`state` there; None from the first record on.  ``committed`` has index and
        end of each committed segment after it, in order.
        """
        self._committed = deque(committed)
        self._resumed = checkpoint

    @property
    def resuming(self) -> bool:
        """Whether records of committed segments are being taken again."""
        return self._resumed is not None or bool(self._committed)

    def state(self) -> dict[str, Any]:
        """Return what later segments depend on, as JSON values; call after a commit."""
        return {
            "index": self.index,
            "continued": self._continued,
            "ends": self._ends,
            "unrecorded": self._writer.unrecorded,
            "sequences": self._sites.sequences,
            "boundaries": plain(self._boundaries),
            "directions": plain(self._directions),
            "recorded": plain(self._recorded),
        }

    def begin_file(self, number: int) -> None:
        """Note that later records are those of the next file of the log."""
        self.position = (number, 0)

    def catch_up(self) -> None:
        """Apply the checkpoint and the commits that were at this position."""
        if self._resumed is not None and self.position >= self._resumed[0]:
            state, self._resumed = self._resumed[1], None
            self.index, self._continued = state["index"], state["continued"]
            self._ends, self._writer.unrecorded = state["ends"], state["unrecorded"]
            self._sites.restore(state["sequences"])
            restore(self._boundaries, state["boundaries"])
            restore(self._directions, state["directions"])
            restore(self._recorded, state["recorded"])
        while self._resumed is None and self._committed:
            index, position = self._committed[0]
            if self.position < position:
                break
            self._committed.popleft()
            self.index = index
            self._finish_window()

    # ---- what comes --------------------------------------------------------------

    def receive(self, fields: dict[str, Any]) -> None:
        """Process a JSON message of the training process."""
        if "define" in fields:
            self._names.setdefault(fields["define"], []).append(fields["name"])
        if "group" in fields:
            given = fields["group"]
            group = Group(kind=given["kind"], ranks=tuple(given["ranks"]))
            known = self._groups.get(given["name"])
            if known is None or self._sites.groups[known] != group:
                self._groups[given["name"]] = self._sites.add_group(group)
        self._clocks += [tuple(offset) for offset in fields.get("clocks", ())]
        self._left_out = fields.get("left_out", self._left_out)
        self._ended = fields.get("ended", self._ended)
        self._routed_k = int(fields.get("k", self._routed_k))
        if fields.get("router"):
            self._meta = replace(self._meta, router=fields["router"])
        if "close" in fields:
            self.close(final=True, even_empty=bool(fields["close"]))

    def take(self, words: Int64) -> None:
        """Add encoded records to the current window."""
        at, end = 0, len(words)
        plain = words.tolist()
        while at < end:
            kind, length = plain[at], plain[at + 1]
            if self.resuming:
                self.catch_up()
            if self._resumed is not None:
                pass  # its effect is in the checkpoint
            elif kind == CALL:
                self._call(plain, words, at)
            elif kind == END:
                event = self._open.pop(plain[at + 2], None)
                if event is not None:
                    event.start, event.end = plain[at + 3], plain[at + 4]
            elif kind == STEP:
                self._ends[0] += 1
                self._step(*plain[at + 2 : at + 6])
            elif kind == OPTIMIZER:
                self._ends[1] += 1
                when, in_backward, skipped = plain[at + 2 : at + 5]
                self._boundaries.optimizer(
                    when, in_backward=bool(in_backward), skipped=bool(skipped)
                )
            elif kind == GAP:
                self._gap(plain[at + 2])
            elif kind == PAUSE:
                first = self._boundaries.next_whole
                if plain[at + 2]:
                    self._recorded.pause(first)
                else:
                    self._recorded.resume(first)
            else:
                self._routed(plain, words, at)
            at += length
            self._taken += length
            self.position = (self.position[0], self.position[1] + 1)
            if kind == STEP:
                self.commit_if_full()
        self.commit_if_full()

    def commit_if_full(self) -> None:
        """Commit the current window if it is full, and its calls have ended."""
        if self.resuming:
            self.catch_up()
            return
        now = time.monotonic()
        window, elapsed = self._window, now - self._last_commit
        if not self._full:
            waits = bool(window.events) and not self._boundaries.known
            self._full = (
                (len(window.steps) >= self._window_steps and elapsed >= self._pause_s)
                or window.bytes >= WINDOW_BYTES
                or self._taken >= TAKEN_WORDS
                or self._recorded.unstated
                or (waits and elapsed > IDLE_S)
            )
            self._full_since = now
            self._full_steps = max(len(window.steps), self._window_steps)
        if not self._full:
            return
        unsettled = bool(self._open) or self._boundaries.unsettled > 0
        patience = now - self._full_since < PENDING_S
        room = (
            len(window.steps) < 2 * self._full_steps and window.bytes < 2 * WINDOW_BYTES
        )
        if not (unsettled and patience and room):
            self.commit(final=False)

    def close(
        self,
        *,
        final: bool,
        even_empty: bool = False,
        ended: tuple[int, int] | None = None,
        whole: bool = True,
    ) -> None:
        """Commit the remaining records.

        ``final`` is whether the rank ended its capture itself; then ``even_empty``
        writes an empty segment for a rank without records.  ``ended`` are steps and
        optimizer steps of a rank that did not, None if unknown; ``whole`` is whether
        the log was read to its end.
        """
        self.catch_up()
        if self.resuming:
            raise CaptureError(
                f"the record log of rank {self._rank} ends before its last segment: "
                "later records are lost"
            )
        self._settle(self._boundaries.settle())
        rest = bool(self._window.events or self._window.steps)
        if rest or self.index or (final and even_empty):
            window = self._lost(ended) if whole and not final else 0
            self.commit(final=final, window=window)
        self.closed = True

    # ---- inside ------------------------------------------------------------------

    def _call(self, plain: list[int], words: Int64, at: int) -> None:
        # fmt: off
        (_, _, number, issue, code, group, place, dtype, thread, in_backward, grad,
         link, node, sender, destination, size, row, rows_sent, rows_received,
         sends, receives) = plain[at : at + CALL_HEAD]
        # fmt: on
        operation, (*here, block) = OPERATIONS[code], self._names["place"][place]
        direction, link = self._directions.of(
            operation,
            in_backward=bool(in_backward),
            grad=bool(grad),
            link=link,
            node="" if node < 0 else self._names["node"][node],
            phase=here[1],
            trains=self._trains(thread),
        )
        group = self._groups[self._names["group"][group]]
        payload, transposed = size, 0
        if operation == ALL_TO_ALL:
            width = len(self._sites.groups[group].ranks)
            head = at + CALL_HEAD
            sent = words[head : head + sends]
            received = words[head + sends : head + sends + receives]
            if not sends:
                sent = even_splits(rows_sent, width)
            if not receives:
                received = even_splits(rows_received, width)
            if len(sent) != width or len(received) != width:
                return  # invalid splits: torch rejects the call, and nothing is sent
        name = self._names["dtype"][dtype] or ""
        element = row if operation == ALL_TO_ALL else 0
        site, sequence = self._sites.at(
            *(operation, group, here, direction, name, element),
            peers=(sender, destination),
        )
        self._settle(
            self._boundaries.call(
                issue,
                settles=direction not in ("forward", "") or operation == ALL_TO_ALL,
                in_backward=bool(in_backward),
            )
        )
        if not self._recorded.may_have(self._boundaries):
            return
        if operation == ALL_TO_ALL:
            payload, transposed = self._window.put_splits(sent * row, received * row)
        when = self._boundaries.iteration, sequence, issue, payload, transposed
        event = CallEvent(site, *when, thread, grad, link, block)
        self._open[number] = self._window.add(event)

    def _trains(self, thread: int) -> bool:
        """Whether a thread is one that trains, as far as the training process says."""
        known = self._training_threads
        return known is None or self._names["thread"][thread] in known

    def _routed(self, plain: list[int], words: Int64, at: int) -> None:
        # fmt: off
        (_, _, issue, group, layer, place, thread, in_backward, grad, experts,
         has_dropped, tokens) = plain[at : at + ROUTED_HEAD]
        # fmt: on
        direction = "recompute" if in_backward else "forward"
        _, _, label, linked, _ = self._names["place"][place]
        here = (layer, "", label, linked)
        owner = self._groups[self._names["group"][group]]
        site, sequence = self._sites.at(
            *(ROUTING, owner, here, direction, "", 0),
            experts=experts,
        )
        self._settle(
            self._boundaries.call(issue, settles=True, in_backward=bool(in_backward))
        )
        if not self._recorded.may_have(self._boundaries):
            return
        rest = words[at + ROUTED_HEAD : at + plain[at + 1]]
        row = self._window.put_routing(rest, experts, has_dropped, tokens)
        when = self._boundaries.iteration, sequence, issue
        self._window.add(CallEvent(site, *when, row, 0, thread, grad))

    def _step(self, end: int, tokens: int, kind: int, loss: int) -> None:
        boundaries = self._boundaries
        withdraws = boundaries.step()
        if withdraws:
            # earlier segments keep their numbers, which merging corrects
            self._window.withdraw_steps()
            boundaries.begun = boundaries.first
        ended = boundaries.iteration - 1
        step = (ended, loss_of_word(loss), tokens, boundaries.begun, end)
        self._window.end_iteration(
            (*step, Source.ANNOTATED),
            STEP_KINDS[kind] if kind >= 0 else boundaries.kind,
            recorded=self._recorded.has(ended, in_part=withdraws),
        )
        boundaries.begun = end

    def _settle(self, found: tuple[int, int] | None) -> None:
        """Apply an iteration boundary at an earlier optimizer step to the window."""
        if found is None:
            return
        after, when = found
        ended = self._boundaries.iteration - 1
        recorded, continues = map(self._recorded.has, (ended, ended + 1))
        # of two iterations that are not recorded, no call is in the window
        later = self._window.take_last(after if recorded or continues else 0)
        step = (ended, float("nan"), -1, self._boundaries.begun, when)
        self._window.end_iteration(
            (*step, Source.LINKED),
            self._boundaries.kind,
            recorded=recorded,
        )
        if continues:
            self._window.put_in(ended + 1, later)
        self._boundaries.begun = when

    def _gap(self, calls: int) -> None:
        """Commit the window and start a new one after lost calls."""
        if self._window.events or self._window.steps:
            self.commit()
        self._writer.lose(f"{calls} calls came faster than the disk takes them", calls)
        self.index += 1
        self._continued = True

    def commit(self, *, final: bool = False, window: int = 0) -> None:
        """Write the current window as a segment, and start a new window.

        ``final`` is whether the rank ended its capture itself, and ``window`` the
        maximum number of later steps that are lost (0: unknown).
        """
        self._settle(self._boundaries.settle())
        if self._notes is not None:
            self._notes.committing(self.index, self.position)
        try:
            segment = self._segment(final=final, window=window)
        except Exception as error:
            # an internal error must only lose this window
            self._writer.lose(f"a window could not be built: {error!r}", 0)
        else:
            self._writer.write(segment)
        self._finish_window()
        if self._most_bytes and self._writer.size() >= self._most_bytes:
            self._recorded.end(self._boundaries.next_whole)
        if self._notes is not None:
            self._notes.committed(self.position, self.state)

    def _finish_window(self) -> None:
        """Start a new window after a segment."""
        self._settle(self._boundaries.settle())
        window, self._window = self._window, RecordWindow()
        self.index += 1
        # the next window begins within an iteration, unless one has just ended
        events = window.events
        self._continued = bool(events) and (
            not self._boundaries.known
            or events[-1].iteration == self._boundaries.iteration
        )
        self._open.clear()  # calls that end later have an unknown end
        self._full, self._last_commit, self._taken = False, time.monotonic(), 0

    def _segment(self, *, final: bool, window: int) -> Segment:
        records = self._window
        return Segment(
            rank=self._rank,
            index=self.index,
            final=final,
            node=self._node,
            meta=self._meta,
            groups=tuple(self._sites.groups),
            sites=tuple(self._sites.sites),
            events=records.event_table(numbered=self._boundaries.known),
            steps=records.step_table(),
            kinds=tuple(records.kinds),
            splits={w: rows.array(w) for w, rows in records.splits.items()},
            demand=records.demand_panels(),
            choices=records.choice_panels(),
            placements=placements(
                self._sites.sites, self._sites.groups, self._placement
            ),
            clocks=np.array(self._clocks, CLOCK),
            ended=self._ended if final else "",
            left_out="; ".join(
                filter(None, (self._left_out, self._recorded.remark(self._most_bytes)))
            ),
            window=window,
            routed_k=self._routed_k,
            continued=self._continued,
        )

    def _lost(self, ended: tuple[int, int] | None) -> int:
        """Return the maximum number of lost steps, including the one under way.

        A rank waits before more than half a window of steps is not in the log.  Where
        the number of steps that it has ended is known, it gives the number of those
        that are not in the log; optimizer steps count for a program without steps.
        """
        if ended is None:
            return self._window_steps + 1
        kind = 0 if ended[0] else 1
        return max(0, ended[kind] - self._ends[kind]) + 1
