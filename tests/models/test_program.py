"""``python -m moetraffic.models``: one rank, from its environment to its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.launch.board import PATH as board_path
from moetraffic.launch.board import Board, State
from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]

SHAPE = ModelShape(layers=2, hidden=16, heads=2, sequence=16)
LAUNCHERS = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "text"
    file.write_bytes(b"it was the best of times, it was the worst of times\n" * 9)
    return str(file)


def workload(ranks: int, text: str, iterations: int = 3) -> str:
    return Workload(
        model=SHAPE,
        layout=Layout(dp=ranks, ep=ranks),
        training=Training(iterations=iterations, micro_batch=1, corpus=text),
    ).to_json()


@pytest.mark.slow
def test_a_process_notes_its_steps(text: str) -> None:
    board = Board()
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCHERS}
    environment |= {board_path: board.path, "RANK": "0", "WORLD_SIZE": "1"}
    environment["MOETRAFFIC_FILESTORE"] = f"{text}-store"
    environment["MOETRAFFIC_WORKLOAD"] = workload(1, text)
    ended = subprocess.run(
        [sys.executable, "-m", "moetraffic.models"],
        env=environment,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    (row,) = board.rows
    assert (row["state"], row["done"]) == (State.DONE, 3)
    assert row["place"] == b"iteration 2"
    assert 4 < row["value"] < 7


def test_two_ranks_train_and_leave_nothing_open(text: str, run_ranks: Run) -> None:
    for rank in run_ranks("program", 2, workload=workload(2, text)):
        assert rank["code"] == 0
        assert rank["events"] == ["STARTING", "READY", *["step"] * 3, "DONE"]
        assert not rank["left_open"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text_workload", "said"),
    [
        (workload(1, "/nowhere/at/all"), "'/nowhere/at/all' is none of them"),
        (workload(4, ""), "= 4 and 1 were started"),
        ("{not json", "a workload is a JSON object"),
    ],
)
def test_what_cannot_run_is_said_in_one_sentence(
    text_workload: str, said: str, run_ranks: Run
) -> None:
    (rank,) = run_ranks("program", 1, workload=text_workload)
    assert (rank["code"], rank["left_open"]) == (2, False)
    assert rank["stderr"].count("\n") == 1
    assert said in rank["stderr"]
    assert rank["events"][-1] == "FAILED"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_ranks_and_keeps_what_was_captured(
    number: signal.Signals, text: str, tmp_path: Path, run_ranks: Run
) -> None:
    path = tmp_path / "run.h5"
    endless = workload(2, text, iterations=10**6)
    ranks = run_ranks(
        "program", 2, workload=endless, capture=str(path), signal_after=(20, number)
    )
    for rank in ranks:
        assert rank["code"] == 128 + number
        # nothing is called done, and nothing an error
        assert rank["events"] == ["STARTING", "READY", *["step"] * 20]
        assert not rank["left_open"]
    with Trace.open(path) as run:
        assert len(run.steps.iteration) == 20
