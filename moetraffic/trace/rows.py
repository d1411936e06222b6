"""Compute the row of each occurrence in the panels.

Row numbers are not stored: panels hold their occurrences in the trace's order, so a row
is the number of earlier occurrences that belong to the same panel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import TraceError

from .model import (
    ALL_TO_ALL,
    ROUTING,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Occurrences,
    Presence,
    Site,
    WireForm,
)
from .panel import ArrayPanel, Panel

TIMES = ("issue", "start", "end")


class Rows:
    """Row numbers ``[O]`` int64 of all occurrences in each panel, -1 for none.

    Attributes that describe sites have shape ``[S]``.
    """

    def __init__(
        self, groups: Sequence[Group], sites: Sequence[Site], occurrences: Occurrences
    ) -> None:
        self._sites = sites
        self._every = occurrences
        sizes = np.array([len(g.ranks) for g in groups], np.int64)
        group = np.array([s.group for s in sites], np.int64)
        known = (group >= 0) & (group < len(sizes))
        self.width = np.zeros(len(sites), np.int64)
        self.width[known] = sizes[group[known]]
        self.wire_form = np.array([s.wire for s in sites], np.int64)
        self.choices = np.array([s.choices for s in sites], np.int64)
        self.dropped_form = np.array([s.dropped for s in sites], np.int64)
        self.experts = np.array([s.experts for s in sites], np.int64)
        self.routes = np.array([s.operation == ROUTING for s in sites], bool)
        self.square = np.array([s.operation == ALL_TO_ALL for s in sites], bool)
        # (W, E) of routing sites as one number, -1 for other sites
        self.family = np.where(self.routes, self.width * (1 << 32) + self.experts, -1)
        stored = np.where(self.wire_form == WireForm.STORED, self.width, -1)
        drops = self.dropped_form == DroppedForm.STORED
        # (W, E, S) of routing sites with choices as one number: below 2^24, 2^20, 2^17
        sampled = (self.width << 38) + (self.experts << 17) + self.choices
        self._keys = {  # of the sites whose occurrences share a panel
            "present": self.width,
            "demand": self.family,
            "dropped": np.where(drops, self.family, -1),
            "choices": np.where(self.routes & (self.choices > 0), sampled, -1),
            "wire": np.where(self.square, stored, -1),
            "volume": np.where(self.square, -1, stored),
        }
        self._numbers: dict[str, Int64] = {}

    def numbers(self, kind: str) -> Int64:
        """Return the row of each occurrence in the panels of one kind, -1 for none."""
        key = kind if kind in self._keys else "present"
        if key not in self._numbers:
            self._numbers[key] = count_equal(self._keys[key][self._every.site])
        return self._numbers[key]

    def of(self, panel: str) -> Int64:
        """Return the row of each occurrence in the named panel."""
        kind, _, shape = panel.partition("_")
        belongs = np.ones(len(self.width), bool)
        own = (self.width, self.experts, self.choices)
        for attribute, length in zip(own, shape.split("x"), strict=False):
            belongs &= attribute == int(length)
        return np.where(belongs[self._every.site], self.numbers(kind), -1)

    def at(self, sites: Int64, iterations: Int64) -> Int64:
        """Return the occurrences of given sites in given iterations, ``[n]`` int64."""
        when = self._every.iteration
        base = int(when.min()) if len(when) else 0
        span = int(when.max()) - base + 1 if len(when) else 1
        keys = self._every.site.astype(np.int64) * span + (when - base)
        want = sites * span + (iterations - base)
        found = np.searchsorted(keys, want)
        missing = found >= len(keys)
        missing |= keys[np.minimum(found, len(keys) - 1)] != want
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            raise TraceError(
                f"the exchange of iteration {int(iterations[first])} follows a routing "
                "that the trace does not hold: the file is incomplete, capture it again"
            )
        return found

    def expected(self) -> dict[str, int]:
        """Return the names and row counts of the panels that the tables require."""
        want: dict[str, int] = {}
        counts = np.bincount(self._every.site, minlength=len(self._sites))
        for number, site in enumerate(self._sites):
            width = int(self.width[number])
            names = [f"{name}_{width}" for name in ("present", *TIMES)]
            if site.operation == ROUTING:
                names.append(f"demand_{width}x{site.experts}")
                if site.dropped == DroppedForm.STORED:
                    names.append(f"dropped_{width}x{site.experts}")
                if site.choices:
                    names.append(f"choices_{width}x{site.experts}x{site.choices}")
            if site.wire == WireForm.STORED:
                names.append(f"{'wire' if self.square[number] else 'volume'}_{width}")
            for name in names:
                want[name] = want.get(name, 0) + int(counts[number])
        return want


def recorded_panels(
    groups: Sequence[Group], sites: Sequence[Site], site: Integer
) -> dict[str, Panel]:
    """Build the panels of calls that each member recorded, with unknown times.

    ``site`` is the site of each occurrence, ``[O]``.  A message has two members,
    whatever its group.
    """
    width = np.array([len(groups[s.group].ranks) for s in sites], np.int64)
    panels: dict[str, Panel] = {}
    for size in np.unique(width[site]).tolist():
        of = np.flatnonzero(width == size)
        present = np.full((len(of), size), Presence.RECORDED, np.uint8)
        for row, peers in enumerate(sites[n].peers for n in of.tolist()):
            if peers[0] >= 0:
                present[row] = Presence.ABSENT
                present[row, list(peers)] = Presence.RECORDED
        rows = np.searchsorted(of, site[width[site] == size])
        panels[f"present_{size}"] = ArrayPanel(present[rows])
        for name in TIMES:
            unknown = np.full((len(rows), size), UNKNOWN_TIME, np.int64)
            panels[f"{name}_{size}"] = ArrayPanel(unknown)
    return panels


def count_equal(key: Int64) -> Int64:
    """Number the elements with equal key consecutively; -1 where a key is negative."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - np.searchsorted(ordered, ordered)
    return np.where(key < 0, -1, out)
