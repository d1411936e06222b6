"""``moetraffic validate``: verdict, exit code, JSON and picture."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.trace import Group, Meta, Steps, Trace
from moetraffic.trace.model import PLACEMENT
from moetraffic.trace.routed import RoutedLayer, trace_of_routing

Run = Callable[..., subprocess.CompletedProcess[str]]
T, LAYERS, RANKS, EXPERTS, TOKENS = 110, (1, 3), 4, 4, 64


def run_of(seed: int, *, even: bool = False) -> Trace:
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
                demand=rng.multinomial(TOKENS, rows).astype(np.int32),
                dropped=None,
                row_bytes=64,
                dtype="float32",
            )
        )
    held = [
        (0, x, e, 0, e * RANKS // EXPERTS, 0) for x in LAYERS for e in range(EXPERTS)
    ]
    unknown = np.full((T, RANKS), -(2**63), np.int64)
    return trace_of_routing(
        layers,
        groups=[Group(kind="ep", ranks=tuple(range(RANKS)))],
        placements=np.array(held, PLACEMENT),
        meta=Meta(world=RANKS, dp=RANKS, ep=RANKS, experts=EXPERTS, k=1, virtual=True),
        steps=Steps(
            iteration=np.arange(T),
            kind=("train",) * T,
            loss=np.full((T, RANKS), np.nan),
            tokens=np.full((T, RANKS), TOKENS),
            start=unknown,
            end=unknown,
        ),
        kind=Trace,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("validate")
    for seed in range(5):
        run_of(seed).save(made / f"seed{seed}.h5")
    run_of(9, even=True).save(made / "even.h5")
    return made


def test_a_further_seed_passes_and_is_drawn(moetraffic: Run, folder: Path) -> None:
    others = [folder / f"seed{s}.h5" for s in (2, 3, 4)]
    ran = moetraffic(
        *("validate", folder / "seed0.h5", "--against", folder / "seed1.h5", *others),
        *("--plot", folder / "verdict.png"),
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "passed: 0 of" in ran.stdout
    assert "4 real runs, tested by seeds" in ran.stdout
    assert (folder / "verdict.png").read_bytes()[:4] == b"\x89PNG"


def test_the_summary_names_the_failed_tests(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    asked = ["validate", "even.h5", "--against", "seed1.h5", "--layer", "3"]
    assert main(asked) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "failed: " in lines[0]
    assert lines[1].startswith("failed test: ")
    assert "Holm-adjusted p = " in lines[1]
    assert len(lines) <= 8
    assert main([*asked, "--only", "tests"]) == 1
    table = capsys.readouterr().out
    assert "between real runs" in table
    assert "failed test: " not in table


def test_an_even_run_is_told_apart_with_exit_code_1(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    asked = "validate even.h5 --against seed1.h5 --json --layer 3 --iterations 0:105"
    assert main(asked.split()) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["passed"]
    assert told["way"] == "time blocks"
    assert {t["layer"] for t in told["tests"]} == {3, -1}
    assert not all(t["passed"] for t in told["tests"])
    assert told["recognized"]
    assert told["auc"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("even.h5",), "--against"),
        (("even.h5", "--against", "even.h5"), "named twice"),
        (("even.h5", "--against", "seed1.h5", "seed1.h5"), "named twice"),
        (
            ("even.h5", "--against", "seed1.h5", "--iterations", "0:50"),
            "100 iterations",
        ),
        (("even.h5", "--against", "gone.h5"), "gone.h5"),
        (("even.h5", "--against", "seed1.h5", "--ranks-per-host", "0"), "at least 1"),
        (("even.h5", "--against", "seed1.h5", "--plot", "there.png"), "--force"),
        (("even.h5", "--against", "seed1.h5", "--plot", "seed2.h5"), "seed2.png"),
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
