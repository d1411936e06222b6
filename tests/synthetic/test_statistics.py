"""Statistics of runs: exact cases, and independence of the numbering."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.synthetic.statistics import STATISTICS, statistics
from tests.synthetic.runs import simulated


def test_constant_even_counts_have_exact_statistics() -> None:
    values = statistics(np.full((40, 2, 4, 4), 8))
    exact = {
        "entropy": 1.0,
        "busiest_expert": 1.0,
        "growth": 1.0,
        "change_over_noise": 0.0,
        "drift": 0.0,
        "hot_kept": 1.0,
        "rank_correlation": 0.0,  # rows have no deviation
        "row_dispersion": 0.0,
        "layer_coupling": 0.0,
    }
    assert {name: values[name] for name in exact} == pytest.approx(exact)
    assert np.isnan([values["change_5"], values["change_20"]]).all()


def test_two_alternating_loads_have_exact_statistics() -> None:
    counts = np.zeros((42, 1, 2, 4), int)
    counts[::2] = [8, 0, 0, 0]
    counts[1::2] = [0, 4, 4, 0]
    values = statistics(counts)
    assert values["entropy"] == pytest.approx(0.25)
    assert values["busiest_expert"] == pytest.approx(3)
    assert values["change_5"] == pytest.approx(1)
    assert values["change_20"] == values["drift"] == 0
    assert values["rank_correlation"] == pytest.approx(1)
    assert values["row_dispersion"] == 0


def test_independent_draws_change_by_the_noise_and_rows_have_dispersion_one() -> None:
    rng = np.random.default_rng(0)
    values = statistics(rng.multinomial(200, [0.1, 0.2, 0.3, 0.4], (400, 2, 8)))
    near = dict.fromkeys(
        ("growth", "change_over_noise", "change_5", "change_20", "row_dispersion"), 1.0
    )
    assert {name: values[name] for name in near} == pytest.approx(near, abs=0.05)
    assert values["row_persistence"] == pytest.approx(0, abs=0.05)


def test_dirichlet_rows_have_the_dispersion_of_their_concentration() -> None:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet([19 / 5] * 5, (400, 1, 8))
    dispersion = statistics(rng.multinomial(200, rows))["row_dispersion"]
    assert dispersion == pytest.approx(1 + 199 / 20, rel=0.1)


def test_layers_are_coupled_where_the_same_ranks_are_similar() -> None:
    rng = np.random.default_rng(1)
    rows = rng.dirichlet([1.0] * 4, (300, 1, 6))
    same = rng.multinomial(2000, np.repeat(rows, 2, axis=1)[..., ::-1])
    apart = rng.multinomial(2000, rng.dirichlet([1.0] * 4, (300, 2, 6)))
    assert statistics(same)["layer_coupling"] > 0.95
    assert statistics(apart)["layer_coupling"] == pytest.approx(0, abs=0.05)
    assert np.isnan(statistics(apart[:, :1])["layer_coupling"])


def test_rows_of_the_iteration_before_are_persistent() -> None:
    rng = np.random.default_rng(2)
    rows = rng.dirichlet([1.0] * 8, (1, 2, 4))
    counts = rng.multinomial(5000, np.repeat(rows, 60, axis=0))
    assert statistics(counts)["row_persistence"] > 0.99


@pytest.mark.parametrize("axis", [2, 3])
def test_numbers_of_ranks_and_experts_do_not_matter(axis: int) -> None:
    counts = simulated(3)
    shuffled = np.random.default_rng(axis).permutation(counts, axis=axis)
    assert statistics(shuffled) == pytest.approx(statistics(counts))


def test_what_a_small_run_lacks_is_unknown() -> None:
    values = statistics(simulated(4, iterations=12)[:, :1, :1])
    unknown = {name for name, value in values.items() if np.isnan(value)}
    ranks = {name for name in STATISTICS if name.startswith(("rank", "row", "layer"))}
    assert unknown == {"change_20", *ranks}
