from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.gating import capacity, keep


@pytest.mark.parametrize(
    ("factor", "k", "tokens", "experts", "copies"),
    [
        (1.0, 1, 64, 8, 8),  # room for a balanced routing, no more
        (1.25, 2, 512, 8, 160),
        (1.0, 1, 9, 8, 2),  # rounded up
        (0.01, 1, 8, 8, 1),  # never less than one
        (1.1, 1, 10, 1, 11),  # 1.1 * 10 in floats is above 11
        (8.0, 1, 64, 8, 64),
    ],
)
def test_capacity_of_known_cases(
    factor: float, k: int, tokens: int, experts: int, copies: int
) -> None:
    assert capacity(factor, k, tokens, experts) == copies


@given(
    quarters=st.integers(1, 40),
    k=st.integers(1, 8),
    tokens=st.integers(1, 5000),
    experts=st.integers(1, 256),
)
def test_capacity_is_the_ceiling_of_the_formula(
    quarters: int, k: int, tokens: int, experts: int
) -> None:
    exact = -(-quarters * k * tokens // (4 * experts))  # in integers
    assert capacity(quarters / 4, k, tokens, experts) == exact


@given(
    expert=st.lists(st.integers(0, 5), max_size=60),
    limit=st.integers(1, 8),
)
def test_the_first_copies_of_each_expert_are_kept(
    expert: list[int], limit: int
) -> None:
    seen: Counter[int] = Counter()
    expected = []
    for e in expert:
        expected.append(seen[e] < limit)
        seen[e] += 1
    kept = keep(torch.tensor(expert, dtype=torch.int64), 6, limit)
    assert kept.tolist() == expected
