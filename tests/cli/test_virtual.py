"""The verbs of virtual expert parallelism: capture --virtual and place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.patterns import Workload
from moetraffic.trace import Trace

from .test_cli import refused

SMALL = [
    *("--layers", "2", "--hidden", "16", "--heads", "1", "--sequence", "16"),
    *("--micro-batch", "1"),
]


def test_sixteen_ranks_in_one_process_and_then_four(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, placed = tmp_path / "run.h5", tmp_path / "placed.h5"
    asked = ["--virtual", "--ep", "16", "--experts", "32", "--iterations", "6"]
    assert main(["capture", *asked, *SMALL, "-o", str(run), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["data"]
    assert told["meta"]["virtual"] is True
    assert (told["meta"]["world"], told["meta"]["ep"]) == (16, 16)
    with Trace.open(run) as trace:
        tokens = trace.steps.tokens
        assert tokens.shape == (6, 16)
        demand = trace.demand(trace.find(operation="routing"))
        assert (demand.sum(axis=2) == 2 * 16).all()  # k copies of each token
    greedy = ["place", str(run), "-o", str(placed), "--ep", "4"]
    assert main([*greedy, "--placement", "greedy", "--replicas", "4", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    counts = 6 * 16 * 4 * 8  # each rank tells the counts for 4 more replicas
    told = told["data"]
    assert told["before"]["bytes"] + counts == told["after"]["bytes"]
    assert told["after"]["ep"] == 4
    assert main(["info", str(placed)]) == 0
    assert "virtual" in capfd.readouterr().out
    assert "not overwritten" in refused(capfd, *greedy)


@pytest.mark.slow
def test_a_rerun_states_both_seeds(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, rerun = tmp_path / "run.h5", tmp_path / "rerun.h5"
    asked = ["capture", "--virtual", "--ep", "4", "--iterations", "2", *SMALL]
    assert main([*asked, "-o", str(run)]) == 0
    assert main([*asked, "-o", str(rerun), "--seed", "3", "--data-seed", "5"]) == 0
    capfd.readouterr()
    assert main(["info", str(rerun)]) == 0
    assert "initialization 3, data 5" in capfd.readouterr().out
    with Trace.open(run) as first, Trace.open(rerun) as second:
        assert (second.meta.seed, second.meta.data_seed) == (3, 5)
        assert Workload.from_json(second.meta.workload).training.data_seed == 5
        assert first.meta.data_seed == -1
        assert "data_seed" not in first.meta.workload
    assert "data-seed must be at least 0" in refused(capfd, *asked, "--data-seed", "-1")


def test_virtual_ranks_are_data_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("capture", "--virtual", "--nproc", "4", "--tp", "2")
    assert "tp x pp x cp is 2 x 1 x 1" in refused(capsys, *asked)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ep", "3"], "4 ranks do not split into groups of 3"),
        (["--ranks", "3", "--ep", "1"], "3 does not divide the capture's 4"),
        (["--placement", "random"], "one of contiguous, strided, greedy"),
        (
            ["--replicas", "-1"],
            "'--replicas': Input should be greater",
        ),
        (["--replicas", "3"], "do not divide over 4 ranks"),
        (["--every", "-2"], "'--every': Input should be greater"),
        (["--order", "ep-dp"], "the order must name"),
    ],
)
def test_an_impossible_place(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    arguments: list[str],
    said: str,
) -> None:
    output = tmp_path / "placed.h5"
    assert said in refused(capsys, "place", captured, "-o", output, *arguments)
    assert not output.exists()
