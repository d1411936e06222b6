"""Assemble the recorded calls of all ranks into occurrences of call sites.

Calls of two ranks belong to one occurrence if their site, call index and iteration are
equal.  The sequence number of the collective on its group, which each rank counts
separately, must then be equal as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import CaptureError
from moetraffic.trace.model import ALL_TO_ALL, Group, Occurrences, Site
from moetraffic.trace.order import merged

from .rank_record import RankRecord, Record, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembly:
    """Calls of all ranks, sorted by occurrence and member rank."""

    table: Table  # [n] MEMBER_CALL
    groups: Sequence[Group]
    sites: tuple[Site, ...]
    occurrences: Occurrences
    ranks: dict[int, RankRecord]

    @cached_property
    def width(self) -> Int64:
        """Ranks W of the group of each call site."""
        return np.array([len(self.groups[s.group].ranks) for s in self.sites], np.int64)

    @cached_property
    def edges(self) -> tuple[Int64, Int64]:
        """First call and first occurrence of each site, and the numbers of both."""
        numbers = np.arange(len(self.sites) + 1)
        every = self.occurrences.site
        calls = np.searchsorted(self.table["site"], numbers)
        return calls, np.searchsorted(every, numbers.astype(every.dtype))

    def payload(self, number: int) -> npt.NDArray[Any]:
        """Arrange the payload of a call site's calls by occurrence and member.

        It is ``[n, W, 2, W]`` bytes sent to and received from each member of an
        all-to-all, ``[n, W]`` buffer bytes of other collectives.  Values that were not
        recorded are 0; the presence panel marks them as absent.
        """
        (begin, end), (first, last) = (e[number : number + 2] for e in self.edges)
        calls, width = self.table[begin:end], int(self.width[number])
        place = calls["occurrence"] - first
        if self.sites[number].operation != ALL_TO_ALL:
            volumes = np.zeros((last - first, width), np.int64)
            volumes[place, calls["member"]] = calls["payload"]
            return volumes
        dtype = self.common_type("splits", width)
        out = np.zeros((last - first, width, 2, width), dtype)
        for member, rank in enumerate(self.groups[self.sites[number].group].ranks):
            own = np.flatnonzero(calls["member"] == member)
            if len(own):
                rows = self.ranks[rank].splits[width][calls["payload"][own]]
                swapped = calls["transposed"][own] == 1
                rows[swapped] = rows[swapped, ::-1]
                out[place[own], member] = rows
        return out

    def common_type(self, panel: str, length: int) -> np.dtype[Any]:
        """Return the element type that holds the splits or demand of all ranks."""
        held = [getattr(record, panel).get(length) for record in self.ranks.values()]
        types = [rows.dtype for rows in held if rows is not None]
        return np.result_type(np.int16, *types)


def assemble(record: Record) -> Assembly:
    """Sort the calls of all ranks into occurrences of call sites."""
    _validate_one_capture(record)
    whole = _whole_iterations(record)
    table = record.calls if whole.all() else record.calls[whole]
    slots = _linked_index(table, record.sites, _call_index(table, record.sites))
    pairs, first, site = np.unique(
        table["site"].astype(np.int64) * (int(slots.max(initial=0)) + 1) + slots,
        return_index=True,
        return_inverse=True,
    )
    order = _program_order(record, table, site, np.argsort(first))
    sites = [
        replace(record.sites[table["site"][call]], slot=int(slots[call]))
        for call in first[order]
    ]
    number = np.empty(len(pairs), np.int64)
    number[order] = np.arange(len(pairs))
    site = number[site]
    by_occurrence = np.lexsort((table["member"], table["iteration"], site))
    table, site = table[by_occurrence], site[by_occurrence]
    table["site"] = site
    when = table["iteration"]
    new = np.ones(len(table), bool)
    new[1:] = (site[1:] != site[:-1]) | (when[1:] != when[:-1])
    table["occurrence"] = np.cumsum(new) - 1
    return Assembly(
        table=table,
        groups=record.groups,
        sites=tuple(sites),
        occurrences=Occurrences(
            iteration=when[new],
            site=table["site"][new],
            sequence=table["sequence"][new],
            matrix=np.full(int(new.sum()), -1),
            transposed=np.zeros(int(new.sum()), bool),
        ),
        ranks=dict(record.ranks),
    )


def _program_order(record: Record, table: Table, site: Int64, first: Int64) -> Int64:
    """Order sites as all ranks call them in their last step of every kind, ``[S]``.

    ``site`` is the site of each call, ``first`` all sites by their first call.
    """
    columns = (record.steps[name].tolist() for name in ("iteration", "kind"))
    kind_of = dict(zip(*columns, strict=True))
    sequences: list[Int64] = []
    for rank in record.ranks:
        own = np.flatnonzero(table["rank"] == rank)
        when = table["iteration"][own]
        last = {kind_of.get(number, ""): number for number in np.unique(when).tolist()}
        for number in last.values():
            calls = own[when == number]
            called = site[calls[np.argsort(table["issue"][calls], kind="stable")]]
            sequences.append(called[np.sort(np.unique(called, return_index=True)[1])])
    order = merged(sequences)
    return np.concatenate([order, first[~np.isin(first, order)]])


def _validate_one_capture(record: Record) -> None:
    ended, count = np.unique(record.steps[["rank", "iteration"]], return_counts=True)
    if (count > 1).any():
        rank, iteration = ended[count > 1][0].tolist()
        raise CaptureError(
            f"a rank ends an iteration once, but rank {rank} ended iteration "
            f"{iteration} twice: these are records of two runs, merge each separately"
        )


def _whole_iterations(record: Record) -> Bool:
    """Mask out the calls after a gap that are of its iteration.

    Calls of the iteration were lost, so that later ones cannot be counted.
    """
    rank, when = record.calls["rank"], record.calls["iteration"]
    place = np.arange(len(rank))
    begins = np.ones(len(rank), bool)
    begins[1:] = (rank[1:] != rank[:-1]) | (when[1:] != when[:-1])
    begin = np.maximum.accumulate(np.where(begins, place, 0))
    gap = np.maximum.accumulate(np.where(record.after_gap, place, -1))
    return np.asarray(gap < begin, bool)


def _call_index(table: Table, sites: Sequence[Site]) -> Int64:
    """Number each call among those of its site in its iteration and rank, ``[n]``.

    Calls whose rows differ in size are counted together: a micro-batch may be smaller.
    """
    plain: dict[Site, int] = {}
    kind = np.array(
        [
            plain.setdefault(replace(s, dtype="", row_bytes=0, experts=0), len(plain))
            for s in sites
        ],
        np.int64,
    )
    keys = (kind[table["site"]], table["iteration"], table["rank"])
    order = np.lexsort(keys)  # stable: the order of the calls is kept
    begins = np.ones(len(table), bool)
    begins[1:] = np.any([k[order][1:] != k[order][:-1] for k in keys], axis=0)
    starts = np.flatnonzero(begins)
    index = np.empty(len(table), np.int64)
    index[order] = np.arange(len(table)) - starts[np.cumsum(begins) - 1]
    return index


def _linked_index(table: Table, sites: Sequence[Site], index: Int64) -> Int64:
    """Number gradients as the forward calls that they are linked with, ``[n]``.

    Gradients of several micro-batches may come in another order than their forward
    calls.  Where a link is missing, or ranks disagree, the order of the calls is kept.
    """
    ahead = {"dispatch": 0, "combine": 1}
    back = {"dispatch_grad": 0, "combine_grad": 1}
    of_site = np.array(
        [
            (
                ahead.get(s.phase, -1) if s.direction == "forward" else -1,
                back.get(s.phase, -1),
                s.layer,
                s.group,
            )
            for s in sites
        ],
        np.int64,
    ).reshape(-1, 4)
    forward, gradient, layer, group = of_site[table["site"]].T
    links, when = table["link"], table["iteration"]
    calls = np.flatnonzero((gradient >= 0) | ((forward >= 0) & (links >= 0)))
    phase = np.maximum(forward, gradient)
    keys = [c[calls] for c in (links, layer, phase, when, table["rank"])]
    order = np.lexsort((gradient[calls] >= 0, *keys))
    # a forward call and its gradient follow each other; calls of one autograd function
    # share a link, and are ambiguous
    same = np.all([k[order][1:] == k[order][:-1] for k in keys], axis=0)
    alone = same & ~np.append(False, same[:-1]) & ~np.append(same[1:], False)
    first, second = calls[order[:-1][alone]], calls[order[1:][alone]]
    pair = (gradient[first] < 0) & (gradient[second] >= 0)
    linked = np.full(len(table), -1, np.int64)
    linked[second[pair]] = index[first[pair]]
    gradients = calls[gradient[calls] >= 0]
    old, new = index[gradients], linked[gradients]
    if (old == new)[new >= 0].all():
        return index
    # of one phase, layer, group and iteration, either all gradients of all ranks are
    # numbered by their links, or none
    columns = [c[gradients] for c in (gradient, layer, group, when)]
    _, unit = np.unique(np.stack(columns), axis=1, return_inverse=True)
    unit = unit.reshape(-1)
    moves = np.unique(np.stack([unit, old, new]), axis=1)
    count = [
        np.bincount(np.unique(moves[rows], axis=1)[0], minlength=unit.max() + 1)
        for rows in ([0, 1, 2], [0, 1], [0, 2])
    ]
    one_to_one = (count[0] == count[1]) & (count[0] == count[2])
    one_to_one[unit[new < 0]] = False
    result = index.copy()
    result[gradients] = np.where(one_to_one[unit], new, old)
    return result


def out_of_step(assembly: Assembly) -> list[str]:
    """Report calls whose collective sequence number differs between members.

    Sends and receives are not counted and have sequence -1.
    """
    table = assembly.table
    expected = assembly.occurrences.sequence[table["occurrence"]]
    wrong = np.flatnonzero((table["sequence"] >= 0) & (expected != table["sequence"]))
    if not len(wrong):
        return []
    call = table[wrong[0]]
    return [
        f"iteration {call['iteration']}: rank {call['rank']} counts it as collective "
        f"{call['sequence']} of its group, another member as "
        f"{expected[wrong[0]]} ({len(wrong)} such calls)"
    ]
