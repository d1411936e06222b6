r"""Times of the calls of a run: compute gaps between bursts of traffic.

In program order each rank computes for a gap, calls, and waits: an exchange begins when
the last member of its group has called, and takes :math:`a + b\,V`, V the bytes of the
busiest sender or receiver.  Gaps and the time beside bytes are lognormal; of a gap's
spread one part is a rank's own and one all ranks share in an iteration.  An
iteration's first gap holds whatever else the step does (optimizer, dense collectives):
it begins when the slowest rank has ended the iteration before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from moetraffic.arrays import Float64, Int32, Int64
from moetraffic.errors import AnalysisError
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.scenario import Scenario
from moetraffic.trace import PHASES, ROUTING, UNKNOWN_TIME, Trace

PLACES = ("routing", "counts", *PHASES)
"""Kinds of calls of an exchange, each with a gap before it and a duration."""

LEAST_NS = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Rhythm:
    """Gaps and durations of the calls of X exchanges; times in ns."""

    gap: Float64  # [X, 6] median before the call, by PLACES; NaN: no such call
    rank_spread: Float64  # [X, 6] of the logarithm, a rank's own
    step_spread: Float64  # [X, 6] of the logarithm, of all ranks in an iteration
    overhead: Float64  # [X, 6] median duration beside the bytes
    per_byte: Float64  # [1] ns a byte of the busiest rank
    jitter: Float64  # [X, 6] of the logarithm of the duration

    @classmethod
    def fit(cls, trace: Trace, scenario: Scenario) -> Rhythm | None:
        """Fit to the times of a trace; None if they are unknown."""
        calls = _calls(trace, scenario)
        if not calls:
            return None
        shape = (len(scenario.exchanges), len(PLACES))
        nothing = np.full(shape, np.nan)
        told = {f.name: nothing.copy() for f in fields(cls) if f.name != "per_byte"}
        slopes = []
        before: Int64 | None = None  # when each rank ended its call before, [n, R]
        last = calls[-1][3]
        for x, place, issue, end, start, volume in calls:
            if before is None:
                # of an iteration the slowest rank's end of the one before
                began = np.full_like(issue, UNKNOWN_TIME)
                began[1:] = last[:-1].max(axis=1, keepdims=True)
                before = began
            known = (before != UNKNOWN_TIME) & (issue > before)
            gaps = np.log(np.where(known, issue - before, 1).astype(np.float64))
            gaps = np.where(known, gaps, np.nan)
            told["gap"][x, place] = (
                _exp(np.nanmedian(gaps)) if known.any() else LEAST_NS
            )
            middle = _row_median(gaps)
            told["rank_spread"][x, place] = _spread(gaps - middle[:, None])
            told["step_spread"][x, place] = _spread(middle)
            took = np.maximum((end - start).max(axis=1), 1).astype(np.float64)
            if volume is not None and np.ptp(volume) > 0:
                slope = float(np.polyfit(volume, took, 1)[0])
                sure = np.corrcoef(volume, took)[0, 1] * np.sqrt(len(took)) > 3
                slopes.append(slope if sure else 0.0)
            told["overhead"][x, place] = float(np.median(took))
            told["jitter"][x, place] = _spread(np.log(took))
            before = end
        per_byte = float(np.median(slopes)) if slopes else 0.0
        for x, place, _, _, _, volume in calls:
            if volume is not None:
                rest = told["overhead"][x, place] - per_byte * float(np.median(volume))
                told["overhead"][x, place] = max(rest, LEAST_NS)
        return cls(**told, per_byte=np.array([per_byte]))


class Beat:
    """The times of a run, block after block.

    Parameters
    ----------
    rhythm
        Of the exchanges that the scenario has.
    scenario, frame
        The run: its groups and sites, in program order.
    seed
        Of all chance.
    """

    def __init__(
        self, rhythm: Rhythm, scenario: Scenario, frame: Trace, *, seed: int
    ) -> None:
        if rhythm.gap.shape[0] != len(scenario.exchanges):
            raise AnalysisError(
                "a rhythm is that of the exchanges it was fitted to, but there are "
                f"{rhythm.gap.shape[0]} and {len(scenario.exchanges)}: fit it to the "
                "same run"
            )
        self.rhythm, self.scene, self.frame, self.seed = rhythm, scenario, frame, seed
        self._clock = np.zeros(scenario.ranks, np.int64)
        at = {(x.layer, x.slot): i for i, x in enumerate(scenario.exchanges)}
        groups = len(frame.groups)
        each = len(frame.sites) // groups
        # all groups go through the same program, whose sites follow each other
        self._order = [
            (n, at[site.layer, site.slot], _place(frame, n))
            for n, site in enumerate(frame.sites[:each])
        ]
        self._each = each
        self._members = np.array([g.ranks for g in frame.groups])  # [G, W]

    def block(
        self, first: int, counts: Int32
    ) -> tuple[tuple[Int64, Int64, Int64], Int64]:
        """Times of some iterations.

        Parameters
        ----------
        first
            The first iteration; blocks are asked for in order.
        counts
            ``[b, X, R, E]``.

        Returns
        -------
        tuple
            Issue, start and end, each ``[S, b, W]`` int64 ns, and ``[b, 2, R]`` int64
            of the steps' beginning and end.
        """
        block = len(counts)
        groups, width = self._members.shape
        shape = (len(self.frame.sites), block, width)
        issue, start, end = (np.zeros(shape, np.int64) for _ in range(3))
        steps = np.zeros((block, 2, self.scene.ranks), np.int64)
        volumes = self._volumes(counts)
        r = self.rhythm
        for at in range(block):
            rng = generator(self.seed, Use.RHYTHM, first + at)
            clock = np.full(self.scene.ranks, self._clock.max(), np.int64)
            steps[at, 0] = clock
            for number, x, place in self._order:
                if not np.isfinite(r.gap[x, place]):
                    continue
                spread = r.step_spread[x, place] * rng.standard_normal()
                own = r.rank_spread[x, place] * rng.standard_normal(self.scene.ranks)
                gap = r.gap[x, place] * np.exp(spread + own)
                called = clock + np.maximum(np.rint(gap), 1).astype(np.int64)
                mine = called[self._members]  # [G, W]
                took = r.overhead[x, place] * np.exp(
                    r.jitter[x, place] * rng.standard_normal(groups)
                )
                sites = number + self._each * np.arange(groups)
                issue[sites, at] = mine
                if place:
                    took += r.per_byte[0] * volumes[at, x, :, place]
                    began = mine.max(axis=1)
                    ended = began + np.maximum(np.rint(took), 1).astype(np.int64)
                    start[sites, at] = began[:, None]
                    end[sites, at] = mine[:] = ended[:, None]
                else:  # nothing is sent, nothing begins or ends
                    start[sites, at] = end[sites, at] = UNKNOWN_TIME
                clock[self._members] = mine
            steps[at, 1] = clock
            self._clock = clock
        return (issue, start, end), steps

    def _volumes(self, counts: Int32) -> Float64:
        """Bytes of the busiest rank of each group, ``[b, X, G, 6]``."""
        scene = self.scene
        _, width = self._members.shape
        kept = counts[:, :, self._members]  # [b, X, G, W, E]
        if scene.capacity:
            kept = np.minimum(kept, scene.capacity)
        if scene.padded:
            kept = np.full_like(kept, scene.padded)
        each = scene.experts // width
        wire = kept.reshape(*kept.shape[:4], width, each).sum(axis=5)
        wire[..., np.arange(width), np.arange(width)] = 0
        busiest = np.maximum(wire.sum(axis=4).max(axis=3), wire.sum(axis=3).max(axis=3))
        rows = np.array([x.row_bytes for x in scene.exchanges], np.float64)
        out = np.zeros((*busiest.shape, len(PLACES)))
        out[..., 2:] = (busiest * rows[:, None])[..., None]
        return out


Call = tuple[int, int, Int64, Int64, Int64, Float64 | None]


def _calls(trace: Trace, scenario: Scenario) -> list[Call]:
    """Exchange, place, issue, end, start ``[n, R]`` and bytes ``[n]``, in order."""
    found: dict[tuple[int, int], tuple[Int64, Int64, Int64, Float64 | None]] = {}
    at = {(x.layer, x.slot): i for i, x in enumerate(scenario.exchanges)}
    for key, x in at.items():
        for place in range(len(PLACES)):
            parts = [
                n
                for n, s in enumerate(trace.sites)
                if (s.layer, s.slot) == key
                and s.direction != "recompute"
                and _kind(s.operation, s.label, s.phase) == place
            ]
            told = _times(trace, parts, place)
            if told is not None:
                found[x, place] = told
    if not found or len({told[0].shape for told in found.values()}) != 1:
        return []  # iterations of which some calls alone are timed tell no gaps
    middle = {key: float(np.median(told[0])) for key, told in found.items()}
    # in the order of the median distance from the first call of the iteration
    origin = min(found, key=lambda key: middle[key])
    offset = {
        key: float(np.median(told[0] - found[origin][0])) for key, told in found.items()
    }
    return [
        (x, place, *found[x, place])
        for x, place in sorted(found, key=lambda k: offset[k])
    ]


def _times(
    trace: Trace, sites: list[int], place: int
) -> tuple[Int64, Int64, Int64, Float64 | None] | None:
    """Issue, end, start ``[n, R]`` and bytes ``[n]`` of one call of all groups."""
    if not sites:
        return None
    every = trace.occurrences
    found = [trace.complete(np.flatnonzero(every.site == n)) for n in sites]
    when = every.iteration[found[0]]
    for occurrences in found[1:]:
        when = np.intersect1d(when, every.iteration[occurrences])
    when = np.intersect1d(when, trace.iterations)
    shape = (len(when), trace.meta.world)
    out = [np.full(shape, UNKNOWN_TIME, np.int64) for _ in range(3)]
    volume: Float64 | None = np.zeros(len(when)) if place > 1 else None
    for number, occurrences in zip(sites, found, strict=True):
        these = occurrences[np.isin(every.iteration[occurrences], when)]
        if not len(these):
            return None
        members = list(trace.groups[trace.sites[number].group].ranks)
        for into, times in zip(out, trace.times(these), strict=True):
            into[:, members] = times
        if volume is not None:
            sent = trace.wire(these).astype(np.float64)
            w = np.arange(sent.shape[1])
            sent[:, w, w] = 0
            busiest = np.maximum(sent.sum(axis=2).max(1), sent.sum(axis=1).max(1))
            volume = np.maximum(volume, busiest)
    issue, start, end = out
    start = np.where(start == UNKNOWN_TIME, issue.max(axis=1, keepdims=True), start)
    if place == 0:
        end = np.where(end == UNKNOWN_TIME, issue, end)
    if len(when) < 2 or any((t == UNKNOWN_TIME).any() for t in (issue, end)):
        return None
    return issue, end, start, volume


def _kind(operation: str, label: str, phase: str) -> int:
    """Index into PLACES, -1 for another call."""
    if operation == ROUTING:
        return 0
    if label == "count_exchange":
        return 1
    return PLACES.index(phase) if phase in PHASES else -1


def _place(frame: Trace, number: int) -> int:
    site = frame.sites[number]
    return _kind(site.operation, site.label, site.phase)


def _row_median(values: Float64) -> Float64:
    known = np.isfinite(values).any(axis=1)
    out = np.full(len(values), np.nan)
    out[known] = np.nanmedian(values[known], axis=1)
    return out


def _spread(values: Float64) -> float:
    """Standard deviation by the quartiles, which a hiccup does not move."""
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return 0.0
    low, high = np.quantile(known, [0.25, 0.75])
    return float((high - low) / 1.349)


def _exp(value: float) -> float:
    return max(LEAST_NS, float(np.exp(value)))
