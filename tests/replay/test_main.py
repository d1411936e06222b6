"""The command line: as a parent, as a rank, and when it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from moetraffic.replay import __main__ as verb
from moetraffic.replay.__main__ import main
from moetraffic.replay.plan.operations import operations
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


def test_it_starts_the_ranks_itself_and_writes_trace_and_result(
    toy_file, tmp_path, capsys
):
    path, out, result = toy_file(), tmp_path / "out.h5", tmp_path / "result.json"
    ran = command(path, "-o", out, "--nproc", 2, "--ports", "--result", result)
    assert ran.returncode == 0, ran.stderr
    assert "21 operations of" in ran.stderr
    assert ran.stdout.splitlines()[0].endswith(", 2 ranks on 1 host, gloo")
    assert f"written: {out}" in ran.stdout
    document = json.loads(result.read_text())
    data, tables = document["data"], document["tables"]
    with Trace.open(path) as trace, Trace.open(out) as made:
        plan = operations(trace)
        assert (operations(made).bottleneck_bytes == plan.bottleneck_bytes).all()
        assert made.meta.origin == "replayed"
        assert [row["bytes"] for row in tables["ranks"]] == plan.rank_bytes.tolist()
        assert data["bytes"] == int(plan.total_bytes.sum())
    assert data["operations"] == {"all_to_all": 18, "all_reduce": 3}
    assert data["verified"] == "full"
    assert all(row["send"] > 0 and row["receive"] > 0 for row in tables["ports"])
    fields = {row["field"] for row in tables["stack"]}
    assert {"backend", "torch", "interfaces", "system"} <= fields
    # once more: refused before any rank starts, and the file is kept
    before = out.read_bytes()
    assert main([str(path), "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"moetraffic: {out} exists and is not overwritten")
    assert said.count("\n") == 1
    assert out.read_bytes() == before


def test_as_ranks_of_another_launcher_rank_zero_prints(
    toy_file, forked, tmp_path, monkeypatch
):
    monkeypatch.setattr(verb, "load_now", lambda: "this machine is busy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, out = toy_file(), tmp_path / "out.h5"

    def work(rank_env):
        os.environ |= {
            "MOETRAFFIC_FILESTORE": "",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for name in ("stdout", "stderr"):
            file = open(tmp_path / f"{name}-{rank_env.rank}", "w")  # noqa: SIM115
            setattr(sys, name, file)
        code = main([str(path), "-o", str(out), "--tables"])
        sys.stdout.flush()
        return code

    assert forked(2, work) == [0, 0]
    printed, silent = ((tmp_path / f"stdout-{r}").read_text() for r in range(2))
    for word in ("all-to-all", "GB/s", "waiting", "operations", "stack"):
        assert word in printed
    assert silent == ""
    printed, silent = ((tmp_path / f"stderr-{r}").read_text() for r in range(2))
    for word in ("21 operations of", "Passes: a verification", "machine is busy"):
        assert printed.count(word) == 1
    assert silent == ""
    with Trace.open(out) as made:
        assert made.meta.world == 2


@pytest.mark.parametrize("kind", ["missing", "text", "truncated"])
def test_a_file_that_is_no_trace_is_one_sentence_and_exit_code_2(
    kind, toy_file, tmp_path, capsys
):
    path = tmp_path / f"{kind}.h5"
    if kind == "text":
        path.write_text("no trace at all")
    elif kind == "truncated":
        whole = toy_file().read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
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
        (["--timeout", "nan"], "it must be finite"),
        (["--timeout", "1e30"], "at most 604800 s, but is 1e+30"),
        (["--timeout", "soon"], "it is a number, not 'soon': see moetraffic replay"),
        (["--start-timeout", "-1"], "it must be above 0"),
        (["--repeat", "0"], "it must be at least 1"),
        (["--verify", "some"], "'some' is not one of full, none"),
        (["--backend", "glo"], "one of gloo, gloo-duplex, nccl"),
        (["--loud"], "No such option"),
        (["-o", "."], "is a folder: name a file in it"),
        (["--result", "result.txt"], "results are written as .json"),
        (["--capacity", "fast"], "fast"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_ranks_start(
    toy_file, arguments, sentence, capsys, monkeypatch
):
    monkeypatch.setattr("moetraffic.replay.run.launch", None)
    assert main([str(toy_file()), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_dry_run_prints_json(toy_file, capsys):
    assert main([str(toy_file()), "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(row["calls"] for row in document["tables"]["kinds"]) == 21


def test_the_help_states_where_ranks_meet(capsys):
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for word in (
        "torchrun --nnodes 2",
        "srun --nodes 2",
        "MASTER_PORT",
        "rank 0's host",
    ):
        assert word in said
