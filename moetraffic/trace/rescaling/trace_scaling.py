"""A trace on other ranks, with other bytes: what the replay's scale does to matrices.

In this order: gaps are completed where that is asked for, ranks are shared by several,
ranks meet on one (blocks are summed), the diagonal is left out where that is asked for,
bytes are multiplied.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.model import TRANSPOSED_PHASES
from moetraffic.trace.trace import Trace

from . import missing_rows, sharing
from .byte_factor import times
from .ledger import Ledger
from .rank_map import RankMap

SUMMED = frozenset({"all_gather", "gather", "send_recv"})
"""Kinds whose members' bytes add up where they meet, and are shared where they part:
each has a part of its own.  Of others each has the same buffer, which stays."""


class TraceScale:
    """How the operations of one trace become those of its replay.

    ``ranks`` says which ranks carry which, and ``self_traffic`` whether a rank sends
    itself what falls on the diagonal; ``factor`` multiplies every byte count.
    ``missing`` is one of ``missing_rows.RULES``, or "" to refuse gaps.  ``dispatcher``
    is that of the trace, for descriptions.
    """

    def __init__(
        self,
        trace: Trace,
        ranks: RankMap,
        *,
        self_traffic: bool = True,
        factor: Fraction = Fraction(1),
        missing: str = "",
        dispatcher: str = "",
    ) -> None:
        if len(ranks.targets) != trace.meta.world:
            raise ReplayError(
                f"a rank map is of the trace's {trace.meta.world} ranks, but "
                f"{ranks.rule} is of {len(ranks.targets)}: make it for this trace"
            )
        self.map = ranks
        self.self_traffic = self_traffic
        self.factor = factor
        self.missing = missing
        self.dispatcher = dispatcher
        self.world = ranks.world
        self.groups = tuple(_image(ranks, g.ranks) for g in trace.groups)
        self.ledger = Ledger()
        self.completes = bool(missing)
        self.in_common_order = ranks.merges or self.completes
        self.trace = trace

    def rank(self, old: int) -> int:
        """The first rank that carries a rank of the trace; -1: none."""
        return min(self.map.targets[old], default=-1)

    def origins(self, new: int) -> tuple[int, ...]:
        """The ranks of the trace that a rank of the replay carries, ascending."""
        return self.map.origins[new]

    def needs(self, group: int) -> Int64:
        """Which members' records a group's replay needs: ``[w]`` places by rank."""
        members = sorted(self.trace.groups[group].ranks)
        kept = [at for at, old in enumerate(members) if self.map.targets[old]]
        return np.array(kept, np.int64)

    def matrices(self, group: int, wire: Int64, occurrences: Int64) -> Int64:
        """Matrices ``[b, W, W]`` bytes of a group of the trace as those of the replay.

        Ranks are ascending in both; ``occurrences`` ``[b]`` says which these are.
        Returns ``[b, W', W']`` bytes.
        """
        known = wire
        if self.missing:  # a row of demand may be there without the call's record
            there = self._recorded(group, occurrences)
            wire = wire * there[:, :, None]
            known = self._completed(group, wire, there, occurrences)
        members = np.sort(np.array(self.trace.groups[group].ranks, np.int64))
        keep = self.needs(group)
        whole = known[:, keep[:, None], keep]
        parts = np.array([len(self.map.targets[r]) for r in members[keep]], np.int64)
        split = self._split(whole, parts, occurrences)
        owner = np.array(
            [new for r in members[keep] for new in self.map.targets[r]], np.int64
        )
        moved = _joined(_joined(split, owner, axis=1), owner, axis=2)
        kept = moved
        if not self.self_traffic:
            kept = moved * ~np.eye(moved.shape[1], dtype=bool)
        sent = times(kept, self.factor)
        self.ledger.matrices += len(wire)
        self.ledger.captured += int(wire.sum())
        self.ledger.captured_inside += _diagonal(wire)
        self.ledger.completed += int(known.sum()) - int(wire.sum())
        self.ledger.lost += int(known.sum()) - int(kept.sum())
        self.ledger.sent += int(sent.sum())
        self.ledger.inside += _diagonal(sent)
        return sent

    def volumes(
        self, group: int, kind: str, nbytes: Int64, occurrences: Int64
    ) -> Int64:
        """Bytes ``[b, W]`` of each member's input as those of the replay, ``[b, W']``.

        Parts of a whole (:data:`SUMMED`) add up; a buffer that all have stays.  Ranks
        are ascending in both.
        """
        members = sorted(self.trace.groups[group].ranks)
        keep = self.needs(group)
        whole = nbytes[:, keep]
        if self.missing and kind != "send_recv":
            there = self._recorded(group, occurrences)[:, keep]
            most = np.where(there, whole, 0).max(axis=1, initial=0)
            whole = np.where(there, whole, most[:, None])
        kept = [members[at] for at in keep.tolist()]
        parts = np.array([len(self.map.targets[r]) for r in kept], np.int64)
        owner = np.array([new for r in kept for new in self.map.targets[r]], np.int64)
        if kind == "send_recv":  # the message is not cut: the first rank sends it
            first = np.cumsum(parts) - parts
            split = np.zeros((len(whole), len(owner)), np.int64)
            split[:, first] = whole
        elif kind in SUMMED:
            split = sharing.share(whole[:, None, :], parts)[:, 0]
        else:
            split = np.repeat(whole, parts, axis=1)
        join = np.add if kind in SUMMED else np.maximum
        return times(_joined(split, owner, axis=1, join=join), self.factor)

    def describe(self) -> tuple[str, ...]:
        """What was asked for, and what it did to what went through so far."""
        kept = "kept" if self.self_traffic else "left out"
        asked = f"scale: {self.map.rule}; rank-local bytes {kept}"
        if self.dispatcher:
            asked += f"; exchanges of the dispatcher {self.dispatcher}"
        if self.map.splits:
            asked += "; rows and columns split evenly"
        if self.missing:
            asked += f"; missing records completed by {self.missing}"
        if self.factor != 1:
            asked += f"; bytes times {self.factor}"
        return (asked, *self.ledger.lines())

    # ---- steps -----------------------------------------------------------------

    def _ascending(self, group: int) -> Int64:
        return np.argsort(self.trace.groups[group].ranks)

    def _recorded(self, group: int, occurrences: Int64) -> Bool:
        """Whose bytes are known, ``[b, W]``, ranks ascending."""
        known = missing_rows.known_rows(self.trace, occurrences)
        return known[:, self._ascending(group)]

    def _completed(
        self, group: int, wire: Int64, there: Bool, occurrences: Int64
    ) -> Int64:
        if there.all():
            return wire
        order = self._ascending(group)
        back = np.argsort(order)
        found = missing_rows.complete(
            self.trace,
            occurrences,
            wire[:, back[:, None], back],
            self.missing,
        )
        return found[:, order[:, None], order]

    def _split(self, whole: Int64, parts: Int64, occurrences: Int64) -> Int64:
        """Matrices of as many members as there are shares."""
        if (parts == 1).all() or not len(whole):
            return whole
        total = int(parts.sum())
        out = np.empty((len(whole), total, total), np.int64)
        sites = self.trace.occurrences.site[occurrences]
        for number in np.unique(sites).tolist():
            at = np.flatnonzero(sites == number)
            site = self.trace.sites[number]
            unit = site.row_bytes or 1
            if (whole[at] % unit).any():
                unit = 1
            back = site.phase in TRANSPOSED_PHASES
            cells = whole[at].transpose(0, 2, 1) if back else whole[at]
            made = sharing.split(cells // unit, parts) * unit
            out[at] = made.transpose(0, 2, 1) if back else made
        return out


def _diagonal(wire: Int64) -> int:
    return int(np.trace(wire, axis1=1, axis2=2).sum())


def _image(ranks: RankMap, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({new for old in members for new in ranks.targets[old]}))


def _joined(
    values: Int64, owner: Int64, *, axis: int, join: np.ufunc = np.add
) -> Int64:
    """Join what belongs to one rank, by default to its sum; ranks ascending."""
    order = np.argsort(owner, kind="stable")
    first = np.unique(owner[order], return_index=True)[1]
    if len(first) == len(owner) and (order == np.arange(len(owner))).all():
        return values
    out: Int64 = join.reduceat(np.take(values, order, axis), first, axis=axis)
    return out
