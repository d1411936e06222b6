"""Rank program of ``moetraffic doctor``: run an all-to-all and compare clocks.

:func:`moetraffic.health.exchange_check.try_ranks` starts one process per rank.  Rank 0
sends the result to its supervisor in the fields of a heartbeat.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous as store_of

from moetraffic.capture.clock_offset import measure_offset
from moetraffic.launch import current_rank, heartbeat, rendezvous

TIMEOUT = timedelta(seconds=30)
UNKNOWN = -1


def main() -> int:
    """Run the test exchange on one rank; return 0 if all received rows are correct."""
    rank_env = current_rank()
    if rank_env is None:
        raise SystemExit("moetraffic.health.exchange is started by moetraffic doctor")
    heartbeat.send("start")
    torch.set_num_threads(1)
    try:
        stores = store_of(rendezvous(), rank_env.rank, rank_env.world, timeout=TIMEOUT)
        store, _, _ = next(stores)
        dist.init_process_group(
            "gloo",
            store=PrefixStore("group", store),
            rank=rank_env.rank,
            world_size=rank_env.world,
            timeout=TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        message = f"cannot join the other ranks: {reason}"
        heartbeat.send("error", message=message, cause="own")
        return 2
    heartbeat.send("ready")
    try:
        right = _exchange(rank_env.rank, rank_env.world)
        clocks = measure_offset(
            PrefixStore("clock", store), rank_env.rank, rank_env.world, "doctor"
        )
        offset = [(int(c["offset_ns"]), int(c["error_ns"])) for c in clocks]
        mine = torch.tensor([int(right), *(offset or [(0, UNKNOWN)])[0]])
        found = torch.zeros(rank_env.world, 3, dtype=torch.int64)
        dist.all_gather(list(found.unbind()), mine)
    finally:
        # without this, gloo's threads may abort the process at exit
        dist.destroy_process_group()
    heartbeat.send(
        "step",
        right=bool(found[:, 0].all()),
        offset_ns=int(found[:, 1].abs().max()),
        error_ns=UNKNOWN if int(found[:, 2].min()) < 0 else int(found[:, 2].max()),
    )
    heartbeat.send("done")
    return 0 if right else 2


def _exchange(rank: int, world: int) -> bool:
    """Run an uneven all-to-all in which rank r sends ``r + d + 1`` rows to rank d."""
    sent = [rank + other + 1 for other in range(world)]
    rows = torch.full((sum(sent),), rank, dtype=torch.int64)
    come = torch.full((sum(sent),), -1, dtype=torch.int64)  # as many as are sent
    dist.all_to_all_single(come, rows, sent, sent)
    want = [other for other in range(world) for _ in range(sent[other])]
    return come.tolist() == want


if __name__ == "__main__":
    sys.exit(main())
