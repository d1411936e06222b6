"""Committer process of a rank, which writes the rank's records as segments.

The process runs until it receives a close message or the pipe is closed because the
training has ended.  It then commits all received records, so that a killed rank loses
only records that were not yet in the pipe.  It does not import torch, and holds one
window at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.capture.iteration_boundaries import IterationBoundaries
from moetraffic.capture.pipe_format import (
    CALL,
    CALL_HEAD,
    END,
    GAP,
    HEADER,
    OPERATIONS,
    OPTIMIZER,
    ROUTED_HEAD,
    STEP,
    WORDS,
    loss_of_word,
    words_of,
)
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    ROUTING,
    STEP_KINDS,
    Group,
    Int64,
    Meta,
    Source,
)
from moetraffic.trace.segments.segment import Segment
from moetraffic.trace.segments.store import SegmentWriter

from .call_direction import Directions
from .record_tables import CallEvent, RecordWindow, SiteTable, placements

WINDOW_BYTES = 4 << 20
PENDING_S = 2.0  # how long a commit waits for calls that have not ended
IDLE_S = 10.0  # time until calls of a run without steps are committed
EVENT_BYTES = 200
READ_BYTES = 1 << 20
UNSENT_NS = 400_000_000  # maximum age of records not yet written to the pipe
LOOK_S = 0.5  # interval between checks whether the training process is alive


class Committer:
    """Builder and writer of the trace segments of one rank.

    ``about`` is the first message of the training process, and ``report`` the file
    descriptor for the final report, a JSON object.
    """

    def __init__(self, about: dict[str, Any], report: int) -> None:
        meta = {**about["meta"], "nodes": tuple(about["meta"]["nodes"])}
        self._meta = Meta(**meta)
        self._rank, self._node = int(about["rank"]), str(about["node"])
        self._writer = SegmentWriter(Path(about["folder"]), self._rank)
        self._placement = {
            int(layer): members for layer, members in about["placement"].items()
        }
        self._window_steps = max(1, int(about["window"]) // 2)
        self._report = report
        self._window, self._sites = RecordWindow(), SiteTable()
        self._begun = int(about["begun"])
        self._boundaries = IterationBoundaries(begun=self._begun)
        self._directions = Directions()
        self._names: dict[str, list[Any]] = {}
        self._groups: dict[str, int] = {}
        self._open: dict[int, CallEvent] = {}  # calls that have not ended
        self._index = 0
        self._continued = False  # the window begins within an iteration
        self._full_since = self._last_commit = time.monotonic()
        self._full = False
        self._clocks: list[tuple[int, int, int, int]] = []
        self._left_out, self._ended = "", ""
        self.closed = False

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
        if "close" in fields:
            self.close(final=True, even_empty=bool(fields["close"]))

    def take(self, words: Int64) -> None:
        """Add encoded records to the current window."""
        at, end = 0, len(words)
        plain = words.tolist()
        while at < end:
            kind, length = plain[at], plain[at + 1]
            if kind == CALL:
                self._call(plain, words, at)
            elif kind == END:
                event = self._open.pop(plain[at + 2], None)
                if event is not None:
                    event.start, event.end = plain[at + 3], plain[at + 4]
            elif kind == STEP:
                self._step(*plain[at + 2 : at + 6])
                self.commit_if_full()
            elif kind == OPTIMIZER:
                when, in_backward, skipped = plain[at + 2 : at + 5]
                self._boundaries.optimizer(
                    when, in_backward=bool(in_backward), skipped=bool(skipped)
                )
            elif kind == GAP:
                self._gap(plain[at + 2])
            else:
                self._routed(plain, words, at)
            at += length
        self.commit_if_full()

    def commit_if_full(self) -> None:
        """Commit the current window if it is full."""
        now = time.monotonic()
        window = self._window
        if not self._full:
            waits = bool(window.events) and not self._boundaries.known
            self._full = (
                len(window.steps) >= self._window_steps
                or window.bytes >= WINDOW_BYTES
                or (waits and now - self._last_commit > IDLE_S)
            )
            self._full_since = now
        if not self._full:
            return
        unsettled = bool(self._open) or self._boundaries.unsettled > 0
        patience = now - self._full_since < PENDING_S
        room = (
            len(window.steps) < 2 * self._window_steps
            and window.bytes < 2 * WINDOW_BYTES
        )
        if not (unsettled and patience and room):
            self.commit(final=False)

    def close(self, *, final: bool, even_empty: bool = False) -> None:
        """Commit the remaining records, and send the final report.

        ``final`` is whether the rank ended its capture itself; then ``even_empty``
        writes an empty segment for a rank without records.
        """
        self._settle(self._boundaries.settle())
        rest = bool(self._window.events or self._window.steps)
        if rest or (final and (self._index or even_empty)):
            self.commit(final=final, last=True)
        unclosed = self._writer.close()
        report = {
            "unclosed": unclosed,
            "error": self._writer.error,
            "lost_windows": self._writer.lost_windows,
        }
        with contextlib.suppress(OSError):  # the training may have been killed
            os.write(self._report, json.dumps(report).encode())
        self.closed = True

    # ---- inside ------------------------------------------------------------------

    def _call(self, plain: list[int], words: Int64, at: int) -> None:
        # fmt: off
        (_, _, number, issue, code, group, place, dtype, thread, in_backward, grad,
         link, node, sender, destination, size, row, rows_sent, rows_received,
         sends, receives) = plain[at : at + CALL_HEAD]
        # fmt: on
        operation, here = OPERATIONS[code], self._names["place"][place]
        direction, link, source = self._directions.of(
            operation,
            in_backward=bool(in_backward),
            grad=bool(grad),
            link=link,
            node="" if node < 0 else self._names["node"][node],
            phase=here[1],
        )
        group = self._groups[self._names["group"][group]]
        payload, transposed = size, 0
        if operation == ALL_TO_ALL:
            width = len(self._sites.groups[group].ranks)
            head = at + CALL_HEAD
            sent = words[head : head + sends]
            received = words[head + sends : head + sends + receives]
            if not sends:
                sent = _even(rows_sent, width)
            if not receives:
                received = _even(rows_received, width)
            if len(sent) != width or len(received) != width:
                return  # invalid splits: torch rejects the call, and nothing is sent
            payload, transposed = self._window.put_splits(sent * row, received * row)
        name = self._names["dtype"][dtype] or ""
        element = row if operation == ALL_TO_ALL else 0
        site, sequence = self._sites.at(
            *(operation, group, here, direction, name, element),
            source=source,
            peers=(sender, destination),
        )
        self._settle(
            self._boundaries.call(
                settles=direction not in ("forward", "") or operation == ALL_TO_ALL,
                in_backward=bool(in_backward),
            )
        )
        when = self._boundaries.iteration, sequence, issue
        event = CallEvent(site, *when, payload, transposed, thread, grad, link)
        self._add(event)
        self._open[number] = event

    def _routed(self, plain: list[int], words: Int64, at: int) -> None:
        # fmt: off
        (_, _, issue, group, layer, place, thread, in_backward, grad, experts,
         has_dropped) = plain[at : at + ROUTED_HEAD]
        # fmt: on
        counts = words[at + ROUTED_HEAD : at + ROUTED_HEAD + experts]
        dropped = words[at + ROUTED_HEAD + experts :][:experts] if has_dropped else None
        direction = "recompute" if in_backward else "forward"
        _, _, label, linked = self._names["place"][place]
        here = (layer, "", label, linked)
        owner = self._groups[self._names["group"][group]]
        site, sequence = self._sites.at(
            *(ROUTING, owner, here, direction, "", 0),
            source=Source.LINKED,
            experts=experts,
        )
        self._settle(self._boundaries.call(settles=True, in_backward=bool(in_backward)))
        row = self._window.put_demand(counts, dropped)
        when = self._boundaries.iteration, sequence, issue
        self._add(CallEvent(site, *when, row, 0, thread, grad))

    def _add(self, event: CallEvent) -> None:
        self._window.events.append(event)
        self._window.bytes += EVENT_BYTES

    def _step(self, end: int, tokens: int, kind: int, loss: int) -> None:
        boundaries, window = self._boundaries, self._window
        if boundaries.step():
            # earlier segments keep their numbers, which merging corrects
            for event in window.events:
                event.iteration = 0
            window.steps.clear()
            window.kinds.clear()
            boundaries.begun = self._begun
        stated = kind >= 0 or boundaries.kind == STEP_KINDS[0]
        window.steps.append(
            (
                *(boundaries.iteration - 1, loss_of_word(loss), tokens),
                *(boundaries.begun, end, Source.ANNOTATED),
                Source.ANNOTATED if stated else Source.LINKED,
            )
        )
        window.kinds.append(STEP_KINDS[kind] if kind >= 0 else boundaries.kind)
        boundaries.begun = end

    def _settle(self, found: tuple[int, int] | None) -> None:
        """Apply an iteration boundary at an earlier optimizer step to the window."""
        if found is None:
            return
        after, when = found
        ended = self._boundaries.iteration - 1
        for event in self._window.events[len(self._window.events) - after :]:
            event.iteration = ended + 1
        self._window.steps.append(
            (
                *(ended, float("nan"), -1, self._boundaries.begun, when),
                *(Source.LINKED, Source.LINKED),
            )
        )
        self._window.kinds.append(self._boundaries.kind)
        self._boundaries.begun = when

    def _gap(self, calls: int) -> None:
        """Commit the window and start a new one after lost calls."""
        self.commit(final=False)
        self._writer.lose(f"{calls} calls came faster than the disk takes them", calls)
        self._index += 1
        self._continued = True

    def commit(self, *, final: bool, last: bool = False) -> None:
        """Write the current window as a segment, and start a new window.

        ``final`` is whether the rank ended its capture itself, ``last`` whether this is
        the last segment.
        """
        self._settle(self._boundaries.settle())
        window, self._window = self._window, RecordWindow()
        known = self._boundaries.known
        try:
            self._writer.write(self._segment(window, known, final=final, last=last))
        except Exception as error:
            # an internal error must only lose this window
            self._writer.lose(f"a window could not be built: {error!r}", 0)
        self._index += 1
        # the next window begins within an iteration, unless one has just ended
        events = window.events
        self._continued = bool(events) and (
            not known or events[-1].iteration == self._boundaries.iteration
        )
        self._open.clear()  # calls that end later have an unknown end
        self._full, self._last_commit = False, time.monotonic()

    def _segment(
        self, window: RecordWindow, known: bool, *, final: bool, last: bool
    ) -> Segment:
        table = window.event_table()
        if not known:
            table["iteration"] = -1
        return Segment(
            rank=self._rank,
            index=self._index,
            final=final,
            node=self._node,
            meta=self._meta,
            groups=tuple(self._sites.groups),
            sites=tuple(self._sites.sites),
            events=table,
            steps=window.step_table(),
            kinds=tuple(window.kinds),
            splits={w: rows.array(w) for w, rows in window.splits.items()},
            demand={e: np.asarray(r, np.int32) for e, r in window.demand.items()},
            placements=placements(
                self._sites.sites, self._sites.groups, self._placement
            ),
            clocks=np.array(self._clocks, CLOCK),
            ended=self._ended if final else "",
            left_out=self._left_out,
            window=0 if final else self._at_risk(window, last=last),
            continued=self._continued,
        )

    def _at_risk(self, window: RecordWindow, *, last: bool) -> int:
        """Estimate the number of steps after this window that a kill would lose.

        After the last window, only records not yet written to the pipe are lost.
        """
        if not last:
            return 2 * self._window_steps
        if not window.steps:
            return 1
        start, end = window.steps[-1][3:5]
        unsent = 1 + int(UNSENT_NS / max(1, end - start))
        # a program that calls step() waits when too many steps are not in the pipe
        marked = self._boundaries.marked
        return min(unsent, 2 * self._window_steps) if marked else unsent


def _even(rows: int, width: int) -> Int64:
    """Equal split sizes ``[width]`` int64 of an all-to-all without explicit splits."""
    return np.full(width, rows // width, np.int64)


def main(reader: int, parent: int) -> None:
    """Process the frames of a pipe until it is closed; report on standard output.

    The pipe also counts as closed when the training, process ``parent``, has ended.
    """
    # signals are for the training; the end of the pipe ends this process
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    committer: Committer | None = None
    unread = bytearray()
    while committer is None or not committer.closed:
        ready, _, _ = select.select([reader], [], [], LOOK_S)
        part = os.read(reader, READ_BYTES) if ready else b""
        if not part and (ready or os.getppid() != parent):
            break
        unread += part
        at = 0
        while len(unread) - at >= HEADER.size:
            kind, length = HEADER.unpack_from(unread, at)
            if len(unread) - at - HEADER.size < length:
                break
            body = bytes(unread[at + HEADER.size : at + HEADER.size + length])
            at += HEADER.size + length
            if committer is None:
                committer = Committer(json.loads(body)["about"], sys.stdout.fileno())
            elif kind == WORDS:
                committer.take(words_of(body))
            else:
                committer.receive(json.loads(body))
        del unread[:at]
        if committer is not None and not committer.closed:
            committer.commit_if_full()
    if committer is not None and not committer.closed:
        committer.close(final=False)
