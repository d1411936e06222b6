"""Traffic matrices of all collectives, and the time model calibrated on a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.analysis.times.calibration import (
    calibrated,
    configuration_of,
    covered_s,
    step_times,
)
from moetraffic.analysis.times.projection import collectives
from moetraffic.analysis.times.traffic import training_iterations, world_matrices
from moetraffic.errors import AnalysisError
from moetraffic.patterns import Layout, Training, Workload


def test_the_parts_add_up_to_the_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        whole = world_matrices(trace, [3])[0]
        exchanged = world_matrices(trace, [3], operations=["all_to_all"])[0]
        reduced = world_matrices(trace, [3], operations=["all_reduce"])[0]
        assert (whole == exchanged + reduced).all()
        sent = trace.find(operation="all_to_all", iterations=range(3, 4))
        wire = trace.wire(sent).sum(axis=0)
        assert (exchanged == wire - np.diag(np.diag(wire))).all()
        # every all-reduce sends 2 (n-1) times its buffer
        reduces = trace.find(operation="all_reduce", iterations=range(3, 4))
        sizes = trace.volume(reduces).max(axis=1)
        assert reduced.sum() == 2 * 3 * sizes.sum()
        only_ep = world_matrices(trace, [3], kinds=["ep"])[0]
        assert exchanged.sum() <= only_ep.sum() < whole.sum()
        several = world_matrices(trace, [5, 3])
        assert (several == [world_matrices(trace, [5])[0], whole]).all()
        assert (several[::-1] == world_matrices(captured, "3:6")[::2]).all()


def test_no_such_iteration(captured: Path) -> None:
    with Trace.open(captured) as trace:
        with pytest.raises(AnalysisError, match="no call in iteration 99"):
            world_matrices(trace, [99])
        with pytest.raises(AnalysisError, match="has none in 90:99"):
            training_iterations(trace, range(90, 99))


def test_calls_that_overlap_count_once() -> None:
    """On each rank, and of a call only what lies in the step."""
    first, second = (
        (np.array([0, 2, 8, 20]), np.array([4, 6, 9, 25])),
        (np.array([5]), np.array([6])),
    )
    start, end = np.array([[0, 0], [10, 10]]), np.array([[10, 10], [24, 24]])
    found = covered_s([first, second], start, end) * 1e9
    assert found == pytest.approx(np.array([[7, 1], [4, 0]]))


def test_steps_of_a_capture_are_taken_apart(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = step_times(trace)
        assert found.steps.tolist() == list(range(3, 24))
        assert found.whole.shape == (21, 4)
        assert (found.communicating > 0).all()
        assert (found.communicating < found.whole).all()
        assert found.computing + found.communicating == pytest.approx(found.whole)
        for kind, moving in found.moving.items():
            assert (moving <= found.communicating + 1e-9).all()
            sent = world_matrices(trace, found.steps.tolist(), kinds=[kind])
            assert found.sent_bytes[kind] == pytest.approx(sent.sum(axis=2))


def test_a_run_calibrates_the_model_of_itself(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = calibrated(trace)
        took, told = found.measured, found.predicted
        rows = collectives(trace, took.steps.tolist())
    assert float(told.compute) == pytest.approx(took.compute_s)
    # gradients of all dense parameters over four ranks, to the byte
    assert float(told.wire["dp"]) == np.median(took.sent_bytes["dp"].mean(axis=1))
    # what routers chose varies: uniform routing is its mean to a few percent
    routed = took.sent_bytes["ep"].mean()
    assert float(told.wire["ep"]) == pytest.approx(routed, rel=0.1)
    for kind in ("dp", "ep"):
        time = took.moving[kind].sum() / took.moving[kind].size
        mean = took.sent_bytes[kind].mean() / took.bandwidth(kind)
        assert mean == pytest.approx(time)
    assert found.residual == pytest.approx(float(told.iteration) / took.iteration_s - 1)
    # each call of its size, as a ring or an all-to-all of equal parts
    factor = {"all_reduce": 2.0, "all_to_all": 1.0}
    sent = sum(
        r["calls"] * r["size_bytes"] * factor[r["operation"]] * (1 - 1 / r["ranks"])
        for r in rows
    )
    assert sent == pytest.approx(sum(b.mean() for b in took.sent_bytes.values()))


def test_workloads_are_configurations() -> None:
    work = Workload(
        layout=Layout(dp=4, ep=2, tp=2, pp=2),
        training=Training(micro_batch=3, accumulation=4, recompute=True),
    )
    found = configuration_of(work)
    assert float(found.world) == 16
    assert float(found.accumulation) == 4
    assert float(found.element_bytes) == 4
    assert found.recompute == "full"
