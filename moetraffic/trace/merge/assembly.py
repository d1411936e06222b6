"""Assemble the recorded events of all ranks into occurrences of calls.

Events of two ranks belong to one occurrence if their site, call index and iteration are
equal.  The sequence number of the collective on its group, which each rank counts
separately, must then be equal as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import CaptureError
from moetraffic.trace.choices import ExpertIds, expert_ids, resized, unpack
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Group, Occurrences, Site
from moetraffic.trace.order import merged
from moetraffic.trace.segments.record import Record, Table
from moetraffic.trace.segments.segment import Segment


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of all ranks, sorted by occurrence and member rank."""

    table: Table  # [n] RANK_EVENT
    groups: Sequence[Group]
    sites: tuple[Site, ...]
    occurrences: Occurrences
    segments: Sequence[Segment]

    @cached_property
    def width(self) -> Int64:
        """Ranks W of the group of each call site."""
        return np.array([len(self.groups[s.group].ranks) for s in self.sites], np.int64)

    def payload(self, number: int) -> Int64:
        """Arrange the payload of a call site's events by occurrence and member.

        It is ``[n, W, 2, W]`` int64 bytes sent to and received from each member; for a
        routing ``[n, W, 2, E]`` token copies routed and dropped; for other collectives
        ``[n, W]`` buffer bytes.  Values that were not recorded are 0; the presence
        panel marks them as absent.
        """
        site, width = self.sites[number], int(self.width[number])
        first, last = np.searchsorted(self.table["site"], [number, number + 1])
        mine = self.table[first:last]
        values = mine["payload"]
        panel, length = {
            ROUTING: ("demand", site.experts),
            ALL_TO_ALL: ("splits", width),
        }.get(site.operation, ("", 0))
        if panel:
            values = np.zeros((len(mine), 2, length), np.int64)
            for segment in np.unique(mine["segment"]):
                here = mine["segment"] == segment
                rows = getattr(self.segments[segment], panel)[length]
                values[here] = rows[mine["payload"][here]]
            swapped = mine["transposed"] == 1
            values[swapped] = values[swapped][:, ::-1]
        first, last = np.searchsorted(self.occurrences.site, [number, number + 1])
        out = np.zeros((last - first, width, *values.shape[1:]), np.int64)
        out[mine["occurrence"] - first, mine["member"]] = values
        return out

    def chosen(self, number: int) -> ExpertIds | None:
        """Arrange the sampled tokens of a routing site by occurrence and member.

        They are ``[n, W, S, k]`` ids of their experts, -1 for none; None where no rank
        recorded any.
        """
        experts = self.sites[number].experts
        first, last = np.searchsorted(self.table["site"], [number, number + 1])
        mine = self.table[first:last]
        rows = {
            int(segment): self.segments[segment].choices.get(experts)
            for segment in np.unique(mine["segment"])
        }
        there = [bits for bits in rows.values() if bits is not None]
        if not there:
            return None
        tokens = max(bits.shape[1] for bits in there)
        first, last = np.searchsorted(self.occurrences.site, [number, number + 1])
        shape = (last - first, int(self.width[number]), tokens, there[0].shape[2])
        out = np.zeros(shape, np.uint8)
        for segment, bits in rows.items():
            if bits is not None:
                here = mine[mine["segment"] == segment]
                at = here["occurrence"] - first, here["member"]
                out[at] = resized(bits[here["payload"]], tokens)
        return expert_ids(unpack(out, experts)) if out.any() else None


def assemble_events(record: Record) -> Events:
    """Sort the events of all ranks into occurrences of calls."""
    _validate_one_capture(record)
    table = record.events[_whole_iterations(record)]
    slots = _linked_index(table, record.sites, _call_index(table, record.sites))
    pairs, first, site = np.unique(
        table["site"].astype(np.int64) * (int(slots.max(initial=0)) + 1) + slots,
        return_index=True,
        return_inverse=True,
    )
    order = _program_order(record, table, site, np.argsort(first))
    number = np.empty(len(pairs), np.int64)
    number[order] = np.arange(len(pairs))
    sites = [
        replace(record.sites[table["site"][at]], slot=int(slots[at]))
        for at in first[order]
    ]
    table["site"] = number[site]
    table = table[np.lexsort((table["member"], table["iteration"], table["site"]))]
    pairs = table[["site", "iteration"]]
    new = np.append(True, pairs[1:] != pairs[:-1])[: len(table)]
    table["occurrence"] = np.cumsum(new) - 1
    return Events(
        table=table,
        groups=record.groups,
        sites=tuple(sites),
        occurrences=Occurrences(
            iteration=table["iteration"][new],
            site=table["site"][new],
            sequence=table["sequence"][new],
            matrix=np.full(int(new.sum()), -1),
            transposed=np.zeros(int(new.sum()), bool),
        ),
        segments=record.segments,
    )


def _program_order(record: Record, table: Table, site: Int64, first: Int64) -> Int64:
    """Order sites as all ranks call them in their last step of every kind, ``[S]``.

    ``site`` is the site of each event, ``first`` all sites by their first event.
    """
    columns = (record.steps[name].tolist() for name in ("iteration", "kind"))
    kind_of = dict(zip(*columns, strict=True))
    sequences: list[Int64] = []
    for rank in np.unique(table["rank"]).tolist():
        mine = np.flatnonzero(table["rank"] == rank)
        iterations = np.unique(table["iteration"][mine]).tolist()
        last = {kind_of.get(number, ""): number for number in iterations}
        for number in last.values():
            here = mine[table["iteration"][mine] == number]
            calls = site[here[np.argsort(table["issue"][here], kind="stable")]]
            sequences.append(calls[np.sort(np.unique(calls, return_index=True)[1])])
    order = merged(sequences)
    return np.concatenate([order, first[~np.isin(first, order)]])


def _validate_one_capture(record: Record) -> None:
    steps = record.steps[["rank", "iteration"]]
    ended, count = np.unique(steps, return_counts=True)
    if (count > 1).any():
        rank, iteration = ended[count > 1][0].tolist()
        raise CaptureError(
            f"a rank ends an iteration once, but rank {rank} ended iteration "
            f"{iteration} twice: the folder holds segments of two captures, merge "
            "each separately"
        )


def _whole_iterations(record: Record) -> Bool:
    """Mask out the events of iterations whose first calls were lost.

    Call indices within such an iteration cannot be determined.
    """
    keep = np.ones(len(record.events), bool)
    edges = np.searchsorted(
        record.events["segment"], np.arange(len(record.segments) + 1)
    )
    for number in (np.flatnonzero(record.continued[1:]) + 1).tolist():
        before, segment = record.segments[number - 1], record.segments[number]
        if (before.rank, before.index + 1) == (segment.rank, segment.index):
            continue
        here = slice(edges[number], edges[number + 1])
        when = record.events["iteration"][here]
        keep[here] = ~np.isin(when, when[:1])
    return keep


def _call_index(table: Table, sites: Sequence[Site]) -> Int64:
    """Number each event among the calls of its site in its iteration, ``[n]``.

    Calls whose rows differ in size are counted together: a micro-batch may be smaller.
    """
    plain: dict[Site, int] = {}
    place_of = np.array(
        [
            plain.setdefault(replace(s, dtype="", row_bytes=0, experts=0), len(plain))
            for s in sites
        ],
        np.int64,
    )
    keys = (place_of[table["site"]], table["iteration"], table["rank"])
    order = np.lexsort(keys)  # stable: the order of the calls is kept
    change = np.any([k[order][1:] != k[order][:-1] for k in keys], axis=0)
    begins = np.append(True, change)[: len(table)]
    starts = np.flatnonzero(begins)
    slots = np.empty(len(table), np.int64)
    slots[order] = np.arange(len(table)) - starts[np.cumsum(begins) - 1]
    return slots


def _linked_index(table: Table, sites: Sequence[Site], index: Int64) -> Int64:
    """Number gradients as the forward calls that they are linked with, ``[n]``.

    Gradients of several micro-batches may come in another order than their forward
    calls.  Where a link is missing, or ranks disagree, the order of the calls is kept.
    """
    forward = {"dispatch": 0, "combine": 1}
    backward = {"dispatch_grad": 0, "combine_grad": 1}
    kind = np.array([forward.get(s.phase, -1) for s in sites], int)[table["site"]]
    grad = np.array([backward.get(s.phase, -1) for s in sites], int)[table["site"]]
    plain = np.array([s.direction == "forward" for s in sites], bool)[table["site"]]
    mine = np.flatnonzero((grad >= 0) | ((kind >= 0) & plain & (table["link"] >= 0)))
    of, event = np.maximum(kind, grad)[mine], table[mine]
    layer = np.array([s.layer for s in sites], int)[event["site"]]
    keys = (event["link"], layer, of, event["iteration"], event["rank"])
    order = np.lexsort((grad[mine] >= 0, *keys))
    # a forward call and its gradient follow each other; calls of one autograd function
    # share a link, and are ambiguous
    same = np.all([k[order][1:] == k[order][:-1] for k in keys], axis=0)
    alone = same & ~np.append(False, same[:-1]) & ~np.append(same[1:], False)
    first, second = mine[order[:-1][alone]], mine[order[1:][alone]]
    pair = (grad[first] < 0) & (grad[second] >= 0)
    linked = np.full(len(table), -1, np.int64)
    linked[second[pair]] = index[first[pair]]
    gradients = mine[grad[mine] >= 0]
    if (linked[gradients] == index[gradients])[linked[gradients] >= 0].all():
        return index
    # of one phase, layer and iteration, all gradients of all ranks or none are numbered
    found = index.copy()
    event = table[gradients]
    layer = np.array([s.layer for s in sites])[event["site"]]
    group = np.array([s.group for s in sites])[event["site"]]
    columns = [grad[gradients], layer, group, event["iteration"]]
    _, unit = np.unique(np.stack(columns), axis=1, return_inverse=True)
    unit = unit.reshape(-1)
    old, new = index[gradients], linked[gradients]
    both = np.unique(np.stack([unit, old, new]), axis=1)
    moves = [np.unique(both[[0, at]], axis=1)[0] for at in (1, 2)]
    count = [np.bincount(of, minlength=unit.max() + 1) for of in (both[0], *moves)]
    kept = (count[0] == count[1]) & (count[0] == count[2])
    kept[unit[new < 0]] = False
    found[gradients] = np.where(kept[unit], new, old)
    return found


def out_of_step(events: Events) -> list[str]:
    """Report events whose collective sequence number differs between members.

    Sends and receives are not counted and have sequence -1.
    """
    table = events.table
    counted = table["sequence"] >= 0
    expected = events.occurrences.sequence[table["occurrence"]]
    wrong = np.flatnonzero(counted & (expected != table["sequence"]))
    if not len(wrong):
        return []
    first = table[wrong[0]]
    return [
        f"iteration {first['iteration']}: rank {first['rank']} counts it as collective "
        f"{first['sequence']} of its group, another member as "
        f"{expected[wrong[0]]} ({len(wrong)} such events)"
    ]
