"""Consistency rules of groups, sites, placements and clocks, also in hostile files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .model import (
    ALL_TO_ALL,
    MOST_BYTES,
    MOST_ROW_BYTES,
    MOST_SITES,
    ROUTING,
    Group,
    Meta,
    Site,
    WireForm,
)

MOST_RANKS = 1 << 24
MOST_EXPERTS = 1 << 20
MOST_CHOICES = 1 << 16
LARGEST = (1 << 31) - 1
MOST_NS = 1 << 62  # sums of two times stay within int64


def violated(rules: Iterable[tuple[object, str]]) -> str:
    """Return the text of the first rule that does not hold; "" if all do."""
    return next((text for holds, text in rules if not holds), "")


def within(values: npt.NDArray[Any], least: int, end: int) -> bool:
    """Check that all values lie in the half-open range [least, end)."""
    return not len(values) or bool(least <= values.min() and values.max() < end)


def meta_rules(meta: Meta) -> Iterator[tuple[bool, str]]:
    """Yield whether each number of the metadata lies in its range, and the rule."""
    ranges = {"world": (1, MOST_RANKS)}
    ranges |= dict.fromkeys(("dp", "tp", "pp", "ep", "cp"), (1, meta.world))
    ranges |= dict.fromkeys(("layers", "hidden", "k"), (0, LARGEST))
    ranges |= {"experts": (0, MOST_EXPERTS), "every": (1, LARGEST)}
    for name, (least, most) in ranges.items():
        value = getattr(meta, name)
        yield (
            least <= value <= most,
            f"{name} lies between {least} and {most} (here it is {value})",
        )


def groups_valid(groups: Sequence[Group], world: int) -> bool:
    """Check that each group has distinct ranks of the world."""
    return all(
        g.ranks
        and len(set(g.ranks)) == len(g.ranks)
        and all(0 <= r < world for r in g.ranks)
        for g in groups
    )


def site_rules(
    sites: Sequence[Site], groups: Sequence[Group]
) -> Iterator[tuple[bool, str]]:
    """Yield whether each rule of call sites holds, and its text."""
    yield len(set(sites)) == len(sites) <= MOST_SITES, "no site occurs twice"
    yield (
        all(s.experts >= 0 and 0 <= s.row_bytes <= MOST_ROW_BYTES for s in sites),
        "experts and row bytes are non-negative, and a row has at most "
        f"{MOST_ROW_BYTES} bytes",
    )
    yield (
        all(
            0 <= s.choices <= MOST_CHOICES and (not s.choices or s.operation == ROUTING)
            for s in sites
        ),
        f"a routing has choices of at most {MOST_CHOICES} tokens of a rank, and other "
        "calls have none",
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
    return within(clocks["rank"], 0, world) and all(
        within(clocks[name], -MOST_NS + 1, MOST_NS)
        for name in ("local_ns", "offset_ns", "error_ns")
    )


def runs_valid(runs: npt.NDArray[Any], sites: int) -> bool:
    """Check that the sums of runs are of sites, one a run, and not negative."""
    sums = ("calls", "call_ns", "transfer_ns", "wait_ns", "inside_ns")
    return bool(
        within(runs["site"], -1, sites)
        and (runs["number"] >= 0).all()
        and (runs["busy"] <= 1).all()
        and all(within(runs[name], 0, MOST_NS) for name in sums)
        and len(np.unique(runs[["number", "site"]])) == len(runs)
    )


def placements_valid(rows: npt.NDArray[Any], groups: Sequence[Group]) -> bool:
    """Check that each expert replica is placed once, on a member rank of its group."""
    if not within(rows["group"], 0, len(groups)):
        return False
    used = np.unique(rows["group"]).tolist()
    members = [(g << 32) + r for g in used for r in groups[g].ranks]
    placed = rows["group"].astype(np.int64) * (1 << 32) + rows["rank"]
    rest = [n for n in rows.dtype.names or () if n != "rank"]
    return bool(
        within(rows["expert"], 0, MOST_EXPERTS)
        and np.isin(placed, members).all()
        and len(np.unique(rows[rest])) == len(rows)
        and (rows["replica"] >= 0).all()
    )
