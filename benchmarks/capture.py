"""Overhead of recording an all-to-all, compared with a process without a recorder.

Real ranks exchange rows in a loop, over gloo or, with ``--device cuda``, over NCCL, in
the modules of a model, as MoE layers do: a recorder names the module of each call.
Blocks without any recorder alternate with blocks under each way of recording, in the
same processes: the recorder is started before its block and closed after it, and
torch's own dispatcher and ``Work.wait`` are in place otherwise.  A pair is a recorded
block less the mean of the two blocks around it, which are half as long; the result is
the median of the pairs with a distribution-free 95% interval, and covers everything
that recording takes from a call:

- *thread*: processor time of the thread that calls (``time.thread_time``);
- *process*: processor time of all threads of the training process, which includes the
  one that writes the records, until they are on the disk;
- *writer*: that of the writing thread alone;
- *wall*: elapsed time of the calls.

Starting and closing a recorder is not part of a block.  A step ends after 64 calls, a
recorded block has ``--steps`` steps, fewer where a way is slow.  The interval narrows
with the square root of the number of all calls of a way; ``--ranks 2 --ways compiled
--rounds 36 --steps 128`` measures one way with 12 times the calls of the default, in
about four minutes on two quiet cores.  The ways:

- *compiled*, *python*: the Recorder with either hook;
- *none*: no recorder either, which shows the error of the measurement;
- *bare*, *forward*: a kernel of torch's dispatcher in Python that only forwards the
  call, by the operator's ``redispatch`` or by that of its boxed handle;
- *profiler*, *observer*: torch's profiler and execution trace observer.

Processor times of neighboring blocks can be compared on a busy machine too; wall times
cannot.  The load of the machine is printed with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from page import save
from scipy.stats import quantile_test
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from moetraffic import Recorder
from moetraffic.capture.hook import native

STEP_CALLS, LAYERS, ROWS, COLUMNS = 64, 4, 16, 16
SLOW = {"profiler": 8, "observer": 16}  # times fewer steps a block
QUIET_S = 0.05  # without processor time, after which a process has nothing to do
START_S, DRAIN_S = 10.0, 5.0
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # cuda: a GPU for each rank
CLOCKS = ("thread", "process", "writer", "wall")
Way = Callable[[Path], Any]


class Layer(nn.Module):
    """All-to-all with uneven splits, as routers produce them."""

    def __init__(self, rank: int, world: int, device: str) -> None:
        super().__init__()
        even = [1 / world] * world
        generator = np.random.default_rng(1)
        splits = generator.multinomial(world * ROWS, even, size=world)
        self.sent, self.received = splits[rank].tolist(), splits[:, rank].tolist()
        self.input = torch.ones(sum(self.sent), COLUMNS, device=device)
        self.output = torch.empty(sum(self.received), COLUMNS, device=device)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(self.output, rows, self.received, self.sent)
        return rows


class Exchange(nn.Module):
    """Model of several layers, each an all-to-all."""

    def __init__(self, rank: int, world: int, device: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(rank, world, device) for _ in range(LAYERS))
        self.input = self.layers[0].input

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = layer(rows)
        return rows

    def steps(self, number: int, end: Callable[[], None]) -> None:
        for _ in range(number):
            for _ in range(STEP_CALLS // LAYERS):
                self(self.input)
            end()
        if self.input.is_cuda:
            torch.cuda.synchronize()


@contextmanager
def nothing(_: Path) -> Iterator[Callable[[], None]]:
    yield lambda: None


def recorded(hook: str) -> Way:
    @contextmanager
    def way(path: Path) -> Iterator[Callable[[], None]]:
        os.environ[native.VARIABLE] = hook
        recorder = Recorder(path).start()
        yield recorder.step
        recorder.close(merged=False)

    return way


@contextmanager
def forwarded(_: Path) -> Iterator[Callable[[], None]]:
    library = torch.library.Library("c10d", "IMPL")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    further = torch.ops.c10d.alltoall_base_.default._handle.redispatch_boxed
    library.impl(
        "alltoall_base_",
        lambda keys, *given: further(keys & after, *given),
        "BackendSelect",
        with_keyset=True,
    )
    yield lambda: None
    library._destroy()


@contextmanager
def bare(_: Path) -> Iterator[Callable[[], None]]:
    library = torch.library.Library("c10d", "IMPL")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    operator = torch.ops.c10d.alltoall_base_.default
    library.impl(
        "alltoall_base_",
        lambda keys, *given: operator.redispatch(keys & after, *given),
        "BackendSelect",
        with_keyset=True,
    )
    yield lambda: None
    library._destroy()


@contextmanager
def profiled(_: Path) -> Iterator[Callable[[], None]]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):
        yield lambda: None


@contextmanager
def observed(path: Path) -> Iterator[Callable[[], None]]:
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    yield lambda: None
    observer.stop()
    observer.unregister_callback()


WAYS: dict[str, Way] = {
    "none": nothing,
    "compiled": recorded("native"),
    "python": recorded("python"),
    "forward": forwarded,
    "bare": bare,
    "profiler": profiled,
    "observer": observed,
}


def writer_s() -> float:
    """Processor time of the thread that writes a recorder's log, 0 without one."""
    for thread in threading.enumerate():
        if thread.name == "moetraffic-log":
            spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
            return int(spent.split()[0]) / 1e9
    return 0.0


def until_quiet(limit_s: float) -> None:
    """Wait until other threads have nothing left to do."""
    deadline = time.monotonic() + limit_s
    before, quiet = -1.0, 0
    while time.monotonic() < deadline and quiet < 8:  # longer than a writer's pause
        time.sleep(QUIET_S)
        now = time.process_time()
        quiet = quiet + 1 if now - before < QUIET_S / 10 else 0
        before = now


def block(exchange: Exchange, steps: int, end: Callable[[], None]) -> list[float]:
    """Return microseconds a call by each of :data:`CLOCKS`."""
    dist.barrier()
    thread, whole, writing = time.thread_time(), time.process_time(), writer_s()
    begin = time.perf_counter()
    exchange.steps(steps, end)
    wall, thread = time.perf_counter() - begin, time.thread_time() - thread
    waiting = time.thread_time()
    until_quiet(DRAIN_S)
    waiting = time.thread_time() - waiting  # of this program, not of a recorder
    whole = time.process_time() - whole - waiting
    writing = writer_s() - writing
    spent = (thread, whole, writing, wall)
    return [s / (steps * STEP_CALLS) * 1e6 for s in spent]


def measure(
    rank: int,
    world: int,
    folder: Path,
    ways: Sequence[str],
    rounds: int,
    most_steps: int,
    device: str,
) -> dict[str, list[list[list[float]]]]:
    """Measure the ways in turns.

    Returns
    -------
    dict
        Of each way, ``[round][before, recorded, after][clock]``.
    """
    exchange = Exchange(rank, world, device)
    found: dict[str, list[list[list[float]]]] = {way: [] for way in ways}
    exchange.steps(4, lambda: None)
    for number in range(rounds):
        for way in ways:
            steps = max(2, most_steps // SLOW.get(way, 1))
            blocks = [block(exchange, steps // 2, lambda: None)]
            with WAYS[way](
                folder / f"{way}-{number}-{rank}"
                if way == "observer"
                else folder / f"{way}-{number}"
            ) as end:
                exchange.steps(2, end)
                until_quiet(START_S)
                blocks.append(block(exchange, steps, end))
            until_quiet(START_S)
            blocks.append(block(exchange, steps // 2, lambda: None))
            found[way].append(blocks)
    return found


def run_rank(
    rank: int,
    world: int,
    folder: str,
    ways: Sequence[str],
    rounds: int,
    steps: int,
    device: str,
) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        BACKENDS[device],
        store=dist.FileStore(f"{folder}/store", world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    found = measure(rank, world, Path(folder), ways, rounds, steps, device)
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"times-{rank}.json").write_text(json.dumps(found))


def added(blocks: np.ndarray) -> dict[str, dict[str, float]]:
    """Summarize blocks ``[rank, round, before/recorded/after, clock]`` by clock."""
    ranks = blocks.mean(axis=0)
    bare = (ranks[:, 0] + ranks[:, 2]) / 2
    found = {}
    for n, clock in enumerate(CLOCKS):
        pairs = ranks[:, 1, n] - bare[:, n]
        interval = quantile_test(pairs).confidence_interval(0.95)
        found[clock] = {
            "without_us": float(np.median(bare[:, n])),
            "added_us": float(np.median(pairs)),
            "low_us": float(interval.low),
            "high_us": float(interval.high),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--device", choices=BACKENDS, default="cpu")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=32)
    given = parser.parse_args()
    if "compiled" in given.ways:
        native.build()
    result: dict[str, Any] = {
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load": [os.getloadavg()[0]],
        "ranks": {},
    }
    for world in given.ranks:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(
                run_rank,
                (
                    *(world, folder, given.ways, given.rounds, given.steps),
                    given.device,
                ),
                nprocs=world,
            )
            told = [
                json.loads(Path(folder, f"times-{rank}.json").read_text())
                for rank in range(world)
            ]
        ways = {w: added(np.array([one[w] for one in told])) for w in given.ways}
        result["ranks"][world] = ways
        result["load"].append(os.getloadavg()[0])
        over = BACKENDS[given.device]
        print(f"{world} ranks, {over}, us an all-to-all: added, median [95% interval]")
        for way, clocks in ways.items():
            print(f"  {way:9}", end="")
            for clock, us in clocks.items():
                interval = f"[{us['low_us']:.1f}, {us['high_us']:.1f}]"
                print(f" {clock} {us['added_us']:+.1f} {interval};", end="")
            load = ", ".join(f"{average:.1f}" for average in result["load"])
    print(f"{result['cores']} cores, load {load}")
    if given.json:
        save(given.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
