"""Random streams keyed by purpose and position.

Ranks, layouts and restarts then agree without exchanging any state.
"""

from __future__ import annotations

import enum

import numpy as np
import torch


class Stream(enum.IntEnum):
    """Purpose of a random stream."""

    DENSE = 1  # key: seed, CRC-32 of the parameter's name
    EXPERT = 2  # key: seed, layer, expert
    BATCH = 3  # key: seed, iteration, micro-batch, data-parallel rank
    DROPPING = 4  # key: seed, iteration, micro-batch, layer or rank
    NOISE = 5  # of routers; key: seed, iteration, data-parallel rank
    MASK = 6  # key: as BATCH


def generator(stream: Stream, seed: int, *key: int) -> torch.Generator:
    """Create a CPU generator for a purpose, a seed and a key."""
    return torch.Generator().manual_seed(seed_of(stream, seed, *key))


def seed_of(stream: Stream, seed: int, *key: int) -> int:
    """Derive the seed of a generator from a purpose, a seed and a key."""
    # SeedSequence takes no negative seed
    words = (int(stream), seed & (2**64 - 1), *key)
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
    return int(state) >> 1
