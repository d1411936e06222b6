"""Downstream figures: exact cases, invariants, and what two runs may differ by."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import AnalysisError
from moetraffic.validation.downstream import (
    FIGURES,
    PORT_BYTES_S,
    accepted_difference,
    bottleneck_copies,
    difference,
    downstream,
)

RANKS, EXPERTS = 4, 8


def drifting(iterations: int, seed: int, *, layers: int = 2) -> np.ndarray:
    """Counts whose log loads are random walks, 64 tokens of a rank."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.1, (iterations, layers, 1, EXPERTS))
    p = np.exp(np.cumsum(steps, axis=0))
    p = np.repeat(p / p.sum(axis=3, keepdims=True), RANKS, axis=2)
    return rng.multinomial(64, p)


def test_even_counts_have_the_values_of_balance() -> None:
    counts = np.full((60, 3, RANKS, EXPERTS), 5)
    found = downstream(counts, copy_bytes=10)
    assert found.keys() == FIGURES.keys()
    assert found["entropy"] == pytest.approx(1)
    assert found["max over mean"] == 1
    assert found["change"] == 0
    assert found["retention at 10"] == 1
    # a rank sends 2 experts' 5 copies to each of 3 others: 300 bytes
    second = 300 / PORT_BYTES_S
    assert found["p99 link time"] == pytest.approx(second)
    assert found["p50 completion"] == pytest.approx(3 * 4 * second)  # layers, phases
    assert found["p99 completion"] == pytest.approx(3 * 4 * second)
    assert np.isnan(found["skill at 1"])  # there is nothing to forecast


def test_the_bottleneck_is_the_fullest_port_of_any_group() -> None:
    counts = np.zeros((2, 1, 4, 4), np.int64)
    counts[0, 0, 0] = [100, 100, 7, 0]  # ranks 0 and 1: rank 1 holds experts 2 and 3
    counts[0, 0, 2] = counts[0, 0, 3] = [4, 0, 0, 0]  # ranks 2, 3: rank-local, and 4

    def bottleneck(holder: list[int], width: int) -> list[int]:
        held = np.array([holder])
        return bottleneck_copies(counts, holder=held, width=width)[:, 0].tolist()

    assert bottleneck([0, 0, 1, 1], 2) == [7, 0]
    # all four in one group, an expert each: 100 arrive at rank 1, 107 leave rank 0
    assert bottleneck([0, 1, 2, 3], 4) == [107, 0]
    assert bottleneck([1, 1, 0, 0], 2) == [200, 0]


def test_the_numbers_of_experts_do_not_matter() -> None:
    counts = drifting(80, 0)
    order = np.random.default_rng(1).permutation(EXPERTS)
    holder = np.broadcast_to(np.arange(EXPERTS) * RANKS // EXPERTS, (2, EXPERTS))
    first = downstream(counts)
    renamed = downstream(counts[..., order], holder=holder[:, order])
    # of experts with equal counts the first are the hot ones
    kept = [found.pop("retention at 10") for found in (first, renamed)]
    assert kept[0] == pytest.approx(kept[1], abs=0.02)
    assert renamed == pytest.approx(first)


def test_differences_are_signed_relative_and_of_skill_absolute() -> None:
    of = dict.fromkeys(FIGURES, 1.0)
    more = {**of, "change": 3.0, "skill at 1": 0.75}
    apart = difference(more, of)
    assert apart["change"] == 1.0  # 2 above, of a mean of 2
    assert apart["skill at 1"] == -0.25
    assert apart["entropy"] == 0
    back = difference(of, more)
    assert all(back[name] == -value for name, value in apart.items())


def test_the_accepted_difference_is_that_of_reruns_with_slack() -> None:
    runs = [dict.fromkeys(FIGURES, 1.0) | {"change": c} for c in (1.0, 1.1, 1.2)]
    accepted = accepted_difference(runs)
    assert accepted["change"] == pytest.approx(1.25 * 0.2 / 1.1)
    assert accepted["entropy"] == 0.02
    with pytest.raises(AnalysisError, match="two or more runs"):
        accepted_difference(runs[:1])


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (5, 3, 4), (5, 0, 3, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AnalysisError, match="two iterations or more"):
        downstream(np.ones(shape, np.int64))
