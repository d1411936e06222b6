"""Whatever a program says, the records beside it are kept, and the training goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from moetraffic import capture
from moetraffic.capture import Recorder, annotate
from moetraffic.capture.hook import native
from moetraffic.capture.validation import (
    OmittedRecords,
    counts_of,
    loss_of,
    tokens_of,
)
from moetraffic.errors import CaptureError
from moetraffic.trace import PHASES, ROUTING, Trace
from moetraffic.trace.merge.log_folder import log_folder
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME

from .conftest import HOOKS, prepared


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process as the one rank of a world."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()


def step(recorder: Recorder, **told: Any) -> None:
    capture.routing(0, torch.tensor([1, 2]))
    with capture.at(layer=0, phase="dispatch"):
        dist.all_to_all_single(torch.empty(4), torch.ones(4))
    recorder.step(**told)


def test_one_wrong_value_costs_one_record(alone: None, tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.h5") as recorder:
        step(recorder, loss=1.0, tokens=8)
        step(recorder, loss="x", tokens=-5)
        step(recorder, loss=torch.ones(3), tokens=2.5)
        for layer, counts in (
            ("a", [1, 2]),
            (-1, [1, 2]),
            (0, [-1, 2]),
            (0, [1.5, 2.0]),
            (0, [[1, 2]]),
            (0, [2**31, 2]),
            (0, None),
        ):
            capture.routing(layer, counts)  # type: ignore[arg-type]
        for dropped in (torch.tensor([2, 0]), torch.tensor(-5)):
            capture.routing(0, torch.tensor([1, 2]), dropped)
        step(recorder, loss=np.float32(0.5), tokens=np.int32(3))
    with Trace.open(tmp_path / "run.h5") as trace:
        assert trace.steps.loss[:, 0].tolist()[::3] == [1.0, 0.5]
        assert np.isnan(trace.steps.loss[1:3]).all()
        assert trace.steps.tokens[:, 0].tolist() == [8, -1, -1, 3]
        routed = trace.find(operation=ROUTING)
        assert trace.demand(routed).tolist() == [[[1, 2]]] * 4
        assert len(trace.find(phase="dispatch")) == 4
        assert not trace.meta.complete
        assert "2 x loss" in trace.meta.missing
        assert "9 x routing" in trace.meta.missing
    # each kind once, the sum of them, and what the trace says
    assert len([w for w in recorder.warnings if "could not be recorded" in w]) == 3
    assert not log_folder(tmp_path / "run.h5").exists()


def test_an_error_in_the_middle_is_told(
    alone: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.h5"

    def training() -> None:
        with Recorder(path) as recorder:
            step(recorder)
            step(recorder)
            with capture.at(layer=0, phase="dispatch"):
                dist.all_to_all_single(torch.empty(4), torch.ones(4))
            raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError):
        training()
    folder = log_folder(path)
    assert f"2 iterations of it are kept in {folder}" in caplog.text
    assert f"moetraffic merge {folder}" in caplog.text
    merged = merge(folder)
    assert merged.missing == ()
    assert merged.remarks == (
        "rank 0 was ended by ZeroDivisionError (boom) after 2 iterations, and its "
        "record of iteration 2 is incomplete",
    )
    assert not merged.trace.meta.complete
    assert merged.trace.meta.missing == merged.remarks[0]
    assert merged.trace.meta.experts == 2  # the routing tells it


def test_where_nothing_was_recorded_nothing_is_left(
    alone: None, tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir())
    with (
        pytest.raises(CaptureError, match="one is running already"),
        Recorder(tmp_path / "outer.h5"),
        Recorder(tmp_path / "inner.h5"),
    ):
        pass
    with Recorder(tmp_path / "idle.h5") as idle:
        pass
    assert any("no trace is written" in w for w in idle.warnings)
    there = tmp_path / "there.h5"
    there.write_text("mine")
    with pytest.raises(CaptureError, match="or give force=True"):
        Recorder(there).start()
    with pytest.raises(CaptureError, match="does not exist: make it first"):
        Recorder(tmp_path / "no" / "run.h5").start()
    assert set(tmp_path.iterdir()) == before | {there}


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": -3},
        {"k": 1.5},
        {"k": 2**70},
        {"every": 0},
        {"every": -1},
        {"model": "x" * 2000},
        {"router": "\ud800"},
        {"placement": {0: ["a"]}},
        {"placement": {0: [-1]}},
        {"placement": [1, 2]},
        {"groups": {"ep": "world"}},
    ],
)
def test_a_recorder_refuses_what_a_trace_cannot_hold(wrong: dict[str, Any]) -> None:
    with pytest.raises(CaptureError) as refused:
        Recorder("run.h5", **wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "sideways"},
        {"layer": "a"},
        {"layer": -2},
        {"label": "x" * 300},
        {"label": "\ud800"},
        {"label": 7},
    ],
)
def test_a_place_that_cannot_be_is_refused_at_the_call(wrong: dict[str, Any]) -> None:
    with pytest.raises(CaptureError), capture.at(**wrong):
        pass
    assert annotate.place() == annotate.NO_CONTEXT


@pytest.mark.parametrize("hook", HOOKS)
def test_an_end_is_of_the_call_that_was_waited_for(
    hook: str,
    alone: None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(native.VARIABLE, prepared(hook, request))
    group, options = dist.group.WORLD, dist.AllToAllOptions()
    assert group is not None
    options.asyncOp = False
    rows = torch.ones(4)
    with Recorder(tmp_path / "run.h5") as recorder:
        handle = dist.all_to_all_single(torch.empty(4), rows, async_op=True)
        # synchronous, and never waited for
        group.all_to_all_single(torch.empty(4), rows, [], [], options)
        handle.wait()
        dist.all_to_all_single(torch.empty(4), rows)
        recorder.step()
    with Trace.open(tmp_path / "run.h5") as trace:
        _, _, end = trace.times(trace.find(operation=ALL_TO_ALL))
    assert (end[:, 0] != UNKNOWN_TIME).tolist() == [True, False, True]


def test_annotations_know_the_phases_of_traces() -> None:
    assert ("", *PHASES) == annotate.PHASES


def test_numbers_of_every_kind_are_numbers() -> None:
    said: list[str] = []
    left_out = OmittedRecords(said.append)
    for loss in (1, 1.0, np.float64(1), torch.tensor(1.0), torch.tensor([1])):
        assert left_out.checked("loss", loss_of, loss, None) == 1.0
    for tokens in (1, np.int64(1), torch.tensor(1)):
        assert left_out.checked("token count", tokens_of, tokens, None) == 1
    assert left_out.checked("token count", tokens_of, None, -1) == -1
    assert (said, left_out.counts) == ([], {})
    for wrong in ("1", b"1", [1], 1j, object()):
        assert np.isnan(left_out.checked("loss", loss_of, wrong, np.nan))
    assert len(said) == 1
    assert left_out.counts == {"loss": 5}
    assert left_out.reasons["loss"].startswith("it is a number, not '1'")
    assert counts_of(np.array([3, 4]), "demand").tolist() == [3, 4]
