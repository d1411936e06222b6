"""The command line as a user meets it: output, JSON, and one sentence for bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from moetraffic.capture import training
from moetraffic.cli import main
from moetraffic.cli.recording import demo
from moetraffic.data import path
from moetraffic.errors import CaptureError
from moetraffic.launch.blame import Blame
from moetraffic.launch.board import ROW
from moetraffic.launch.ranks import Outcome
from moetraffic.patterns import Workload
from moetraffic.trace import Trace
from tests.cli.printed import unwrapped


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
    assert "is not a file" in refused(capsys, "info", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture", "--nproc", "0"], "1 to 4096 ranks, but nproc is 0"),
        (["capture", "--ep", "3"], "ep must divide dp"),
        (["capture", "--tp", "3"], "there are 4 for 1 x 3 x 1 x 1"),
        (["capture", "--dp", "2"], "there are 4 for 2 x 1 x 1 x 1"),
        (["capture", "--pp", "0"], "pp must be at least 1, but is 0"),
        (["capture", "--zero", "4"], "the ZeRO stage is one of 0, 1, 2, 3"),
        (["capture", "--pp", "2", "--zero", "3"], "ZeRO stage 0 or 1"),
        (["capture", "--order", "tp-pp"], "the order must name"),
        (["capture", "--k", "9"], "k is 9 and there are 8 experts"),
        (["run", "--k", "0", "true"], "at least 1, but is 0"),
        (["import", "--k", "0", "a.csv", "-o", "b.h5"], "at least 1, but is 0"),
        (["capture", "--router", "magic"], "the router is one of"),
        (["capture", "--router", "switch", "--k", "2"], "Switch has k 1 alone"),
        (["capture", "--dispatch", "padded", "--capacity-factor", "0"], "capacity"),
        (["capture", "--iterations", "many"], "whole number"),
        (["capture", "-o", "nowhere/run.h5"], "does not exist"),
        (["capture", "--experts", "6"], "6 experts do not spread over 4"),
        (["capture", "--model", "mixtral"], "did you mean mixtral-8x7b"),
        (["capture", "--hidden", "30"], "4 does not divide 30"),
        (["capture", "--precision", "int4"], "precision is 'int4'"),
        (["merge", "nowhere"], "ends in .logs"),
        (["merge", "nowhere.logs"], "does not exist"),
        (["analyze", "nowhere.h5"], "there is no file"),
        (["info"], "Missing argument"),
        (["teleport"], "No such command"),
        (["capture", "--corpus", "missing.txt"], "is none of them"),
        (["capture", "--corpus", ""], "argument 3 is empty"),
        (["capture", "--device", "gpu"], "the device is one of cpu, cuda"),
        (["capture", "--seed", "9" * 20], "seed must be at most"),
        (["capture", "--learning-rate", "nan"], "must be a finite number"),
        (["capture", "--nproc", "1000000"], "1 to 4096 ranks"),
        (["capture", "--nproc", "3"], "8 experts do not spread over 3"),
        (["capture", "--hidden", "400000"], "GB are available"),
        (["capture", "-o", "x" * 300], "File name too long"),
        (["capture", "-o", ""], "argument 3 is empty"),
        (["demo", "-o", "no/demo"], "does not exist: make it first"),
        (["demo", "--nproc", "3"], "give 2, 4 or 8"),
        (["demo", "--corpus", "missing.txt"], "is none of them"),
        (["demo", "-o", "x" * 300], "cannot be made (File name too long)"),
        (["merge", "/"], "but / does not: give -o"),
        (["merge", ".", "-o", "."], "is a folder: name a file in it"),
        (["info", ""], "argument 2 is empty"),
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


def test_files_in_the_way_are_named(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert "which is a file" in refused(capsys, "capture", "-o", file / "run.h5")
    assert "which is a file" in refused(capsys, "demo", "-o", file / "demo")
    assert "is a file: it is named like" in refused(
        capsys, "merge", file, "-o", tmp_path / "x.h5"
    )
    mine = captured.read_bytes()
    place = ("place", captured, "-o", captured, "--force")
    assert "is the input itself" in refused(capsys, *place)
    assert captured.read_bytes() == mine
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_refused_capture_touches_neither_trace_nor_logs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = tmp_path / "good.h5"
    good.write_text("a good trace")
    again = ("capture", "-o", good, "--force")
    assert "is none of them" in refused(capsys, *again, "--corpus", "missing.txt")
    assert good.read_text() == "a good trace"
    # what a capture of more ranks left is not merged into this one's
    old = tmp_path / "new.h5.logs" / "rank-00007-000000.log"
    old.parent.mkdir()
    old.write_text("old")
    said = refused(capsys, "capture", "-o", tmp_path / "new.h5")
    assert "of an earlier capture" in said
    assert "or give --force" in said
    assert old.read_text() == "old"
    assert not (tmp_path / "new.h5").exists()


def test_another_launchers_ranks_speak_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, lines in (("0", 1), ("1", 0)):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["capture", "--experts", "7"]) == 2
        assert capsys.readouterr().err.count("\n") == lines


def test_progress_is_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, str]] = []

    def launch(*_: object, on_rows: Callable[[object], None], **__: object) -> Outcome:
        for done, losses in (([1, 0], [4, 0]), ([2, 1], [3, 2]), ([2, 1], [3, 2])):
            rows = np.zeros(2, ROW)
            rows["done"], rows["value"] = done, losses
            on_rows(rows)
        blame = Blame(rank=1, operation="iteration 1", reason="was ended by SIGKILL")
        codes = {"exit_codes": (0, -9), "stderr": ((), ())}
        return Outcome(ok=False, interrupted=0, blame=blame, **codes)

    monkeypatch.setattr(training, "launch", launch)
    sentence = "rank 1 at iteration 1 was ended by SIGKILL; nothing was captured"
    with pytest.raises(CaptureError, match=sentence):
        training.capture_run(
            Workload(), tmp_path / "run.h5", on_step=lambda *step: steps.append(step)
        )
    assert steps == [(1, "mean loss 2.500")]


@pytest.mark.slow
def test_a_reader_that_leaves_ends_nothing(tmp_path: Path, captured: Path) -> None:
    """As ``moetraffic capture 2>&1 | head -1`` does, and ``moetraffic info | head``."""
    capture = (
        *("capture", "-o", tmp_path / "run.h5", "--nproc", 1, "--layers", 2),
        *("--hidden", 16, "--heads", 1, "--sequence", 16, "--iterations", 20),
    )
    verdict = ("compare", captured, path("golden.h5"))
    for verb, code in ((capture, 0), (("info", captured), 0), (verdict, 0)):
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "moetraffic", *map(str, verb)]
        ran = subprocess.run(
            command, stdout=writing, stderr=writing, timeout=100, check=False
        )
        os.close(writing)
        assert ran.returncode == code
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) == 20
        assert trace.meta.complete


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
    shown = unwrapped(capsys.readouterr().out)
    assert "24 iterations, loss" in shown
    assert "between ranks" in shown
    assert "all_to_all" not in shown
    assert main(["info", str(captured), "--only", "calls"]) == 0
    calls = unwrapped(capsys.readouterr().out)
    assert "24 iterations" not in calls
    assert main(["info", str(captured), "--tables"]) == 0
    everything = unwrapped(capsys.readouterr().out)
    assert calls.strip() in everything
    assert "annotated" in everything
    assert main(["info", str(captured), "--tables", "--only", "calls"]) == 0
    assert unwrapped(capsys.readouterr().out) == calls
    assert "'links'" in refused(capsys, "info", captured, "--only", "links")
    assert "all_to_all" in everything
    assert main(["info", str(captured), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["data"]
    assert told["training_iterations"] == 24
    assert told["moe_layers"] == [1, 3]
    assert told["meta"]["complete"] is True
    with Trace.open(captured) as trace:
        sent = trace.wire(trace.find(operation="all_to_all")).sum()
    assert told["all_to_all_bytes"] == sent


def test_compare_shows_and_writes_its_tables(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    pair = ["compare", str(captured), str(path("golden.h5"))]
    assert main(pair) == 0
    first = capsys.readouterr().out
    assert "Too short for tests of differences: 12 iterations" in unwrapped(first)
    assert main([*pair, "--only", "distances", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {row["measure"] for row in tables["distances"]} >= {"entropy", "amount"}
    file = str(tmp_path / "both.csv")
    assert main([*pair, "--only", "time_ratios", "-o", file]) == 0
    assert capsys.readouterr().out.replace("\n", "") == f"written: {file}"
    assert "ratio_low" in Path(file).read_text().splitlines()[0]
    assert "not overwritten" in refused(capsys, *pair, "-o", file)
    assert main([*pair, "--only", "settings", "-o", file, "--force"]) == 0


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("moetraffic 0.")
    assert main([]) == 0
    shown = capsys.readouterr().out
    for verb in ("demo", "capture", "info", "analyze", "replay", "merge", "models"):
        assert verb in shown


def test_the_demo_joins_its_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shipped trace in place of training and of what is replayed."""
    started: list[list[str]] = []

    def train(workload: Workload, run: Path, **_: object) -> Trace:
        assert workload.training.iterations == 30
        shutil.copy(path("golden.h5"), run)
        return Trace.open(run)

    def replay(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        started.append(command)
        shutil.copy(path("golden.h5"), command[command.index("-o") + 1])
        kinds = [{"call": "all-to-all", "calls": 240, "sent": 2_000_000}]
        data = {"verified": "full", "ranks": 2}
        told = json.dumps({"tables": {"kinds": kinds}, "data": data})
        return subprocess.CompletedProcess(command, 0, stdout=told)

    monkeypatch.setattr(demo, "capture_run", train)
    monkeypatch.setattr(demo.subprocess, "run", replay)
    folder = tmp_path / "d"
    assert main(["demo", "-o", str(folder), "--nproc", "2", "--iterations", "30"]) == 0
    (command,) = started
    assert command[command.index("--iterations") + 1] == "10:30"
    assert command[3] == str(folder / "run.h5")
    said = unwrapped(capsys.readouterr().out)
    for text in (
        "12 iterations, 2 MoE layers",
        "ate, the busiest expert had 1.23 to 1.41 times the mean",
    ):
        assert text in said
        assert text in unwrapped((folder / "summary.txt").read_text())
    assert "Replayed: 240 all-to-alls, 2.00 MB between 2 ranks" in said
    told = json.loads((folder / "summary.json").read_text())
    assert {"capture", "analysis", "replay", "pictures"} < {*told}
    assert all((folder / name).exists() for name in (*demo.WRITES, *told["pictures"]))


@pytest.mark.slow
def test_the_load_becomes_even_during_the_demo(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    assert main(["demo", "-o", str(folder)]) == 0
    with Trace.open(folder / "run.h5") as trace:
        tokens = trace.demand_frame().groupby(["layer", "iteration", "expert"]).tokens
        loads = tokens.sum().unstack("expert")
        number = len(trace.iterations)
    shares = loads.div(loads.sum(axis=1), axis=0)
    entropy = -(shares * np.log(shares.where(shares > 0, 1))).sum(axis=1) / np.log(
        shares.shape[1]
    )
    for _, course in entropy.groupby("layer"):
        first, last = course.iloc[:20].mean(), course.iloc[-20:].mean()
        assert first < 0.92
        assert last > 0.94
    with Trace.open(folder / "replayed.h5") as trace:
        assert trace.iterations.tolist() == [*range(number - demo.REPLAYED, number)]


def test_ctrl_c_ends_a_capture_and_keeps_it(
    tmp_path: Path, endless: Callable[[Path], subprocess.Popen[str]]
) -> None:
    run = endless(tmp_path / "run.h5")
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "Traceback" not in said
    assert "iterations are kept" in said
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) >= 20
        # a rank that was a step ahead ends when the other has left, and keeps all
        assert "interrupted by SIGINT after" in trace.meta.missing
        assert "of 100000 iterations" in trace.meta.missing
        assert "was not closed" not in trace.meta.missing
    assert not (tmp_path / "run.h5.logs").exists()


def test_a_trace_is_not_written_under_the_name_of_another_format(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    for verb in (["place", str(captured)], ["capture"]):
        said = refused(capsys, *verb, "-o", str(tmp_path / "made.json"))
        assert f"ends in .json: name it {tmp_path / 'made.h5'}" in said
    assert not list(tmp_path.glob("made*"))


def test_an_empty_argument_is_no_path(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    assert "argument 4 is empty" in refused(capsys, "analyze", str(captured), "-o", "")


def test_experts_that_do_not_spread_over_the_ranks_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = tmp_path / "made.h5"
    how = ("--from", "top2-balanced-late", "--ranks", "64", "--experts", "7")
    asked = ("generate", *how, "--iterations", "32", "-o", str(made))
    assert "7 experts and 64 ranks have no common" in refused(capsys, *asked)
    assert not made.exists()


def test_expert_parallel_groups_divide_the_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("place", path("golden-linked.h5"), "--ep", "4", "-o", tmp_path / "made.h5")
    said = refused(capsys, *asked)
    assert "2 ranks do not split into groups of 4: give --ep a divisor of 2" in said


@pytest.mark.slow
def test_an_absent_trace_is_refused_before_libraries_are_loaded(tmp_path: Path) -> None:
    """They take seconds, in which nothing is printed."""
    program = (
        "import sys\n"
        "from moetraffic.cli import main\n"
        "for verb in 'analyze plot report schedule evaluate fabric compare'.split():\n"
        "    assert main([verb, 'none.h5']) == 2\n"
        "assert main(['analyze', 'none.h5', '--phase', 'none']) == 2\n"
        "heavy = {'torch', 'scipy', 'pandas', 'plotly', 'statsmodels', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("there is no file none.h5") == 7
