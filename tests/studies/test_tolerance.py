"""Loss tolerance: paired increases, and the largest tolerated share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import AnalysisError
from moetraffic.report.console import terminal
from moetraffic.studies.__main__ import app
from moetraffic.studies.tolerance import increases

BASE = np.array([2.0, 2.1, 2.2])  # sigma 0.1
RISES = np.array([0.01, 0.02, 0.03])


def test_increases_are_paired_by_seed_with_students_interval() -> None:
    swept = increases([0, 0.01], np.stack([BASE, BASE + RISES]))
    (row,) = swept.rows("increases")
    assert row["increase"] == pytest.approx(0.02)
    # t(0.975, 2) = 4.302653; sd 0.01 / sqrt 3
    assert row["high"] - row["increase"] == pytest.approx(
        4.302653 * 0.01 / 3**0.5, rel=1e-6
    )
    assert row["increase"] - row["low"] == pytest.approx(row["high"] - row["increase"])
    assert swept.data["sigma"] == pytest.approx(0.1)
    assert swept.data["p_star"] == 0.01


def test_p_star_ends_at_the_first_share_that_is_not_tolerated() -> None:
    losses = np.stack([BASE, BASE, BASE + 0.2, BASE + 0.01])
    found = increases([0, 0.1, 0.2, 0.3], losses, "packets")
    assert found.data["p_star"] == 0.1
    assert "(p*) is 10%" in found.verdict[0]
    none = increases([0, 0.2, 0.3], losses[[0, 2, 3]])
    assert none.data["p_star"] == 0


def test_a_training_that_broke_down_is_not_tolerated() -> None:
    losses = np.stack([BASE, [2.0, np.nan, 2.2]])
    assert increases([0, 0.5], losses).data["p_star"] == 0


@pytest.mark.parametrize(
    ("shares", "losses", "says"),
    [
        ([0.1], [[1, 2]], "the shares increase from 0"),
        ([0, 0.2, 0.1], [[1, 2]] * 3, "the shares increase from 0"),
        ([0, 0.1], [[1], [1]], "needs 2 of them or more, but there is 1"),
    ],
)
def test_refused(shares: list[float], losses: list[list[float]], says: str) -> None:
    with pytest.raises(AnalysisError, match=says):
        increases(shares, np.array(losses, float))


SMALL = [
    *("--layers", "2", "--hidden", "16", "--heads", "2", "--sequence", "16"),
    *("--micro-batch", "1"),
]


@pytest.mark.slow
def test_trainings_on_a_lossy_network(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output, plot = tmp_path / "t.json", tmp_path / "t.png"
    asked = "tolerance --percent 1,80 --seeds 2 --iterations 4 --site dispatch"
    outputs = ["-o", str(output), "--plot", str(plot), "--json"]
    given = [*asked.split(), "--pattern", "messages", *SMALL, *outputs]
    code = terminal.run(app, given, "studies")
    out, error = capfd.readouterr()
    assert code == 0, error
    found = json.loads(out)
    assert json.loads(output.read_text()) == found
    runs = found["tables"]["runs"]
    assert len(runs) == 6
    dropped = [run["lost"] / run["crossed"] for run in runs if run["share"] == 0.8]
    assert all(0.5 < share < 1 for share in dropped)
    rows = found["tables"]["increases"]
    assert [row["share_lost"] for row in rows] == [0.01, 0.8]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--site", "moon"], "the site is one of dispatch"),
        (["--pattern", "often"], "the pattern is one of packets"),
        (["--percent", "1,200"], "percentages above 0 and below 100"),
        (["--seeds", "1"], "it must be at least 2, but is 1"),
        (["--packet-bytes", "1"], "at least 64 bytes"),
        (["--plot", "nowhere/t.png"], "does not exist"),
    ],
)
def test_an_impossible_tolerance(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert terminal.run(app, ["tolerance", *arguments], "studies") == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
