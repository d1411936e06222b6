from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.patterns.placement import PLACEMENTS, place, replicate

LOADS = st.lists(st.integers(0, 1000), min_size=1, max_size=16)


def heaviest(load: list[int], experts: np.ndarray, ranks: np.ndarray) -> float:
    share = np.array(load, float)[experts] / np.bincount(experts)[experts]
    return float(np.bincount(ranks, weights=share).max())


@given(load=LOADS, ranks=st.integers(1, 6), more=st.integers(0, 12))
@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_expert_has_a_slot_and_every_rank_as_many(
    name: str, load: list[int], ranks: int, more: int
) -> None:
    slots = -(-(len(load) + more) // ranks) * ranks
    experts, where = place(name, np.array(load, float), ranks, slots)
    assert set(experts.tolist()) == set(range(len(load)))
    assert np.bincount(where, minlength=ranks).tolist() == [slots // ranks] * ranks
    assert (np.diff(experts) >= 0).all()


def test_greedy_on_a_load_worked_out_by_hand() -> None:
    # 9 | 8 | 7+1 ... : ranks of two experts each, the lightest takes the next
    load = np.array([9.0, 1, 8, 2, 7, 3])
    experts, ranks = place("greedy", load, 3, 6)
    assert experts.tolist() == [0, 1, 2, 3, 4, 5]
    assert ranks.tolist() == [0, 0, 1, 1, 2, 2]


def test_greedy_is_never_above_contiguous_on_these_loads() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        load = np.sort(rng.zipf(1.6, 16).clip(max=10_000)).tolist()  # worst for blocks
        placed = {
            n: heaviest(load, *place(n, np.array(load, float), 4, 16))
            for n in PLACEMENTS
        }
        assert placed["greedy"] <= placed["contiguous"]


def test_replicas_go_where_the_load_a_replica_is_greatest() -> None:
    # 12 -> 6, 6 -> 4, 4, 4; then 5 -> 2.5
    assert replicate(np.array([12.0, 5, 1]), 6).tolist() == [0, 0, 0, 1, 1, 2]


def test_replicas_of_an_expert_lie_on_different_ranks() -> None:
    experts, ranks = place("greedy", np.array([100.0, 1, 1, 1]), 4, 8)
    hot = ranks[experts == 0]
    assert len(hot) == 5  # four ranks: one must take two
    assert set(hot.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "experts", "ranks", "slots", "says"),
    [
        ("round", 4, 2, 4, "the placement is one of contiguous, strided, greedy"),
        ("greedy", 4, 2, 3, "every expert needs a slot"),
        ("greedy", 4, 2, 5, "5 slots (4 experts and 1 more replicas)"),
    ],
)
def test_impossible_placements(
    name: str, experts: int, ranks: int, slots: int, says: str
) -> None:
    with pytest.raises(LayoutError) as error:
        place(name, np.ones(experts), ranks, slots)
    assert says in str(error.value)
