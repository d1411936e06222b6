"""A sample covers every site and the fullest buffers, and is the same on all ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import ReplayError
from moetraffic.replay import make_plan
from moetraffic.replay.plan.selection import Depth, Verification


@settings(max_examples=10, deadline=None)
@given(
    share=st.floats(0.001, 1.0),
    seed=st.integers(0, 2**32),
    iterations=st.integers(1, 30),
)
def test_each_site_has_its_share_and_each_group_its_largest(
    toy, share, seed, iterations
):
    plan = make_plan(
        toy(world=4, groups=[(0, 2), (1, 3)], iterations=range(iterations)), ranks=()
    )
    checks = Verification(depth=Depth.SAMPLE, share=share, seed=seed)
    chosen = checks.chosen(plan)
    assert (chosen == checks.chosen(plan)).all()
    more = 0
    for site in np.unique(plan.site):
        mine = plan.site == site
        drawn = int(chosen[mine].sum())
        assert drawn >= math.ceil(share * mine.sum())
        more += drawn - math.ceil(share * int(mine.sum()))
    assert more <= len(np.unique(plan.group))
    for group in np.unique(plan.group):
        mine = plan.group == group
        assert plan.largest_bytes[mine & chosen].max() == plan.largest_bytes[mine].max()


def test_seeds_draw_different_samples_of_one_size(toy):
    plan = make_plan(toy(iterations=range(40)), ranks=())
    samples = [
        Verification(depth=Depth.SAMPLE, share=0.1, seed=s).chosen(plan)
        for s in range(3)
    ]
    assert len({s.tobytes() for s in samples}) == 3
    assert all(28 <= s.sum() <= 30 for s in samples)


def test_full_is_everything_and_none_is_nothing(toy):
    plan = make_plan(toy(), ranks=())
    assert Verification().chosen(plan).all()
    assert not Verification(depth=Depth.NONE).chosen(plan).any()


@pytest.mark.parametrize(("share", "seed"), [(0, 0), (1.1, 0), (math.nan, 0), (1, -1)])
def test_a_share_that_is_none_is_refused(share, seed):
    with pytest.raises(ReplayError, match="change --sample or --sample-seed"):
        Verification(depth=Depth.SAMPLE, share=share, seed=seed)
