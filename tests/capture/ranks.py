"""Ranks of a scene: processes forked from one that has imported torch."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def fork(play: Callable[[], object], error: Path | None = None) -> int:
    """Play in a child process, which ends without the end of an interpreter.

    Its exit code is 1 if ``play`` raises; its standard error goes to ``error``.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if error is not None:
            os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT), 2)
        play()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def exit_codes(children: Iterable[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def play(train: Callable[[Path, int], object], world: int) -> None:
    """Train on ranks in the folder of the command line, and exit as they did."""
    warnings.simplefilter("ignore")  # a fork beside threads: meant
    place = Path(sys.argv[1])
    os.chdir(place)
    children = [fork(partial(train, place, rank)) for rank in range(world)]
    sys.exit(max(exit_codes(children)))


def initialize(store: Path, rank: int, world: int, start: Any = None) -> None:
    """Make the default process group, of gloo; ``start``: what makes it."""
    torch.set_num_threads(1)
    (start or dist.init_process_group)(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
