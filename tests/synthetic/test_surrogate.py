from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.arrays import Float64, Int32
from moetraffic.errors import LayoutError
from moetraffic.synthetic import surrogate
from moetraffic.synthetic.fit import fit, moments
from moetraffic.synthetic.labels import nested_order
from moetraffic.synthetic.shares import bounded, probabilities, rounded
from moetraffic.synthetic.statistics import statistics
from moetraffic.synthetic.surrogate import Knobs, Surrogate, sample

from .runs import TOKENS, simulated


@pytest.fixture(scope="module")
def fitted() -> Surrogate:
    return fit([simulated(0, 120)], 1, ep=4)


def load(counts: Int32) -> Float64:
    return np.asarray(counts.sum(axis=2) / counts[0, 0].sum())


@pytest.mark.parametrize(
    ("ranks", "experts", "k"), [(4, 8, 1), (32, 4, 1), (3, 24, 2), (4, 12, 3)]
)
def test_each_rank_sends_k_times_its_tokens_to_distinct_experts(
    fitted: Surrogate, ranks: int, experts: int, k: int
) -> None:
    counts = sample(
        fitted, iterations=7, seed=1, ranks=ranks, experts=experts, k=k
    ).counts()
    assert counts.shape == (7, 2, ranks, experts)
    assert (counts.sum(axis=3) == k * TOKENS).all()
    assert counts.min() >= 0
    assert counts.max() <= TOKENS


def test_counts_depend_on_the_seed_alone(
    fitted: Surrogate, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = sample(fitted, iterations=300, seed=5).counts()
    assert (counts != sample(fitted, iterations=300, seed=6).counts()).any()
    monkeypatch.setattr(surrogate, "BLOCK_BYTES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert (counts == sample(fitted, iterations=300, seed=5).counts()).all()
    assert (counts[:280] == sample(fitted, iterations=280, seed=5).counts()).all()


def test_a_surrogate_has_the_moments_and_statistics_of_its_run(
    fitted: Surrogate,
) -> None:
    run = simulated(0, 120)
    samples = [sample(fitted, iterations=120, seed=seed).counts() for seed in range(4)]
    wanted = moments(run)
    for name, values in wanted.items():
        made = np.mean([moments(counts)[name] for counts in samples], axis=0)
        assert made == pytest.approx(values, rel=0.15), name
    own = statistics(run)
    made_of = [statistics(counts) for counts in samples]
    for name in ("rank_correlation", "row_dispersion"):
        assert np.mean([s[name] for s in made_of]) == pytest.approx(own[name], rel=0.15)


def test_movement_has_the_autocorrelation_of_each_knot(fitted: Surrogate) -> None:
    lags = np.arange(40)
    auto = np.empty((1, len(fitted.knots), 2, 40))
    auto[..., 0, :] = 0.8**lags
    auto[..., 1, :] = 0.9**lags * np.cos(lags * 2 * np.pi / 10)
    model = replace(fitted, autocorrelation=auto)
    drawn = sample(model, iterations=256, seed=3, experts=512)
    z = drawn._movement(np.arange(256))
    assert z.var() == pytest.approx(1, rel=0.05)
    for lag in (1, 5, 10):
        found = (z[lag:] * z[: len(z) - lag]).mean(axis=(0, 2))
        assert found == pytest.approx(auto[0, 0, :, lag], abs=0.08)


def test_ranks_differ_as_captured_at_any_number_of_them(fitted: Surrogate) -> None:
    def between(ranks: int) -> float:
        counts = sample(fitted, iterations=120, seed=1, ranks=ranks).counts()
        return float(counts.var(axis=2, ddof=1).mean())

    assert between(64) == pytest.approx(between(4), rel=0.1)


def test_reruns_fitted_together_give_their_spread_and_their_labels() -> None:
    runs = [simulated(seed) for seed in range(6)]
    model = fit(runs, 1)
    samples = [sample(model, iterations=80, seed=seed).counts() for seed in range(12)]
    of_runs, of_samples = (
        np.array([load(counts).mean(axis=0) for counts in each])
        for each in (runs, samples)
    )
    assert of_samples.std(axis=0).mean() == pytest.approx(
        of_runs.std(axis=0, ddof=1).mean(), rel=0.4
    )
    together = np.corrcoef(
        of_samples.mean(axis=0).ravel(), of_runs.mean(axis=0).ravel()
    )
    assert together[0, 1] > 0.9
    one = fit(runs[:1], 1)
    labeled = [load(sample(one, iterations=80, seed=s).counts()) for s in range(12)]
    alone = np.mean([each.mean(axis=0) for each in labeled], axis=0)
    assert alone.std() < 0.6 * of_samples.mean(axis=0).std()


def test_knobs_change_what_they_are_named_for(fitted: Surrogate) -> None:
    def measured(**knobs: float) -> dict[str, float]:
        counts = sample(
            fitted,
            iterations=120,
            seed=2,
            knobs=Knobs(**knobs),  # type: ignore[arg-type]
        ).counts()
        return {name: float(values.mean()) for name, values in moments(counts).items()}

    plain = measured()
    assert measured(skew=2.0)["skew"] > 2 * plain["skew"]
    assert measured(skew=0.0)["skew"] < 0.2 * plain["skew"]
    fast = measured(drift=4.0)
    assert fast["change"] > 1.05 * plain["change"]
    assert fast["skew"] == pytest.approx(plain["skew"], rel=0.3)
    assert measured(rank_imbalance=2.0)["rows"] > 1.5 * plain["rows"]
    assert measured(rank_imbalance=0.0)["rows"] < 0.8 * plain["rows"]


def test_a_period_repeats_the_movement_and_a_hand_over_moves_the_peak(
    fitted: Surrogate,
) -> None:
    times = np.arange(40)
    z = sample(fitted, iterations=40, seed=2, knobs=Knobs(period=8))._movement(times)
    again = np.corrcoef(z[8:].ravel(), z[:-8].ravel())[0, 1]
    assert again > 0.95  # the spectrum changes from knot to knot
    hot = {}
    for after in (0, 10):
        drawn = sample(fitted, iterations=40, seed=2, knobs=Knobs(hand_over=after))
        hottest = drawn._levels(times).argmax(axis=2)  # [b, L]
        hot[after] = [len(set(hottest[:, layer].tolist())) for layer in range(2)]
    assert min(hot[10]) >= 3
    assert max(hot[0]) <= 2


@pytest.mark.parametrize("wrong", [{"skew": -1.0}, {"drift": 0.0}, {"period": 1}])
def test_knobs_that_no_run_has_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LayoutError, match="change"):
        Knobs(**wrong)  # type: ignore[arg-type]


def test_labels_keep_experts_of_a_rank_and_neighboring_ranks_together() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = nested_order(24, 4, rng).reshape(4, 6)
        ranks = order // 6
        assert (ranks == ranks[:, :1]).all()
        assert set((ranks[:2, 0] // 2).tolist()) in ({0}, {1})
        assert sorted(order.ravel().tolist()) == list(range(24))


@pytest.mark.parametrize("k", [1, 3])
def test_shares_sum_to_k_and_counts_to_their_row(k: int) -> None:
    rng = np.random.default_rng(k)
    x = 3 * rng.standard_normal((50, 8))
    pi = probabilities(x, k)
    assert pi.sum(axis=1) == pytest.approx(k)
    assert pi.max() <= 1
    shares = bounded(rng.gamma(0.3, size=(50, 8)) + 1e-9, k)
    assert shares.sum(axis=1) == pytest.approx(k)
    assert shares.max() <= 1 + 1e-9
    counts = np.array([rounded(shares, 20 * k, rng.random(50)) for _ in range(300)])
    assert (counts.sum(axis=2) == 20 * k).all()
    assert counts.max() <= 20
    assert np.abs(counts.mean(axis=0) - 20 * shares).max() < 0.2
