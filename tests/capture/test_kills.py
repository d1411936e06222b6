"""Whatever is killed, and whenever: no more steps are lost than the trace states."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.capture.log import MOST_LOST
from moetraffic.trace import Trace
from moetraffic.trace.merge.merging import merge

VICTIMS = {"rank", "all ranks"}


def judge(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        assert run["wrong"] == [], run
        assert max(run["lost"]) <= MOST_LOST, run


def test_killed_processes_lose_no_more_than_stated(
    killed: list[dict[str, Any]],
) -> None:
    assert {run["kind"] for run in killed} == VICTIMS
    judge(killed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_300_killed_captures_lose_no_more_than_stated(
    campaign: list[dict[str, Any]],
) -> None:
    assert len(campaign) == 150  # with either hook
    judge(campaign)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_launchers_lose_no_more_than_stated(
    launchers: list[dict[str, Any]],
) -> None:
    assert len({run["kind"] for run in launchers}) == 7
    judge(launchers)


FLUSHED = """\
import os, signal, sys
from moetraffic.capture import Recorder
with Recorder(sys.argv[1]) as recorder:
    for _ in range(100):
        recorder.step(tokens=1)
    assert recorder.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_flushed_records_survive_the_end_of_the_process(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", FLUSHED, tmp_path / "run.h5"], timeout=100, check=False
    )
    merged = merge(tmp_path / "run.h5.logs")
    assert merged.trace.steps.iteration.tolist() == list(range(100))
    assert merged.missing == (
        "rank 0 was killed: its record ends after iteration 99, only the step under "
        "way is lost",
    )


@pytest.mark.parametrize(
    ("victim", "after_s"),
    [
        pytest.param("launcher", 0.05, marks=pytest.mark.slow),
        ("rank", 0.2),
    ],
)
def test_killed_commands_leave_a_trace_that_opens(
    victim: str,
    after_s: float,
    tmp_path: Path,
    moetraffic: Callable[..., subprocess.CompletedProcess[str]],
    endless: Callable[[Path], subprocess.Popen[str]],
) -> None:
    run = endless(tmp_path / "run.h5")
    logs = tmp_path / "run.h5.logs"
    time.sleep(random.uniform(after_s, after_s + 0.1))
    children = [
        int(pid)
        for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    ]
    ranks = [p for p in children if b"moetraffic.models" in _command(p)]
    assert len(ranks) == 2
    os.kill(run.pid if victim == "launcher" else ranks[1], signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    if victim == "rank":
        # the launcher names it, and merges what there is by itself
        assert run.returncode == 2
        assert "rank 1" in said
        assert "iterations are kept" in said
        assert "Traceback" not in said
    else:
        _gone(ranks)
        ran = moetraffic("merge", logs)
        assert ran.returncode == 0, ran.stderr
        for rank in (0, 1):
            assert f"missing: rank {rank} was killed" in ran.stdout
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) >= 16
        assert not trace.meta.complete
    assert logs.is_dir()  # something is missing: the logs stay


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(b"moetraffic.models" in _command(pid) for pid in pids):
        assert time.monotonic() < deadline, "ranks outlive their launcher"
        time.sleep(0.05)
