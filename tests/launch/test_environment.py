"""Which rank a launcher's variables make, and where the ranks meet."""

from __future__ import annotations

import pytest

from moetraffic.errors import LayoutError
from moetraffic.launch.environment import (
    RankEnvironment,
    current_rank,
    first_host,
    rendezvous,
)

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "200505",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gnode[10,20,25,37]",
}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
SHELL = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "rank_env"),
    [
        ({}, None),
        (TORCHRUN, RankEnvironment(5, 8, 1)),
        (SRUN, RankEnvironment(3, 4, 1)),
        ({**SRUN, **TORCHRUN}, RankEnvironment(5, 8, 1)),
        ({"RANK": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankEnvironment(1, 2, 1)),
        (BATCH_SCRIPT, None),
        (SHELL, None),
    ],
    ids=[
        "none",
        "torchrun",
        "srun",
        "torchrun in a step",
        "a rank without a world",
        "no local rank",
        "batch script",
        "interactive shell in an allocation",
    ],
)
def test_the_rank_of_a_launcher(environment, rank_env):
    assert current_rank(environment) == rank_env


@pytest.mark.parametrize(
    "changes", [{"RANK": "8"}, {"RANK": "first"}, {"LOCAL_RANK": "-1"}]
)
def test_variables_that_are_no_rank_are_refused(changes):
    with pytest.raises(LayoutError, match="RANK, WORLD_SIZE and LOCAL_RANK must be"):
        current_rank({**TORCHRUN, **changes})


def test_this_processs_own_variables_are_the_default(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert current_rank() == RankEnvironment(5, 8, 1)


def test_our_file_store_comes_first_then_the_address_that_was_given():
    address = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    ours = {"MOETRAFFIC_FILESTORE": "/scratch/store"}
    assert rendezvous({**ours, **address, **SRUN}) == "file:///scratch/store"
    assert rendezvous({**address, **SRUN}) == "env://"


def test_under_srun_all_ranks_find_the_same_place_and_steps_differ():
    places = {rendezvous({**SRUN, "SLURM_PROCID": str(r)}) for r in range(4)}
    assert len(places) == 1
    host, _, port = places.pop().removeprefix("tcp://").partition(":")
    assert host == "gnode10"
    assert 20_000 <= int(port) < 40_000
    other = rendezvous({**SRUN, "SLURM_STEP_ID": "3"})
    assert other != f"tcp://{host}:{port}"
    assert rendezvous({**SRUN, "MASTER_ADDR": "here"}) == f"tcp://here:{port}"


def test_nowhere_to_meet_is_said():
    with pytest.raises(LayoutError, match="MASTER_ADDR and MASTER_PORT"):
        rendezvous({})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node7", "node7"),
        ("node7,node9", "node7"),
        ("gpu[003-010,12],login1", "gpu003"),
        ("gpu[1,4]", "gpu1"),
        ("rack[2-3]-ib", "rack2-ib"),
    ],
)
def test_first_host_of_a_slurm_node_list(nodelist, host):
    assert first_host(nodelist) == host
