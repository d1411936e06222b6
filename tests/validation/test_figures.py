"""The test of a figure holds its level, has the power it states, and is Student's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from moetraffic.validation.features import count_features
from moetraffic.validation.figures import (
    FIGURES,
    LEVEL,
    SECTIONS,
    Figure,
    FigureTest,
    Spread,
    combined,
    figure_tests,
    spreads,
    tempered,
    value,
    vectors,
)


def spread_of(x: np.ndarray) -> Spread:
    return spreads({"entropy": x - x.mean(axis=0)}, 1 + 1 / len(x))["entropy"]


def further(
    runs: int, scale: np.ndarray, away: float, cases: int
) -> tuple[np.ndarray, np.ndarray]:
    """Least p of 12 figures, and stated power, of ``cases`` runs.

    A further run lies ``away`` in the first direction of each figure.
    """
    rng = np.random.default_rng(runs)
    shift = away * np.eye(len(scale))[0]
    p, power = [], []
    for _ in range(cases):
        x = rng.normal(size=(12, runs + 1, len(scale))) * scale
        mean = x[:, :-1].mean(axis=1)
        names = [str(number) for number in range(12)]
        found = spreads(
            {n: each[:-1] - m for n, each, m in zip(names, x, mean, strict=True)},
            1 + 1 / runs,
        )
        p.append(
            min(
                found[n].p(each[-1] + shift - m)
                for n, each, m in zip(names, x, mean, strict=True)
            )
        )
        power.append(found["0"].power(shift, LEVEL / 12))
    return np.array(p), np.array(power)


@pytest.mark.parametrize("runs", [3, 5, 8])
def test_in_one_direction_it_is_students_prediction_test(runs: int) -> None:
    at = np.random.default_rng(runs).normal(size=(runs + 1, 1))
    away = at[-1] - at[:-1].mean()
    t = away[0] / (at[:-1].std(ddof=1) * np.sqrt(1 + 1 / runs))
    spread = spread_of(at[:-1])
    assert spread.directions == pytest.approx(1)
    assert spread.p(away) == pytest.approx(2 * stats.t.sf(abs(t), runs - 1))


@pytest.mark.parametrize("runs", [3, 6])
@pytest.mark.parametrize(
    "scale", [np.ones(1), np.ones(20), 1 / np.arange(1, 9), np.r_[5.0, np.ones(9)]]
)
def test_a_further_run_is_rejected_at_most_at_about_the_level(
    runs: int, scale: np.ndarray
) -> None:
    p, _ = further(runs, scale, 0.0, 100)
    # twice the level, for few runs and unequal directions, and three standard errors
    assert (p < LEVEL / 12).mean() < 2 * LEVEL + 3 * np.sqrt(2 * LEVEL * 0.9 / 100)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [4, 8])
def test_a_shift_is_found_at_least_as_often_as_stated(runs: int) -> None:
    p, power = further(runs, np.ones(4), 6.0, 100)
    assert power.mean() > 0.2
    assert (p < LEVEL / 12).mean() > power.mean() - 0.1


def test_two_runs_determine_one_direction_and_equal_runs_no_spread() -> None:
    rng = np.random.default_rng(0)
    assert spread_of(rng.normal(size=(2, 30))).directions == 1
    equal = spread_of(np.ones((3, 4)))
    assert equal.p(np.zeros(4)) == 1
    assert equal.p(np.full(4, 1e-3)) == 0
    assert equal.power(np.full(4, 1e-3), LEVEL) == 1


def test_figures_of_an_even_run_are_exact(simulated: Callable[..., np.ndarray]) -> None:
    even = count_features(np.full((100, 2, 4, 4), 8))
    found = vectors([even, even])
    assert {x.shape for x in found.values()} == {(2, SECTIONS * 2)}
    assert value("max over mean", found["max over mean"][0]) == pytest.approx(1)
    assert value("entropy", found["entropy"][0]) == pytest.approx(1)
    # section 1 has 20 iterations, none of which has a change over 20
    assert set(FIGURES) - set(found) == {"change over 20 relative to 1"}
    one = vectors([count_features(simulated(0, layers=1))])
    assert "row coupling" not in one


def test_the_figure_that_differs_is_the_first(
    simulated: Callable[..., np.ndarray],
) -> None:
    real = [count_features(simulated(1, run)) for run in range(3)]
    other = count_features(simulated(1, 9, concentration=200.0))
    x = vectors([other, *real])
    mean = {name: each[1:].mean(axis=0) for name, each in x.items()}
    found = figure_tests(
        spreads({name: each[1:] - mean[name] for name, each in x.items()}, 4 / 3),
        {name: each[0] - mean[name] for name, each in x.items()},
        {name: each[0] for name, each in x.items()},
        {name: each[1:] for name, each in x.items()},
    )
    failed = {t.name for t in found if not t.passed}
    assert {"row dispersion", "row entropy spread"} <= failed
    assert "inter-host share" not in failed
    assert [t.p for t in found] == sorted(t.p for t in found)
    assert all(t.adjusted >= t.p for t in found)
    assert all((t.distance > t.limit) == (not t.passed) for t in found)


def figure_test(p: float) -> FigureTest:
    return FigureTest(
        name="entropy",
        synthetic=1.0,
        real=(1.0,),
        own=(1.0,),
        distance=1.0,
        limit=1.0,
        p=p,
        adjusted=min(1.0, 13 * p),
    )


@given(st.floats(1e-6, 0.99), st.integers(1, 20))
def test_equal_p_values_combine_to_themselves(p: float, number: int) -> None:
    assert combined([figure_test(p)] * number) == pytest.approx(p, rel=1e-6)


def test_one_small_p_value_combines_to_about_bonferronis() -> None:
    one = [figure_test(1e-6), *[figure_test(0.5)] * 12]
    assert combined(one) == pytest.approx(13e-6, rel=1e-3)
    assert combined([]) == 1
    # many that are half as significant as Holm's method asks for a single one
    assert combined([figure_test(0.005)] * 6 + [figure_test(0.5)] * 7) < LEVEL / 4


@given(st.floats(-0.9, 1.0))
def test_scales_are_undone_and_ratios_count_beyond_the_resolved(x: float) -> None:
    figure = Figure(series="row coupling", scale="asinh")
    assert figure.unscaled(float(figure.scaled(np.array(x)))) == pytest.approx(x)
    twice = figure.scaled(np.array([0.4, 0.8, -0.4, -0.8]))
    assert np.abs(np.diff(twice)[[0, 2]]) == pytest.approx(np.log(2), abs=1e-3)
    assert figure.scaled(np.array(1e-4)) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("change", [0.05, 0.2, 0.5])
def test_tempering_changes_max_over_mean_by_the_share(
    simulated: Callable[..., np.ndarray], change: float
) -> None:
    run = count_features(simulated(2, iterations=40))
    found = tempered(run, change)
    ratio = found.series["max over mean"].mean() / run.series["max over mean"].mean()
    assert ratio == pytest.approx(1 + change)
    assert found.series["entropy"].mean() < run.series["entropy"].mean()
    assert found.load.sum(axis=2) == pytest.approx(1)
    # the load of 2 experts cannot be twice as uneven: it is made as much more even
    hot = count_features(np.tile([[30, 2]], (40, 1, 4, 1)))
    less = tempered(hot, change).series["max over mean"].mean()
    aim = 30 / 16 * (1 + change if change < 0.06 else 1 / (1 + change))
    assert less == pytest.approx(aim)


def test_no_shift_is_found_as_often_as_the_level() -> None:
    spread = spread_of(np.random.default_rng(5).normal(size=(4, 3)))
    assert spread.power(np.zeros(3), 0.01) == pytest.approx(0.01)
    assert spread.power(np.full(3, 1e-4), 0.01) == pytest.approx(0.01, rel=0.01)
    assert spread.power(np.full(3, 1e4), 0.01) == pytest.approx(1)
