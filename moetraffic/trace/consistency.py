"""The rules that the parts of a trace keep, also those of a file made to deceive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError

from .model import (
    ALL_TO_ALL,
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_ROW_BYTES,
    MOST_SITES,
    ROUTING,
    STEP_KINDS,
    Group,
    WireForm,
)
from .rows import Rows

if TYPE_CHECKING:
    from .trace import Trace


MOST_EXPERTS = 1 << 20
MOST_NS = 1 << 62  # sums of two times stay within int64


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
    rules += _site_rules(trace)
    same = every.site[1:] == every.site[:-1]
    later = every.iteration[1:] > every.iteration[:-1]
    rules += [
        (
            f"iterations lie between -1 (not known) and {MOST_ITERATIONS}",
            not len(every)
            or -1 <= every.iteration.min() <= every.iteration.max() < MOST_ITERATIONS,
        ),
        (
            "occurrences are sorted by site and iteration",
            bool(((every.site[1:] > every.site[:-1]) | (same & later)).all()),
        ),
        (
            "an expert is placed once, on a member of its group",
            placements_hold(trace.placements, groups),
        ),
        (
            "the iterations of the steps increase",
            bool((np.diff(trace.steps.iteration) > 0).all()),
        ),
        (
            "a program is a rank's, of one kind of step, and consists of sites",
            all(
                0 <= p.rank < world
                and p.kind in STEP_KINDS
                and all(0 <= s < len(sites) for s in p.sites)
                for p in trace.programs
            ),
        ),
        (
            "a clock is a rank's, and off by less than a hundred years",
            clocks_hold(trace.clocks, range(world)),
        ),
    ]
    expected = Rows(groups, sites, every).expected()
    for name, rows in expected.items():
        panel = trace.panels.get(name)
        rules.append((f"{name} has {rows} rows", panel and panel.shape[0] == rows))
    for name in trace.panels.keys() - expected.keys():
        rules.append((f"a site calls for each panel, also for {name}", False))
    return [(rule, bool(holds)) for rule, holds in rules]


def _site_rules(trace: Trace) -> list[tuple[str, bool]]:
    sites, groups = trace.sites, trace.groups
    return [
        ("no site is there twice", len(set(sites)) == len(sites) <= MOST_SITES),
        (
            f"experts and bytes of rows are counts, a row at most {MOST_ROW_BYTES}",
            all(s.experts >= 0 and 0 <= s.row_bytes <= MOST_ROW_BYTES for s in sites),
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
            f"a constant wire has counts of at most {MOST_BYTES} bytes",
            all(0 <= n <= MOST_BYTES for s in sites for n in s.constant),
        ),
    ]


def clocks_hold(clocks: npt.NDArray[Any], ranks: range) -> bool:
    """Whether knots are of these ranks, at times that can be added."""
    return not len(clocks) or bool(
        clocks["rank"].min() >= ranks.start
        and clocks["rank"].max() < ranks.stop
        and all(
            clocks[name].min() > -MOST_NS and clocks[name].max() < MOST_NS
            for name in ("local_ns", "offset_ns", "error_ns")
        )
    )


def placements_hold(rows: npt.NDArray[Any], groups: Sequence[Group]) -> bool:
    """Whether each replica is placed once, on a member of its group."""
    if not len(rows):
        return True
    if rows["group"].min() < 0 or rows["group"].max() >= len(groups):
        return False
    if rows["expert"].min() < 0 or rows["expert"].max() >= MOST_EXPERTS:
        return False
    used = np.unique(rows["group"]).tolist()
    sizes = np.array([len(groups[g].ranks) for g in used], np.int64)
    members = np.array([r for g in used for r in groups[g].ranks], np.int64)
    known = _pairs(np.repeat(used, sizes), members)
    there = np.isin(_pairs(rows["group"], rows["rank"]), known).all()
    rest = [n for n in rows.dtype.names or () if n != "rank"]
    once = len(np.unique(rows[rest])) == len(rows)
    return bool(there and once and rows["replica"].min() >= 0)


def _pairs(group: npt.NDArray[Any], rank: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray(np.asarray(group, np.int64) * (1 << 32) + rank, np.int64)
