from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.gating.hashing import mixed

MASK = 2**64 - 1


def splitmix(*keys: int) -> int:
    """SplitMix64's finalizer over the keys, in Python's integers."""
    state = 0
    for key in keys:
        state = ((state ^ (key & MASK)) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def test_the_first_number_of_splitmix_with_seed_zero() -> None:
    assert int(mixed(0)) & MASK == 0xE220A8397B1DCDAF


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_hashes_are_splitmix_in_64_bits(keys: list[int]) -> None:
    assert int(mixed(*map(torch.tensor, keys))) & MASK == splitmix(*keys)


def test_order_matters_and_tensors_broadcast() -> None:
    rows, columns = torch.arange(3).unsqueeze(1), torch.arange(4)
    table = mixed(7, rows, columns)
    assert table.shape == (3, 4)
    assert len(table.unique()) == 12
    assert int(table[2, 1]) == int(mixed(7, 2, 1))
    assert int(mixed(1, 2)) != int(mixed(2, 1))
