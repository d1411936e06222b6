"""Share what one rank sent and received among several, byte for byte.

A cell ``[i, j]`` of a matrix is what i's tokens send to j's experts.  Where i becomes
f ranks and j becomes g, the cell becomes a block of f x g whose sum is the cell.
It is done as a dispatch is oriented (a combine is transposed before and after),
so that phases stay transposes of each other, in two steps:

columns
    ``even``: the experts of j are taken to get as much each: every one of the g ranks
    gets the cell over g.  ``experts``: each of the g ranks holds a run of j's experts,
    in order, and gets what these got, which the trace's demand says.
rows
    i's tokens are dealt evenly: every one of the f ranks sends the cell over f.

What does not divide is dealt by largest remainder (all remainders are equal here, so
the order decides): one unit each, in turn, going on along the column, or row, where the
cell before left off.  So the shares of a rank's whole row differ by one unit at most,
not only those of a cell.  A unit is a token copy where the site tells its bytes and all
cells are whole copies, else a byte.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64

COLUMNS = ("even", "experts")
"""Rules for the experts' side."""


def share(units: Int64, parts: Int64) -> Int64:
    """Split the last axis: member j becomes ``parts[j]`` neighbors.

    ``units`` are ``[b, n, m]`` int64, 0 or more, ``parts`` ``[m]`` int64, 1 or more.
    In the result ``[b, n, sum(parts)]`` int64 each member's run sums to what it had,
    its cells differ by 1 at most, and so do their sums over the axis of n.

    Examples
    --------
    >>> share(np.array([[[5], [4], [3]]]), np.array([2])).tolist()
    [[[3, 2], [2, 2], [1, 2]]]
    """
    member = np.repeat(np.arange(len(parts)), parts)
    place = np.arange(len(member)) - (np.cumsum(parts) - parts)[member]
    whole, over = np.divmod(units, parts)
    # where the cell before in the column left off
    begun = (np.cumsum(over, axis=1) - over) % parts
    turn = (place - begun[:, :, member]) % parts[member]
    out: Int64 = whole[:, :, member] + (turn < over[:, :, member])
    return out


def split(units: Int64, parts: Int64, *, by_expert: Int64 | None = None) -> Int64:
    """Split rows and columns of matrices in the orientation of the dispatch.

    ``units`` are ``[b, W, W]`` int64, ``parts`` ``[W]`` int64 the ranks that each
    member becomes, and ``by_expert`` ``[b, W, sum(parts)]`` int64 what the experts of
    each rank to be got, which sums to ``units``; None shares columns evenly.  The
    result is ``[b, W', W']`` int64, W' the sum of the parts.
    """
    columns = share(units, parts) if by_expert is None else by_expert
    return share(columns.transpose(0, 2, 1), parts).transpose(0, 2, 1)


def runs(holder: Int64, parts: Int64) -> Int64:
    """Which rank to be holds each expert: a member's experts in order, in even runs.

    ``holder`` is ``[E]`` int64, the member that holds each expert, ``parts`` ``[W]``
    int64 the ranks that each member becomes; the result is ``[E]`` int64, the index
    among the ``sum(parts)`` members to be.

    Examples
    --------
    >>> runs(np.array([0, 0, 0, 1]), np.array([2, 2])).tolist()
    [0, 0, 1, 2]
    """
    begin = np.cumsum(parts) - parts
    count = np.bincount(holder, minlength=len(parts))
    order = np.argsort(holder, kind="stable")
    within = np.empty(len(holder), np.int64)
    within[order] = np.arange(len(holder)) - (np.cumsum(count) - count)[holder[order]]
    out: Int64 = begin[holder] + within * parts[holder] // count[holder]
    return out
