"""Fill the panels of routings: demand, dropped copies, experts of sampled tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.choices import ExpertIds
from moetraffic.trace.model import (
    NONE_BEFORE,
    PLACEMENT,
    ROUTING,
    DroppedForm,
    Site,
)
from moetraffic.trace.panel import ArrayPanel, Panel, count_equal
from moetraffic.trace.storage import table_of

from .assembly import Assembly
from .rank_record import RankRecord, Record, Table
from .reconcile import widened


def expert_placements(record: Record) -> Table:
    """Build the placement of each routed layer, configured or contiguous.

    The result is ``[n]`` PLACEMENT, with the rows that imported files state.
    """
    rows = set(record.placements.tolist())
    for rank, calls in record.calls_of.items():
        placed = record.ranks[rank].placed
        if placed is None:
            continue
        for number in np.unique(record.calls["site"][calls]).tolist():
            site = record.sites[number]
            ranks, experts = record.groups[site.group].ranks, site.experts
            contiguous = [e * len(ranks) // experts for e in range(experts)]
            holders = placed.get(site.layer, contiguous)
            # else unknown: no matrix can be computed from the demand
            valid = site.layer in placed or experts % len(ranks) == 0
            if (
                valid
                and len(holders) == experts
                and max(holders, default=0) < len(ranks)
            ):
                rows |= {
                    (site.group, site.layer, expert, 0, ranks[member], 0)
                    for expert, member in enumerate(holders)
                }
    return np.array(sorted(rows), PLACEMENT)


def fill_routings(
    assembly: Assembly,
) -> tuple[list[Site], dict[str, Panel], set[int]]:
    """Build the panels of demand, dropped copies and samples.

    The demand of a rank is released as soon as it is in the panels.  Returns all sites,
    with the form of dropped copies and the samples; the panels; and the numbers of the
    sites whose demand has all copies, also those that were dropped.
    """
    sites, panels, before = list(assembly.sites), dict[str, Panel](), set[int]()
    routed = np.array([s.operation == ROUTING for s in sites], bool)
    names = np.array([table_of(site, assembly.groups) for site in sites])
    tables = [
        RoutingTable(assembly, name, np.flatnonzero(names == name).tolist())
        for name in np.unique(names[routed]).tolist()
    ]
    calls = assembly.table[routed[assembly.table["site"]]]
    for rank, record in list(assembly.ranks.items()):
        own = calls[calls["rank"] == rank]
        for table in tables:
            table.fill(own[np.isin(own["site"], table.numbers)], record)
        assembly.ranks[rank] = replace(record, demand={}, chosen={})
    for table in tables:
        panels |= table.panels()
        before |= {number for number in table.numbers if table.all_before[number]}
        for number in table.numbers:
            form = DroppedForm.STORED if table.stored[number] else DroppedForm.NONE
            if table.unknown[number]:
                form = DroppedForm.UNKNOWN  # settled by the bytes, or not at all
            sample = int(table.samples[number])
            sites[number] = replace(sites[number], dropped=form, token_sample=sample)
    return sites, panels, before


class RoutingTable:
    """Routings of W ranks and E experts, at some sites, which are filled by rank."""

    def __init__(self, assembly: Assembly, name: str, numbers: list[int]) -> None:
        self.name, self.numbers = name, numbers
        self.experts = assembly.sites[numbers[0]].experts
        every, width = assembly.occurrences.site, int(assembly.width[numbers[0]])
        here = np.isin(every, numbers)
        self._row = np.where(here, count_equal(here), -1)
        shape = (int(here.sum()), width)
        dtype = assembly.common_type("demand", self.experts)
        self.demand = np.zeros((*shape, self.experts), dtype)
        self.dropped: npt.NDArray[Any] | None = None
        self.chosen: ExpertIds | None = None
        held = [r.chosen.get(self.experts) for r in assembly.ranks.values()]
        if sizes := [ids.shape[1:] for ids in held if ids is not None]:
            self.chosen = np.full((*shape, *np.max(sizes, axis=0)), -1, np.int16)
        # by site
        count = len(assembly.sites)
        self.stored, self.unknown = np.zeros((2, count), bool)
        self.samples = np.zeros(count, np.int64)
        # copies of a member without a record are unknown
        recorded = np.bincount(assembly.table["site"], minlength=count)
        self.all_before = recorded == np.bincount(every, minlength=count) * width

    def fill(self, calls: Table, record: RankRecord) -> None:
        """Copy the calls of a rank, ``[n]`` MEMBER_CALL, from its record."""
        if not len(calls):
            return
        site, cells = calls["site"], (self._row[calls["occurrence"]], calls["member"])
        copies = record.demand[self.experts][calls["payload"]]
        lost = copies[:, 1]
        self.demand[cells] = copies[:, 0]
        self.stored[site[(lost != 0).any(axis=1)]] = True
        self.unknown[site[(lost < 0).any(axis=1)]] = True
        self.all_before[site[(lost != NONE_BEFORE).any(axis=1)]] = False
        if (lost > 0).any():
            if self.dropped is None:
                self.dropped = np.zeros_like(self.demand)
            self.dropped[cells] = np.maximum(lost, 0)
        if self.chosen is not None and self.experts in record.chosen:
            ids = record.chosen[self.experts][calls["payload"]]
            tokens, k = ids.shape[1:]
            self.chosen[(*cells, slice(tokens), slice(k))] = ids
            sampled = site[(ids >= 0).any(axis=(1, 2))]
            self.samples[sampled] = np.maximum(self.samples[sampled], tokens)

    def panels(self) -> dict[str, Panel]:
        """Return the panels by name."""
        name = self.name
        panels = {f"{name}/demand": widened(ArrayPanel(self.demand), np.int32)}
        if self.dropped is not None:
            panels[f"{name}/dropped"] = widened(ArrayPanel(self.dropped), np.int32)
        if self.chosen is not None and self.samples.any():
            panels[f"{name}/chosen"] = ArrayPanel(self.chosen)
        return panels
