"""``moetraffic validate``: verdict, exit code, JSON and picture."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.trace import Group, Meta, Steps, Trace
from moetraffic.trace.model import PLACEMENT
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from tests.cli.printed import unwrapped

Run = Callable[..., subprocess.CompletedProcess[str]]
T, LAYERS, RANKS, EXPERTS, TOKENS = 110, (1, 3), 4, 4, 64


def run_of(seed: int, *, even: bool = False, ep: int = RANKS) -> Trace:
    """A run whose rows scatter about shares that wander, or an even one."""
    rng = np.random.default_rng(seed)
    layers = []
    for layer in LAYERS:
        wander = np.cumsum(rng.normal(0, 0.05, (T, EXPERTS)), axis=0)
        share = np.exp(wander + rng.permutation(np.linspace(-0.8, 0.8, EXPERTS)))
        rows = np.array([rng.dirichlet(15 * s / s.sum(), RANKS) for s in share])
        if even:
            rows = np.full_like(rows, 1 / EXPERTS)
        layers.append(
            RoutedLayer(
                layer=layer,
                slot=0,
                iteration=np.arange(T),
                demand=ArrayPanel(rng.multinomial(TOKENS, rows).astype(np.int32)),
                dropped=None,
                row_bytes=64,
                dtype="float32",
            )
        )
    groups = [tuple(range(first, first + ep)) for first in range(0, RANKS, ep)]
    held = [
        (g, x, e, 0, ranks[e * ep // EXPERTS], 0)
        for g, ranks in enumerate(groups)
        for x in LAYERS
        for e in range(EXPERTS)
    ]
    return trace_of_routing(
        layers,
        groups=[Group(kind="ep", ranks=ranks) for ranks in groups],
        placements=np.array(held, PLACEMENT),
        meta=Meta(world=RANKS, dp=RANKS, ep=ep, experts=EXPERTS, k=1, virtual=True),
        steps=Steps.of_training(np.arange(T), RANKS, tokens=TOKENS),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("validate")
    for seed in range(5):
        run_of(seed).save(made / f"run{seed}.h5")
    for seed in range(3):
        run_of(seed, even=True).save(made / f"flat{seed}.h5")
    run_of(9, even=True).save(made / "even.h5")
    return made


@pytest.mark.slow
def test_further_runs_pass_but_for_false_alarms(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a classifier's figure of few runs may recommend more of them (3), and one verdict
    # of five may be a false alarm (1): at most 10% of judgments are
    monkeypatch.chdir(folder)
    codes, first = [], []
    for further in range(5):
        others = [f"run{seed}.h5" for seed in range(5) if seed != further]
        codes.append(main(["validate", f"run{further}.h5", "--against", *others]))
        lines = unwrapped(capsys.readouterr().out).splitlines()
        assert len(lines) <= 8
        first.append(lines[0])
    assert set(codes) <= {0, 1, 3}
    assert codes.count(0) >= 3
    assert codes.count(1) <= 1
    assert all("passed: 0 of 13 figures" in first[n] for n in range(5) if not codes[n])


@pytest.mark.slow
def test_the_verdict_is_drawn(moetraffic: Run, folder: Path) -> None:
    real = [folder / f"run{seed}.h5" for seed in (0, 2, 3, 4)]
    asked = ("validate", folder / "run1.h5", "--against", *real)
    ran = moetraffic(*asked, "--plot", folder / "verdict.png")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert (folder / "verdict.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_an_even_run_fails_with_exit_code_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    asked = ["validate", "even.h5", "--against", "run1.h5", "run2.h5", "run3.h5"]
    assert main([*asked, "--layers", "3"]) == 1
    lines = unwrapped(capsys.readouterr().out).splitlines()
    assert "failed: " in lines[0]
    assert "real runs " in lines[1]
    assert any(line.startswith("power: ") for line in lines)
    assert len(lines) <= 8
    assert main([*asked, "--json", "--iterations", "0:105"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "failed"
    assert told["recognized"]
    assert "entropy" in {t["name"] for t in told["figures"] if not t["passed"]}


@pytest.mark.slow
def test_fits_are_pairs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    pairs = [f"{kind}{n}.h5" for n in range(3) for kind in ("flat", "run")]
    assert main(["validate", "--fits", *pairs, "--only", "tests"]) == 1
    table = capsys.readouterr().out
    assert "3 synthetic traces against the runs" in table
    assert "FAILED" in table


def test_one_run_is_too_few_with_exit_code_3(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["validate", "even.h5", "--against", "run1.h5"]) == 3
    said = unwrapped(capsys.readouterr().out)
    assert "cannot be judged: too few real runs (needs 7, has 1)" in said
    assert "Needed: 6 further real runs like run1.h5, captured with other" in said


def test_a_size_that_no_real_run_has_cannot_be_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    run = run_of(0)
    large = replace(run.meta, origin="generated", k=2)
    run.replaced(meta=large).save(Path("large.h5"), force=True)
    real = [f"run{seed}.h5" for seed in range(1, 4)]
    assert main(["validate", "large.h5", "--against", *real]) == 3
    said = unwrapped(capsys.readouterr().out)
    assert "the real runs are of another size (k 2 against 1)" in said
    size = f"4 ranks (EP 4), {run.meta.experts} experts and k 2"
    assert f"Needed: 7 real runs of {size}, captured with other" in said


def test_another_expert_parallel_degree_fails_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    run_of(0, ep=2).save(Path("pairs.h5"))
    asked = ["validate", "pairs.h5", "--against", "run1.h5", "run2.h5", "run3.h5"]
    assert main([*asked, "--plot", "sizes.png"]) == 1
    first, second = unwrapped(capsys.readouterr().out).splitlines()[:2]
    assert "failed: EP 2 against 4, ranks of a group 2 against 4" in first
    assert "nothing else is compared" in second
    assert main([*asked, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["mismatches"] == ["EP 2 against 4", "ranks of a group 2 against 4"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("even.h5",), "--against"),
        (("even.h5", "run1.h5", "run2.h5", "--fits"), "give pairs"),
        (("even.h5", "--against", "run1.h5", "--fits"), "without --against"),
        (("even.h5", "--against", "even.h5"), "named twice"),
        (("even.h5", "--against", "run1.h5", "run1.h5"), "named twice"),
        (
            ("even.h5", "--against", "run1.h5", "--iterations", "0:50"),
            "100 iterations",
        ),
        (("even.h5", "--against", "gone.h5"), "gone.h5"),
        (("even.h5", "--against", "run1.h5", "--ranks-per-host", "0"), "at least 1"),
        (("even.h5", "--against", "run1.h5", "--plot", "there.png"), "--force"),
        (("even.h5", "--against", "run1.h5", "--plot", "run2.h5"), "run2.png"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    folder: Path,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    Path("there.png").touch()
    assert main(["validate", *arguments]) == 2
    assert said in capsys.readouterr().err
