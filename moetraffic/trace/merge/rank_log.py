"""Read the log of one rank, whole or as it grows, into a record of its calls.

1. Decode new frames: heads of calls as columns, and each distinct pair of splits once
   (:meth:`RankLog.read`).
2. Classify directions and iterations over all calls at once, number call sites, and
   build the tables (:meth:`RankLog.record`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import CaptureError
from moetraffic.trace.choices import ExpertIds
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    PLACEMENT,
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
        known = self._rows.get((row_bytes, sent, received))
        if known is not None:
            return known, 0
        known = self._rows.get((row_bytes, received, sent))
        if known is not None:
            return known, 1
        number = self._rows[row_bytes, sent, received] = len(self._rows)
        return number, 0

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


@dataclass
class RoutedCounts:
    """Token copies ``[E]`` of a routing, of these dropped (None: unknown), sample."""

    demand: npt.NDArray[Any]
    dropped: npt.NDArray[Any] | None
    chosen: ExpertIds  # [S, k]


def routed_counts(
    values: Int64, experts: int, has_dropped: int, tokens: int, k: int
) -> RoutedCounts:
    """Split the values of a routing: copies, dropped copies, ids of a sample."""
    ids = values[(1 + has_dropped) * experts :][: tokens * k]
    return RoutedCounts(
        # copies, which do not keep all words in memory
        demand=narrow(values[:experts]),
        dropped=narrow(values[experts : 2 * experts]) if has_dropped else None,
        chosen=ids.reshape(tokens, k).astype(np.int16),
    )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A record of kind STEP, OPTIMIZER, SKIP or LOST."""

    order: int  # among all records of the log
    kind: int
    fields: tuple[int, ...]


@dataclass
class Decoded:
    """Columns of the records that were read, in the order of the log."""

    calls: Int64 = field(default_factory=lambda: np.zeros((0, CALL_HEAD + 3), np.int64))
    """``[n, 24]`` words of CALL_FIELDS, row of the splits (-2: invalid), 1 if swapped,
    and order among all records."""
    routed: Int64 = field(
        default_factory=lambda: np.zeros((0, ROUTED_HEAD + 1), np.int64)
    )
    """``[m, 11]`` words of ROUTED_FIELDS, and order."""
    ends: Int64 = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """``[e, 3]`` number of the call, start, end."""
    raised: list[int] = field(default_factory=list)
    counts: dict[int, RoutedCounts] = field(default_factory=dict)  # by routing
    steps: list[StepRecord] = field(default_factory=list)
    losses: dict[int, int] = field(default_factory=dict)  # by step, bits
    unscaled: dict[int, int] = field(default_factory=dict)  # by optimizer step


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
        self._parts: list[Decoded] = [Decoded()]
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
                    self._parts.append(self._decode(frame.words))
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

    def _decode(self, words: Int64) -> Decoded:
        starts = log.starts_of(words)
        kinds = words[starts]
        order = self._records + np.arange(len(starts))
        self._records += len(starts)
        decoded = Decoded()
        calls = np.flatnonzero(kinds == log.CALL)
        heads = words[starts[calls, None] + np.arange(CALL_HEAD)]
        splits = self._put_splits(words, starts[calls], heads)
        decoded.calls = np.column_stack([heads, splits, order[calls]])
        ends = np.flatnonzero(kinds == log.END)
        decoded.ends = words[starts[ends, None] + np.arange(2, 5)]
        routed = np.flatnonzero(kinds == log.ROUTED)
        heads = words[starts[routed, None] + np.arange(ROUTED_HEAD)]
        decoded.routed = np.column_stack([heads, order[routed]])
        rest = ~np.isin(kinds, (log.CALL, log.END, log.ROUTED))
        for place in np.flatnonzero(rest).tolist():
            start, kind = int(starts[place]), int(kinds[place])
            fields = words[start + 2 : start + words[start + 1]]
            if kind == log.RAISED:
                decoded.raised.append(int(fields[0]))
            elif kind == log.LOSS:
                decoded.losses[int(fields[0])] = int(fields[1])
            elif kind == log.UNSCALED:
                decoded.unscaled[int(fields[0])] = int(fields[1])
            elif kind == log.COUNTS:
                number, experts, *form = fields[:5].tolist()
                decoded.counts[number] = routed_counts(fields[5:], experts, *form)
            elif kind in (log.STEP, log.OPTIMIZER, log.SKIP, log.LOST):
                step = StepRecord(int(order[place]), kind, tuple(fields.tolist()))
                decoded.steps.append(step)
        return decoded

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
        decoded = self._join()
        columns, counts = self._columns(decoded)
        order, operation = columns["order"], columns["operation"]
        direction, link = self._directions(columns)
        marks = self._marks(decoded, order)
        settles = ~np.isin(direction, (FORWARD, UNKNOWN)) | (operation == EXCHANGE)
        settles |= operation == ROUTED_CODE
        if self._partial and marks:
            # one optimizer is taken to step in each iteration
            self._first = marks[0].number
        ended = list(
            ended_iterations(
                marks,
                settles,
                columns["in_backward"] == 1,
                marked=is_marked(marks),
                first=self._first,
                whole=whole,
            )
        )
        if self._partial and ended:
            ended[0] = ended[0]._replace(recorded=False)
        iteration, recorded = self._iterations(ended, len(order), known=bool(marks))
        sites, site = self._sites(columns, direction)

        table = np.zeros(len(order), CALL)
        for name in ("issue", "thread", "grad", "payload", "transposed"):
            table[name] = columns[name]
        table["iteration"], table["site"], table["link"] = iteration, site, link
        table["sequence"] = sequences(columns, decoded.steps)
        for place, name in ((4, "module_call"), (5, "evaluates")):
            table[name] = self._context(place)[columns["context"]]
        table["start"], table["end"] = completions(columns["number"], decoded.ends)
        demand, chosen = self._fill_routings(table, operation == ROUTED_CODE, counts)

        begins = self._begin(columns["issue"], settles, marks)
        self._starts = {
            stop.number + 1: int(order[stop.calls]) if stop.calls < len(order) else -1
            for stop in ended
        }
        gaps = self._gaps(decoded, order, recorded)
        after = max((stop.number + 1 for stop in ended if stop.recorded), default=0)
        groups = tuple(
            Group(kind=g["kind"], ranks=tuple(g["ranks"])) for g in self._names["group"]
        )
        meta = Meta(**{**self.about["meta"], "nodes": ()})
        facts = self._facts
        return RankRecord(
            rank=self.rank,
            meta=replace(meta, router=facts.get("router") or meta.router),
            node=str(self.about["node"]),
            groups=groups,
            group_names=tuple(g.get("name", "") for g in self._names["group"]),
            sites=tuple(sites),
            calls=table[recorded],
            steps=self._steps(decoded, ended, begins),
            splits={
                width: rows.in_bytes(width) for width, rows in self._splits.items()
            },
            demand=demand,
            chosen=chosen,
            modules=tuple(
                CallingModule(**m | {"order": tuple(m["order"])})
                for m in self._names["module"]
            ),
            placements=placements(sites, groups, self.about["placement"]),
            clocks=np.array(self._clocks, CLOCK),
            gaps=gaps,
            closed=bool(self.state.closed),
            ended=str(facts.get("ended", "")),
            lost_steps=self._lost_steps(decoded),
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
        held = self._join()
        ended = [s for s in held.steps if s.order < order and s.kind != log.LOST]
        held.calls = held.calls[held.calls[:, -1] >= order]
        held.routed = held.routed[held.routed[:, -1] >= order]
        held.ends = held.ends[np.isin(held.ends[:, 0], held.calls[:, 2])]
        numbers = set(held.routed[:, 2].tolist())
        held.counts = {n: c for n, c in held.counts.items() if n in numbers}
        held.steps = [s for s in held.steps if s.order >= order]
        self._forget_splits(held.calls)
        self._begun = ended[-1].fields[1] if ended else self._begun
        self._first, self._partial = iteration, False

    # ---- inside ------------------------------------------------------------------

    def _forget_splits(self, calls: Int64) -> None:
        """Drop the splits that no call has any more."""
        widths = np.array([len(group["ranks"]) for group in self._names["group"]])
        for width, table in self._splits.items():
            used = (widths[calls[:, 5]] == width) & (calls[:, -3] >= 0)
            rows, calls[used, -3] = np.unique(calls[used, -3], return_inverse=True)
            table.keep(rows)

    def _join(self) -> Decoded:
        """Join the decoded parts to one."""
        parts = self._parts
        if len(parts) > 1:
            joined = Decoded(
                calls=np.concatenate([part.calls for part in parts]),
                routed=np.concatenate([part.routed for part in parts]),
                ends=np.concatenate([part.ends for part in parts]),
            )
            for part in parts:
                joined.raised += part.raised
                joined.steps += part.steps
                joined.counts |= part.counts
                joined.losses |= part.losses
                joined.unscaled |= part.unscaled
            self._parts = [joined]
        return self._parts[0]

    def _columns(self, decoded: Decoded) -> tuple[dict[str, Int64], list[RoutedCounts]]:
        """Arrange calls and routings in one table by column, and the routings' counts.

        Calls that raised, and routings whose counts were not read, are left out.
        """
        calls, routed = decoded.calls, decoded.routed
        calls = calls[(calls[:, -3] != -2) & ~np.isin(calls[:, 2], decoded.raised)]
        known = [number in decoded.counts for number in routed[:, 2].tolist()]
        routed = routed[np.array(known, bool)]
        names = (*log.CALL_FIELDS, "splits", "transposed", "order")
        columns = dict(zip(names, calls.T, strict=True))
        columns["payload"] = np.where(
            columns["operation"] == EXCHANGE, columns["splits"], columns["bytes"]
        )
        of_routing = dict(zip([*log.ROUTED_FIELDS, "order"], routed.T, strict=True))
        of_routing["operation"] = np.full(len(routed), ROUTED_CODE)
        counts = [decoded.counts[number] for number in routed[:, 2].tolist()]
        of_routing["experts"] = np.array([len(c.demand) for c in counts], np.int64)
        # their numbers are not those of calls
        of_routing["number"] = np.full(len(routed), -1)
        order = np.argsort(np.concatenate([columns["order"], of_routing["order"]]))
        both = {}
        for name in columns.keys() | of_routing.keys():
            parts = (columns, len(calls)), (of_routing, len(routed))
            values = [part.get(name, np.full(size, -1)) for part, size in parts]
            both[name] = np.concatenate(values)[order]
        for name in ("transposed", "row", "experts"):
            both[name] = np.maximum(both[name], 0)
        return both, counts

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

    @staticmethod
    def _gaps(decoded: Decoded, order: Int64, recorded: Bool) -> tuple[int, ...]:
        """Return the calls before which others of the same iteration were lost."""
        ends = [s.order for s in decoded.steps if s.kind in (log.STEP, log.SKIP)]
        gaps = set()
        for step in decoded.steps:
            if step.kind == log.LOST:
                after = int(np.searchsorted(order, step.order))
                until = order[after] if after < len(order) else step.order
                if not any(step.order < end < until for end in ends):
                    gaps.add(int(recorded[:after].sum()))
        return tuple(sorted(gaps))

    def _marks(self, decoded: Decoded, order: Int64) -> list[Mark]:
        """Return the records that may end an iteration."""
        marks = []
        steps = [step for step in decoded.steps if step.kind != log.LOST]
        before = np.searchsorted(order, [step.order for step in steps]).tolist()
        for step, calls in zip(steps, before, strict=True):
            number, end, *rest = step.fields
            if step.kind == log.STEP:
                mark = Mark(step.kind, calls, end, number)
            elif step.kind == log.SKIP:
                explicit, steps_until = bool(rest[0]), rest[1]
                number = steps_until if explicit else number
                mark = Mark(step.kind, calls, end, number, explicit=explicit)
            else:
                in_backward, skipped = rest
                skipped = decoded.unscaled.get(number, skipped) == 1
                mark = Mark(step.kind, calls, end, number, bool(in_backward), skipped)
            marks.append(mark)
        return marks

    def _iterations(
        self, ended: Sequence[Ended], count: int, *, known: bool
    ) -> tuple[Int64, Bool]:
        """Return iteration of each call, -1 if no step is known; and if recorded."""
        iteration = np.full(count, self._first if known else -1)
        recorded = np.full(count, not (self._partial and known))
        first = 0
        for stop in ended:
            iteration[first : stop.calls] = stop.number
            recorded[first : stop.calls] = stop.recorded
            iteration[stop.calls :] = stop.number + 1
            recorded[stop.calls :] = True
            first = stop.calls
        return iteration, recorded

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

    def _fill_routings(
        self, table: Table, routed: Bool, counts: Sequence[RoutedCounts]
    ) -> tuple[dict[int, npt.NDArray[Any]], dict[int, ExpertIds]]:
        """Store the counts of routings by number of experts; set their rows."""
        rows: dict[int, list[RoutedCounts]] = defaultdict(list)
        payload = []
        for routing in counts:
            held = rows[len(routing.demand)]
            payload.append(len(held))
            held.append(routing)
        table["payload"][routed] = payload
        demand, chosen = {}, {}
        for experts, held in rows.items():
            panel = np.full((len(held), 2, experts), -1, np.int32)
            for row, routing in zip(panel, held, strict=True):
                row[0] = routing.demand
                if routing.dropped is not None:
                    row[1] = routing.dropped
            demand[experts] = narrow(panel)
            tokens, k = (max(r.chosen.shape[axis] for r in held) for axis in (0, 1))
            if tokens:
                ids = np.full((len(held), tokens, k), -1, np.int16)
                for sample, routing in zip(ids, held, strict=True):
                    sampled, own_k = routing.chosen.shape
                    sample[:sampled, :own_k] = routing.chosen
                chosen[experts] = ids
        return demand, chosen

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

    def _steps(self, decoded: Decoded, ended: Sequence[Ended], begin: int) -> Table:
        """Build the table of the recorded steps."""
        explicit = {
            step.fields[0]: step.fields
            for step in decoded.steps
            if step.kind == log.STEP
        }
        rows = []
        for stop in ended:
            loss, tokens = float("nan"), -1
            source, kind = Source.LINKED, "skipped" if stop.skipped else "train"
            if stop.step >= 0:
                number, _, tokens, stated, bits = explicit[stop.step]
                bits = decoded.losses.get(number, bits)
                loss, source = float(np.int64(bits).view(np.float64)), Source.ANNOTATED
                kind = STEP_KINDS[stated] if stated >= 0 else kind
            if stop.recorded:
                rows.append((stop.number, loss, tokens, begin, stop.end, source, kind))
            begin = stop.end
        return np.array(rows, STEP)

    def _lost_steps(self, decoded: Decoded) -> int:
        """Return the number of steps that the rank ended, but the log lacks."""
        steps = optimizer_steps = 0
        for step in decoded.steps:
            if step.kind == log.STEP:
                steps = step.fields[0] + 1
            elif step.kind == log.OPTIMIZER:
                optimizer_steps = step.fields[0] + 1
            elif step.kind == log.SKIP:
                steps, optimizer_steps = step.fields[3:5]
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


def completions(number: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """Return start and end of the calls with these numbers, ``[n]`` each."""
    times = np.full((2, len(number)), UNKNOWN_TIME)
    if len(ends):
        ends = ends[np.argsort(ends[:, 0], kind="stable")]
        place = np.searchsorted(ends[:, 0], number, side="right") - 1
        known = (place >= 0) & (ends[place, 0] == number)
        times[:, known] = ends[place[known], 1:].T
    return times[0], times[1]


def placements(
    sites: Sequence[Site],
    groups: Sequence[Group],
    configured: Mapping[str, Sequence[int]],
) -> Table:
    """Build the expert placement of each routed layer, as configured or contiguous.

    ``configured`` has the group rank of each expert by layer.  Layers may be configured
    by numbers that only annotations have, see
    :mod:`moetraffic.trace.inference.router_layers`.  The result is ``[n]`` PLACEMENT.
    """
    given = {int(layer): list(members) for layer, members in configured.items()}
    routed = {
        (site.group, layer, site.experts)
        for site in sites
        if site.operation == ROUTING
        for layer in (site.layer, *given)
    }
    rows = []
    for group, layer, experts in sorted(routed):
        ranks = groups[group].ranks
        if layer in given:
            holders = given[layer]
            if len(holders) != experts or max(holders) >= len(ranks):
                continue  # invalid for this layer, hence unknown
        elif experts % len(ranks) == 0:
            holders = [expert * len(ranks) // experts for expert in range(experts)]
        else:
            continue  # unknown: no matrix can be computed from the demand
        for expert, member in enumerate(holders):
            rows.append((group, layer, expert, 0, ranks[member], 0))
    return np.array(rows, PLACEMENT)
