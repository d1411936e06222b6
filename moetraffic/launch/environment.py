"""Rank of this process and rendezvous address, from environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from moetraffic.errors import LayoutError

FILE_STORE = "MOETRAFFIC_FILESTORE"
PARENT = "MOETRAFFIC_PARENT"
"""Variable with the process id of the supervisor that started this rank."""

_FIRST_PORT = 20_000
_PORTS = 20_000


class RankEnvironment(NamedTuple):
    """Rank, world size and local rank of this process."""

    rank: int  # 0 to world - 1
    world: int  # number of ranks
    local_rank: int  # index among the ranks of this host, and of its GPU


_LAUNCHERS = (
    # torchrun's names, which the launcher of moetraffic uses too
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    # srun's: SLURM_STEP_NUM_TASKS is set within a step only, while a batch script
    # itself has SLURM_PROCID=0 and SLURM_NTASKS without being one of the ranks
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def current_rank(
    environment: Mapping[str, str] | None = None,
) -> RankEnvironment | None:
    """Read the rank that torchrun, srun or ``launch`` assigned; None without one.

    A job step of one task does not count as a rank: an interactive shell in an
    allocation is such a step, in which the launcher must start the ranks.
    """
    env = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        rank, world, local = (env.get(name) for name in names)
        if rank is None or world is None:
            continue
        if names[0].startswith("SLURM") and world == "1":
            return None
        local = rank if local is None else local
        numeric = all(number.isdecimal() for number in (rank, world, local))
        if numeric and int(rank) < int(world):
            return RankEnvironment(int(rank), int(world), int(local))
        raise LayoutError(
            f"{names[0]}, {names[1]} and {names[2]} must be numbers with the rank "
            f"below the world's size, but are {rank!r}, {world!r} and {local!r}: start "
            "the ranks with torchrun, srun or --nproc, or unset these variables"
        )
    return None


def rendezvous(environment: Mapping[str, str] | None = None) -> str:
    """Determine the ``init_method`` for ``torch.distributed`` from the environment.

    ``file://...`` under the launcher of moetraffic (one host, no port conflict),
    ``env://`` if MASTER_ADDR and MASTER_PORT are set (torchrun), and under srun
    ``tcp://`` on the step's first host, with a port derived from the job id.
    """
    env = os.environ if environment is None else environment
    if env.get(FILE_STORE):
        return "file://" + env[FILE_STORE]
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return "env://"
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    job = env.get("SLURM_JOB_ID", "")
    if hosts and job.isdecimal():
        host = env.get("MASTER_ADDR") or first_host(hosts)
        step = env.get("SLURM_STEP_ID", "0")
        # steps of one job may run concurrently: an odd factor separates their ports
        number = int(job) * 31 + (int(step) if step.isdecimal() else 0)
        return f"tcp://{host}:{_FIRST_PORT + number % _PORTS}"
    raise LayoutError(
        "ranks meet at MASTER_ADDR and MASTER_PORT, but they are not set: start with "
        "torchrun, srun or --nproc, or set both to a host and a free port of rank 0"
    )


def first_host(nodelist: str) -> str:
    """Parse the first host of a Slurm node list such as ``gpu[003-010,12],login1``."""
    pattern = r"([^,\[]*)(?:\[([^],-]*)[^]]*\]([^,]*))?.*"
    return re.sub(pattern, r"\1\2\3", nodelist, count=1)
