"""Baselines give counts that could be, the same for a seed however they are cut."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import traffic_baselines
from traffic_baselines import BASELINES, Baseline, copies, whole_numbers


@pytest.fixture(scope="module")
def fitted(captured: Path) -> dict[str, Baseline]:
    with Trace.open(captured) as trace:
        return {name: kind.fit(trace) for name, kind in BASELINES.items()}


def drawn(fitted: Baseline, rows: int = 0, **asked: int) -> np.ndarray:
    sample = fitted.sample(**({"iterations": 30, "seed": 5} | asked))
    found = list(sample.blocks(rows))
    assert [first for first, _ in found] == list(
        np.cumsum([0, *(len(b) for _, b in found[:-1])])
    )
    return np.concatenate([block for _, block in found])


@pytest.mark.parametrize("name", BASELINES)
def test_counts_conserve_tokens_and_depend_on_the_seed_alone(
    name: str, fitted: dict[str, Baseline]
) -> None:
    one = drawn(fitted[name])
    scenario = fitted[name].scenario
    assert one.shape == (30, len(scenario.exchanges), 4, 8)
    assert one.dtype == np.int32
    assert (one.sum(axis=3) == scenario.copies).all()
    assert one.min() >= 0
    assert one.max() <= scenario.tokens  # a token has an expert once
    assert (one == drawn(fitted[name], rows=7)).all()
    if name != "frozen":
        assert (one != drawn(fitted[name], seed=6)).any()


@pytest.mark.parametrize("name", BASELINES)
def test_other_ranks_are_given_and_no_iterations_refused(
    name: str, fitted: dict[str, Baseline]
) -> None:
    found = drawn(fitted[name], ranks=8, iterations=3)
    assert found.shape[2] == 8
    assert (found.sum(axis=3) == fitted[name].scenario.copies).all()
    with pytest.raises(AnalysisError, match="an iteration or more"):
        fitted[name].sample(iterations=0, seed=0)
    if not BASELINES[name].rescales:
        with pytest.raises(AnalysisError, match="leave experts out"):
            fitted[name].sample(iterations=1, seed=0, experts=16)


@pytest.mark.parametrize("name", ["uniform", "zipf"])
def test_other_experts_are_given_where_none_is_known(
    name: str, fitted: dict[str, Baseline]
) -> None:
    assert drawn(fitted[name], experts=32, iterations=2).shape[3] == 32


def test_each_is_what_its_name_says(fitted: dict[str, Baseline]) -> None:
    mean = fitted["iid"].load.mean(axis=0)  # [X, E]
    counts = {name: drawn(each, iterations=400) for name, each in fitted.items()}
    share = {
        name: c.sum(axis=(0, 2)) / c.sum(axis=(0, 2, 3))[:, None]
        for name, c in counts.items()
    }
    assert share["uniform"] == pytest.approx(np.full_like(mean, 1 / 8), abs=0.01)
    assert share["iid"] == pytest.approx(mean, abs=0.01)
    assert share["frozen"] == pytest.approx(mean, abs=0.02)
    assert (counts["frozen"] == counts["frozen"][:1]).all()
    ordered = -np.sort(-share["zipf"], axis=1)
    steepness = fitted["zipf"].exponents()
    assert ordered[:, 0] / ordered[:, 3] == pytest.approx(4**steepness, rel=0.1)
    # a block is the run's own: iteration by iteration there
    seen = {c.tobytes() for c in fitted["bootstrap"].counts}
    assert all(c.tobytes() in seen for c in counts["bootstrap"])
    hot = -np.sort(-counts["hot-set"].sum(axis=2), axis=2)[..., :2].sum(axis=(0, 2))
    held = -np.sort(-fitted["iid"].load, axis=2)[..., :2].sum(axis=2).mean(axis=0)
    total = counts["hot-set"].sum(axis=(0, 2, 3))
    assert hot / total == pytest.approx(held, abs=0.05)
    # it moves, but not every iteration
    top = counts["hot-set"].sum(axis=2).argmax(axis=2)
    assert len(np.unique(top[:, 0])) > 2


def test_blocks_follow_each_other_as_in_the_run(fitted: dict[str, Baseline]) -> None:
    each = fitted["bootstrap"]
    assert isinstance(each, traffic_baselines.Bootstrap)
    found = drawn(each, iterations=each.length)
    where = [i for i, c in enumerate(each.counts) if c.tobytes() == found[0].tobytes()]
    assert any((each.counts[i : i + each.length] == found).all() for i in where)


@given(arrays(np.float64, (3, 5), elements=st.floats(0, 50)))
def test_rounding_keeps_sums_and_is_near(amounts: np.ndarray) -> None:
    total = np.rint(amounts.sum(axis=1, keepdims=True)) + 1
    scaled = (amounts + 0.1) / (amounts + 0.1).sum(axis=1, keepdims=True) * total
    rounded = whole_numbers(scaled)
    assert (rounded.sum(axis=1) == total[:, 0]).all()
    assert (np.abs(rounded - scaled) < 1 + 1e-9).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_no_cell_exceeds_the_tokens(fitted: dict[str, Baseline], seed: int) -> None:
    scenario = fitted["iid"].scenario  # top-2: one expert may have half the copies
    steep = np.full((len(scenario.exchanges), 8), 0.001)
    steep[:, seed % 8] = 1 - 0.007
    found = copies(steep, scenario, np.random.default_rng(seed))
    assert found.max() <= scenario.tokens
    assert (found.sum(axis=2) == scenario.copies).all()
