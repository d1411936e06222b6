"""Share what one rank sent and received among several, byte for byte.

A cell ``[i, j]`` of a matrix is what i's tokens send to j's experts.  Where i becomes
f ranks and j becomes g, the cell becomes a block of f x g whose sum is the cell.
It is done as a dispatch is oriented (a combine is transposed before and after),
so that phases stay transposes of each other, in two steps:

columns
    The experts of j are taken to get as much each: every one of the g ranks gets the
    cell over g.
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


def split(units: Int64, parts: Int64) -> Int64:
    """Split rows and columns of matrices in the orientation of the dispatch.

    ``units`` are ``[b, W, W]`` int64 and ``parts`` ``[W]`` int64 the ranks that each
    member becomes.  The result is ``[b, W', W']`` int64, W' the sum of the parts.
    """
    return share(share(units, parts).transpose(0, 2, 1), parts).transpose(0, 2, 1)
