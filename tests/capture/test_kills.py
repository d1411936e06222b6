"""Whatever is killed, and whenever: what was committed opens, at most a window lost."""

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

from moetraffic.capture.records.recovery import recover
from moetraffic.trace import PHASES, ROUTING, Trace
from moetraffic.trace.merge.merging import merge


def test_killed_ranks_leave_all_but_a_window(killed: list[dict[str, Any]]) -> None:
    assert len(killed) == 18
    assert {len(run["victims"]) for run in killed} == {1, 2}
    for run in killed:
        segments = Path(run["folder"]) / "run.h5.segments"
        assert recover(segments) == []
        merged = merge(segments)
        trace = merged.trace
        assert merged.contradictions == ()
        told = "; ".join(merged.missing)
        for rank, steps in enumerate(run["steps"]):
            mine = trace.steps.tokens[:, rank] >= 0
            kept = int(trace.steps.iteration[mine].max()) + 1
            assert steps - run["window"] <= kept <= steps + 1, run
            # in order and without a gap
            assert mine[:kept].all()
            if rank in run["victims"]:
                assert f"rank {rank} was not closed: its record ends after" in told
            else:
                # a survivor that saw its peer go wrote all that it had
                assert kept >= steps
        assert not trace.meta.complete
        routed = trace.complete(trace.find(operation=ROUTING))
        assert (trace.demand(routed).sum(axis=2) == 2 * 16).all()
        whole = trace.complete(trace.find(phase=PHASES[0]))
        assert len(whole) >= min(run["steps"]) - run["window"]
        assert trace.wire(whole).sum(axis=(1, 2)).tolist() == [2 * 2 * 16 * 64] * len(
            whole
        )
        path = Path(run["folder"]) / "run.h5"
        trace.save(path)
        Trace.open(path).close()


HASTY = """\
import os, signal, sys, time
from moetraffic.capture import Recorder
from moetraffic.capture.records import journal
journal.HOLD_S = journal.PAUSE_S = 1000.0  # its thread waits for others, or is slow
with Recorder(sys.argv[1], window=16) as recorder:
    for _ in range(100):
        time.sleep(float(sys.argv[2]))
        recorder.step(tokens=1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("pace_s", [0, 0.002])
def test_steps_are_handed_over_however_few_records_they_make(
    pace_s: float, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HASTY, tmp_path / "run.h5", str(pace_s)],
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    segments = tmp_path / "run.h5.segments"
    deadline = time.monotonic() + 60
    kept = 0
    while kept < 100 - 16:
        # the committer ends a moment after its rank
        assert time.monotonic() < deadline, f"{kept} of 100 steps are kept"
        time.sleep(0.05)
        if any(segments.rglob("*.h5")):
            merged = merge(segments)
            kept = len(merged.trace.iterations)
    (missing,) = [m for m in merged.missing if "was not closed" in m]
    lost = int(missing.split("up to ")[1].split()[0])
    assert 100 - kept <= lost <= 16


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
) -> None:
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
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
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
        ran = moetraffic("merge", segments)
        assert ran.returncode == 0, ran.stderr
        for rank in (0, 1):
            assert f"missing: rank {rank} was not closed" in ran.stdout
    with Trace.open(tmp_path / "run.h5") as trace:
        assert len(trace.iterations) >= 16
        assert not trace.meta.complete
    assert segments.is_dir()  # something is missing: the segments stay


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
