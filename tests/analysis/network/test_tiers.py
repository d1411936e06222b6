"""Host tiers: exact shares and line efficiency."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network import tiers
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

matrices = hnp.arrays(
    np.int64, st.tuples(st.just(6), st.just(6)), elements=st.integers(0, 10**12)
)


@pytest.mark.parametrize(
    ("ranks", "share"), [(16, 0.533333), (64, 0.888889), (1024, 0.993157)]
)
def test_of_a_uniform_matrix_r_minus_g_of_r_minus_1_leaves_the_host(ranks, share):
    uniform = np.ones((ranks, ranks), np.int64)
    found = tiers.tier_shares(uniform, 8)
    assert found.inter_host == pytest.approx(share, abs=1e-6)
    assert found.intra_host == pytest.approx(1 - share, abs=1e-6)
    assert found.counted == ranks * (ranks - 1)
    assert tiers.uniform_inter_host_share(ranks, 8) == pytest.approx(share, abs=1e-6)
    kept = tiers.tier_shares(uniform, 8, diagonal=True)
    assert kept.inter_host == pytest.approx((ranks - 8) / ranks)


@settings(max_examples=25)
@given(matrices, st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_the_host_matrix_keeps_every_byte_and_its_diagonal_what_stays(matrix, hosts):
    between = tiers.host_matrix(matrix, hosts)
    assert between.sum() == matrix.sum()
    found = tiers.tier_shares(matrix, hosts, diagonal=True)
    stays = np.trace(between)
    if matrix.sum():
        assert found.intra_host == pytest.approx(stays / matrix.sum())
        assert found.intra_host + found.inter_host == pytest.approx(1)
    else:
        assert np.isnan(found.intra_host)
    of = np.array(hosts)
    by_hand = [
        [matrix[np.ix_(of == a, of == b)].sum() for b in np.unique(of)]
        for a in np.unique(of)
    ]
    assert between.tolist() == by_hand


def test_edges_one_rank_one_host_nothing_sent():
    assert np.isnan(tiers.tier_shares([[5]], 1).inter_host)
    assert tiers.tier_shares(np.ones((4, 4)), 4).inter_host == 0
    assert np.isnan(tiers.tier_shares(np.zeros((2, 4, 4)), 2).inter_host).all()
    assert np.isnan(tiers.line_efficiency(np.zeros((3, 3))))
    unknown = np.array([[np.nan, 1], [3, np.nan]])  # of itself a rank says nothing
    assert tiers.tier_shares(unknown, 1).inter_host == 1


def test_line_efficiency():
    permutation = np.roll(np.eye(8, dtype=int), 1, axis=1) * 5
    incast = np.zeros((8, 8), int)
    incast[1:, 0] = 3
    own = permutation + np.eye(8, dtype=int) * 1000
    found = tiers.line_efficiency(np.stack([permutation, incast, own]))
    assert found.tolist() == [1, pytest.approx(1 / 8), 1]


def test_what_cannot_be_is_refused():
    with pytest.raises(AnalysisError, match="at least 1 rank"):
        tiers.host_numbers(4, 0)
    with pytest.raises(AnalysisError, match="as many labels"):
        tiers.host_numbers(4, [0, 1])
    with pytest.raises(AnalysisError, match="square"):
        tiers.tier_shares(np.ones((2, 4)), 1)
    with pytest.raises(AnalysisError, match="divisor"):
        tiers.uniform_inter_host_share(16, 5)
