"""Random streams that do not depend on the order of their use.

Every draw has an address: the seed, what is drawn, the iteration, the layer.  A Philox
generator (J. K. Salmon et al., SC'11) is a function of its key and counter, so threads
and blocks of any size draw the same.
"""

from __future__ import annotations

import enum

import numpy as np

from moetraffic.errors import LayoutError

MOST_SEED = (1 << 63) - 1


class Use(enum.IntEnum):
    """Purposes of random numbers; each has an independent stream."""

    RUN = 0  # labels and parameters of a run, once
    MOVEMENT = 1  # of the log-weights, a block of iterations
    RANKS = 2  # factors of the ranks, an iteration
    COUNTS = 3  # token copies, an iteration and exchange
    HAND_OVER = 4  # order in which experts are hottest, once


def generator(
    seed: int, use: Use, iteration: int = 0, exchange: int = 0
) -> np.random.Generator:
    """Make the generator of one stream; LayoutError for a seed above MOST_SEED."""
    if not 0 <= seed <= MOST_SEED:
        raise LayoutError(
            f"a seed is from 0 to {MOST_SEED}, but {seed} was given: change --seed"
        )
    # the lowest word of the counter counts the draws
    counter = np.array([0, exchange, iteration, 0], np.uint64)
    key = np.array([seed, int(use)], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
