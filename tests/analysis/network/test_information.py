"""Information: known channels, the chain rule to 1e-12, and bias that is corrected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network.information import host_entropy, information
from moetraffic.analysis.skew.measures import entropy

pytestmark = pytest.mark.filterwarnings("error")

matrices = hnp.arrays(
    np.int64, st.tuples(st.just(6), st.just(6)), elements=st.integers(0, 10**9)
)


def test_a_permutation_tells_everything_and_alike_rows_nothing():
    permutation = information(np.roll(np.eye(8), 1, axis=1))
    assert permutation.mutual == permutation.joint == 3
    assert permutation.destination_given_source == 0
    assert permutation.uncertainty == 1
    alike = information(np.outer([1, 2, 3], [4, 5, 6, 7]))
    assert alike.mutual == pytest.approx(0, abs=1e-12)
    assert alike.destination_given_source == pytest.approx(entropy([4, 5, 6, 7]))
    assert alike.source_given_destination == pytest.approx(entropy([1, 2, 3]))


def test_a_noisy_channel_has_its_capacity():
    # binary symmetric, flip .1: I = 1 - H_b(.1)
    channel = information([[90, 10], [10, 90]])
    assert channel.mutual == pytest.approx(1 - 0.4689956, abs=1e-6)
    assert channel.destination_given_source == pytest.approx(0.4689956, abs=1e-6)
    # uniform without the diagonal: which of R - 1 others is open
    uniform = information(np.ones((8, 8)), diagonal=False)
    assert uniform.destination_given_source == pytest.approx(np.log2(7))
    assert uniform.mutual == pytest.approx(3 - np.log2(7))


@settings(max_examples=30)
@given(matrices, st.booleans())
def test_terms_fit_each_other(matrix, diagonal):
    found = information(matrix, diagonal=diagonal)
    if np.isnan(found.joint):
        return
    # the conditional entropy is the mean of the rows' own
    kept = matrix if diagonal else np.where(np.eye(6, dtype=bool), 0, matrix)
    weight = kept.sum(axis=1) / kept.sum()
    rows = np.nan_to_num(entropy(kept))
    assert found.destination_given_source == pytest.approx(weight @ rows, abs=1e-9)
    assert -1e-12 < found.mutual <= min(found.source, found.destination) + 1e-9


@settings(max_examples=40)
@given(
    matrices,
    st.lists(st.sampled_from("abc"), min_size=6, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_the_chain_rule_holds_over_any_hosts(matrix, hosts, diagonal, corrected):
    found = host_entropy(matrix, hosts, diagonal=diagonal, bias_corrected=corrected)
    parts = found.host_pairs + found.within
    assert np.isnan(parts) == np.isnan(found.matrix)
    if not np.isnan(parts):
        assert found.matrix == pytest.approx(parts, abs=1e-12)


def test_the_chain_rule_over_uniform_hosts_and_over_a_demand_matrix():
    found = host_entropy(np.ones((2, 16, 16)), 8)
    assert found.host_pairs.tolist() == [2, 2]
    assert found.within == pytest.approx(6)
    without = host_entropy(np.ones((16, 16)), 8, diagonal=False)
    assert without.matrix == pytest.approx(np.log2(240), abs=1e-12)
    inter = 8 / 15
    assert without.host_pairs == pytest.approx(entropy([inter, 1 - inter]) + 1)
    demand = np.random.default_rng(1).poisson(9, (8, 32))
    split = host_entropy(demand, 4, 16)
    assert split.matrix == pytest.approx(split.host_pairs + split.within, abs=1e-12)
    one_host = host_entropy(demand, 8, 32)
    assert one_host.host_pairs == 0
    assert one_host.within == pytest.approx(one_host.matrix, abs=1e-12)
    own = host_entropy(demand, 1, 1)
    assert own.within == pytest.approx(0, abs=1e-12)


def test_edges_are_nan_without_a_warning():
    for matrix in (np.zeros((3, 3)), [[5]]):
        found = information(matrix, diagonal=False)
        assert np.isnan([found.joint, found.mutual, found.uncertainty]).all()
        split = host_entropy(matrix, 1, diagonal=False, bias_corrected=True)
        assert np.isnan([split.matrix, split.host_pairs, split.within]).all()
    single = information([[5]])
    assert single.joint == single.mutual == 0
    assert np.isnan(single.uncertainty)


def test_corrected_estimates_are_nearer_the_truth():
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.full(16, 3.0), 8) / 8
    truth = information(p)
    counts = rng.multinomial(3000, p.ravel(), size=400).reshape(-1, 8, 16)
    plain, corrected = information(counts), information(counts, bias_corrected=True)
    for name in ("joint", "mutual", "destination_given_source"):
        true = getattr(truth, name)
        bias = abs(getattr(plain, name).mean() - true)
        left = abs(getattr(corrected, name).mean() - true)
        assert left < bias / 5, name
    assert corrected.mutual.mean() == pytest.approx(truth.mutual, rel=0.05)


def test_each_corrected_term_has_its_own_number_of_cells():
    counts = np.array([[4, 0, 2], [0, 0, 6]])
    plain, corrected = information(counts), information(counts, bias_corrected=True)
    unit = 1 / (2 * np.log(2) * 12)
    assert corrected.joint - plain.joint == pytest.approx(2 * unit)
    assert corrected.source - plain.source == pytest.approx(unit)
    assert corrected.destination - plain.destination == pytest.approx(unit)
    assert corrected.mutual - plain.mutual == pytest.approx(0, abs=1e-12)
