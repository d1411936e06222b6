"""Labels of experts: permutations that keep together what a router keeps together."""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64


def nested_order(experts: int, ep: int, rng: np.random.Generator) -> Int64:
    """Permute the experts of each rank, the ranks, and ever larger sets of ranks.

    Experts of different ranks are never exchanged alone: routers that select groups of
    experts make those of a rank or of neighboring ranks busy together, on which the
    bytes of the ports depend.  ``ep`` ranks hold as many consecutive experts each;
    where they cannot, any two experts are exchanged.
    """
    left = 1 if experts % ep else ep
    order = rng.permuted(np.arange(experts).reshape(left, -1), axis=1)
    factor = 2
    while left > 1:
        if left % factor:
            factor += 1
            continue
        left //= factor
        sets = order.reshape(left, factor, -1)
        order = np.stack([rng.permutation(each) for each in sets]).reshape(left, -1)
    return order.ravel()
