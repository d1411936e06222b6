"""The command line as a user meets it: output, JSON, and one sentence for bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from moetraffic.cli import main
from moetraffic.trace import Trace

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Exit code 2 and one sentence on standard error, nothing else."""
    code = main([str(a) for a in arguments])
    out, said = capsys.readouterr()
    assert (code, out) == (2, ""), said
    assert said.startswith("moetraffic: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said


def test_info_refuses_what_is_no_trace(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    text, other, cut = tmp_path / "a.txt", tmp_path / "b.h5", tmp_path / "c.h5"
    text.write_text("iteration,loss\n1,2\n")
    with h5py.File(other, "w") as file:
        file["x"] = [1, 2]
    whole = captured.read_bytes()
    cut.write_bytes(whole[: len(whole) // 3])
    assert "there is no file" in refused(capsys, "info", tmp_path / "none.h5")
    assert "not an HDF5 file" in refused(capsys, "info", text)
    assert "of another kind" in refused(capsys, "info", other)
    assert "damaged" in refused(capsys, "info", cut)
    assert "is a folder, not a file" in refused(capsys, "info", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture", "--nproc", "0"], "at least one rank"),
        (["capture", "--ep", "3"], "ep must divide dp"),
        (["capture", "--k", "9"], "k is 9 and there are 8 experts"),
        (["capture", "--router", "magic"], "the router is one of"),
        (["capture", "--router", "switch", "--k", "2"], "Switch routes a token to one"),
        (["capture", "--dispatch", "padded", "--capacity-factor", "0"], "capacity"),
        (["capture", "--iterations", "many"], "valid integer"),
        (["capture", "-o", "nowhere/run.h5"], "does not exist"),
        (["capture", "--experts", "6"], "ep must divide the experts"),
        (["merge", "nowhere"], "ends in .segments"),
        (["merge", "nowhere.segments"], "does not exist"),
        (["analyze", "nowhere.h5"], "there is no file"),
        (["info"], "Missing argument"),
        (["teleport"], "No such command"),
        (["info", "--loud"], "No such option"),
    ],
)
def test_bad_input_gets_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mine = tmp_path / "run.h5"
    mine.write_text("mine")
    assert "not overwritten" in refused(capsys, "capture", "-o", mine)
    assert mine.read_text() == "mine"


def test_info_tells_what_was_captured(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    assert main(["info", str(captured)]) == 0
    shown = capsys.readouterr().out
    assert "dispatch (all_to_all)" in shown
    assert "= (demand - dropped) x row bytes" in shown
    assert main(["info", str(captured), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["training_iterations"] == 24
    assert told["moe_layers"] == [1, 3]
    assert told["meta"]["complete"] is True
    with Trace.open(captured) as trace:
        sent = trace.wire(trace.find(operation="all_to_all")).sum()
    assert told["all_to_all_bytes"] == sent


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("moetraffic 0.")
    assert main([]) == 0
    shown = capsys.readouterr().out
    for verb in ("demo", "capture", "info", "analyze", "replay", "merge"):
        assert verb in shown


def test_ctrl_c_ends_a_capture_and_keeps_it(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "moetraffic", "capture", "-o", tmp_path / "run.h5"),
            *("--nproc", "2", "--layers", "2", "--hidden", "16", "--heads", "1"),
            *("--sequence", "16", "--iterations", "100000"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    segments = tmp_path / "run.h5.segments"
    deadline = time.monotonic() + 60
    while len(list(segments.glob("rank-*/segment-*.h5"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "Traceback" not in said
    assert "iterations are kept" in said
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) >= 32
