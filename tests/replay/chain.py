"""A rank that runs a chain of all-reduces, with a fault: ``chain.py FAULT RANK``."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from moetraffic.errors import ReplayError
from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.replay.agree import Meeting
from moetraffic.replay.failure import (
    Watchdog,
    backend_errors,
    reporting,
    run_to_exit,
)

LENGTH, STRUCK = 6, 3
"""Operations, and the one at which a fault strikes."""


def strike(fault: str) -> None:
    """Have the fault."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "late":
        time.sleep(100)
    if fault == "crash":
        raise KeyError("nothing of that name")
    if fault == "leave":
        os._exit(0)
    if fault == "ctrl-c":
        os.kill(os.getppid(), signal.SIGINT)


def name(rank: int, n: int) -> str:
    """Return the name of an operation."""
    return f"operation {n}"


def main(fault: str, faulty: int, start_s: float = 10.0) -> None:
    """Run the chain."""
    rank_env = current_rank()
    assert rank_env is not None
    run_to_exit(
        lambda: chain(rank_env, fault, rank_env.rank == faulty, start_s), rank_env
    )
    os._exit(0)


def chain(rank_env: RankEnvironment, fault: str, struck: bool, start_s: float) -> None:
    rank, row = rank_env.rank, own()
    if "SPREAD" in os.environ:  # each rank on a host of its own
        platform.node = lambda: f"host {rank}"
    began_s = time.monotonic()
    row.note("the rendezvous", State.STARTING)
    if not row.supervised:
        Watchdog(name, start_s=2 * start_s, silence_s=6.0, grace_s=6.0)
    if struck and fault == "absent":
        os._exit(0)
    meeting = Meeting(rank_env, start_s, began_s)
    with reporting(meeting, name):
        row.note("start-up")
        if struck and fault == "refused":
            raise ReplayError("there is no file gone.h5")
        settings = {"version": "1", "plan": "a"}
        if struck and fault in settings:
            settings[fault] = "2"
        meeting.handshake(settings)
        free = 10 if struck and fault == "memory" else None
        meeting.memory(100, free)
        dist.init_process_group(
            "gloo",
            store=PrefixStore("groups", meeting.store),
            rank=rank,
            world_size=rank_env.world,
            timeout=timedelta(seconds=2),
        )
        knots = meeting.clocks("start")
        assert knots["rank"].tolist() == list(range(rank_env.world))[: len(knots)]
        tensor, counter = torch.ones(8), own().counter
        own().note("", State.READY)
        for n in range(LENGTH):
            counter[0] = 2 * n + 1
            if struck and n == STRUCK:
                strike(fault)
            with backend_errors(rank, name(rank, n)):
                dist.all_reduce(tensor)
            counter[0] = 2 * n + 2
        gathered = meeting.gather("times", np.arange(rank * 1_000_000))
        assert [len(a) for a in gathered] == [
            r * 1_000_000 for r in range(rank_env.world)
        ][: len(gathered)]
        if fault == "ok" and rank == 0:
            Path(os.environ["HERE"], "done").touch()
    own().note(state=State.DONE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
