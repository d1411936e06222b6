"""Select the operations of a trace to replay, and those whose bytes are verified.

Sizes and order are always compared, for every operation.  A sample draws a share of
each site's operations, so that it contains every group, layer, phase and kind, and adds
the largest operation of each group.  It depends on the plan and a seed alone: all ranks
draw the same sample.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Site
from moetraffic.trace.trace import Trace

from .program import KINDS, Plan

MESSAGE = "send_recv"
_BLOCK_CELLS = 1 << 20  # cells of the presence mask read at a time


def select_operations(
    trace: Trace,
    *,
    iterations: range | None = None,
    layers: Collection[int] | None = None,
    dense: bool = True,
) -> tuple[Int64, dict[str, int]]:
    """Select the operations of a trace to replay, by iteration, layer and kind.

    Operations whose bytes are unknown, and messages with an unknown peer, are not
    replayed.

    Returns
    -------
    occurrence
        ``[n]`` indices into the trace's occurrences, ascending.
    left_out
        Number of collectives not replayed, by operation.

    Raises
    ------
    ReplayError
        If no operation is left, or the record of a member is missing.
    """
    there = sorted({s.layer for s in trace.sites if s.layer >= 0})
    if layers is not None and there and not set(there) & set(layers):
        raise ReplayError(
            f"{trace.name} has the layers {', '.join(map(str, there))}, but the "
            f"replay asks for {', '.join(map(str, sorted(layers)))}: choose among "
            "them with --layers, or leave it out"
        )
    counts = np.array(
        [
            s.operation != ROUTING
            and (layers is None or s.layer < 0 or s.layer in layers)
            for s in trace.sites
        ],
        bool,
    )
    every = trace.find(iterations=iterations, kind=None)
    every = every[counts[trace.occurrences.site[every]]]
    site = trace.occurrences.site[every]
    wanted = np.array([_is_replayed(s, dense) for s in trace.sites], bool)[site]
    sizeless = [s.operation in (ALL_TO_ALL, "barrier") for s in trace.sites]
    wanted &= np.array(sizeless, bool)[site] | (trace.occurrences.matrix[every] >= 0)
    left = Counter(trace.sites[s].operation for s in site[~wanted].tolist())
    chosen = every[wanted]
    if not len(chosen):
        raise _no_operation(trace, iterations, layers, left)
    _check_complete(trace, chosen)
    return chosen, dict(left)


def takes_part(trace: Trace, occurrences: Int64) -> Bool:
    """Mask of group members that take part in replayed operations, ``[n, W]`` bool.

    Members are in the order of the group.  A message has two.
    """
    sites = trace.occurrences.site[occurrences]
    width = trace.size(int(occurrences[0]))
    used, which = np.unique(sites, return_inverse=True)
    rows = np.ones((len(used), width), bool)
    for row, number in enumerate(used.tolist()):
        site = trace.sites[number]
        if site.operation == MESSAGE:
            rows[row] = False
            rows[row, list(site.peers)] = True
    return np.asarray(rows[which.ravel()], bool)


def blocks(trace: Trace, occurrences: Int64, cells: int) -> Iterator[Int64]:
    """Split operations into blocks of equal group size, at most ``cells`` cells each.

    A cell is one member of one operation.
    """
    width = trace.width[trace.occurrences.site[occurrences]]
    for size in np.unique(width).tolist():
        same = np.flatnonzero(width == size)
        step = max(1, cells // size)
        for begin in range(0, len(same), step):
            yield same[begin : begin + step]


def _is_replayed(site: Site, dense: bool) -> bool:
    if site.operation == ALL_TO_ALL:
        return True
    if site.operation == MESSAGE and min(site.peers) < 0:
        return False
    return dense and site.operation in KINDS


def _no_operation(
    trace: Trace,
    iterations: range | None,
    layers: Collection[int] | None,
    left: Counter[str],
) -> ReplayError:
    when = trace.occurrences.iteration
    have = f"{int(when.min())} to {int(when.max())}" if len(when) else "none"
    limits = [] if layers is None else [f"layers {sorted(layers)} of"]
    if iterations is not None:
        limits.append(f"iterations {iterations.start}:{iterations.stop} of")
    if left:
        others = ", ".join(f"{count} {name}" for name, count in left.items())
        have += f"; left out: {others}"
    return ReplayError(
        f"a replay needs at least one operation, but {' '.join([*limits, trace.name])} "
        f"holds none (its iterations: {have}): choose others with --iterations, or "
        "capture with the hook installed"
    )


def _check_complete(trace: Trace, chosen: Int64) -> None:
    missing: list[int] = []
    who: tuple[int, list[int]] | None = None
    for at in blocks(trace, chosen, _BLOCK_CELLS):
        gone = ~trace.present(chosen[at]) & takes_part(trace, chosen[at])
        rows = np.flatnonzero(gone.any(axis=1))
        missing += chosen[at[rows]].tolist()
        for row in rows[:1].tolist():
            first = int(chosen[at[row]])
            if who is None or first < who[0]:
                ranks = trace.members(chosen[at[row : row + 1]])[0]
                who = first, ranks[gone[row]].tolist()
    if who is None:
        return
    when = trace.occurrences.iteration
    first, begin = int(when[missing].min()), int(when[chosen].min())
    remedy = (
        f"replay what is complete with --iterations {begin}:{first}"
        if first > begin
        else "choose other iterations with --iterations"
    )
    raise ReplayError(
        "a replay needs every member of an operation, but "
        f"{len(missing)} of {len(chosen)} lack one (rank "
        f"{', '.join(map(str, who[1]))} in iteration {int(when[who[0]])}): {remedy}, "
        "or have gaps filled with --complete-missing"
    )


# ---- verification ----------------------------------------------------------------


class Depth(str, enum.Enum):
    """Extent of byte verification before the timed pass: all, a sample, or none."""

    FULL = "full"
    SAMPLE = "sample"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Settings of the byte verification before the timed pass.

    Raises
    ------
    ReplayError
        If the share is not above 0 and at most 1.
    """

    depth: Depth = Depth.FULL
    share: float = 0.01  # of operations whose bytes are checked in a sample
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.seed < 0:  # NaN is neither
            raise ReplayError(
                "a sample is a share above 0 and at most 1, drawn by a seed from 0 on, "
                f"but is {self.share:g} by {self.seed}: change --sample or "
                "--sample-seed"
            )

    def __str__(self) -> str:
        if self.depth is Depth.SAMPLE:
            return f"sample of {self.share:g}, seed {self.seed}"
        return str(self.depth.value)

    def chosen(self, plan: Plan) -> Bool:
        """Select the operations of a plan whose bytes are verified.

        ``[n]`` bool: all operations; none; or ceil(share m) of the m operations of each
        site, and the largest of each group.
        """
        if self.depth is Depth.FULL:
            return np.ones(len(plan), bool)
        found = np.zeros(len(plan), bool)
        if self.depth is Depth.NONE or not len(plan):
            return found
        order = np.argsort(plan.site, kind="stable")
        edges = np.flatnonzero(np.diff(plan.site[order])) + 1
        for same in np.split(order, edges):
            random = np.random.default_rng([self.seed, int(plan.site[same[0]])])
            count = math.ceil(self.share * len(same))
            found[random.choice(same, count, replace=False, shuffle=False)] = True
        for group in np.unique(plan.group).tolist():
            mine = np.flatnonzero(plan.group == group)
            found[mine[plan.largest_bytes[mine].argmax()]] = True
        return found


FULL_VERIFICATION = Verification()
"""Verification of every byte of every operation."""
