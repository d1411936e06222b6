"""The command line: as a parent, as a rank, and when it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.replay import make_plan
from moetraffic.replay.__main__ import main
from moetraffic.replay.results.machine_load import HostLoad
from moetraffic.trace.iterations import iteration_range
from moetraffic.trace.trace import Trace


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moetraffic.replay", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_starts_the_ranks_itself_and_writes_trace_and_figures(
    toy_file, tmp_path, capsys
):
    path, out = toy_file(), tmp_path / "out.h5"
    ran = command(path, "-o", out, "--nproc", 2, "--json")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    with Trace.open(path) as trace, Trace.open(out) as made:
        plan = make_plan(trace)
        assert (make_plan(made).checksum == plan.checksum).all()
        assert made.meta.origin == "replayed"
        assert said["rank_bytes"] == plan.rank_bytes.tolist()
        assert said["total_bytes"] == int(plan.total_bytes.sum())
    assert (said["operations"], said["verified"], said["out"]) == (21, "full", str(out))
    assert "21 operations" in ran.stderr

    # once more: refused before any rank starts, and the file is kept
    before = out.read_bytes()
    assert main([str(path), "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"moetraffic: {out} exists and is not overwritten")
    assert said.count("\n") == 1
    assert out.read_bytes() == before


def test_as_ranks_of_another_launcher_rank_zero_tells(
    toy_file, forked, tmp_path, monkeypatch
):
    busy = HostLoad(node="", cores=2, others=1.5)
    monkeypatch.setattr("moetraffic.replay.__main__.load_now", lambda: busy)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, out = toy_file(), tmp_path / "out.h5"

    def work(rank_env):
        sys.stdout = open(tmp_path / f"said-{rank_env.rank}", "w")  # noqa: SIM115
        sys.stderr = open(tmp_path / f"before-{rank_env.rank}", "w")  # noqa: SIM115
        code = main([str(path), "-o", str(out), "--tables"])
        sys.stdout.flush()
        return code

    torchrun = {
        "MOETRAFFIC_FILESTORE": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    assert forked(2, work, **torchrun) == [0, 0]
    told, silent = ((tmp_path / f"said-{r}").read_text() for r in range(2))
    for word in ("18 all-to-alls", "busbw", "GB/s", "straggler", "p99"):
        assert word in told
    assert silent == ""
    told, silent = ((tmp_path / f"before-{r}").read_text() for r in range(2))
    for word in (
        "21 operations of",
        "passes: verification",
        "before the replay, other proc",
    ):
        assert told.count(word) == 1
    assert silent == ""
    with Trace.open(out) as made:
        assert made.meta.world == 2


@pytest.fixture
def wrong_file(tmp_path, toy_file):
    def make(kind: str) -> Path:
        path = tmp_path / f"{kind}.h5"
        if kind == "text":
            path.write_text("no trace at all")
        elif kind == "truncated":
            whole = toy_file().read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
        return path

    return make


@pytest.mark.parametrize("kind", ["missing", "text", "truncated"])
def test_a_file_that_is_no_trace_is_one_sentence_and_exit_code_2(
    wrong_file, kind, capsys
):
    path = wrong_file(kind)
    assert main([str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("moetraffic: ")
    assert str(path) in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nproc", "4"], "has 2 and there are 4: start 2 ranks (--nproc 2)"),
        (["--iterations", "5"], "iterations are A:B with A below B"),
        (["--iterations", "90:95"], "choose others with --iterations"),
        (["--timeout", "0"], "timeout must be above 0 s"),
        (["--timeout", "nan"], "at most 604800 s, but is nan"),
        (["--timeout", "1e300"], "but is 1e+300"),
        (["--start-timeout", "-1"], "start timeout must be above 0 s"),
        (["--verify", "sample", "--sample", "0"], "change --sample or --sample-seed"),
        (["--timeout", "soon"], "it is a number, not 'soon': see moetraffic replay"),
        (["--verify", "some"], "see moetraffic replay --help"),
        (["--loud"], "No such option"),
        (["-o", "."], "is a folder: name a file in it"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_ranks_start(
    toy_file, arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setattr("moetraffic.replay.local.launch", None)
    assert main([str(toy_file()), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_help_tells_where_ranks_meet(capsys):
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for word in (
        "torchrun --nnodes 2",
        "srun --nodes 2",
        "MASTER_PORT",
        "rank 0's host",
    ):
        assert word in said


def test_an_open_range_reaches_the_end(toy):
    plan = make_plan(toy(iterations=range(9)), iterations=iteration_range("7:"))
    assert set(plan.iteration.tolist()) == {7, 8}
