"""Traffic matrices between ranks of all collectives of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.patterns.collectives import collective_matrix
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.iterations import iteration_range

BLOCK = 256
"""Maximum occurrences of a site whose bytes are read at a time."""


def training_iterations(trace: Trace, span: range | None) -> list[int]:
    """List the training iterations of a trace, or those of a range among them.

    Raises
    ------
    AnalysisError
        If there are none.
    """
    there: list[int] = trace.iterations.tolist()
    if span is not None:
        there = [i for i in there if span.start <= i < span.stop]
    if not there:
        inside = f" in {span.start}:{span.stop}" if span is not None else ""
        raise AnalysisError(
            f"a network carries the traffic of training iterations, but {trace.name} "
            f"has none{inside}: see moetraffic info"
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
        One of :data:`moetraffic.patterns.collectives.ALGORITHMS`.

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
    numbers = np.asarray(iterations)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise AnalysisError(
            f"iterations are whole numbers or a text, not {iterations!r:.60}: give "
            '[10, 11] or "10:12"'
        )
    numbers = numbers.astype(np.int64)
    order = np.argsort(numbers)
    when = trace.occurrences.iteration
    for iteration in numbers[~np.isin(numbers, when)].tolist():
        raise AnalysisError(
            f"{trace.name} has no call in iteration {iteration}: its iterations are "
            f"{trace.steps.iteration.min(initial=0)} to "
            f"{trace.steps.iteration.max(initial=0)}"
        )
    world = trace.meta.world
    out = np.zeros((len(numbers), world, world), np.int64)
    calls = np.flatnonzero(np.isin(when, numbers) & (trace.occurrences.matrix >= 0))
    site_of = trace.occurrences.site[calls]
    for number in np.unique(site_of).tolist():
        site = trace.sites[number]
        group = trace.groups[site.group]
        if operations is not None and site.operation not in operations:
            continue
        if kinds is not None and group.kind not in kinds:
            continue
        own, ranks = calls[site_of == number], np.array(group.ranks)
        for block in np.array_split(own, -(-len(own) // BLOCK)):
            rows = order[np.searchsorted(numbers[order], when[block])]
            moved = _pair_bytes(trace, number, block, algorithm)
            out[rows[:, None, None], ranks[:, None], ranks] += moved
    out[:, np.arange(world), np.arange(world)] = 0
    return out


def _pair_bytes(trace: Trace, number: int, calls: Int64, algorithm: str) -> Int64:
    """Compute the bytes between members of calls of one site, ``[n, W, W]``."""
    site = trace.sites[number]
    if site.operation == ALL_TO_ALL:
        return trace.wire(calls)
    volumes = trace.volume(calls)
    if site.operation != "send_recv":
        return np.stack(
            [collective_matrix(site.operation, v, algorithm) for v in volumes]
        )
    width = volumes.shape[1]
    moved = np.zeros((len(calls), width, width), np.int64)
    source, destination = site.peers
    moved[:, source, destination] = volumes[:, source]
    return moved
