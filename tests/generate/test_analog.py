from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.cli import main
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.generate import (
    Analog,
    Exchange,
    Scenario,
    Size,
    fit_trace,
    judge,
    scenario_of,
    synthetic_trace,
)
from moetraffic.generate.analog.labels import (
    Labels,
)
from moetraffic.generate.judgment import FigureJudgment, Judgment
from moetraffic.report.results.generation import refusal
from moetraffic.trace import Trace
from tests.cli.printed import unwrapped

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from traffic_baselines import Drawn, Uniform, copies

from moetraffic.arrays import Float64

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


def run(
    folder: Path,
    *,
    iterations: int = 60,
    seed: int = 1,
    k: int = 2,
    ranks: int = RANKS,
    tokens: int = 32,
) -> Trace:
    """A trace of a known process."""
    scenario = Scenario(
        exchanges=tuple(Exchange(layer=n, row_bytes=64) for n in range(LAYERS)),
        ranks=ranks,
        experts=EXPERTS,
        k=k,
        tokens=tokens,
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


def drawn(
    fitted: Analog, iterations: int, seed: int, rows: int = 0, ranks: int | None = None
) -> npt.NDArray:
    demand = fitted.sample(iterations=iterations, seed=seed, ranks=ranks)
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
    with pytest.raises(AnalysisError, match="at least 30 iterations"):
        Analog.fit(run(tmp_path, iterations=20))


@given(st.integers(30, 50), st.integers(1, 160), st.integers(0, 9999))
@settings(max_examples=10, deadline=None)
def test_every_iteration_is_a_captured_one_and_none_before_its_end_comes_twice(
    total: int, iterations: int, seed: int
) -> None:
    fitted = known_fit(total)
    demand = fitted.sample(iterations=iterations, seed=seed)
    found = np.concatenate([block for _, block in demand.blocks(9)])
    # a sample is the run in its order, then its last third, with other labels
    last = range(total - total // 3, total)
    at = [*range(total), *list(last) * (1 + iterations // len(last))]
    captured = fitted.counts[at[:iterations]]
    labels = demand.labels[demand.turn][:, :, None]
    assert (found == np.take_along_axis(captured, labels, axis=3)).all()
    assert demand.turn[0] == 0
    assert demand.repeats_from == (total if iterations > total else -1)
    assert "no row (a rank's copies to each expert) is new" in demand.limits[0]
    assert demand.limits[0].endswith("Only the labels depend on the seed.")
    assert "not a further independent run" in demand.limits[1]
    # who is which expert changes where the end begins again
    changes = np.flatnonzero(np.diff(demand.turn)) + 1
    assert changes.tolist() == list(range(total, iterations, total // 3))
    assert (np.sort(demand.labels, axis=2) == np.arange(EXPERTS)).all()
    assert (demand.labels[0] != np.arange(EXPERTS)).any()


def known_fit(total: int) -> Analog:
    """A fit to a known process, without a trace."""
    scenario = Scenario(
        exchanges=tuple(Exchange(layer=n, row_bytes=64) for n in range(LAYERS)),
        ranks=RANKS,
        experts=EXPERTS,
        k=1,
        tokens=32,
        ep=4,
    )
    shares, rng = course(total, 1), np.random.default_rng(total)
    counts = np.stack([copies(each, scenario, rng) for each in shares])
    return Analog(
        scenario=scenario, counts=counts, labels=Labels.of(load(counts), scenario.ep)
    )


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
    assert fit_trace(trace, size=Size(ranks=8, k=2), judged=False).name == "analog"
    with pytest.raises(LayoutError, match="give --model parametric"):
        fit_trace(trace, "analog", size=Size(experts=16), judged=False)
    assert not Size(k=1).same_experts(scenario_of(trace)[0])


@pytest.mark.parametrize("name", ["p99 completion", "entropy"])
def test_a_refusal_states_that_times_are_computed(name: str) -> None:
    """Also of a trace without times."""
    figure = FigureJudgment(
        name=name, captured=1.0, generated=2.0, difference=1.0, error=1.0, accepted=0.1
    )
    text = refusal(Judgment(figures=(figure,), reruns=0))
    assert ("(computed, ports of 200 Gb/s)" in text) == (name == "p99 completion")


@pytest.mark.slow
def test_generate_judges_refuses_and_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path).save(tmp_path / "run.h5")
    assert main(["generate", "run.h5", "-o", "a.h5", "--seed", "7"]) == 0
    shown = unwrapped(capsys.readouterr().out).splitlines()
    assert "in all 9 figures" in shown[0]
    assert len(shown) <= 8
    assert "run.h5 is itself synthetic (known)" in "".join(shown)
    assert main(["generate", "run.h5", "-o", "b.h5", "--seed", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["generator"] == "analog"
    assert {f["name"] for f in told["judgment"]["figures"]} >= {"entropy", "change"}
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    # a rerun that is equal to the run accepts 2% alone
    Path("again.h5").write_bytes(Path("run.h5").read_bytes())
    asked = ["generate", "run.h5", "-o", "c.h5", "--rerun", "again.h5"]
    asked += ["--model", "parametric"]
    assert main(asked) == 2
    refused = capsys.readouterr().err.replace("\n", " ")
    assert "samples of the parametric model differ from run.h5 by more than" in refused
    assert not (tmp_path / "c.h5").exists()
    assert main([*asked, "--force", "--only", "figures"]) == 0
    assert "load of the busiest expert over the mean" in capsys.readouterr().out
    assert main(["generate", "run.h5", "-o", "d.h5", "--ranks", "8"]) == 0
    shown = capsys.readouterr().out
    assert "ranks 4 to 7 repeat what the 4 captured ones send" in unwrapped(shown)
    assert "Next: validation at this size (moetraffic validate d.h5" in shown
    assert "8 ranks" in shown
