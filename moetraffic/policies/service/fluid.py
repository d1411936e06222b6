"""When flows on the links of a network end: max-min fair or proportional rates.

All flows grow at one rate; those on a full link stop growing, until all are fixed
(progressive filling).  When a flow ends, rates are computed anew.

References
----------
D. Bertsekas, R. Gallager, "Data Networks" (1992), section 6.5.2: max-min fairness.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from moetraffic.arrays import Float64, Int64

ENDED = 1e-9
"""Share of a flow's bytes, or of a link's capacity, that counts as nothing."""

COMPILED_FLOWS = 128
"""Minimum flows of a call for which numba import and compilation pay off."""

EXACT_FLOWS = 4096
"""Maximum flows, those of 64 ranks, whose ends are distinguished exactly."""

RESOLUTION = 1e-3
"""Above EXACT_FLOWS: time between two computations of the rates at least, as a share of
the time of the most loaded link.  A flow that ends between keeps its rate until then,
so that completion is overestimated."""


def bottleneck_seconds(sent: Float64, shares: csr_array, capacity: Float64) -> float:
    """Compute when flows end whose rates are proportional to their bytes, seconds.

    All end with the most loaded link; parameters are those of :func:`fluid_seconds`.
    """
    return float((sent @ shares / capacity).max(initial=0.0))


def fluid_seconds(
    sent: Float64,
    shares: csr_array,
    capacity: Float64,
    *,
    resolution: float | None = None,
) -> float:
    """Compute when the last of several flows ends under max-min fairness.

    Parameters
    ----------
    sent
        ``[F]`` bytes of each flow.
    shares
        ``[F, L]`` share of a flow's bytes on each link.
    capacity
        ``[L]`` bytes/s.
    resolution
        As RESOLUTION; 0: exact, None: that for flows above EXACT_FLOWS.

    Returns
    -------
    float
        Seconds; flows without a link end at once.

    Examples
    --------
    >>> three = csr_array(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    >>> fluid_seconds(np.ones(3), three, np.ones(2))
    2.0
    """
    some = (sent > 0) & (np.diff(shares.indptr) > 0)
    left, on = sent[some].astype(np.float64), csr_array(shares[some])
    if resolution is None:
        resolution = RESOLUTION if len(left) > EXACT_FLOWS else 0.0
    least = resolution * bottleneck_seconds(left, on, capacity)
    if len(left) >= COMPILED_FLOWS and find_spec("numba"):
        begin, link = on.indptr.astype(np.int64), on.indices.astype(np.int64)
        return float(_compiled()(begin, link, on.data * 1.0, capacity, left, least))
    small = left * ENDED
    clock = 0.0
    while len(left):
        ends = left / fair_rates(on, capacity)
        step = min(max(float(ends.min()), least), float(ends.max()))
        clock += step
        left = left * (1 - step / ends)
        going = left > small
        left, small, on = left[going], small[going], csr_array(on[going])
    return clock


def fair_rates(shares: csr_array, capacity: Float64) -> Float64:
    """Compute the max-min fair rates of flows by progressive filling, ``[F]``.

    Parameters
    ----------
    shares
        ``[F, L]`` share of a flow's bytes on each link; every flow has one.
    capacity
        ``[L]`` bytes/s.
    """
    rate = np.zeros(shares.shape[0])
    growing = np.ones(len(rate), bool)
    room = capacity.astype(np.float64)
    while growing.any():
        used = np.asarray(growing.astype(np.float64) @ shares)
        on = used > 0
        step = float((room[on] / used[on]).min())
        rate[growing] += step
        room = room - step * used
        full = on & (room <= ENDED * capacity)
        growing &= ~(np.asarray(shares @ full.astype(np.float64)) > 0)
    return rate


@cache
def _compiled() -> Any:
    """Compile :func:`_last_end` with numba, to run without holding the GIL."""
    numba: Any = import_module("numba")
    how = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **how)(_last_end)
    except (RuntimeError, OSError):  # no writable cache folder, or a full disk
        return numba.njit(**how)(_last_end)


def _last_end(
    begin: Int64,
    link: Int64,
    share: Float64,
    capacity: Float64,
    sent: Float64,
    least: float,
) -> float:
    """Compute what :func:`fluid_seconds` does; flow f has ``link[begin[f] : ...]``."""
    flows, links = len(sent), len(capacity)
    # Step 1: the flows of each link.
    first = np.zeros(links + 1, np.int64)
    for one in link:
        first[one + 1] += 1
    first = np.cumsum(first)
    put = first[:-1].copy()
    flow_of = np.empty(len(link), np.int64)
    for f in range(flows):
        for k in range(begin[f], begin[f + 1]):
            flow_of[put[link[k]]] = f
            put[link[k]] += 1
    left, rate = sent.copy(), np.zeros(flows)
    going = np.ones(flows, np.bool_)
    growing = np.empty(flows, np.bool_)
    used, room = np.empty(links), np.empty(links)
    on = np.empty(links, np.int64)  # growing flows of a link
    active = np.empty(links, np.int64)
    remaining, clock = flows, 0.0
    while remaining:
        # Step 2: progressive filling; `room` is what fixed flows leave of a link.
        used[:] = 0.0
        on[:] = 0
        room[:] = capacity
        growing[:] = going
        for f in range(flows):
            if going[f]:
                for k in range(begin[f], begin[f + 1]):
                    used[link[k]] += share[k]
                    on[link[k]] += 1
        number = 0
        for at in range(links):
            if on[at]:
                active[number] = at
                number += 1
        fixed = 0
        while fixed < remaining:
            level, kept = np.inf, 0
            for n in range(number):
                at = active[n]
                if on[at]:
                    active[kept] = at
                    kept += 1
                    level = min(level, room[at] / used[at])
            number = kept
            for n in range(number):
                at = active[n]
                if not on[at] or room[at] > level * used[at] * (1 + 1e-9):
                    continue
                for p in range(first[at], first[at + 1]):
                    f = flow_of[p]
                    if growing[f]:
                        growing[f] = False
                        fixed += 1
                        rate[f] = level
                        for k in range(begin[f], begin[f + 1]):
                            used[link[k]] -= share[k]
                            room[link[k]] -= share[k] * level
                            on[link[k]] -= 1
        # Step 3: run to the next end of a flow, or for the least time.
        soonest, latest = np.inf, 0.0
        for f in range(flows):
            if going[f]:
                ends = left[f] / rate[f]
                soonest, latest = min(soonest, ends), max(latest, ends)
        step = min(max(soonest, least), latest)
        clock += step
        for f in range(flows):
            if going[f]:
                left[f] -= rate[f] * step
                if left[f] <= ENDED * sent[f]:
                    going[f] = False
                    remaining -= 1
    return clock
