from __future__ import annotations

from pathlib import Path

import pytest

from moetraffic.cli import main


def test_pictures_of_a_capture(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    asked = ["plot", str(captured), "-o", str(folder), "--iterations", "0,20"]
    assert main([*asked, "--operations", "all_to_all,all_reduce"]) == 0
    drawn = {path.name for path in folder.iterdir()}
    assert {"traffic.png", "timeline.png", "entropy.png"} < drawn
    assert "demand-layer-1.png" in drawn
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000
    capsys.readouterr()
    assert main(asked) == 2
    assert "not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--iterations", "3,99"], "iterations are numbers from 0 to 23"),
        (["--iterations", "early"], "iterations are numbers, or A:B"),
        (["--iterations", "20:30"], "iterations are numbers from 0 to 23"),
        (["--operations", "gossip"], "the trace has all_reduce, all_to_all"),
        (["--algorithm", "star"], "the algorithm is one of ring, direct"),
        (["-o", "nowhere/pictures"], "does not exist"),
    ],
)
def test_impossible_pictures(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(captured), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
