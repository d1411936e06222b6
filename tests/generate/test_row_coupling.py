"""Directions of documents are sharpened only where that couples layers."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.generate.row_coupling import power_for


def test_what_gains_no_coupling_is_left_as_it_is() -> None:
    wanted = np.array([0.4, 0.1])
    assert power_for(wanted, lambda _: np.array([0.35, 0.05])) == 0.0
    # and what loses some
    assert power_for(wanted, lambda p: np.array([0.35, 0.05]) - 0.1 * p) == 0.0


def test_the_least_power_that_couples_as_wanted_is_taken() -> None:
    wanted = np.array([0.6, 0.6])
    assert power_for(wanted, lambda p: 0.5 + 0.3 * p + np.zeros(2)) == pytest.approx(
        0.3
    )
    assert power_for(wanted, lambda _: np.array([0.7, 0.6])) == 0.0
    # one layer alone could couple no pair
    assert power_for(np.array([np.nan]), lambda _: np.array([np.nan])) == 0.0
