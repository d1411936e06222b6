"""Order of background operations among those of a trace, and their dependencies.

In an iteration with E exchanges (of all groups, in an order common to all ranks), an
operation of the background with place f is issued after the first floor(f E) of them:
where layer and phase stand that it belongs to, if the trace has the pattern's layers,
and else at the same share of the iteration.  It waits for what is before it on the
critical path of its rank: the exchange before it, or a *critical* operation of the
background.  The exchange after it waits for the last critical one.

Every dependency points back in one order that all ranks share, so no rank waits for
another in a cycle.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Bool, Float64, Int8, Int64

from .operation_table import OperationTable
from .program import UNKNOWN_GAP

_EXCHANGES = 0  # index of the stream of expert exchanges


def levels(table: OperationTable, common: Int64, place: Float64) -> Float64:
    """Compute the position of each operation among the exchanges of its iteration.

    Parameters
    ----------
    table
        Of n operations, the captured ones first.
    common
        ``[captured]`` position of each captured operation in the common order.
    place
        ``[n - captured]`` place of each background operation.

    Returns
    -------
    ndarray
        ``[n]``: i for exchange i, i - 0.5 for what comes before it and after the
        exchange i - 1.
    """
    count, iteration = table.captured, table.iteration
    order = np.argsort(common)
    exchange = table.stream[:count][order] == _EXCHANGES
    when = iteration[:count][order]
    passed = np.cumsum(exchange) - exchange  # exchanges before each
    first = np.searchsorted(when, when)
    within = passed - passed[first]
    out = np.empty(len(iteration))
    out[order] = np.where(exchange, within, within - 0.5)
    every, which = np.unique(iteration, return_inverse=True)
    total = np.bincount(which[:count][order], weights=exchange, minlength=len(every))
    out[count:] = np.floor(place * total[which[count:]] + 1e-6) - 0.5
    return out


def follow(
    after: Int64,
    gap_ns: Int64,
    *,
    added: Bool,
    critical: Bool,
    stream: Int8,
    iteration: Int64,
) -> tuple[Int64, Int64]:
    """Add the dependencies of background operations to those of a rank's program.

    Parameters
    ----------
    after, gap_ns
        ``[N]`` of captured operations; -1 where none, or unknown.
    added, critical
        ``[N]`` whether an operation is of the background, and on the critical path.
    stream, iteration
        ``[N]`` of each operation.

    Returns
    -------
    after, gap_ns
        ``[N]`` of all operations.
    """
    every = np.arange(len(after))
    exchange = (stream == _EXCHANGES) & ~added

    def last(of: Bool) -> Int64:
        """Index of the last of these before each operation of its iteration, or -1."""
        until = np.maximum.accumulate(np.where(of, every, -1))
        before = np.concatenate([[-1], until[:-1]])[: len(every)]
        same = (before >= 0) & (iteration[before] == iteration)
        return np.asarray(np.where(same, before, -1), np.int64)

    exchanged, waited = last(exchange), last(added & critical)
    after = np.where(added, np.maximum(exchanged, waited), after)
    after = np.where(exchange & (waited > exchanged), waited, after)
    return after, np.where(added, UNKNOWN_GAP, gap_ns)
