"""Loss tolerance: paired increases, and the largest tolerated share."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import AnalysisError
from moetraffic.report.results.tolerance import sentence
from moetraffic.studies.tolerance import tolerance

BASE = np.array([2.0, 2.1, 2.2])  # sigma 0.1
RISES = np.array([0.01, 0.02, 0.03])


def test_increases_are_paired_by_seed_with_students_interval() -> None:
    swept = tolerance([0, 0.01], np.stack([BASE, BASE + RISES]))
    (increase,) = swept.increases
    assert increase.mean == pytest.approx(0.02)
    # t(0.975, 2) = 4.302653; sd 0.01 / sqrt 3
    assert increase.high - increase.mean == pytest.approx(
        4.302653 * 0.01 / 3**0.5, rel=1e-6
    )
    assert increase.mean - increase.low == pytest.approx(increase.high - increase.mean)
    assert swept.sigma == pytest.approx(0.1)
    assert swept.p_star == 0.01


def test_p_star_ends_at_the_first_share_that_is_not_tolerated() -> None:
    losses = np.stack([BASE, BASE, BASE + 0.2, BASE + 0.01])
    first, none = tolerance([0, 0.1, 0.2, 0.3], losses), [0, 2, 3]
    assert first.p_star == 0.1
    assert "of packets: 10%. " in sentence(first, "packets")
    assert tolerance([0, 0.2, 0.3], losses[none]).p_star == 0


def test_a_training_that_broke_down_is_not_tolerated() -> None:
    losses = np.stack([BASE, [2.0, np.nan, 2.2]])
    assert tolerance([0, 0.5], losses).p_star == 0


@pytest.mark.parametrize(
    ("shares", "losses", "says"),
    [
        ([0.1], [[1, 2]], "the shares increase from 0"),
        ([0, 0.2, 0.1], [[1, 2]] * 3, "the shares increase from 0"),
        ([0, 0.1], [[1], [1]], "needs 2 of them or more, but there is 1"),
    ],
)
def test_refused(shares: list[float], losses: list[list[float]], says: str) -> None:
    with pytest.raises(AnalysisError, match=says):
        tolerance(shares, np.array(losses, float))
