"""Floors of whole matrices, against gates that route token by token."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.network.information import information
from moetraffic.analysis.network.tiers import tier_shares
from moetraffic.analysis.noise.matrix_floors import (
    column_floor,
    conditional_entropy_floor,
    inter_host_floor,
    joint_entropy_floor,
    mutual_information_floor,
)
from moetraffic.analysis.noise.noise_floors import noise_floor
from moetraffic.analysis.skew import measures
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def routed(tokens, experts, k, sources, draws, seed=11):
    """Counts ``[draws, W, E]`` of a balanced gate, each token for itself."""
    rng = np.random.default_rng(seed)
    out = np.zeros((draws, sources, experts), np.int64)
    for draw in range(draws):
        order = rng.random((sources, tokens, experts)).argpartition(k - 1, axis=-1)
        chosen = order[..., :k].reshape(sources, -1)
        for source in range(sources):
            out[draw, source] = np.bincount(chosen[source], minlength=experts)
    return out


def assert_standard(z, draws):
    """Mean 0 and deviation 1, and 95% within 1.96, as far as so many draws tell."""
    assert abs(z.mean()) < 4.5 / np.sqrt(draws)
    assert z.std() == pytest.approx(1, abs=3.5 / np.sqrt(draws) + 0.04)
    assert abs((np.abs(z) < 1.96).mean() - 0.95) < 0.04


@pytest.fixture(scope="module")
def counts():
    return routed(80, 8, 2, 8, 900)


OF = {"experts": 8, "k": 2, "sources": 8}


def test_information_of_a_balanced_gate_is_at_its_floor(counts):
    found = information(counts)
    floors = {
        "mutual": mutual_information_floor,
        "destination_given_source": conditional_entropy_floor,
        "joint": joint_entropy_floor,
    }
    for name, floor in floors.items():
        extra = {} if name == "mutual" else {"draws": 8000}
        assert_standard(floor(80, **OF, **extra).z_score(getattr(found, name)), 900)


def test_information_with_few_copies_a_cell_is_simulated():
    few = routed(6, 8, 2, 8, 700)
    floor = mutual_information_floor(6, **OF, draws=3000)
    assert_standard(floor.z_score(information(few).mutual), 700)


def test_information_of_ranks_is_at_its_floor(counts):
    ranks = counts.reshape(900, 8, 4, 2).sum(axis=-1)
    found = information(ranks)
    floor = mutual_information_floor(80, ranks=4, **OF)
    assert_standard(floor.z_score(found.mutual), 900)
    floor = conditional_entropy_floor(80, ranks=4, draws=8000, **OF)
    assert_standard(floor.z_score(found.destination_given_source), 900)


def test_the_joint_floor_is_that_of_the_whole_matrix():
    one = joint_entropy_floor([80, 300], **OF, draws=4000)
    whole = noise_floor("entropy", [80, 300], **OF, draws=4000)
    assert one.mean == pytest.approx(whole.mean, abs=1e-9)
    assert one.std == pytest.approx(whole.std, rel=0.06)


@pytest.mark.parametrize("measure", ["cv_squared", "normalized_entropy", "gini"])
def test_columns_of_a_balanced_gate_are_at_their_floor(counts, measure):
    floor = column_floor(measure, 80, **OF, draws=8000)
    z = floor.z_score(measures.MEASURES[measure](counts, axis=-2))
    assert abs(z.mean()) < 0.08
    assert z[:, 0].std() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("ranks", [8, 4])
def test_hosts_of_a_balanced_gate_are_at_their_floor(counts, diagonal, ranks):
    matrix = counts[:, :ranks].reshape(900, ranks, ranks, -1).sum(axis=-1)
    found = tier_shares(matrix, ranks // 2, diagonal=diagonal)
    floor = inter_host_floor(
        80, experts=8, k=2, ranks=ranks, hosts=2, diagonal=diagonal
    )
    assert_standard(floor.z_score(found.inter_host), 900)
    even = (ranks - ranks // 2) / (ranks - 1) if not diagonal else 0.5
    assert floor.mean == pytest.approx(even)


@pytest.mark.parametrize(
    "of",
    [{}, {"ranks": 4, "sources": 4}, {"ranks": 4, "sources": 4, "diagonal": False}],
)
def test_sparsity_of_a_balanced_gate_is_exact(of):
    drawn = routed(5, 8, 2, of.get("sources", 1), 4000)
    if "ranks" in of:
        drawn = drawn.reshape(4000, 4, 4, 2).sum(axis=-1)
    found = measures.sparsity(drawn, axis=(-2, -1), diagonal=of.get("diagonal", True))
    floor = noise_floor("sparsity", 5, experts=8, k=2, **of)
    assert found.mean() == pytest.approx(float(floor.mean), abs=4 * floor.std / 63)
    assert found.std() == pytest.approx(float(floor.std), rel=0.05)


def test_a_gate_that_knows_its_source_stands_out():
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.full(8, 50.0), 8)
    matrix = np.stack([rng.multinomial(4000, row) for row in p])
    floor = mutual_information_floor(4000, experts=8, k=1, sources=8)
    assert floor.z_score(information(matrix).mutual) > 10


def test_edges_where_nothing_varies_nothing_scores():
    full = mutual_information_floor(10, experts=4, k=4, sources=3)
    assert full.mean == full.std == 0
    assert np.isnan(full.z_score(0.1))
    assert mutual_information_floor(10, experts=1, k=1, sources=3).mean == 0
    assert np.isnan(mutual_information_floor([0, 9], **OF).mean).tolist() == [
        True,
        False,
    ]
    assert np.isnan(conditional_entropy_floor(0, **OF).mean)
    assert np.isnan(column_floor("gini", 0, **OF).mean)
    alone = inter_host_floor(10, experts=4, k=2, ranks=1, hosts=1)
    assert np.isnan(alone.mean)
    one_host = inter_host_floor(10, experts=4, k=2, ranks=4, hosts=1)
    assert one_host.mean == one_host.std == 0
    assert np.isnan(inter_host_floor(0, experts=4, k=2, ranks=4, hosts=2).mean)
    assert np.isnan(noise_floor("sparsity", 0, experts=4, k=1).mean)


def test_what_cannot_be_is_refused():
    with pytest.raises(AnalysisError, match="divisor"):
        inter_host_floor(10, experts=8, k=2, ranks=8, hosts=3)
    with pytest.raises(AnalysisError, match="noise floor"):
        column_floor("mass", 10, **OF)
    with pytest.raises(AnalysisError, match="distinct"):
        mutual_information_floor(10, experts=8, k=9, sources=2)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [3, 10, 20, 40, 200])
@pytest.mark.parametrize(("experts", "k"), [(8, 1), (16, 2), (16, 6)])
def test_floors_of_information_over_a_sweep_of_sizes(tokens, experts, k):
    drawn = routed(tokens, experts, k, 12, 1500)
    of = {"experts": experts, "k": k, "sources": 12}
    found = information(drawn)
    floor = mutual_information_floor(tokens, **of, draws=4000)
    assert_standard(floor.z_score(found.mutual), 1500)
    floor = conditional_entropy_floor(tokens, **of, draws=20000)
    assert_standard(floor.z_score(found.destination_given_source), 1500)
