"""State which calls and copies a trace lacks, and which rows contradict its routing."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from moetraffic.trace import ALL_TO_ALL, DroppedForm, Trace
from moetraffic.trace.model import Presence
from moetraffic.units import rank_span

_BY_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*) (?:each )?left out ")
_CALLS = re.compile(r"(\d+) x call of (\w+)")
EXCHANGES = ("alltoall_base_", "alltoall_")
"""Names of all-to-alls, which may be counted beside the recorded ones."""

UNCOUNTED = "token copies dropped before a router's output"
"""Part of the remark that a demand may lack copies over a capacity."""

MOST_READ = 256
"""Unnamed all-to-alls whose bytes are read to decide whether any is uneven."""


def omitted_calls(trace: Trace) -> str:
    """Describe the collective calls that ranks could not record; "" if there is none.

    It is read from the statement of the merge in ``trace.meta.missing``: "480 of 720
    calls of alltoall_base_ left out by ranks 0, 1".  The numbers are those of each
    rank; the second is left out where ranks differ in it.
    """
    found = []
    _, *parts = _BY_RANKS.split(trace.meta.missing)
    recorded = _recorded(trace) if parts else Counter[int]()
    for by, what in zip(parts[::2], parts[1::2], strict=True):
        ranks = [int(rank) for rank in by.split(", ")]
        for number, name in _CALLS.findall(what):
            text = f"{int(number):,}"
            if name in EXCHANGES:
                kept = {recorded[rank] for rank in ranks}
                if len(kept) == 1:
                    text += f" of {int(number) + kept.pop():,}"
            text += f" calls of {name} left out by rank{'s' * (len(ranks) > 1)} "
            found.append(text + rank_span(ranks))
    return ", ".join(found)


def _recorded(trace: Trace) -> Counter[int]:
    """Count the all-to-alls that each rank recorded, in all of its groups."""
    total: Counter[int] = Counter()
    kinds = (Presence.RECORDED, Presence.UNSIZED)
    for number, group in enumerate(trace.groups):
        calls = trace.find(operation=ALL_TO_ALL, group=number, kind=None)
        if len(calls):
            counts = np.isin(trace.presence(calls), kinds).sum(axis=0).tolist()
            total.update(dict(zip(group.ranks, counts, strict=True)))
    return total


def demand_remarks(trace: Trace) -> list[str]:
    """State where rows contradict the routing, once, and where drops are unknown."""
    sites = (s for s in trace.sites if s.dropped == DroppedForm.UNCOUNTED)
    layers = sorted({site.layer for site in sites})
    of = f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"
    return [trace.meta.contradiction] * bool(trace.meta.contradiction) + [
        f"{of}: {UNCOUNTED} are unknown, the demand is what was sent"
    ] * bool(layers)


def unnamed_exchanges(trace: Trace) -> int:
    """Count all-to-alls of unequal parts that have neither a phase nor a label.

    Such calls are expert exchanges whose layer and phase are unknown.  It is 0 if all
    parts of the first :data:`MOST_READ` are equal, as in sequence parallelism.
    """
    bare = [
        number
        for number, site in enumerate(trace.sites)
        if trace.square[number] and not site.phase and not site.label
    ]
    calls = np.isin(trace.occurrences.site, bare)
    known = np.flatnonzero(calls & (trace.occurrences.matrix >= 0))
    for at in known[:MOST_READ].tolist():
        sent = trace.wire(np.array([at]))[0]
        if (sent != sent[:1, :1]).any():
            return int(calls.sum())
    return 0
