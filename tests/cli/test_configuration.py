"""Options from a TOML file: asked for, checked, and below the command line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.data import path as shipped
from moetraffic.report.console.configuration import VARIABLE


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)

    def write(text: str) -> Path:
        path = tmp_path / "moetraffic.toml"
        path.write_text(text)
        return path

    return write


PATTERN = """
[pattern]
dp = 2
ep = 2
sequence-parallel = false
model = "tiny"
set = ["gradient_dtype=float32", "prefetch=2"]
[compare]
layers = "1,3"
force-nothing-here = 1
"""


def pattern(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    """Ranks of the pattern that the command line makes."""
    assert main([*arguments, "--json"]) == 0
    return int(json.loads(capsys.readouterr().out)["data"]["ranks"])


def test_options_come_from_the_file_and_the_command_line_wins(
    capsys: pytest.CaptureFixture[str],
    file: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = file(PATTERN)
    assert pattern(capsys, "--config", str(path), "pattern") == 2
    assert pattern(capsys, "--config", str(path), "pattern", "--dp", "4") == 4
    monkeypatch.setenv(VARIABLE, str(path))
    assert pattern(capsys, "pattern") == 2
    assert VARIABLE not in os.environ  # what is started does not read it again
    other = path.with_name("other.toml")
    other.write_text('[pattern]\nmodel = "tiny"\ndp = 8\n')
    monkeypatch.setenv(VARIABLE, str(path))
    assert pattern(capsys, "--config", str(other), "pattern") == 8


@pytest.mark.parametrize(
    ("text", "verb", "said"),
    [
        ("[patern]\ndp = 1", "pattern", "did you mean pattern"),
        ("pattern = 1", "pattern", "write [pattern]"),
        ("[pattern]\nsequence-paralel = true", "pattern", "mean sequence-parallel"),
        ("[pattern]\nsequence-parallel = []", "pattern", "a valid boolean"),
        ("[pattern]\ndp = [1, 'x']", "pattern", "dp is a number"),
        ("[pattern\n", "pattern", "a TOML file, but"),
        (PATTERN, "compare", "has no option 'force-nothing-here'"),
    ],
)
def test_what_a_file_cannot_say(
    capsys: pytest.CaptureFixture[str],
    file: Callable[[str], Path],
    text: str,
    verb: str,
    said: str,
) -> None:
    assert main(["--config", str(file(text)), verb]) == 2
    out, told = capsys.readouterr()
    assert said in told
    assert (out, told.count("\n")) == ("", 1)


@pytest.mark.slow
def test_a_replay_reads_its_own_table(
    file: Callable[[str], Path],
    moetraffic: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    golden = shipped("golden.h5")
    path = file('[replay]\niterations = "0:2"\ndry-run = true\n[capture]\nnproc = 9\n')

    def planned(*more: str) -> int:
        ran = moetraffic("--config", path, "replay", golden, "--json", *more)
        assert ran.returncode == 0, ran.stderr
        return sum(json.loads(ran.stdout)["operations"].values())

    assert 2 * planned() == planned("--iterations", ":4") > 0
    file("[replay]\niteration = 3\n")
    ran = moetraffic("--config", path, "replay", golden)
    assert ran.returncode == 2
    assert "did you mean iterations" in ran.stderr
