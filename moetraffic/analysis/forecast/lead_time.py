"""Lead times: offsets of exchanges from the start of their iteration.

A scheduler can use a forecast only if it is available before the transfer begins.  An
exchange of a layer and phase begins at an offset from the start of its iteration; the
difference of two median offsets is the lead time of one exchange over another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.times.call_times import step_ns, step_starts, timed
from moetraffic.trace import ALL_TO_ALL, Trace

Key = tuple[int, str]

RECONFIGURATION_S = (1e-6, 1e-5, 1e-3, 0.025)
"""Delays of a fabric's reconfiguration that lead times are compared with, seconds.

Fast optical switching by wavelength (1 us, 10 us), fast mechanical or silicon-photonic
switches (1 ms), and commercial MEMS circuit switches (25 ms).
"""

LOOKED_AT = 512
"""Maximum evenly spaced occurrences per layer and phase whose times are read."""


@dataclass(frozen=True, kw_only=True)
class LeadTimes:
    """Offsets of exchanges from the start of an iteration, s; NaN without times."""

    iteration_s: float  # median length of a training step
    offset_s: Mapping[Key, float]  # of (layer, phase): begin, from the step's start

    def between(self, known: Key, sent: Key) -> float:
        """Compute the time between the begins of two exchanges, seconds."""
        return self.offset_s.get(sent, np.nan) - self.offset_s.get(known, np.nan)


def lead_times(trace: Trace, *, iterations: range | None = None) -> LeadTimes:
    """Compute the median offset of each exchange from the start of its iteration.

    ``trace``: Any; without times, or without marked steps, all is NaN, as for a virtual
    trace, whose times are those of one process for all ranks.

    Returns
    -------
    LeadTimes
        Medians over the iterations and over the ranks that begin first.
    """
    if trace.meta.virtual:
        return LeadTimes(iteration_s=float("nan"), offset_s={})
    starts = step_starts(trace, 0, iterations)
    found = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[found]
    offsets: dict[Key, float] = {}
    if len(starts):
        keys = {
            (s.layer, s.phase)
            for s in (trace.sites[n] for n in np.unique(site))
            if s.phase
        }
        for layer, phase in sorted(keys):
            # the first micro-batch: what is known of the others comes later
            of = np.array(
                [(s.layer, s.phase, s.slot) == (layer, phase, 0) for s in trace.sites],
                bool,
            )
            mine = found[of[site]]
            if len(mine) > LOOKED_AT:
                at = np.linspace(0, len(mine) - 1, LOOKED_AT).astype(np.int64)
                mine = mine[at]
            begin = np.concatenate(
                [
                    np.where(t.known, t.begin, np.iinfo(np.int64).max).min(axis=1)
                    for t in timed(trace, mine, with_wire=False)
                ]
                or [np.zeros(0, np.int64)]
            )
            begin = begin[begin < np.iinfo(np.int64).max]
            step = np.searchsorted(starts, begin, side="right") - 1
            inside = step >= 0
            if inside.any():
                since = begin[inside] - starts[step[inside]]
                offsets[layer, phase] = float(np.median(since)) / 1e9
    return LeadTimes(iteration_s=step_ns(trace, 0) / 1e9, offset_s=offsets)
