"""The rules that the parts of a trace keep, also those of a file made to deceive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.errors import TraceError

from .model import ALL_TO_ALL, ROUTING, WireForm
from .rows import Rows

if TYPE_CHECKING:
    from .trace import Trace


def refuse_contradictions(trace: Trace) -> None:
    """Check that tables and panels agree.

    Raises
    ------
    TraceError
        With the first rule that does not hold.
    """
    for rule, holds in _rules(trace):
        if not holds:
            raise TraceError(
                f"{trace.name}: in a trace {rule}, but here it is not so: "
                "take a copy that is whole, or capture again"
            )


def _rules(trace: Trace) -> list[tuple[str, bool]]:
    every, sites, groups = trace.occurrences, trace.sites, trace.groups
    world = trace.meta.world
    rules = [
        (
            "a group's ranks are distinct ranks of the world",
            all(
                g.ranks
                and len(set(g.ranks)) == len(g.ranks)
                and all(0 <= r < world for r in g.ranks)
                for g in groups
            ),
        ),
        (
            "a site names a group",
            all(0 <= s.group < len(groups) for s in sites),
        ),
        (
            "an occurrence names a site",
            not len(every) or 0 <= every.site.min() <= every.site.max() < len(sites),
        ),
    ]
    if not all(holds for _, holds in rules):
        return rules
    same = every.site[1:] == every.site[:-1]
    later = every.iteration[1:] > every.iteration[:-1]
    rules += [
        (
            "occurrences are sorted by site and iteration",
            bool(((every.site[1:] > every.site[:-1]) | (same & later)).all()),
        ),
        (
            "a wire told by demand names a routing site of its own group",
            all(
                0 <= s.routing < len(sites)
                and sites[s.routing].operation == ROUTING
                and sites[s.routing].group == s.group
                for s in sites
                if s.wire == WireForm.DEMAND
            ),
        ),
        (
            "a constant wire has a value for each pair or member",
            all(
                len(s.constant)
                == len(groups[s.group].ranks) ** (2 if s.operation == ALL_TO_ALL else 1)
                for s in sites
                if s.wire == WireForm.CONSTANT
            ),
        ),
        (
            "an expert is placed on a member of its group",
            _placed(trace),
        ),
        (
            "the iterations of the steps increase",
            bool((np.diff(trace.steps.iteration) > 0).all()),
        ),
        (
            "a program consists of sites",
            all(0 <= s < len(sites) for p in trace.programs for s in p.sites),
        ),
    ]
    for name, rows in Rows(groups, sites, every).expected().items():
        panel = trace.panels.get(name)
        rules.append((f"{name} has {rows} rows", panel and panel.shape[0] == rows))
    return [(rule, bool(holds)) for rule, holds in rules]


def _placed(trace: Trace) -> bool:
    rows = trace.placements
    if not len(rows):
        return True
    if rows["group"].min() < 0 or rows["group"].max() >= len(trace.groups):
        return False
    if rows["expert"].min() < 0 or rows["expert"].max() >= 1 << 20:
        return False
    for number in np.unique(rows["group"]):
        ranks = rows["rank"][rows["group"] == number]
        if not np.isin(ranks, trace.groups[number].ranks).all():
            return False
    return True
