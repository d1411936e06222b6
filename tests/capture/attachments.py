"""Programs that know nothing of moetraffic, in processes that its hook has seen start.

``python attachments.py FOLDER`` must be run in the environment of ``moetraffic run``.
It imports torch once and forks the ranks of every scene; each rank leaves what it saw
in ``FOLDER/<scene>/<rank>.json``, its standard error in ``<rank>.err``, and how it
ended in ``<rank>.code``.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import initialize

warnings.simplefilter("ignore")  # a fork beside threads: meant
Log = list[list[int]]


def connect(folder: Path, rank: int, world: int, name: str = "store") -> None:
    initialize(folder / name, rank, world)


def rows(source: int, destination: int, step: int) -> int:
    return (source + 2 * destination + step) % 4


def exchange(step: int) -> list[int]:
    """Send rows of 3 floats, unevenly; the bytes that went to each rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sent = [rows(rank, peer, step) for peer in range(world)]
    received = [rows(peer, rank, step) for peer in range(world)]
    output = torch.empty(sum(received), 3)
    dist.all_to_all_single(output, torch.ones(sum(sent), 3), received, sent)
    return [12 * n for n in sent]


def plain(folder: Path, rank: int, world: int) -> Log:
    connect(folder, rank, world)
    log = [exchange(step) for step in range(5)]
    dist.all_reduce(torch.ones(7))
    dist.destroy_process_group()
    return log


def never_destroys(folder: Path, rank: int, world: int) -> Log:
    connect(folder, rank, world)
    return [exchange(step) for step in range(3)]


def raises(folder: Path, rank: int, world: int) -> Log:
    connect(folder, rank, world)
    save(folder, rank, [exchange(step) for step in range(3)])
    try:
        raise ValueError("the loss is not finite")
    finally:
        dist.destroy_process_group()


def raises_unheard(folder: Path, rank: int, world: int) -> Log:
    """The exception goes to the end of the interpreter; nothing is destroyed."""
    connect(folder, rank, world)
    save(folder, rank, [exchange(step) for step in range(2)])
    raise KeyError("layer")


def leaves(folder: Path, rank: int, world: int) -> Log:
    """Rank 1 is gone without a word, rank 2 is killed, rank 0 goes on."""
    connect(folder, rank, world)
    log = [exchange(step) for step in range(3)]
    save(folder, rank, log)
    if rank == 1:
        os._exit(7)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    return log


def terminated(folder: Path, rank: int, world: int) -> Log:
    """Waits for what never comes until the launcher ends it."""
    connect(folder, rank, world)
    save(folder, rank, [exchange(step) for step in range(4)])
    (folder / f"{rank}.waits").touch()
    dist.recv(torch.empty(1), 1 - rank)
    raise AssertionError("nothing was sent")


def handles(folder: Path, rank: int, world: int) -> Log:
    """The handler comes after the process group, and exits from within."""
    connect(folder, rank, world)

    def leave(number: int, _: Any) -> None:
        sys.exit(5)

    signal.signal(signal.SIGTERM, leave)
    save(folder, rank, [exchange(step) for step in range(2)])
    dist.barrier()
    (folder / f"{rank}.waits").touch()
    time.sleep(60)
    raise AssertionError("never told to end")


def again(folder: Path, rank: int, world: int) -> list[Log]:
    logs = []
    for attempt in range(2):
        connect(folder, rank, world, f"store-{attempt}")
        logs.append([exchange(attempt + step) for step in range(attempt + 1)])
        dist.destroy_process_group()
    return logs


def forks(folder: Path, rank: int, world: int) -> Log:
    """Has helpers of its own, forked: one exits, one is terminated, one outlives it."""
    connect(folder, rank, world)
    log = [exchange(0)]
    helper = os.fork()
    if helper == 0:
        running = importlib.import_module("moetraffic.capture.running")
        save(folder, 10 + rank, [[int(running.recorder is not None)]])
        atexit._run_exitfuncs()  # what the interpreter does at its end, but not gloo's
        os._exit(0)
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    lasting = os.fork()
    if lasting == 0:
        time.sleep(60)
    log.append(exchange(1))
    worker.terminate()
    worker.join()
    assert os.waitpid(helper, 0)[1] == 0
    assert worker.exitcode == -signal.SIGTERM, worker.exitcode
    log += [exchange(2), exchange(3)]
    dist.destroy_process_group()
    try:
        # the lasting child has none
        with (folder / "run.h5.logs" / "rank-00000.state").open() as state:
            fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(lasting, signal.SIGKILL)
    return log


def own(folder: Path, rank: int, world: int) -> Log:
    """A program with a recorder of its own."""
    from moetraffic import Recorder

    connect(folder, rank, world)
    exchange(9)
    log: Log = []
    with Recorder(folder / "own.h5") as recorder:
        for step in range(3):
            log.append(exchange(step))
            recorder.step()
    dist.destroy_process_group()
    return log


def refused(folder: Path, rank: int, world: int) -> Log:
    Path(os.environ["MOETRAFFIC_OUT"] + ".logs").write_text("in the way")
    return plain(folder, rank, world)


def child(index: int, folder: Path, world: int) -> None:
    save(folder, 10 + index, never_destroys(folder, index, world))


def multiprocesses(folder: Path, rank: int, world: int) -> Log:
    """Ranks that end without the end of an interpreter, and destroy nothing."""
    torch.multiprocessing.start_processes(
        child, (folder, 2), nprocs=2, start_method="fork"
    )
    return []


SCENES: dict[str, tuple[int, Callable[[Path, int, int], Any]]] = {
    "plain": (2, plain),
    "never_destroys": (1, never_destroys),
    "raises": (1, raises),
    "raises_unheard": (1, raises_unheard),
    "leaves": (3, leaves),
    "terminated": (2, terminated),
    "handles": (1, handles),
    # torch 2.4 waits forever in the second of two groups that files connect
    **({} if torch.__version__ < "2.5" else {"again": (2, again)}),
    "forks": (1, forks),
    "own": (2, own),
    "refused": (2, refused),
    "multiprocesses": (1, multiprocesses),
}
TO_THE_END = ("never_destroys", "raises_unheard", "handles")
"""With all that an interpreter does at its end: a second of each rank."""
TERMINATED = ("terminated", "handles")


def save(folder: Path, rank: int, seen: Any) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def play(name: str, folder: Path, rank: int) -> None:
    """Be a rank: returns where it goes on to the end of its interpreter."""
    world, scene = SCENES[name]
    os.environ["MOETRAFFIC_OUT"] = str(folder / "run.h5")
    os.environ["MOETRAFFIC_NOTES"] = str(folder / "notes")
    error = os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    if name in TO_THE_END:
        return save(folder, rank, scene(folder, rank, world))
    code = 1
    try:
        save(folder, rank, scene(folder, rank, world))
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(folder: Path) -> None:
    # what a rank of a fresh interpreter imports by itself, once for all
    importlib.import_module("moetraffic.capture.attached_recorder")
    gc.freeze()  # the ranks need not look at all of torch when they end
    for name, (world, _) in SCENES.items():
        own = folder / name
        (own / "notes").mkdir(parents=True)
        ranks = []
        for rank in range(world):
            forked = os.fork()
            if forked == 0:
                return play(name, own, rank)  # and on to the end of the interpreter
            ranks.append(forked)
        if name in TERMINATED:
            while len(list(own.glob("*.waits"))) < world:
                time.sleep(0.02)
            time.sleep(1)  # until the records are in the log
            for process in ranks:
                os.kill(process, signal.SIGTERM)
        for rank, process in enumerate(ranks):
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            (own / f"{rank}.code").write_text(str(code))
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
