from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import uniform_filter1d

from moetraffic.cli import main
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.generate import (
    Analog,
    Exchange,
    Scenario,
    Size,
    fit_trace,
    judge,
    synthetic_trace,
)
from moetraffic.generate.analog import exchange_copy
from moetraffic.generate.analog_path import (
    PathOptions,
    analog_path,
    permuted,
    run_states,
)
from moetraffic.generate.baselines import Drawn, Uniform, copies
from moetraffic.trace import Trace

Float64 = npt.NDArray[np.float64]

RANKS, EXPERTS, LAYERS = 4, 8, 2


def course(iterations: int, seed: int) -> Float64:
    """Shares ``[T, L, E]`` whose logarithms are AR(1) processes around levels."""
    rng = np.random.default_rng((seed, 99))
    level = np.random.default_rng(5).normal(0, 0.5, (LAYERS, EXPERTS))
    state = np.zeros((iterations, LAYERS, EXPERTS))
    for t in range(1, iterations):
        state[t] = 0.9 * state[t - 1] + rng.normal(0, 0.15, (LAYERS, EXPERTS))
    weight = np.exp(level + state)
    return weight / weight.sum(axis=2, keepdims=True)


def run(folder: Path, *, iterations: int = 60, seed: int = 1, k: int = 2) -> Trace:
    """A trace of a known process."""
    scenario = Scenario(
        exchanges=tuple(Exchange(layer=n, row_bytes=64) for n in range(LAYERS)),
        ranks=RANKS,
        experts=EXPERTS,
        k=k,
        tokens=32,
        ep=4,
        source="known",
    )
    shares = course(iterations, seed)
    demand = Drawn(
        scenario=scenario,
        iterations=iterations,
        seed=seed,
        draw=lambda at, own: copies(shares[at], scenario, own),
    )
    return synthetic_trace(demand, folder, seed=seed)


def drawn(fitted: Analog, iterations: int, seed: int, rows: int = 0) -> npt.NDArray:
    demand = fitted.sample(iterations=iterations, seed=seed)
    blocks = list(demand.blocks(rows))
    assert [first for first, _ in blocks] == np.cumsum(
        [0, *(len(b) for _, b in blocks[:-1])]
    ).tolist()
    return np.concatenate([block for _, block in blocks])


def load(counts: npt.NDArray) -> Float64:
    total = counts.sum(axis=2)
    return np.asarray(total / total.sum(axis=2, keepdims=True))


def test_rows_send_k_copies_of_each_token_and_the_seed_decides_them(
    tmp_path: Path,
) -> None:
    fitted = Analog.fit(run(tmp_path, k=3))
    found = drawn(fitted, 90, seed=4)  # longer than captured
    assert found.shape == (90, LAYERS, RANKS, EXPERTS)
    assert (found.sum(axis=3) == 96).all()
    assert found.min() >= 0
    assert found.max() <= 32
    assert (drawn(fitted, 90, seed=4, rows=7) == found).all()
    assert (drawn(fitted, 90, seed=5) != found).any()
    with pytest.raises(LayoutError, match="use the parametric model"):
        fitted.sample(iterations=9, seed=0, ranks=8)
    with pytest.raises(AnalysisError, match="at least 30 iterations"):
        Analog.fit(run(tmp_path, iterations=20))


@pytest.mark.slow
def test_samples_move_and_spread_as_the_process(tmp_path: Path) -> None:
    trace = run(tmp_path, iterations=300)
    fitted = Analog.fit(trace)
    captured = load(fitted.counts)
    for seed in (0, 1):
        made = load(drawn(fitted, 300, seed))
        for lag in (1, 10):
            change, wanted = (
                np.abs(x[lag:] - x[:-lag]).sum(axis=2).mean() for x in (made, captured)
            )
            assert change == pytest.approx(wanted, rel=0.1)
        assert made.max(axis=2).mean() == pytest.approx(
            captured.max(axis=2).mean(), rel=0.1
        )


@pytest.mark.slow
def test_samples_are_no_copy_and_do_not_freeze(tmp_path: Path) -> None:
    fitted = Analog.fit(run(tmp_path, iterations=200))
    found = drawn(fitted, 700, seed=0)
    rows = {row.tobytes() for row in fitted.counts.swapaxes(1, 2).reshape(-1, 16)}
    made = [row.tobytes() for row in found.swapaxes(1, 2).reshape(-1, 16)]
    assert np.mean([row in rows for row in made]) < 0.01
    smooth = uniform_filter1d(load(found), 20, axis=0) - 1 / EXPERTS
    smooth -= smooth.mean(axis=0)
    early, late = smooth[50:200].ravel(), smooth[550:700].ravel()
    assert abs(np.corrcoef(early, late)[0, 1]) < 0.7


def test_iterations_are_captured_ones_with_other_experts(tmp_path: Path) -> None:
    fitted = Analog.fit(run(tmp_path, k=3))
    demand = fitted.sample(iterations=90, seed=2)
    found = drawn(fitted, 90, seed=2)
    captured = fitted.counts[demand.path.iteration]
    # the load, in the path's order of experts, and each row's sum stay
    named = np.take_along_axis(captured, demand.path.captured[:, :, None], axis=3)
    assert (found.sum(axis=2) == named.sum(axis=2)).all()
    # copies are exchanged only where all of a rank's rows are captured ones
    equal = (named == captured).all(axis=(1, 3)).any(axis=1)
    assert (found == named)[~equal].all()
    assert equal.any()
    assert (found != captured).any(axis=(1, 3)).all()  # no row of all layers


def test_a_permutation_is_drawn_with_its_probability() -> None:
    rng = np.random.default_rng(3)
    cost = np.array([[0.0, 0.5], [0.5, 0.0]])
    swapped = np.mean([permuted(cost, np.arange(2), rng)[0] for _ in range(2000)])
    assert swapped == pytest.approx(1 / (1 + np.e), abs=0.04)
    far = np.where(np.eye(6, dtype=bool), 0.0, 1e6)
    assert permuted(far, np.arange(6), rng).tolist() == list(range(6))


def rows_of(shares: Float64, ranks: int, seed: int) -> npt.NDArray[np.int32]:
    """Counts ``[T, L, R, E]`` of 64 copies a row."""
    drawn = np.random.default_rng(seed).multinomial(64, shares)
    return np.asarray(drawn, np.int32).reshape(*shares.shape[:2], ranks, -1)


def test_experts_change_places_only_by_the_exchange() -> None:
    share = np.repeat(course(120, 2)[:, :, None], RANKS, axis=2)
    states = run_states(rows_of(share, RANKS, 0))
    for exchange, start, first, later in (
        (0.0, 0.0, False, False),
        (1.0, 0.0, False, True),
        (0.0, 1e6, True, True),
    ):
        options = PathOptions(exchange=exchange, start=start)
        path = analog_path(states, 200, options, np.random.default_rng(0))
        changed = (path.captured != np.arange(EXPERTS)).any(axis=(1, 2))
        assert (changed[0], changed[60:].any()) == (first, later)
        assert (np.sort(path.captured, axis=2) == np.arange(EXPERTS)).all()
        assert path.iteration.min() >= 0
        assert path.iteration.max() < 120
        assert path.iteration[120:].min() >= 80 - 0.2 * 120


def test_experts_of_other_documents_change_places_seldom() -> None:
    rng = np.random.default_rng(0)
    # ranks prefer experts 0 to 3 or experts 4 to 7, another half in each iteration
    prefer = rng.permuted(np.tile([1.0, -1.0], (90, LAYERS, 8)), axis=2)
    weight = np.exp(0.8 * prefer[..., None] * np.repeat([1.0, -1.0], 4))
    states = run_states(rows_of(weight / weight.sum(axis=3, keepdims=True), 16, 1))
    group = np.arange(EXPERTS) // 4
    within = states.unlike[:, group[:, None] == group].mean()
    assert states.unlike[:, group[:, None] != group].mean() > within + 5
    # and where documents of ranks have no such order, any experts do
    even = np.full((90, LAYERS, 16, EXPERTS), 1 / EXPERTS)
    assert run_states(rows_of(even, 16, 2)).unlike.mean() < 0.5


@given(st.integers(1, 4), st.integers(2, 40), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_an_exchanged_copy_keeps_rows_and_load(
    k: int, tokens: int, filled: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    scenario = Scenario(
        exchanges=(Exchange(layer=0, row_bytes=1),) * 2,
        ranks=3,
        experts=5,
        k=k,
        tokens=tokens,
    )
    before = copies(rng.dirichlet(np.full(5, 0.5), 2), scenario, rng)
    after = before.copy()
    exchange_copy(after, 1, tokens, rng, filled=filled)
    assert (after.sum(axis=2) == before.sum(axis=2)).all()
    assert (after.sum(axis=1) == before.sum(axis=1)).all()
    assert after.min() >= 0
    assert after.max() <= tokens
    assert np.abs(after - before).sum() in (0, 4)
    if filled:
        assert (after[before == 0] == 0).all()


@pytest.mark.slow
def test_reruns_decide_how_experts_change_places(tmp_path: Path) -> None:
    trace = run(tmp_path, iterations=120)
    same = Analog.fit(trace, reruns=[trace])
    assert same.options.start == 0
    assert same.options.exchange == 1
    with pytest.raises(AnalysisError, match="a rerun has the layers, ranks and"):
        Analog.fit(trace, reruns=[Trace.open(GOLDEN)])


GOLDEN = Path(__file__).parents[2] / "data" / "golden-v1.h5"


def test_a_judgment_finds_what_differs(tmp_path: Path) -> None:
    trace = run(tmp_path, iterations=120)
    uniform = Uniform.fit(trace)
    found = judge(lambda seed: uniform.sample(iterations=120, seed=seed), trace)
    assert {"change", "max over mean"} <= {f.name for f in found.failed}
    fitted = Analog.fit(trace)
    fair = judge(lambda seed: fitted.sample(iterations=120, seed=seed), trace)
    assert not fair.failed
    # reruns that differ in everything let anything pass but what differs more
    other = run(tmp_path, iterations=120, seed=2)
    with_rerun = judge(
        lambda seed: uniform.sample(iterations=120, seed=seed), trace, [other]
    )
    assert with_rerun.reruns == 1
    assert "max over mean" in {f.name for f in with_rerun.failed}


def test_the_size_decides_which_generator_is_fitted(tmp_path: Path) -> None:
    trace = run(tmp_path)
    assert fit_trace(trace, size=Size(ranks=4, k=2), judged=False).name == "analog"
    with pytest.raises(LayoutError, match="give --model parametric"):
        fit_trace(trace, "analog", size=Size(ranks=8), judged=False)
    assert not Size(experts=16).as_captured(replace(Analog.fit(trace).scenario))


@pytest.mark.slow
def test_generate_judges_refuses_and_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path).save(tmp_path / "run.h5")
    assert main(["generate", "run.h5", "-o", "a.h5", "--seed", "7"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("analog model: all ")
    assert len(shown) <= 8
    assert main(["generate", "run.h5", "-o", "b.h5", "--seed", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["generator"] == "analog"
    assert {f["name"] for f in told["judgment"]["figures"]} >= {"entropy", "change"}
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    # a rerun that is the run itself accepts 2% alone
    asked = ["generate", "run.h5", "-o", "c.h5", "--rerun", "run.h5"]
    assert main(asked) == 2
    refused = capsys.readouterr().err.replace("\n", " ")
    assert "samples of the analog model differ from run.h5 by more than" in refused
    assert not (tmp_path / "c.h5").exists()
    assert main([*asked, "--force", "--only", "figures"]) == 0
    assert "max over mean" in capsys.readouterr().out
    assert main(["generate", "run.h5", "--model", "analog", "--ranks", "8"]) == 2
