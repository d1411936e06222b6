"""Options that contradict each other, amounts that nothing has, outputs in the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .test_cli import refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("estimate -o a.json --plot x.gif", "'x.gif' has another file extension"),
        ("estimate -o x.png --plot y.png", "results are written as"),
        ("pattern --dp 20000 --json", "3.2 GB: leave out --json"),
        ("pattern --dp 20000 --plot x.svg", "6.4 GB: leave out --plot"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("fabric run.h5 --nics 0", "NICs of a host must be at least 1"),
        ("fabric run.h5 --topology dragonfly", "give --shape 2x4x2 for 2 hosts"),
        ("fabric run.h5 --oversubscription -1", "give a number above 0"),
        ("compare run.h5 run.h5 --iterations 900:", "iterations from 900 on are none"),
        ("place run.h5 -o n.h5 --ranks 0", "'--ranks': Input should be greater"),
        ("place run.h5 -o n.h5 --replicas 800", "a rank holds an expert at most once"),
        ("schedule run.h5 -o run.h5 --force", "results are written as"),
        ("pattern --imbalance-from run.h5 -o run.h5 --force", "is the input itself"),
        ("fabric run.h5 --plot run.h5 --force", "pictures are PNG, PDF or SVG files"),
        ("generate run.h5 -o g.h5 --save-model g.h5", "cannot hold two outputs"),
    ],
)
def test_a_trace_stays_what_it_was(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(captured, "run.h5")
    assert said in refused(capsys, *arguments.split())
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    assert Path("run.h5").read_bytes() == captured.read_bytes()
