"""Ranks that a replay starts on its host get its options, and no others."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment
from moetraffic.replay import rank as rank_module
from moetraffic.replay.__main__ import main
from moetraffic.replay.execution.pace import Gaps, Pace, Schedule
from moetraffic.replay.plan.background import BackgroundPattern
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.replay.request import Request
from moetraffic.trace.what_if.rescale import Scaling

VALUES: dict[str, list[Any]] = {
    "out": [Path("out.h5")],
    "backend": ["gloo-duplex"],
    "iterations": [range(3, 5)],
    "verify": [
        Verification(depth=Depth.NONE),
        Verification(depth=Depth.SAMPLE, share=1 / 3, seed=7),
    ],
    "timeout_s": [1 / 3],
    "start_timeout_s": [1 / 3],
    "dense": [False],
    "pace": [
        Pace(schedule=Schedule.CAPTURED, gaps=Gaps.SLEEP),
        Pace(schedule=Schedule.SCALED, factor=1 / 3),
        Pace(schedule=Schedule.SCALED, factor=2.0),
        Pace(schedule=Schedule.OPEN_LOOP),
    ],
    "dtype": ["bfloat16"],
    "warm_up": [0],
    "repeat": [7],
    "probe": [True],
    "graphs": [True],
    "capacity": ["400Gbps"],
    "topology": ["leaf-spine"],
    "bandwidth": [Path("bench.csv")],
    "scaling": [
        Scaling(fold="2"),
        Scaling(expand="8"),
        Scaling(ranks="0,1"),
        Scaling(rank_map="-,0"),
        Scaling(factor=Fraction(1, 3), self_traffic=False, missing="peers"),
        Scaling(dispatcher="two-level", ranks_per_node=2),
    ],
    "layers": [(1, 3)],
    "alongside": [BackgroundPattern(layout="tp=2", model="tiny")],
    "pairs": [4],
}
"""Values of the options that ranks get, other than the default."""

WRITTEN_BY_THE_PARENT = {"fidelity"}


def test_every_option_is_in_these_tests():
    known = {"trace", "force", *VALUES, *WRITTEN_BY_THE_PARENT}
    assert {field.name for field in fields(Request)} <= known


@pytest.fixture
def request_of_rank(monkeypatch):
    """Run a rank's command line as far as its request."""

    def parse(arguments: list[str]) -> Request:
        requests: list[Request] = []
        monkeypatch.setattr(
            rank_module, "run_rank", lambda request, *_: requests.append(request)
        )
        monkeypatch.setattr(
            "moetraffic.replay.__main__.current_rank", lambda: RankEnvironment(1, 2, 1)
        )
        assert main([*arguments, "--summary", "summary.json"]) == 0
        (request,) = requests
        return request

    return parse


@pytest.mark.parametrize(
    ("name", "value"), [(n, value) for n, values in VALUES.items() for value in values]
)
def test_ranks_get_each_option_as_it_is(request_of_rank, name, value):
    request = Request(trace=Path("run.h5"), **{name: value})
    found = request_of_rank(request.arguments())
    assert found == request
    forced = Request(trace=Path("run.h5"), force=True, **{name: value})
    found = request_of_rank(forced.arguments())
    assert found == (forced if name == "out" else request)


@pytest.mark.parametrize("name", sorted(WRITTEN_BY_THE_PARENT))
@pytest.mark.parametrize("out", [None, Path("out.h5")])
def test_ranks_get_no_file_that_they_do_not_write(request_of_rank, name, out):
    request = Request(
        trace=Path("run.h5"), out=out, force=True, **{name: Path("file.json")}
    )
    plain = Request(trace=Path("run.h5"), out=out, force=out is not None)
    assert request_of_rank(request.arguments()) == plain


@pytest.mark.parametrize("name", sorted(WRITTEN_BY_THE_PARENT))
def test_a_file_beside_the_trace_is_overwritten_by_force(
    toy_file, replay_with, tmp_path, name
):
    path = tmp_path / "file.json"
    path.write_text("of the last replay")
    with pytest.raises(ReplayError, match=r"file.json exists and is not overwritten"):
        replay_with(toy_file(), **{name: path})
    assert replay_with(toy_file(), force=True, **{name: path}).operations == 21


def test_no_layers_at_all_are_refused_before_ranks_start():
    with pytest.raises(ReplayError, match="the list of layers is empty"):
        Request(trace=Path("run.h5"), layers=())
