"""Options that contradict each other, amounts that nothing has, outputs in the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moetraffic.cli import main

from .test_cli import refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("estimate --sweep weak --dp 4", "--sweep and --dp give the same"),
        (
            "estimate --sweep large-batch --global-batch 8",
            "--sweep and --global-batch give",
        ),
        ("estimate --zero-stages --zero 2", "--zero-stages and --zero give"),
        ("bandwidth big-red-200 --place in", "measured out of place, but --place"),
        ("estimate --dp 0", "dp is 0: give --dp a positive number"),
        ("estimate --sweep depth", "'depth' is not one of strong, weak, large-batch, "),
        ("estimate --bandwidth -1GB/s", "a rate is a positive number with a unit"),
        ("estimate --bandwidth fast", "a rate is a positive number with a unit"),
        ("estimate --bandwidth no.csv", "no.csv cannot be read (No such file"),
        ("estimate --peak-tflops 0", "above 0, but is 0"),
        ("estimate --utilization 2", "at most 1, but is 2"),
        ("estimate --imbalance 0.5", "at least 1, but is 0.5"),
        ("estimate --sequence 0", "at least 1, but is 0"),
        ("estimate --micro-batch 0", "micro-batch must be at least 1, but is 0"),
        ("estimate --dp 2 --micro-batch 0 --bandwidth 9GB/s", "micro-batch must be at"),
        ("estimate --global-batch 0", "'--global-batch': it must be at least 1"),
        ("estimate --best --gpus 8 --global-batch 0", "'--global-batch': it must be"),
        ("pattern --dp 2 --micro-batch 0", "micro-batch must be at least 1, but is 0"),
        ("pattern --dp 2 --global-batch -1", "'--global-batch': it must be at least"),
        ("pattern --dp 2 --accumulation 0", "--accumulation a positive number"),
        ("estimate --sweep size --vocab 512", "--sweep and --vocab give the same"),
        ("estimate -o a.json --plot x.gif", "'x.gif' has another file extension"),
        ("estimate -o x.png --plot x.png", "cannot hold two outputs"),
        (
            "pattern --model mixtral-8x7b --dp 2 --dispatch some",
            "dispatch is one of padded",
        ),
        ("pattern --dp 20000 --json", "3.2 GB: leave out --json"),
        ("pattern --dp 20000 --plot x.svg", "6.4 GB: leave out --plot"),
        ("pattern --dp 20000 --algorithm direct", "3.2 GB: choose --algorithm ring"),
        ("estimate --project run.h5 --tp 2", "--project and --tp give the same"),
        ("pattern --dp 2 --global-batch 4 --accumulation 2", "leave one out"),
        ("bandwidth --collective all_reduce", "a table of measurements, but none"),
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
        ("fabric run.h5 --topology dragonfly", "but none is given"),
        ("fabric run.h5 --oversubscription -1", "give a number above 0"),
        ("compare run.h5 run.h5 --iterations 900:", "iterations from 900 on are none"),
        ("place run.h5 -o n.h5 --ranks 0", "'--ranks': it must be at least 1"),
        ("place run.h5 -o n.h5 --replicas 800", "a rank holds an expert at most once"),
        ("schedule run.h5 -o run.h5 --force", "is the input itself"),
        ("estimate --calibrate run.h5 -o run.h5 --force", "is the input itself"),
        ("estimate --calibrate run.h5 --model gpt-3b", "give the same"),
        ("estimate --calibrate run.h5 --vocab 512", "give the same"),
        ("estimate --calibrate run.h5 --dtype float16", "give the same"),
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


def test_a_file_of_options_contradicts_no_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What it says is for many runs: sizes are there for those that sweep."""
    table = tmp_path / "run.toml"
    table.write_text('[estimate]\nsizes = "1,2"\nplatform = "tg40"\n')
    assert main(["--config", str(table), "estimate", "--dp", "2"]) == 0
    assert "T_iter" in capsys.readouterr().out


def test_a_calibrated_run_keeps_its_types_under_a_file_of_options(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    asked = ["estimate", "--calibrate", str(captured), "--dp", "4"]
    assert main(asked) == 0
    own = capsys.readouterr().out
    table = tmp_path / "run.toml"
    table.write_text('[estimate]\ndtype = "float16"\ngradient_dtype = "float64"\n')
    assert main(["--config", str(table), *asked]) == 0
    assert capsys.readouterr().out == own


def test_a_calibrated_run_keeps_how_it_saves_memory(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    """Unless another way is asked for: the estimate is of the captured workload."""
    asked = ["estimate", "--calibrate", str(captured), "--json"]
    assert main([*asked, "--dp", "4"]) == 0
    own = capsys.readouterr().out
    assert main([*asked, "--dp", "4", "--recompute", "none"]) == 0
    assert capsys.readouterr().out == own  # it recomputes nothing
    assert main([*asked, "--dp", "4", "--recompute", "full"]) == 0
    assert capsys.readouterr().out != own
