"""Check that ranks can exchange data over gloo.

:func:`try_ranks` starts this module as a program, once per rank.
"""

from __future__ import annotations

import math
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment, current_rank, rendezvous
from moetraffic.launch.ranks import launch

from .machine import Finding, check

RANKS = 2
DEADLINE_S = 90.0
TIMEOUT = timedelta(seconds=30)


def try_ranks(rank_env: RankEnvironment | None = None) -> list[Finding]:
    """Run an all-to-all over gloo on two ranks.

    If another launcher started the ranks, ``rank_env`` is the rank of this process: one
    process is run, and the ranks use the launcher's rendezvous address.
    """
    outcome = launch(
        ["-m", "moetraffic.health.exchange"],
        ranks=RANKS if rank_env is None else 1,
        start_s=DEADLINE_S if rank_env is None else math.inf,
        silence_s=DEADLINE_S,
        rank_env=rank_env,
    )
    ranks = RANKS if rank_env is None else rank_env.world
    said = f"{ranks} ranks met and exchanged rows over gloo"
    if not outcome.ok:
        said = f"{ranks} ranks did not exchange rows over gloo: {outcome.sentence}"
    choose = (
        "see memory in this table; let the ports between the hosts through, and name "
        "the interface in GLOO_SOCKET_IFNAME"
    )
    return [check("network", "exchange", outcome.ok, said, choose)]


def main() -> int:
    """Run the test exchange on one rank; return 0 if all received rows are correct."""
    rank_env = current_rank()
    if rank_env is None:
        raise SystemExit("moetraffic.health.exchange is started by moetraffic doctor")
    rank, world = rank_env.rank, rank_env.world
    row = own()
    row.note(state=State.STARTING)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", rendezvous(), timeout=TIMEOUT, rank=rank, world_size=world
        )
    except (RuntimeError, ValueError) as error:
        message = f"cannot join the other ranks: {str(error).splitlines()[0]}"
        row.fail(message)
        return 2
    row.note(state=State.READY)
    try:
        right = exchange(rank, world)
    finally:
        # without this, gloo's threads may abort the process at exit
        dist.destroy_process_group()
    row.note(state=State.DONE)
    return 0 if right else 2


def exchange(rank: int, world: int) -> bool:
    """Run an uneven all-to-all in which rank r sends ``r + d + 1`` rows to rank d."""
    splits = [rank + other + 1 for other in range(world)]
    sent = torch.full((sum(splits),), rank, dtype=torch.int64)
    received = torch.full((sum(splits),), -1, dtype=torch.int64)  # as many as are sent
    dist.all_to_all_single(received, sent, splits, splits)
    expected = [other for other in range(world) for _ in range(splits[other])]
    return received.tolist() == expected


if __name__ == "__main__":
    sys.exit(main())
