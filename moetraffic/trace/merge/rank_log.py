"""Read the log of one rank, whole or as it grows, into a record of its calls.

1. Decode new frames: heads of calls as columns, and each distinct pair of splits once
   (:meth:`RankLog.read`).
2. Classify directions and iterations over all calls at once, number call sites, and
   build the tables (:meth:`RankLog.record`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import CaptureError
from moetraffic.trace.choices import ExpertIds, padded
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    ROUTING,
    STEP_KINDS,
    UNKNOWN_TIME,
    Group,
    Meta,
    Site,
    SiteNumbers,
    Source,
)

from . import log_format as log
from .directions import DIRECTION_NAMES, FORWARD, RECOMPUTE, UNKNOWN, directions
from .iterations import Ended, Mark, ended_iterations, is_marked
from .log_format import CALL_HEAD, OPERATIONS, ROUTED_HEAD, DamagedLog, State
from .rank_record import CALL, STEP, CallingModule, RankRecord, Table, narrow

EXCHANGE = OPERATIONS.index(ALL_TO_ALL)
ROUTED_CODE = len(OPERATIONS)  # of routings, among the operations of calls


class SplitTable:
    """Distinct pairs of splits of groups of W ranks, also up to a swap of both."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes, bytes], int] = {}

    def put(self, row_bytes: int, sent: bytes, received: bytes) -> tuple[int, int]:
        """Store splits, int64 words of rows; return the row, and 1 if swapped."""
        for swapped, key in enumerate(((sent, received), (received, sent))):
            row = self._rows.get((row_bytes, *key))
            if row is not None:
                return row, swapped
        return self._rows.setdefault((row_bytes, sent, received), len(self._rows)), 0

    def keep(self, rows: Int64) -> None:
        """Drop all rows but these, which are ascending."""
        keys = list(self._rows)
        self._rows = {keys[row]: n for n, row in enumerate(rows.tolist())}

    def in_bytes(self, width: int) -> npt.NDArray[Any]:
        """Return all rows in bytes, ``[m, 2, W]`` int32 or int64."""
        pairs = b"".join(sent + received for _, sent, received in self._rows)
        rows = np.frombuffer(pairs, "<i8").reshape(-1, 2, width)
        scale = np.array([size for size, _, _ in self._rows], np.int64)
        return narrow(rows * scale[:, None, None])


class RoutedCounts(NamedTuple):
    """Token copies ``[E]`` of a routing, of these dropped (-1: unknown), a sample."""

    demand: npt.NDArray[Any]
    dropped: npt.NDArray[Any]
    chosen: ExpertIds  # [S, k]


class StepRecord(NamedTuple):
    """A record of kind STEP, OPTIMIZER, SKIP or LOST."""

    order: int  # among all records of the log
    kind: int
    fields: tuple[int, ...]


class Columns:
    """Rows of int64 words that are appended, and read as one array."""

    def __init__(self, width: int) -> None:
        self._parts = [np.zeros((0, width), np.int64)]

    def add(self, rows: Int64) -> None:
        """Append rows ``[n, width]``."""
        self._parts.append(rows)

    def read(self) -> Int64:
        """Return all rows."""
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def keep(self, mask: Bool) -> None:
        """Drop all rows but those of a mask."""
        self._parts = [self.read()[mask]]


class RankLog:
    """Incremental reader of the log of one rank.

    ``newest`` begins with the newest file instead of the first one.
    """

    def __init__(self, folder: Path, rank: int, *, newest: bool = False) -> None:
        self.folder, self.rank = folder, rank
        self.state = State()
        self.about: Mapping[str, Any] = {}  # description of the capture
        self.written_s = 0.0  # modification time of the newest file
        self.size = 0  # bytes that were read
        self.damage = ""
        files = len(log.log_files(folder, rank))
        self._file, self._position = (max(0, files - 1) if newest else 0), 0
        self._partial = self._file > 0  # the first iteration began in an earlier file
        self._names: dict[str, list[Any]] = defaultdict(list)
        self._facts: dict[str, Any] = {}
        self._clocks: list[tuple[int, ...]] = []
        # words of CALL_FIELDS, row of the splits (-2: invalid), 1 if swapped, and order
        self._calls = Columns(CALL_HEAD + 3)
        self._routed = Columns(ROUTED_HEAD + 1)  # words of ROUTED_FIELDS, and order
        self._ends = Columns(3)  # number of the call, start, end
        self._raised: list[int] = []  # calls
        self._counts: dict[int, RoutedCounts] = {}  # by routing
        self._marks: list[StepRecord] = []
        self._losses: dict[int, int] = {}  # by step, bits
        self._unscaled: dict[int, int] = {}  # by optimizer step
        self._splits: dict[int, SplitTable] = defaultdict(SplitTable)
        self._records = 0
        self._first, self._begun = 0, UNKNOWN_TIME  # iteration that is held first
        self._starts: dict[int, int] = {}  # order of the first call by iteration

    # ---- frames ------------------------------------------------------------------

    def read(self) -> bool:
        """Read the frames that are new; return whether there were any."""
        self.state = log.read_state(log.state_file(self.folder, self.rank))
        before = self.size
        path = log.log_file(self.folder, self.rank, self._file)
        while path.exists():
            # looked for first: the rank writes no more to a file once there is a next
            following = log.log_file(self.folder, self.rank, self._file + 1)
            ended = following.exists()
            self.written_s = max(self.written_s, path.stat().st_mtime)
            if not self.damage:
                self._read_file(path)
            if not ended:
                break
            self._file, self._position, path = self._file + 1, 0, following
        return self.size > before

    def _read_file(self, path: Path) -> None:
        try:
            for frame in log.read_frames(path, self._position):
                self.size += frame.end - self._position
                self._position = frame.end
                if frame.words is not None:
                    self._decode(frame.words)
                elif frame.message is not None:
                    self._receive(frame.message)
        except DamagedLog as error:
            self.damage = str(error)

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "about" in message:
            # the beginning of a file repeats what earlier files said
            self.about = message["about"]
            self._names.clear()
            self._clocks.clear()
            if not self._records and not self._partial:
                self._begun = self.about["begun"]
        for kind, name in message.get("define", ()):
            self._names[kind].append(name)
        self._clocks += [tuple(row) for row in message.get("clocks", ())]
        self._facts |= message.get("facts", {})

    def _decode(self, words: Int64) -> None:
        starts = log.starts_of(words)
        kinds = words[starts]
        order = self._records + np.arange(len(starts))
        self._records += len(starts)
        calls, routed = kinds == log.CALL, kinds == log.ROUTED
        ends = kinds == log.END
        heads = words[starts[calls, None] + np.arange(CALL_HEAD)]
        splits = self._put_splits(words, starts[calls], heads)
        self._calls.add(np.column_stack([heads, splits, order[calls]]))
        heads = words[starts[routed, None] + np.arange(ROUTED_HEAD)]
        self._routed.add(np.column_stack([heads, order[routed]]))
        self._ends.add(words[starts[ends, None] + np.arange(2, 5)])
        for place in np.flatnonzero(~(calls | routed | ends)).tolist():
            start, kind = int(starts[place]), int(kinds[place])
            fields = words[start + 2 : start + words[start + 1]]
            if kind == log.RAISED:
                self._raised.append(int(fields[0]))
            elif kind == log.LOSS:
                self._losses[int(fields[0])] = int(fields[1])
            elif kind == log.UNSCALED:
                self._unscaled[int(fields[0])] = int(fields[1])
            elif kind == log.COUNTS:
                number, experts, has_dropped, tokens, k = fields[:5].tolist()
                panels = fields[5 : 5 + (1 + has_dropped) * experts].reshape(
                    -1, experts
                )
                ids = fields[5 + panels.size :][: tokens * k]
                # copies, which do not keep all words in memory
                self._counts[number] = RoutedCounts(
                    narrow(panels[0]),
                    narrow(panels[1] if has_dropped else np.full(experts, -1)),
                    ids.reshape(tokens, k).astype(np.int16),
                )
            elif kind in (log.STEP, log.OPTIMIZER, log.SKIP, log.LOST):
                mark = StepRecord(int(order[place]), kind, tuple(fields.tolist()))
                self._marks.append(mark)

    def _put_splits(self, words: Int64, starts: Int64, heads: Int64) -> Int64:
        """Store the splits of all-to-alls; return row and swap of each, ``[n, 2]``.

        Without a row: -1 for other calls, -2 for splits that torch rejects.
        """
        rows = np.tile(np.array([-1, 0]), (len(heads), 1))
        content = words.astype("<i8", copy=False).tobytes()
        groups = self._names["group"]
        for place in np.flatnonzero(heads[:, 4] == EXCHANGE).tolist():
            head = heads[place].tolist()
            width = len(groups[head[5]]["ranks"])
            row, rows_sent, rows_received, sends, receives = head[16:]
            first = 8 * (int(starts[place]) + CALL_HEAD)
            middle = first + 8 * sends
            sent = content[first:middle] or even(rows_sent, width)
            received = content[middle : middle + 8 * receives]
            received = received or even(rows_received, width)
            valid = len(sent) == len(received) == 8 * width
            rows[place] = (-2, 0)
            if valid:
                rows[place] = self._splits[width].put(row, sent, received)
        return rows

    # ---- record ------------------------------------------------------------------

    def record(self, *, whole: bool = True) -> RankRecord:
        """Build the record of all that is held.

        ``whole`` is whether nothing follows: then a last optimizer step ends an
        iteration.
        """
        columns, counts = self._columns()
        order, operation = columns["order"], columns["operation"]
        direction, link = self._directions(columns)
        marks = self._iteration_marks(order)
        settles = ~np.isin(direction, (FORWARD, UNKNOWN)) | (operation == EXCHANGE)
        settles |= operation == ROUTED_CODE
        if self._partial and marks:
            # one optimizer is taken to step in each iteration
            self._first = marks[0].number
        ended = ended_iterations(
            marks,
            settles,
            columns["in_backward"] == 1,
            marked=is_marked(marks),
            first=self._first,
            whole=whole,
        )
        if self._partial and ended:
            ended[0] = ended[0]._replace(recorded=False)
        # of each call: iteration, -1 if no step is known; and if it was recorded
        iteration = np.full(len(order), self._first if marks else -1)
        recorded = np.full(len(order), not (self._partial and marks))
        before = 0
        for stop in ended:
            iteration[before : stop.calls] = stop.number
            iteration[stop.calls :] = stop.number + 1
            recorded[before : stop.calls] = stop.recorded
            recorded[stop.calls :] = True
            before = stop.calls
        sites, site = self._sites(columns, direction)

        table = np.zeros(len(order), CALL)
        for name in ("issue", "thread", "grad", "payload", "transposed"):
            table[name] = columns[name]
        table["iteration"], table["site"], table["link"] = iteration, site, link
        table["sequence"] = sequences(columns, self._marks)
        for place, name in ((4, "module_call"), (5, "evaluates")):
            table[name] = self._context(place)[columns["context"]]
        table["start"], table["end"] = completions(columns["number"], self._ends.read())
        demand, chosen, payload = routing_panels(counts)
        table["payload"][operation == ROUTED_CODE] = payload

        self._starts = {
            stop.number + 1: int(order[stop.calls]) if stop.calls < len(order) else -1
            for stop in ended
        }
        begun = self._begin(columns["issue"], settles, marks)
        after = max((stop.number + 1 for stop in ended if stop.recorded), default=0)
        meta = Meta(**{**self.about["meta"], "nodes": ()})
        facts = self._facts
        return RankRecord(
            rank=self.rank,
            meta=replace(meta, router=facts.get("router") or meta.router),
            node=str(self.about["node"]),
            groups=tuple(
                Group(kind=g["kind"], ranks=tuple(g["ranks"]))
                for g in self._names["group"]
            ),
            group_names=tuple(g.get("name", "") for g in self._names["group"]),
            sites=tuple(sites),
            calls=table[recorded],
            steps=self._steps(ended, begun),
            splits={
                width: rows.in_bytes(width) for width, rows in self._splits.items()
            },
            demand=demand,
            chosen=chosen,
            modules=tuple(
                CallingModule(**m | {"order": tuple(m["order"])})
                for m in self._names["module"]
            ),
            placed={int(n): m for n, m in self.about["placement"].items()},
            clocks=np.array(self._clocks, CLOCK),
            gaps=self._gaps(order, recorded),
            closed=bool(self.state.closed),
            ended=str(facts.get("ended", "")),
            lost_steps=self._lost_steps(),
            lost_calls=self.state.lost_calls,
            stopped_at=after if facts.get("stopped") else -1,
            omitted=dict(facts.get("omitted", {})),
            reasons=facts.get("reasons", {}),
            routed_k=int(facts.get("k", 0)),
            damage=self.damage,
            capture=str(self.about.get("capture", "")),
        )

    def forget(self, iteration: int) -> None:
        """Drop the calls of the iterations before this one; call after a record."""
        order = self._starts.get(iteration, -1)
        if order < 0:
            return
        ended = [s for s in self._marks if s.order < order and s.kind != log.LOST]
        self._begun = ended[-1].fields[1] if ended else self._begun
        self._marks = [s for s in self._marks if s.order >= order]
        for columns in (self._calls, self._routed):
            columns.keep(columns.read()[:, -1] >= order)
        calls, routed = self._calls.read(), self._routed.read()
        self._ends.keep(np.isin(self._ends.read()[:, 0], calls[:, 2]))
        self._counts = {
            n: self._counts[n] for n in routed[:, 2].tolist() if n in self._counts
        }
        widths = np.array([len(group["ranks"]) for group in self._names["group"]])
        for width, table in self._splits.items():
            used = (widths[calls[:, 5]] == width) & (calls[:, -3] >= 0)
            rows, calls[used, -3] = np.unique(calls[used, -3], return_inverse=True)
            table.keep(rows)
        self._first, self._partial = iteration, False

    # ---- inside ------------------------------------------------------------------

    def _columns(self) -> tuple[dict[str, Int64], list[RoutedCounts]]:
        """Arrange calls and routings in one table by column, and the routings' counts.

        Calls that raised, and routings whose counts were not read, are left out.
        """
        calls, routed = self._calls.read(), self._routed.read()
        calls = calls[(calls[:, -3] != -2) & ~np.isin(calls[:, 2], self._raised)]
        routed = routed[np.isin(routed[:, 2], [*self._counts])]
        counts = [self._counts[number] for number in routed[:, 2].tolist()]
        names = (*log.CALL_FIELDS, "splits", "transposed", "order")
        first = dict(zip(names, calls.T, strict=True))
        first["payload"] = np.where(
            first["operation"] == EXCHANGE, first["splits"], first["bytes"]
        )
        second = dict(zip([*log.ROUTED_FIELDS, "order"], routed.T, strict=True))
        second["operation"] = np.full(len(routed), ROUTED_CODE)
        second["experts"] = np.array([len(c.demand) for c in counts], np.int64)
        del second["number"]  # which is not that of a call
        order = np.argsort(np.concatenate([first["order"], second["order"]]))
        columns = {}
        for name in first.keys() | second.keys():
            missing = 0 if name in ("transposed", "row", "experts") else -1
            parts = ((first, len(calls)), (second, len(routed)))
            values = [p.get(name, np.full(size, missing)) for p, size in parts]
            columns[name] = np.concatenate(values)[order]
        return columns, counts

    def _context(self, place: int) -> npt.NDArray[Any]:
        """Layers (0), phases, labels, links, modules (4), evaluations of contexts."""
        values = [context[place] for context in self._names["context"]]
        return np.array(values) if values else np.zeros(0, np.int64)

    def _directions(self, columns: dict[str, Int64]) -> tuple[Int64, Int64]:
        phases = self._context(1).tolist()
        training = self.about["threads"]
        trains = np.array([t in training for t in self._names["thread"]], bool)
        direction, link = directions(
            exchange=columns["operation"] == EXCHANGE,
            in_backward=columns["in_backward"] == 1,
            grad=columns["grad"] == 1,
            link=columns["link"],
            node=columns["node"],
            nodes=self._names["node"],
            phase=columns["context"],
            phases=phases,
            trains=trains[columns["thread"]],
        )
        routed = columns["operation"] == ROUTED_CODE
        again = np.where(columns["in_backward"] == 1, RECOMPUTE, FORWARD)
        return np.where(routed, again, direction), np.where(routed, -1, link)

    def _gaps(self, order: Int64, recorded: Bool) -> tuple[int, ...]:
        """Return the calls before which others of the same iteration were lost."""
        ends = [s.order for s in self._marks if s.kind in (log.STEP, log.SKIP)]
        gaps = set()
        for mark in self._marks:
            if mark.kind == log.LOST:
                after = int(np.searchsorted(order, mark.order))
                until = order[after] if after < len(order) else mark.order
                if not any(mark.order < end < until for end in ends):
                    gaps.add(int(recorded[:after].sum()))
        return tuple(sorted(gaps))

    def _iteration_marks(self, order: Int64) -> list[Mark]:
        """Return the records that may end an iteration."""
        marks = []
        for step in self._marks:
            calls = int(np.searchsorted(order, step.order))
            if step.kind == log.STEP:
                number, end, *_ = step.fields
                marks.append(Mark(log.STEP, calls, end, number))
            elif step.kind == log.SKIP:
                number, end, explicit, steps, *_ = step.fields
                number = steps if explicit else number
                marks.append(
                    Mark(log.SKIP, calls, end, number, explicit=bool(explicit))
                )
            elif step.kind == log.OPTIMIZER:
                number, end, in_backward, skipped = step.fields
                skipped = self._unscaled.get(number, skipped) == 1
                mark = Mark(
                    log.OPTIMIZER, calls, end, number, bool(in_backward), skipped
                )
                marks.append(mark)
        return marks

    def _sites(
        self, columns: dict[str, Int64], direction: Int64
    ) -> tuple[list[Site], Int64]:
        """Number the call sites in the order of first calls; ``[n]`` site of each."""
        routed = columns["operation"] == ROUTED_CODE
        exchange = columns["operation"] == EXCHANGE
        keys = np.stack(
            [
                *(columns[n] for n in ("operation", "group", "context", "dtype")),
                *(direction, np.where(exchange, columns["row"], 0)),
                *(columns["source"], columns["destination"]),
                *(np.where(routed, columns[n], -1) for n in ("layer", "experts")),
            ]
        )
        distinct, first, number = np.unique(
            keys, axis=1, return_index=True, return_inverse=True
        )
        sites = SiteNumbers()
        numbers = np.zeros(len(first), np.int64)
        for place in np.argsort(first).tolist():
            key = distinct[:, place].tolist()
            code, group, context, dtype, way, row, source, destination = key[:8]
            layer, phase, label, linked, *_ = self._names["context"][context]
            if code == ROUTED_CODE:
                layer, phase = key[8], ""
            stated = Source.LINKED if linked else Source.ANNOTATED
            numbers[place] = sites.add(
                Site(
                    group=group,
                    operation=ROUTING if code == ROUTED_CODE else OPERATIONS[code],
                    phase=phase,
                    layer=layer,
                    direction=DIRECTION_NAMES[way],
                    dtype="" if dtype < 0 else self._names["dtype"][dtype],
                    row_bytes=row,
                    label=label,
                    peers=(source, destination),
                    experts=max(0, key[9]),
                    # who names a call without a layer says that it has none
                    source=stated if layer != -1 or phase or label else Source.UNKNOWN,
                )
            )
        return sites.sites, numbers[number.reshape(-1)]

    def _begin(self, issue: Int64, settles: Bool, marks: Sequence[Mark]) -> int:
        """Return the time at which the first held iteration began.

        Set-up, such as DDP's broadcast of parameters, is no part of a step: it begins
        with the first call of a pass or, without one, with its first call.
        """
        if self._first:
            return self._begun
        before = marks[0].calls if marks else len(issue)
        of_pass = np.flatnonzero(settles[:before])
        if len(of_pass):
            return int(issue[of_pass[0]])
        return int(issue[0]) if before else self._begun

    def _steps(self, ended: Sequence[Ended], begin: int) -> Table:
        """Build the table of the recorded steps."""
        explicit = {m.fields[0]: m.fields for m in self._marks if m.kind == log.STEP}
        rows = []
        for stop in ended:
            loss, tokens = float("nan"), -1
            source, kind = Source.LINKED, "skipped" if stop.skipped else "train"
            if stop.step >= 0:
                number, _, tokens, stated, bits = explicit[stop.step]
                bits = self._losses.get(number, bits)
                loss, source = float(np.int64(bits).view(np.float64)), Source.ANNOTATED
                kind = STEP_KINDS[stated] if stated >= 0 else kind
            if stop.recorded:
                rows.append((stop.number, loss, tokens, begin, stop.end, source, kind))
            begin = stop.end
        return np.array(rows, STEP)

    def _lost_steps(self) -> int:
        """Return the number of steps that the rank ended, but the log lacks."""
        steps = optimizer_steps = 0
        for mark in self._marks:
            if mark.kind == log.STEP:
                steps = mark.fields[0] + 1
            elif mark.kind == log.OPTIMIZER:
                optimizer_steps = mark.fields[0] + 1
            elif mark.kind == log.SKIP:
                steps, optimizer_steps = mark.fields[3:5]
        if self.state.steps:
            return self.state.steps - steps
        return self.state.optimizer_steps - optimizer_steps


def read_rank(folder: Path, rank: int) -> RankRecord:
    """Read the whole log of a rank.

    Raises
    ------
    CaptureError
        If it is no log of this version of moetraffic, or its beginning is missing.
    """
    reader = RankLog(folder, rank)
    if not log.state_file(folder, rank).exists():
        raise CaptureError(f"{log.state_file(folder, rank)} is missing: restore it")
    reader.read()
    if not reader.about:
        raise CaptureError(
            reader.damage or f"{log.log_file(folder, rank, 0)} has no beginning"
        )
    return reader.record()


def even(rows: int, width: int) -> bytes:
    """Return equal splits of an all-to-all without explicit ones, as int64 words."""
    return np.full(width, rows // width, "<i8").tobytes()


def sequences(columns: Mapping[str, Int64], steps: Sequence[StepRecord]) -> Int64:
    """Number each collective among those of its group; -1 for other calls, ``[n]``.

    Collectives of iterations that were not recorded count, too.
    """
    number = np.full(len(columns["group"]), -1)
    collective = columns["operation"] != ROUTED_CODE
    collective &= (columns["source"] < 0) & (columns["destination"] < 0)
    left_out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in steps:
        if step.kind == log.SKIP:
            for group, count in zip(step.fields[5::2], step.fields[6::2], strict=True):
                left_out[group].append((step.order, count))
    for group in np.unique(columns["group"][collective]).tolist():
        members = np.flatnonzero(collective & (columns["group"] == group))
        number[members] = np.arange(len(members))
        if skipped := left_out.get(group):
            order, count = np.array(skipped).T
            before = np.searchsorted(order, columns["order"][members])
            number[members] += np.append(0, np.cumsum(count))[before]
    return number


def routing_panels(
    counts: Sequence[RoutedCounts],
) -> tuple[dict[int, npt.NDArray[Any]], dict[int, ExpertIds], list[int]]:
    """Store the counts of routings by number of experts.

    Returns the panels of demand and of expert ids, see :class:`RankRecord`, and the row
    of each routing in them.
    """
    rows: dict[int, list[RoutedCounts]] = defaultdict(list)
    place = []
    for routing in counts:
        own = rows[len(routing.demand)]
        place.append(len(own))
        own.append(routing)
    demand, chosen = {}, {}
    for experts, own in rows.items():
        demand[experts] = narrow(np.array([[c.demand, c.dropped] for c in own]))
        tokens, k = (max(c.chosen.shape[axis] for c in own) for axis in (0, 1))
        if tokens:
            chosen[experts] = np.stack([padded(c.chosen, tokens, k) for c in own])
    return demand, chosen, place


def completions(number: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """Return start and end of the calls with these numbers, ``[n]`` each."""
    times = np.full((2, len(number)), UNKNOWN_TIME)
    if len(ends):
        ends = ends[np.argsort(ends[:, 0], kind="stable")]
        place = np.searchsorted(ends[:, 0], number, side="right") - 1
        known = (place >= 0) & (ends[place, 0] == number)
        times[:, known] = ends[place[known], 1:].T
    return times[0], times[1]
