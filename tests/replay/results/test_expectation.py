"""Duration and memory before the start: exact cases of a captured run's times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.replay import make_plan
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.request import Request
from moetraffic.replay.results.expectation import (
    captured_s,
    expectation,
    memory_bytes,
)
from moetraffic.trace.model import UNKNOWN_TIME


@pytest.fixture
def run(toy):
    """Three iterations of 1, 2 and 3 s on rank 1, shorter on rank 0."""
    trace = toy(world=2, iterations=(0, 1, 2))
    start = np.full((3, 2), 7, np.int64)
    end = start + np.array([[1, 10], [2, 20], [3, 30]]) * 100_000_000
    return trace.replace(steps=replace(trace.steps, start=start, end=end))


def test_each_pass_takes_as_long_as_the_captured_iterations(run, toy_file):
    plan = make_plan(run, ranks=())
    assert captured_s(run, plan) == pytest.approx(6.0)
    some = make_plan(run, ranks=(), iterations=range(1, 3))
    assert captured_s(run, some) == pytest.approx(5.0)
    # one verifying pass, two runs, and one iteration of three as warm-up
    request = Request(trace=toy_file(), repeat=2, capacity="8Mbps")
    said = expectation(run, plan, request)
    assert "(3.33 passes): up to 20 s" in said
    least = 10 / 3 * plan.bottleneck_bytes.sum() / 1e6
    assert f"at least {least * 1e3:.3g} ms at 8Mbps" in said
    slower = replace(request, pace=parse_pace("scaled:2"))
    assert "up to 40 s" in expectation(run, plan, slower)


def test_an_unknown_iteration_makes_the_duration_unknown(run, toy_file):
    end = run.steps.end.copy()
    end[1] = UNKNOWN_TIME
    lacking = run.replace(steps=replace(run.steps, end=end))
    plan = make_plan(lacking, ranks=())
    assert np.isnan(captured_s(lacking, plan))
    assert "unknown" in expectation(lacking, plan, Request(trace=toy_file()))


def test_memory_is_of_the_buffers_and_times_of_all_ranks(run):
    plan = make_plan(run)
    need = sum(sum(p.buffer_bytes) for p in plan.programs.values())
    times = 2 * len(plan) * 40
    assert need + times <= memory_bytes(plan, 1)
    assert memory_bytes(plan, 3) - memory_bytes(plan, 1) == 2 * times
