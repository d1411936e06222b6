"""Times of calls of a synthetic run: those of the captured iterations, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import PHASES, ROUTING, UNKNOWN_TIME, Site, Trace

Key = tuple[int, int, str]
"""Layer, micro-batch and kind of a call, see :func:`call_key`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallTimes:
    """Times of n captured iterations of R ranks; iteration t has those of t modulo n.

    They do not follow the synthetic bytes.  Rank r has those of captured rank r modulo
    R, so that groups must be as wide as captured.
    """

    calls: dict[Key, Int64]  # [3, n, R] issue, start and end in ns
    begin: Int64  # [n + 1] ns of iterations; the last: of one that would follow
    end: Int64  # [n, R] ns

    @classmethod
    def read(cls, trace: Trace) -> CallTimes | None:
        """Read the times of the calls of MoE layers; None if they are not known."""
        every = trace.occurrences
        parts: dict[Key, list[tuple[Site, Int64]]] = {}
        for number, site in enumerate(trace.sites):
            if (key := call_key(site)) is not None:
                found = trace.complete(np.flatnonzero(every.site == number))
                parts.setdefault(key, []).append((site, found))
        when = trace.iterations
        for rows in parts.values():
            for _, found in rows:
                when = np.intersect1d(when, every.iteration[found])
        if len(when) < 2 or not parts:
            return None
        shape, calls = (3, len(when), trace.meta.world), {}
        for key, rows in parts.items():
            calls[key] = np.full(shape, UNKNOWN_TIME, np.int64)
            for site, found in rows:
                chosen = found[np.isin(every.iteration[found], when)]
                members = list(trace.groups[site.group].ranks)
                calls[key][:, :, members] = trace.times(chosen)
        issue = np.stack([times[0] for times in calls.values()])
        if (issue == UNKNOWN_TIME).any():
            return None
        begin = issue.min(axis=(0, 2))
        begin = np.append(begin, begin[-1] + int(np.median(np.diff(begin))))
        # an unknown time is below all others
        end = np.max([times.max(axis=0) for times in calls.values()], axis=0)
        return cls(calls=calls, begin=begin, end=end)

    def of_call(
        self, site: Site, column: int, ranks: Sequence[int], iterations: Int64
    ) -> Int64:
        """Issue, start or end of a call, by ``column``: ``[b, W]`` in ns."""
        key = call_key(site)
        shape = (len(iterations), len(ranks))
        if key not in self.calls:
            return np.full(shape, UNKNOWN_TIME)
        return self._later(self.calls[key][column], ranks, iterations)

    def of_steps(self, ranks: Sequence[int], iterations: Int64) -> tuple[Int64, Int64]:
        """Begin and end of iterations, ``[b, W]`` each in ns."""
        begin = np.broadcast_to(self.begin[:-1, None], self.end.shape)
        return (
            self._later(begin, ranks, iterations),
            self._later(self.end, ranks, iterations),
        )

    def _later(self, times: Int64, ranks: Sequence[int], iterations: Int64) -> Int64:
        turn, row = np.divmod(iterations, len(times))
        values = times[row][:, np.asarray(ranks) % times.shape[1]]
        shift = turn * (self.begin[-1] - self.begin[0]) - self.begin[0]
        return np.where(values == UNKNOWN_TIME, values, values + shift[:, None])


def call_key(site: Site) -> Key | None:
    """Layer, micro-batch and kind of a call; None if a synthetic run has none such."""
    if site.direction == "recompute":
        return None
    if site.operation == ROUTING:
        return site.layer, site.slot, ROUTING
    if site.label == "count_exchange":
        return site.layer, site.slot, site.label
    return (site.layer, site.slot, site.phase) if site.phase in PHASES else None
