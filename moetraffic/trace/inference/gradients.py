"""Match gradients with their forward calls.

A gradient has the autograd sequence number of its forward call, and its splits with
sent and received bytes swapped.  Without a number (in a recomputed pass), all calls of
its iteration whose splits it reverses must be of one module: it is of the last one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from moetraffic.arrays import Int64

from .calls import Calls


def forward_calls(calls: Calls) -> Int64:
    """Return the index of the forward or recomputed call of each gradient, ``[n]``.

    -1 for other calls, and where it is unknown.
    """
    partner = np.full(len(calls.table), -1)
    table = calls.table
    direction = [s.direction for s in calls.sites]
    sent = calls.where([d in ("forward", "recompute") for d in direction])
    back = calls.where([d == "backward" for d in direction])
    forward = calls.where([d == "forward" for d in direction])
    ranks = [calls.groups[s.group].ranks for s in calls.sites]
    linked: dict[int, list[int]] = defaultdict(list)
    # without a number: calls by iteration, ranks and reversed splits
    splits: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    taken = set[int]()
    for call in np.flatnonzero(calls.exchange & (sent | back)).tolist():
        link, shares = int(table["link"][call]), calls.share[call].tolist()
        key = int(table["iteration"][call]), ranks[table["site"][call]]
        if sent[call]:
            if link >= 0:
                linked[link].append(call)
            if forward[call]:
                splits[(*key, *reversed(shares))].append(call)
            continue
        candidates = splits[(*key, *shares)]
        if link >= 0:
            candidates = [c for c in linked[link] if _reverses(calls, c, call)]
        candidates = [c for c in candidates if c not in taken]
        modules = {int(table["module_call"][c]) >> 1 for c in candidates}
        same = len(modules) == 1 and 0 not in modules
        if candidates and (link >= 0 or same or len(candidates) == 1):
            partner[call] = candidates[-1]
            taken.add(candidates[-1])
    return partner


def _reverses(calls: Calls, call: int, gradient: int) -> bool:
    """Return whether a gradient has the reversed splits of a call of the same ranks."""
    of_call, of_gradient = (
        calls.sites[calls.table["site"][n]] for n in (call, gradient)
    )
    if calls.groups[of_call.group].ranks != calls.groups[of_gradient.group].ranks:
        return False
    prints = calls.share
    if of_call.dtype == of_gradient.dtype:
        prints = calls.volume
    return bool((prints[call] == prints[gradient, ::-1]).all())
