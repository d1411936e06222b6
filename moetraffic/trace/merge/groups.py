"""Tell apart the process groups of a capture that have the same kind and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moetraffic.trace.model import Group, Site

from .rank_record import RankRecord

Span = tuple[int, int]  # iterations of the first and last call


def number_groups(records: Sequence[RankRecord]) -> list[RankRecord]:
    """Number groups of the same kind and ranks that have different names.

    A group that begins after the last iteration of another, and has a call site of it,
    continues it: some programs make new groups while they train.  Numbers are in the
    order of first calls.
    """
    named = [record for record in records if record.group_names]
    spans: dict[Group, dict[str, dict[int, Span]]] = defaultdict(dict)  # by rank
    sites: dict[tuple[Group, str], set[Site]] = defaultdict(set)
    for record in named:
        calls, own = record.calls, record.sites
        called = np.array([s.group for s in own], np.int64)[calls["site"]]
        # where no step ends, the order of the calls shows which group follows another
        known = (calls["iteration"] >= 0).all()
        when = calls["iteration"] if known else np.arange(len(calls))
        for number, name in enumerate(record.group_names):
            group, places = record.groups[number], np.flatnonzero(called == number)
            if len(places):
                span = int(when[places[0]]), int(when[places[-1]])
                spans[group].setdefault(name, {})[record.rank] = span
        for site in own:
            key = record.groups[site.group], record.group_names[site.group]
            sites[key].add(replace(site, group=0, row_bytes=0))
    numbers: dict[tuple[Group, str], int] = {}
    for group, by_name in spans.items():
        ends = list[dict[int, int]]()  # by number: last iteration of each rank
        calls_of = list[set[Site]]()
        for name, by_rank in by_name.items():
            own_sites = sites[group, name]
            follows = [
                bool(own_sites & calls_of[n])
                and all(end.get(rank, -1) < span[0] for rank, span in by_rank.items())
                for n, end in enumerate(ends)
            ]
            number = [*follows, True].index(True)
            if number == len(ends):
                ends.append({})
                calls_of.append(set())
            ends[number] |= {rank: span[1] for rank, span in by_rank.items()}
            calls_of[number] |= own_sites
            numbers[group, name] = number
    return [
        replace(
            record,
            groups=tuple(
                replace(group, number=numbers.get((group, name), 0))
                for group, name in zip(record.groups, record.group_names, strict=True)
            ),
        )
        if record.group_names
        else record
        for record in records
    ]
