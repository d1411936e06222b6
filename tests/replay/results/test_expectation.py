"""Duration and memory before the start: exact cases of a captured run's times."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.fabric import load_fabric
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
)
from moetraffic.replay.results.lower_bound import described, pass_bound_s
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.units import duration
from tests.replay.plan.test_batches import messages


@pytest.fixture
def run(toy):
    """Three iterations of 1, 2 and 3 s on rank 1, shorter on rank 0."""
    trace = toy(world=2, iterations=(0, 1, 2))
    start = np.full((3, 2), 7, np.int64)
    end = start + np.array([[1, 10], [2, 20], [3, 30]]) * 100_000_000
    return trace.replaced(steps=replace(trace.steps, start=start, end=end))


def test_passes_and_what_is_known_of_their_duration(run, toy_file):
    plan = make_plan(run, ranks=())
    assert captured_s(run, plan) == pytest.approx(6.0)
    some = make_plan(run, ranks=(), iterations=range(1, 3))
    assert captured_s(run, some) == pytest.approx(5.0)
    # one verifying pass, two runs, and one iteration of three as warm-up
    request = Request(trace=toy_file(), repeat=2, capacity="8kbps")
    said = expectation(run, plan, request)
    assert said.startswith("passes: verification, warm-up, 2 timed runs; at least ")
    # of the passes that send everything, the bound that a dry run states
    network = load_fabric("single", 2, capacity="8kbps")
    least = 3 * pass_bound_s(run, plan, network)
    each = f"{duration(least / 3)} a pass (warm-up not counted) on {described(network)}"
    assert f"at least {duration(least)} for 3 passes, {each}; memory" in said
    once = replace(request, repeat=1, verify=Verification(depth=Depth.NONE))
    assert f"at least {each}; memory" in expectation(run, plan, once)
    assert least < 3 * plan.bottleneck_bytes.sum() / 1e3
    # transfers on another network or busier host take another time
    assert " s " not in expectation(run, plan, replace(request, capacity=None))
    paired = expectation(run, plan, replace(request, pairs=5))
    assert "2 timed runs, 5 x 3 passes with and without background traffic;" in paired
    sampled = replace(request, verify=Verification(depth=Depth.SAMPLE))
    assert f"at least {duration(least * 2 / 3)} for 2 passes" in expectation(
        run, plan, sampled
    )
    for pace, text in (
        ("captured", "12 s"),
        ("open-loop", "12 s"),
        ("scaled:2", "24 s"),
    ):
        paced = replace(request, pace=parse_pace(pace))
        expected = f"timed runs at pace {pace}: {text};"
        assert expected in expectation(run, plan, paced)


def test_no_duration_is_stated_where_that_of_iterations_is_unknown(run, toy_file):
    request = Request(trace=toy_file(), repeat=2, pace=parse_pace("captured"))
    end = run.steps.end.copy()
    end[1] = UNKNOWN_TIME
    lacking = run.replaced(steps=replace(run.steps, end=end))
    assert np.isnan(captured_s(lacking, make_plan(lacking, ranks=())))
    # no network took the wall time of a virtual run
    virtual = run.replaced(meta=replace(run.meta, virtual=True))
    for trace in (lacking, virtual):
        said = expectation(trace, make_plan(trace, ranks=()), request)
        assert "at pace" not in said


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
from moetraffic.replay.backends.backend import Call, create

name, width, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
moves = create(name)
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


@pytest.mark.slow
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
