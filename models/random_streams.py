"""Random numbers that depend on what they are for, not on when they are drawn.

Ranks, layouts and restarts then agree without exchanging any state.
"""

from __future__ import annotations

import enum

import numpy as np
import torch


class Stream(enum.IntEnum):
    """What numbers are for; each purpose has streams of its own."""

    DENSE = 1  # key: seed, CRC-32 of the parameter's name
    EXPERT = 2  # key: seed, layer, expert
    BATCH = 3  # key: seed, iteration, micro-batch, data-parallel rank
    DROPPING = 4  # key: seed, iteration, micro-batch, layer or rank
    NOISE = 5  # of routers; key: seed, iteration, data-parallel rank
    MASK = 6  # key: as BATCH


def generator(stream: Stream, seed: int, *key: int) -> torch.Generator:
    """A CPU generator for this purpose, seed and key of non-negative integers."""
    return torch.Generator().manual_seed(seed_of(stream, seed, *key))


def seed_of(stream: Stream, seed: int, *key: int) -> int:
    """The seed for this purpose, seed and key, for a generator that is there."""
    # SeedSequence takes no negative seed
    words = (int(stream), seed & (2**64 - 1), *key)
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
    return int(state) >> 1
