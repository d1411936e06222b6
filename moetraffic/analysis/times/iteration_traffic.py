"""Compute traffic matrices between ranks over all collectives of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.iterations import iteration_range

SEND_RECV = "send_recv"

AT_ONCE = 256
"""Maximum occurrences of a site whose bytes are read at a time."""


def training_iterations(trace: Trace, chosen: range | None) -> list[int]:
    """List the training iterations of a trace, or those of a range among them.

    Raises
    ------
    AnalysisError
        If there are none.
    """
    there: list[int] = trace.iterations.tolist()
    if chosen is not None:
        there = [i for i in there if chosen.start <= i < chosen.stop]
    if not there:
        span = f"{chosen.start}:{chosen.stop}" if chosen else ""
        raise AnalysisError(
            f"a network carries the traffic of training iterations, but {trace.name} "
            f"has none{f' in {span}' if chosen else ''}: see moetraffic info"
        )
    return there


def world_matrices(
    trace: Trace | str | Path,
    iterations: Sequence[int] | str | None,
    *,
    operations: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    algorithm: str = "ring",
) -> Int64:
    """Compute the bytes sent between ranks in given iterations by all collectives.

    An all-to-all and a point-to-point send record their own bytes per pair of ranks;
    other collectives record buffer sizes, which the algorithm spreads over the links.
    Rank-local traffic is left out: it crosses no network.

    Parameters
    ----------
    trace
        Any trace, or the path of its file.
    iterations
        Iteration numbers; the training iterations of a text such as ``"10:20"``, or all
        if None.
    operations
        Such as "all_to_all" and "all_reduce"; None: all.
    kinds
        Kinds of process groups, such as "ep" and "tp"; None: all.
    algorithm
        One of :data:`moetraffic.patterns.algorithms.ALGORITHMS`.

    Returns
    -------
    ndarray
        ``[n, R, R]`` int64, in the order of the iterations given; row sends, column
        receives.

    Raises
    ------
    AnalysisError
        If the trace has no call in one of the iterations.
    TraceError
        If a text is no range of iterations.
    """
    trace = Trace.open(trace)
    if iterations is None or isinstance(iterations, str):
        iterations = training_iterations(trace, iteration_range(iterations))
    chosen = np.asarray(iterations)
    if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
        raise AnalysisError(
            f"iterations are whole numbers or a text, not {iterations!r:.60}: give "
            '[10, 11] or "10:12"'
        )
    chosen = chosen.astype(np.int64)
    order = np.argsort(chosen)
    when = trace.occurrences.iteration
    for iteration in chosen[~np.isin(chosen, when)].tolist():
        raise AnalysisError(
            f"{trace.name} has no call in iteration {iteration}: its iterations are "
            f"{trace.steps.iteration.min(initial=0)} to "
            f"{trace.steps.iteration.max(initial=0)}"
        )
    world = trace.meta.world
    out = np.zeros((len(chosen), world, world), np.int64)
    asked = np.flatnonzero(np.isin(when, chosen) & (trace.occurrences.matrix >= 0))
    for number in np.unique(trace.occurrences.site[asked]).tolist():
        site = trace.sites[number]
        group = trace.groups[site.group]
        if operations is not None and site.operation not in operations:
            continue
        if kinds is not None and group.kind not in kinds:
            continue
        mine = asked[trace.occurrences.site[asked] == number]
        ranks = np.array(group.ranks)
        for first in range(0, len(mine), AT_ONCE):
            part = mine[first : first + AT_ONCE]
            if site.operation == ALL_TO_ALL:
                moved = trace.wire(part)
            else:
                volumes = trace.volume(part)
                moved = np.zeros((len(part), len(ranks), len(ranks)), np.int64)
                for at, volume in enumerate(volumes):
                    if site.operation == SEND_RECV:
                        source, destination = site.peers
                        moved[at, source, destination] = volume[source]
                    else:
                        moved[at] = collective_matrix(site.operation, volume, algorithm)
            place = order[np.searchsorted(chosen[order], when[part])]
            out[place[:, None, None], ranks[:, None], ranks] += moved
    out[:, np.arange(world), np.arange(world)] = 0
    return out
