"""Dense background have the bytes, groups and order of patterns/."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import LayoutError, ReplayError
from moetraffic.patterns.collectives import collective_matrix
from moetraffic.patterns.matrices import traffic_matrix
from moetraffic.replay.plan.background import (
    layout_options,
    layout_pattern,
    traffic_of,
)

LAYOUT = "tp=2,pp=2,dp=2,micro-batch=1"


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("gpt2-large", LAYOUT),
        ("tiny", LAYOUT),
        ("tiny", f"{LAYOUT},library=moetraffic"),
        ("gpt2-large", "tp=4,dp=2,zero=3"),
        ("gpt2-large", "dp=8,zero=1,library=moetraffic"),
    ],
)
def test_between_ranks_they_send_what_the_pattern_says(model, layout):
    found, pattern = traffic_of(layout, model, 8), layout_pattern(layout, model)
    total = np.zeros((8, 8), np.int64)
    for one in found.operations:
        ranks = found.groups[one.group]
        if one.kind == "send_recv":
            total[one.sender, one.receiver] += one.size
            continue
        root = ranks.index(max(one.sender, one.receiver, ranks[0]))
        volumes = np.full(len(ranks), one.size, np.int64)
        total[np.ix_(ranks, ranks)] += collective_matrix(
            one.kind, volumes, "ring", root=root
        )
    kinds = {e.call.traffic for p in pattern.programs for e in p} - {"EP"}
    exchanged = traffic_matrix(pattern, traffic=sorted(kinds))
    for call, groups, times in pattern.calls(sorted(kinds)):
        assert call.operation != "all_to_all" or not (exchanged, groups, times)
    np.testing.assert_array_equal(total, exchanged)


def test_every_group_runs_in_a_stream_of_its_kind():
    found = traffic_of(LAYOUT, "gpt2-large", 8)
    by_kind = dict(zip(found.groups, found.group_kinds, strict=True))
    assert by_kind[0, 1] == by_kind[6, 7] == "tp"
    assert by_kind[0, 2] == "dp"
    assert "pp" in found.group_kinds
    assert "embedding" in found.group_kinds
    assert all(o.site.group == o.group for o in found.operations)
    assert len({o.site for o in found.operations}) == len(found.operations)


@pytest.mark.parametrize(
    "layout", ["tp", "tp=x", "tp=2,tp=2", "color=1", "recompute=most", "tp=-1"]
)
def test_a_layout_that_says_nothing_is_refused(layout):
    with pytest.raises(ReplayError, match="tp=2,pp=2,dp=2 are two ranks"):
        layout_options(layout, "tiny")


def test_a_layout_of_other_ranks_is_refused():
    with pytest.raises(ReplayError, match=r"replay's 4 ranks, but tp=2,dp=4 are 8"):
        traffic_of("tp=2,dp=4", "gpt2-large", 4)
    with pytest.raises(ReplayError, match="raise tp, pp or dp"):
        traffic_of("dp=1", "gpt2-large", 1)
    with pytest.raises(LayoutError, match="did you mean gpt2-large"):
        traffic_of("dp=2", "gpt2-lrge", 2)
