from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import AnalysisError, LayoutError, TraceError
from moetraffic.generate import Knobs, TrafficModel
from moetraffic.generate.parametric.sampling import SampledDemand
from moetraffic.trace import Trace
from moetraffic.validation.downstream import downstream

Make = Callable[..., TrafficModel]


def drawn(demand: SampledDemand, rows: int = 0) -> np.ndarray:
    return np.concatenate([counts for _, counts in demand.blocks(rows)])


@pytest.mark.parametrize("k", [1, 2])
def test_the_counts_do_not_depend_on_threads_or_blocks(
    known_model: Make, k: int
) -> None:
    model = known_model(k=k, slots=2)
    asked = {"iterations": 11, "seed": 5, "ranks": 6, "experts": 12}
    one = drawn(model.sample(**asked, threads=1), rows=1)
    many = drawn(model.sample(**asked, threads=4), rows=4)
    assert one.dtype == np.int32
    assert one.shape == (11, 4, 6, 12)
    assert (one == many).all()
    assert (one[:5] == drawn(model.sample(**asked | {"iterations": 5}))).all()
    assert (one != drawn(model.sample(**asked | {"seed": 6}))).any()


@pytest.mark.parametrize(
    ("k", "ranks", "experts", "new_k"),
    [(1, 8, 8, 1), (1, 64, 4, 1), (2, 3, 24, 2), (2, 4, 12, 3), (1, 16, 256, 8)],
)
def test_each_rank_sends_k_times_its_tokens_at_any_scale(
    known_model: Make, k: int, ranks: int, experts: int, new_k: int
) -> None:
    demand = known_model(k=k).sample(
        iterations=3, seed=1, ranks=ranks, experts=experts, k=new_k
    )
    counts = drawn(demand)
    assert (counts.sum(axis=3) == new_k * 128).all()
    assert counts.min() >= 0
    assert counts.max() <= 128
    assert demand.scenario.ep == np.gcd(ranks, experts) or experts == ranks


def test_ranks_keep_their_law_at_any_number(known_model: Make) -> None:
    model = known_model()
    few = drawn(model.sample(iterations=400, seed=1, ranks=4))
    many = drawn(model.sample(iterations=100, seed=2, ranks=64))

    def between(counts: np.ndarray) -> float:
        apart = counts - counts.mean(axis=2, keepdims=True)
        rows = counts.shape[2]
        return float((apart**2).sum(axis=2).mean() / (rows - 1))

    assert between(few) == pytest.approx(between(many), rel=0.08)


@pytest.mark.parametrize(("layers", "size"), [(2, 30_000), (300, 200_000)])
def test_a_model_comes_back_from_its_file(
    known_model: Make, tmp_path: Path, layers: int, size: int
) -> None:
    model = known_model(k=2, capacity=40, layers=layers)
    model.save(tmp_path / "model.h5")
    again = TrafficModel.load(tmp_path / "model.h5")
    assert again.scenario == model.scenario
    assert (tmp_path / "model.h5").stat().st_size < size
    again.save(tmp_path / "again.h5")
    third = TrafficModel.load(tmp_path / "again.h5")
    asked = {"iterations": 4, "seed": 0}
    assert (drawn(again.sample(**asked)) == drawn(third.sample(**asked))).all()
    with pytest.raises(TraceError, match="exists"):
        model.save(tmp_path / "model.h5")


def test_a_changed_file_is_refused_or_says_the_same(
    known_model: Make, tmp_path: Path
) -> None:
    path = tmp_path / "model.h5"
    known_model().save(path)
    sound = TrafficModel.load(path)
    raw, refused = bytearray(path.read_bytes()), 0
    for at in range(200, len(raw), len(raw) // 23):
        broken = raw.copy()
        broken[at] ^= 0x5A
        path.write_bytes(broken)
        refused += 1
        with contextlib.suppress(TraceError):
            # room that HDF5 left between the parts says nothing
            loaded = TrafficModel.load(path)
            refused -= 1
            assert loaded.scenario == sound.scenario
            assert (loaded.dynamics.level == sound.dynamics.level).all()
            assert (loaded.rows.factors == sound.rows.factors).all()
    assert refused > 0
    path.write_bytes(b"no model")
    with pytest.raises(TraceError, match="HDF5"):
        TrafficModel.load(path)


def test_knobs_turn_what_they_are_named_for(known_model: Make) -> None:
    model = known_model(layers=2, variance=0.015)

    def look(**knobs: object) -> dict[str, float]:
        counts = drawn(model.sample(iterations=150, seed=2, knobs=Knobs(**knobs)))  # type: ignore[arg-type]
        row = counts.max(axis=3).mean() * 8 / 128
        return downstream(counts) | {"row over mean": row}

    plain = look()
    peak = plain["max over mean"]
    assert look(skew=2.0)["max over mean"] > 1.3 * peak
    assert look(skew=0.0, rows=0.0)["entropy"] > 0.998
    assert look(drift=5.0)["change"] > 1.2 * plain["change"]
    assert look(drift=5.0)["retention at 10"] < plain["retention at 10"]
    assert look(rows=10.0)["row over mean"] > plain["row over mean"]


def test_impossible_runs_are_refused_in_a_sentence(known_model: Make) -> None:
    model = known_model()
    for asked, words in (
        ({"ranks": 0}, "ranks"),
        ({"experts": 1 << 20}, "experts"),
        ({"k": 9}, "k of"),
        ({"ep": 3}, "divide"),
        ({"iterations": 0}, "iterations"),
    ):
        with pytest.raises(LayoutError, match=words):
            model.sample(**{"iterations": 1, "seed": 0} | asked)
    with pytest.raises(LayoutError, match="skew"):
        Knobs(skew=-1.0)
    with pytest.raises(LayoutError, match="seed"):
        drawn(model.sample(iterations=1, seed=-1))


def test_a_short_trace_is_not_fitted(golden_trace: Trace) -> None:
    with pytest.raises(AnalysisError, match="at least 30"):
        TrafficModel.fit(golden_trace)


@pytest.mark.parametrize(
    ("demand", "k"),
    [
        (np.full((40, 2, 4, 4), 16), 1),
        (np.tile([64, 0, 0, 0], (40, 2, 4, 1)), 1),
        (np.tile([64, 64, 0, 0], (40, 2, 4, 1)), 2),
        (np.full((40, 2, 4, 4), 64), 4),
        (np.random.default_rng(0).multinomial(64, [0.7, 0.1, 0.1, 0.1], (40, 1, 1)), 1),
    ],
    ids=["constant", "one expert has all", "two have all", "all experts", "one rank"],
)
def test_extreme_runs_are_fitted(demand: np.ndarray, k: int) -> None:
    model = TrafficModel.fit(Trace.from_arrays(demand, k=k))
    counts = drawn(model.sample(iterations=60, seed=1))
    assert (counts.sum(axis=3) == 64 * k).all()
    assert counts.max() <= 64
    assert counts.mean(axis=(0, 1, 2)) == pytest.approx(
        demand.mean(axis=(0, 1, 2)), abs=12
    )
