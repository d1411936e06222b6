"""``compare --against``: intervals, wrong runs, sizes and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.synthetic.compare import (
    LEVEL,
    compare_with_runs,
    prediction,
    statistic_rows,
)
from moetraffic.synthetic.statistics import statistics
from tests.synthetic.runs import EXPERTS, TOKENS, simulated, write

REAL = ("real1.h5", "real2.h5", "real3.h5", "real4.h5", "real5.h5", "real6.h5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six real runs, one more, uniform traffic, and runs of other sizes."""
    made = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(REAL):
        write(made / name, simulated(seed))
    more = simulated(6, iterations=100)
    write(made / "more.h5", more)
    even = np.random.default_rng(0).multinomial(TOKENS, np.full(EXPERTS, 1 / EXPERTS))
    write(made / "uniform.h5", np.broadcast_to(even, more.shape))
    write(made / "short.h5", more[:30])
    write(made / "ranks.h5", more[:, :, :2])
    write(made / "copies.h5", 2 * more)
    return made


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("runs", [2, 3, 6])
def test_intervals_cover_one_more_run_as_often_as_stated(scale: str, runs: int) -> None:
    rng = np.random.default_rng(runs)
    drawn = rng.normal(3, 0.2, (4000, runs + 1))
    values = np.exp(drawn) if scale == "log" else drawn
    inside = 0
    for row in values:
        low, high, finds = prediction(row[:-1], scale, compared=1)
        inside += low <= row[-1] <= high
        wide = np.sqrt(high / low) - 1 if scale == "log" else (high - low) / 2
        assert finds == pytest.approx(wide)
    # 3.5 standard deviations of the share
    assert inside / len(values) == pytest.approx(1 - LEVEL, abs=0.012)


def test_equal_runs_contain_one_more_and_nothing_else() -> None:
    values = np.full(3, 0.7)
    low, high, _ = prediction(values, "log", compared=12)
    assert low < 0.7 < high < 0.7001
    assert np.isnan(prediction(values[:1], "log", compared=12)).all()


def test_one_more_real_run_is_inside_and_four_wrong_ones_are_not() -> None:
    real = [statistics(simulated(seed)) for seed in range(6)]
    run, rng = simulated(0), np.random.default_rng(1)
    load = run.sum(axis=(0, 2)) / run.sum(axis=(0, 2, 3))[:, None]
    rows = np.broadcast_to(load[None, :, None], run.shape)
    wrong = {
        "uniform": rng.multinomial(TOKENS, np.full_like(rows, 1 / EXPERTS)),
        "i.i.d.": rng.multinomial(TOKENS, rows),
        "frozen": np.broadcast_to(run[:1], run.shape),
        "permuted in time": rng.permutation(run),
    }
    outside = {
        name: any(row["outside"] for row in statistic_rows(statistics(counts), real))
        for name, counts in {"more": simulated(6), **wrong}.items()
    }
    assert outside == {"more": False, **dict.fromkeys(wrong, True)}


def test_exit_codes_and_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["compare", "more.h5", "--against", *REAL]) == 0
    assert "the first 80 iterations of each" in capsys.readouterr().out
    assert main(["compare", "uniform.h5", "--against", *REAL, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    rows = result["tables"]["statistics"]
    assert result["data"]["outside"] == sum(row["outside"] for row in rows) > 3
    assert main(["compare", "uniform.h5", "--against", REAL[0]]) == 0
    assert "spread of real runs is unknown" in capsys.readouterr().out


def test_one_run_has_differences_alone(folder: Path) -> None:
    result = compare_with_runs(folder / "more.h5", [folder / REAL[0]])
    row = result.rows("statistics")[0]
    assert row["difference"] == pytest.approx(row["synthetic"] - row["real"])
    assert (row["outside"], result.data["outside"]) == (None, 0)


@pytest.mark.parametrize(
    ("synthetic", "text"),
    [
        ("short.h5", "need 40 iterations"),
        ("ranks.h5", "2 in ranks"),
        ("copies.h5", "512 in token copies"),
    ],
)
def test_runs_of_other_sizes_are_refused(
    folder: Path, synthetic: str, text: str
) -> None:
    with pytest.raises(AnalysisError, match=text):
        compare_with_runs(folder / synthetic, [folder / REAL[0]])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("more.h5", "name one more"),
        ("more.h5 real1.h5 real2.h5", "name one more"),
        ("more.h5 --against real1.h5 real1.h5", "named twice"),
    ],
)
def test_wrong_numbers_of_runs_are_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    text: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["compare", *arguments.split()]) == 2
    assert text in capsys.readouterr().err
