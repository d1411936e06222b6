"""Everything that a run put on its network in one iteration, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError
from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace, WireForm

Int64 = npt.NDArray[np.int64]

SEND_RECV = "send_recv"


def world_matrix(
    trace: Trace,
    iteration: int,
    *,
    operations: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    algorithm: str = "ring",
) -> Int64:
    """Bytes between ranks in one iteration, over all collectives.

    An all-to-all says itself who sends whom how much, and a send too; other collectives
    say how large their buffers are, and the algorithm how these travel.  What a rank
    sends itself is left out: it crosses no network.

    Parameters
    ----------
    trace
        Any.
    iteration
        Which step.
    operations
        Such as "all_to_all" and "all_reduce"; None takes all.
    kinds
        Of process groups, such as "ep" and "tp"; None takes all.
    algorithm
        One of :data:`moetraffic.patterns.algorithms.ALGORITHMS`.

    Returns
    -------
    ndarray
        ``[R, R]`` int64; row sends, column receives.

    Raises
    ------
    AnalysisError
        If the trace has no such iteration.
    """
    found = trace.find(iterations=range(iteration, iteration + 1), kind=None)
    if not len(found):
        raise AnalysisError(
            f"{trace.name} has no call in iteration {iteration}: its iterations are "
            f"{trace.steps.iteration.min(initial=0)} to "
            f"{trace.steps.iteration.max(initial=0)}"
        )
    world = trace.meta.world
    out = np.zeros((world, world), np.int64)
    for occurrence in found:
        site = trace.sites[int(trace.occurrences.site[occurrence])]
        group = trace.groups[site.group]
        if site.operation == ROUTING or site.wire == WireForm.UNKNOWN:
            continue
        if operations is not None and site.operation not in operations:
            continue
        if kinds is not None and group.kind not in kinds:
            continue
        one = np.array([occurrence])
        ranks = np.array(group.ranks)
        if site.operation == ALL_TO_ALL:
            matrix = trace.wire(one)[0]
        elif site.operation == SEND_RECV:
            matrix = np.zeros((len(ranks), len(ranks)), np.int64)
            source, destination = site.peers
            matrix[source, destination] = trace.volume(one)[0][source]
        else:
            matrix = collective_matrix(site.operation, trace.volume(one)[0], algorithm)
        out[ranks[:, None], ranks] += matrix
    np.fill_diagonal(out, 0)
    return out
