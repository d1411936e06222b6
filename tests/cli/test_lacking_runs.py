from __future__ import annotations

from dataclasses import replace

import pytest

from moetraffic.cli.lacking_runs import lacking_runs
from moetraffic.cli.workload import describe
from moetraffic.trace import Meta


def captured() -> Meta:
    work = describe(8, {"experts": 8, "k": 2}).to_json()
    return Meta(world=8, ep=8, experts=8, k=2, workload=work, data_seed=0)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ({"world": 16}, "3 real runs: for n in 1 2 3; do {} --nproc 16 --ep 8 "),
        (
            {"world": 16, "ep": 16, "experts": 32},
            "3 real runs: for n in 1 2 3; do {} --nproc 16 --experts 32 ",
        ),
        ({}, "3 further real runs: for n in 1 2 3; do {} --nproc 8 "),
    ],
)
def test_the_command_captures_runs_of_the_wanted_groups(
    size: dict[str, int], said: str
) -> None:
    like = replace(captured(), **size)
    resized = bool(size)
    found = lacking_runs(3, "run.h5", [captured()], like, resized=resized, used={0})
    command, _, rest = found.partition(" --data-seed $n; done")
    assert command + " " == said.format("moetraffic capture -o rerun$n.h5")
    assert not rest


def test_no_command_captures_what_was_not_captured() -> None:
    made = replace(captured(), origin="generated")
    said = lacking_runs(3, "syn.h5", [made], replace(made, world=16), resized=True)
    assert said.startswith("3 real runs like syn.h5; how to capture them is unknown")
