"""Step time: exact cases and known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.step_time import step_spans, step_time

pytestmark = pytest.mark.filterwarnings("error")


def test_the_tail_index_of_pareto_lengths_is_in_its_interval() -> None:
    rng, covered = np.random.default_rng(2), 0
    for index in np.repeat([1.2, 2.0, 5.0], 70):
        found = step_time(1 + rng.pareto(index, 1000))
        covered += found.tail_index_low <= index <= found.tail_index_high
    assert covered >= 210 * 0.95 - 3 * (210 * 0.95 * 0.05) ** 0.5


@pytest.mark.parametrize("steps", [0, 1, 99])
def test_few_steps_have_no_tail_index(steps: int) -> None:
    found = step_time(np.arange(steps) + 1.0)
    assert found.steps == steps
    assert np.isnan([found.tail_index, found.tail_index_low]).all()
    assert np.isnan(found.max_ns) == (steps == 0)


def test_equal_steps_have_no_tail() -> None:
    found = step_time(np.full(500, 10.0))
    assert (found.cv, found.p99_ns) == (0, 10)
    assert np.isnan(found.tail_index)


@given(
    st.lists(st.integers(0, 300), max_size=30),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_steps_lie_in_what_was_observed(marks, seen) -> None:
    seen = np.array(sorted(seen)[: len(seen) // 2 * 2], np.int64).reshape(-1, 2)
    begin, end, left_out = step_spans(
        marks, within=(0, 301), observed=(seen[:, 0], seen[:, 1])
    )
    borders = sorted(set(marks))
    assert len(begin) + left_out == len(step_spans(marks, within=(0, 301))[0])
    for b, e in zip(begin.tolist(), end.tolist(), strict=True):
        assert borders[borders.index(b) + 1] == e
        covered = np.zeros(301, bool)
        for low, high in seen.tolist():
            covered[low:high] = True
        assert covered[b:e].all()
