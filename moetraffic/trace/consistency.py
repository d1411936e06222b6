"""Validate the consistency of a trace's tables and panels, also in hostile files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    Occurrences,
    Program,
    Site,
    Steps,
    WireForm,
)
from .panel import Panel
from .rows import Rows

MOST_EXPERTS = 1 << 20
MOST_NS = 1 << 62  # sums of two times stay within int64


def validate_tables(
    name: str,
    *,
    world: int,
    groups: Sequence[Group],
    sites: Sequence[Site],
    occurrences: Occurrences,
    panels: Mapping[str, Panel],
    steps: Steps,
    programs: Sequence[Program],
    placements: npt.NDArray[Any],
    clocks: npt.NDArray[Any],
) -> None:
    """Check that the tables and panels of a trace are mutually consistent.

    Raises
    ------
    TraceError
        Naming the first rule that is violated.
    """

    def rules() -> Iterator[tuple[object, str]]:
        """Yield whether each rule holds, and its text; later ones rely on earlier."""
        yield _groups_valid(groups, world), "a group has distinct ranks of the world"
        yield all(0 <= s.group < len(groups) for s in sites), "a site refers to a group"
        which, when = occurrences.site, occurrences.iteration
        yield (
            not len(when) or 0 <= which.min() <= which.max() < len(sites),
            "an occurrence refers to a site",
        )
        yield from _site_rules(sites, groups)
        yield (
            not len(when) or -1 <= when.min() <= when.max() < MOST_ITERATIONS,
            f"iterations lie between -1 (unknown) and {MOST_ITERATIONS}",
        )
        later = (which[1:] == which[:-1]) & (when[1:] > when[:-1])
        yield (
            ((which[1:] > which[:-1]) | later).all(),
            "occurrences are sorted by site and iteration",
        )
        yield (
            placements_valid(placements, groups),
            "each expert replica is placed once, on a member of its group",
        )
        yield (
            (np.diff(steps.iteration) > 0).all(),
            "the iterations of the steps increase",
        )
        yield (
            all(
                0 <= p.rank < world
                and p.kind in STEP_KINDS
                and all(0 <= s < len(sites) for s in p.sites)
                for p in programs
            ),
            "a program lists the sites of one rank in one kind of step",
        )
        yield (
            clocks_valid(clocks, world),
            "a clock belongs to a rank and differs by less than a hundred years",
        )
        expected = Rows(groups, sites, occurrences).expected()
        for panel, rows in expected.items():
            there = panels.get(panel)
            yield there and there.shape[0] == rows, f"{panel} has {rows} rows"
        extra = sorted(panels.keys() - expected.keys())
        yield not extra, f"a site refers to each panel, also to {', '.join(extra[:1])}"

    for holds, rule in rules():
        if not holds:
            raise TraceError(
                f"{name} is inconsistent: it violates the rule that {rule}: use an "
                "intact copy, or capture again"
            )


def _groups_valid(groups: Sequence[Group], world: int) -> bool:
    return all(
        g.ranks
        and len(set(g.ranks)) == len(g.ranks)
        and all(0 <= r < world for r in g.ranks)
        for g in groups
    )


def _site_rules(
    sites: Sequence[Site], groups: Sequence[Group]
) -> Iterator[tuple[bool, str]]:
    yield len(set(sites)) == len(sites) <= MOST_SITES, "no site occurs twice"
    yield (
        all(s.experts >= 0 and 0 <= s.row_bytes <= MOST_ROW_BYTES for s in sites),
        "experts and row bytes are non-negative, and a row has at most "
        f"{MOST_ROW_BYTES} bytes",
    )
    yield (
        all(
            0 <= s.routing < len(sites)
            and sites[s.routing].operation == ROUTING
            and sites[s.routing].group == s.group
            for s in sites
            if s.wire == WireForm.DEMAND
        ),
        "a wire derived from demand refers to a routing site of its own group",
    )
    yield (
        all(
            len(s.constant)
            == len(groups[s.group].ranks) ** (2 if s.operation == ALL_TO_ALL else 1)
            for s in sites
            if s.wire == WireForm.CONSTANT
        ),
        "a constant wire has a value for each pair or member",
    )
    yield (
        all(0 <= n <= MOST_BYTES for s in sites for n in s.constant),
        f"a constant wire has counts of at most {MOST_BYTES} bytes",
    )


def clocks_valid(clocks: npt.NDArray[Any], world: int) -> bool:
    """Check that clock knots belong to ranks of the run, with times in range."""
    return not len(clocks) or bool(
        clocks["rank"].min() >= 0
        and clocks["rank"].max() < world
        and all(
            clocks[name].min() > -MOST_NS and clocks[name].max() < MOST_NS
            for name in ("local_ns", "offset_ns", "error_ns")
        )
    )


def placements_valid(rows: npt.NDArray[Any], groups: Sequence[Group]) -> bool:
    """Check that each expert replica is placed once, on a member rank of its group."""
    if not len(rows):
        return True
    if rows["group"].min() < 0 or rows["group"].max() >= len(groups):
        return False
    if rows["expert"].min() < 0 or rows["expert"].max() >= MOST_EXPERTS:
        return False
    used = np.unique(rows["group"]).tolist()
    members = [(g << 32) + r for g in used for r in groups[g].ranks]
    placed = rows["group"].astype(np.int64) * (1 << 32) + rows["rank"]
    rest = [n for n in rows.dtype.names or () if n != "rank"]
    once = len(np.unique(rows[rest])) == len(rows)
    return bool(np.isin(placed, members).all() and once and rows["replica"].min() >= 0)
