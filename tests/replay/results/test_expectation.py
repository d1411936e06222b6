"""Duration and memory before the start: exact cases of a captured run's times."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.fabric.named import load_fabric
from moetraffic.launch.environment import FILE_STORE
from moetraffic.replay import make_plan
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.execution.prepared import (
    BLOCK,
    LAUNCH_BYTES,
    PREPARED,
    SIZE_BYTES,
)
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.replay.request import Request
from moetraffic.replay.results.expectation import (
    captured_s,
    expectation,
    launch_bytes,
    memory_bytes,
    transfers_s,
)
from moetraffic.replay.results.lower_bound import described, pass_bound_s
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.panel import take
from moetraffic.trace.rescaling import Scaling
from moetraffic.units import duration
from tests.replay.plan.test_batches import messages


@pytest.fixture
def run(toy):
    """Three iterations of 1, 2 and 3 s on rank 1, shorter on rank 0."""
    trace = toy(world=2, iterations=(0, 1, 2))
    start = np.full((3, 2), 7, np.int64)
    end = start + np.array([[1, 10], [2, 20], [3, 30]]) * 100_000_000
    return trace.replace(steps=replace(trace.steps, start=start, end=end))


def test_passes_take_as_long_as_captured_transfers_or_iterations(run, toy_file):
    plan = make_plan(run, ranks=())
    assert captured_s(run, plan) == pytest.approx(6.0)
    some = make_plan(run, ranks=(), iterations=range(1, 3))
    assert captured_s(run, some) == pytest.approx(5.0)
    # each of 21 operations takes 20 ns, one after another
    assert transfers_s(run, plan)[0] == pytest.approx(21 * 20e-9)
    # one verifying pass, two runs, and one iteration of three as warm-up
    request = Request(trace=toy_file(), repeat=2, capacity="8kbps")
    said = expectation(run, plan, request)
    assert said.startswith(
        "expected duration (verification, warm-up, 2 timed runs): about 1.4 us if "
        "transfers take as long as captured, at least "
    )
    # of the passes that send everything, the bound that a dry run states
    network = load_fabric("single", 2, capacity="8kbps")
    least = 3 * pass_bound_s(run, plan, network)
    assert f"at least {duration(least)} on {described(network)}, plus the start" in said
    assert least < 3 * plan.bottleneck_bytes.sum() / 1e3
    # below 1 s the start of the processes takes longer
    assert "at least" not in expectation(run, plan, replace(request, capacity="8Gbps"))
    paired = expectation(run, plan, replace(request, pairs=5))
    assert "2 timed runs, 5 x 3 passes with and without background traffic)" in paired
    sampled = replace(request, verify=Verification(depth=Depth.SAMPLE))
    assert f"at least {duration(least * 2 / 3)} on" in expectation(run, plan, sampled)
    for pace, text in (
        ("captured", "12 s"),
        ("open-loop", "12 s"),
        ("scaled:2", "24 s"),
    ):
        paced = replace(request, pace=parse_pace(pace))
        expected = f"about {text} if iterations and transfers"
        assert expected in expectation(run, plan, paced)


def test_a_late_member_is_no_transfer(run):
    issue, end = (take(run.panels[f"{n}_2"], np.arange(21)) for n in ("issue", "end"))
    # rank 0 calls 5 us before rank 1, and ends with it
    late = run.replace(issue={2: issue - [5000, 0]}, end={2: end})
    plan = make_plan(late, ranks=())
    assert transfers_s(late, plan)[0] == pytest.approx(21 * 20e-9)


def test_transfers_of_other_ranks_and_overlapping_ones_count_once(toy):
    trace = toy(world=4, groups=[(0, 1), (2, 3)], iterations=(0,))
    # a rank has 6 exchanges of 20 ns, and an all-reduce with all others
    plan = make_plan(trace, ranks=())
    assert transfers_s(trace, plan)[0] == pytest.approx(7 * 20e-9)
    # each of them lasts until 15 ns after the next was called
    ends = {
        n: take(p, np.arange(p.shape[0])) + 25
        for n, p in trace.panels.items()
        if n.startswith("end")
    }
    longer = trace.replace(end={int(n.split("_")[1]): p for n, p in ends.items()})
    apart, _ = transfers_s(longer, plan)
    assert 7 * 20e-9 < apart < 7 * 45e-9


def test_a_folded_replay_has_the_times_of_the_folded_trace(toy, toy_file):
    trace = toy(world=4, iterations=(0, 1))
    request = Request(trace=toy_file(), scaling=Scaling(fold="2"))
    plan = request.plan(trace, ranks=())
    said = expectation(request.rescaled(trace), plan, request)
    assert "if transfers take as long as captured" in said


def test_unknown_times_make_the_duration_a_bound_or_unknown(run, toy_file):
    request = Request(trace=toy_file(), repeat=2)
    unknown = np.full(run.panels["issue_2"].shape, UNKNOWN_TIME)
    lacking = run.replace(issue={2: unknown})
    said = expectation(lacking, make_plan(lacking, ranks=()), request)
    assert "at most 20 s if iterations take as long as captured" in said
    assert "(the trace has no times of transfers), plus the start" in said
    # one operation is unknown: the others are not said to be
    some = take(run.panels["issue_2"], np.arange(21)).copy()
    some[4] = UNKNOWN_TIME
    partly = run.replace(issue={2: some})
    plan = make_plan(partly, ranks=())
    assert transfers_s(partly, plan) == (pytest.approx(np.nan, nan_ok=True), 1)
    said = expectation(partly, plan, request)
    assert "at most 20 s if iterations take as long as captured" in said
    assert "(the trace has times of 20 of 21 transfers), plus" in said
    # no network took the wall time of a virtual run
    virtual = lacking.replace(meta=replace(lacking.meta, virtual=True))
    assert "unknown" in expectation(virtual, make_plan(virtual, ranks=()), request)
    end = run.steps.end.copy()
    end[1] = UNKNOWN_TIME
    lacking = lacking.replace(steps=replace(run.steps, end=end))
    plan = make_plan(lacking, ranks=())
    assert np.isnan(captured_s(lacking, plan))
    assert "unknown" in expectation(lacking, plan, request)


def array_bytes(holder) -> int:
    return sum(a.nbytes for a in vars(holder).values() if isinstance(a, np.ndarray))


@pytest.mark.parametrize("traffic", ["one group", "two groups", "messages"])
def test_memory_is_of_buffers_times_and_plans_of_all_ranks(toy, traffic):
    groups = None if traffic == "one group" else [(0, 1), (2, 3)]
    run = toy(world=4, groups=groups)
    if traffic == "messages":  # of two ranks, in a group of four
        run = messages({(0, 1): (0, 1), (1, 2): (2, 3)}, iterations=3)
    plan, alone = make_plan(run), make_plan(run, ranks=())
    programs = plan.programs.values()
    need = sum(sum(p.buffer_bytes) for p in programs)
    times = 4 * len(plan) * 40
    held = 4 * array_bytes(plan) + sum(map(array_bytes, programs))
    announced = memory_bytes(alone, 1)
    assert need + times + held <= announced
    buffers = 4 * 2 * len(np.unique(plan.stream)) * int(plan.largest_bytes.max())
    sizes = sum(len(p.send_bytes) + len(p.receive_bytes) for p in programs)
    calls = LAUNCH_BYTES * sum(map(len, programs)) + SIZE_BYTES * sizes
    assert launch_bytes(alone) == calls
    assert announced == buffers + times + held + calls
    assert memory_bytes(alone, 3) - announced == 2 * times


def test_long_programs_are_prepared_in_blocks(toy):
    run = toy(world=2)
    plan = make_plan(run, ranks=())
    few = launch_bytes(plan)
    times = PREPARED // len(plan) + 1
    longer = replace(
        plan,
        **{
            name: np.tile(array, times)
            for name, array in vars(plan).items()
            if isinstance(array, np.ndarray) and len(array) == len(plan)
        },
    )
    assert len(longer) > PREPARED
    streams = max(2, len(np.unique(plan.stream)))
    most = LAUNCH_BYTES + 4 * SIZE_BYTES  # two sizes each way
    assert launch_bytes(longer) == 2 * BLOCK * streams * most < few * times


CALLS = """
import os, sys
import torch
from moetraffic.launch import RankEnvironment
from moetraffic.replay.backends.backend import Call
from moetraffic.replay.backends.process_groups import BUILT_IN

name, width, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
moves = BUILT_IN[name]()
moves.start(RankEnvironment(rank=0, world=1, local_rank=0), [(0,)], 30.0)
moves._members = [tuple(range(width))]  # a group of several, of which this is one
buffer = torch.zeros(1 << 20, dtype=torch.uint8)

def launch(n):
    # sizes differ, so that no number is shared
    gives, gets = ([start + n + at for at in range(width)] for start in (500, 900))
    call = Call(kind="all_to_all", group=0, send=buffer[: sum(gives)],
                receive=buffer[: sum(gets)], send_bytes=gives, receive_bytes=gets)
    return moves.bind(call)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

kept = [launch(n) for n in range(100)]
before = resident()
kept += [launch(n) for n in range(number)]
print(resident() - before)
"""


@pytest.mark.parametrize(("backend", "width"), [("gloo", 2), ("gloo-duplex", 16)])
def test_prepared_calls_take_the_memory_that_is_announced(backend, width, tmp_path):
    """Measured in a process of its own, whose memory nothing else changes."""
    number = 8000
    taken = int(
        subprocess.run(
            [sys.executable, "-c", CALLS, backend, str(width), str(number)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, FILE_STORE: str(tmp_path / "store")},
        ).stdout
    )
    each = LAUNCH_BYTES + SIZE_BYTES * 2 * width
    announced = number * each * (1 + (backend == "gloo-duplex"))
    assert 0.75 * announced < taken <= announced
