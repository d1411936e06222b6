"""A mixture-of-experts step on four gloo ranks, profiled in every way at once.

``python profiled.py FOLDER`` leaves in it, of each rank, the profile as JSON, of every
other rank packed, the execution trace, and of all ranks what moetraffic's own Recorder
captured; also both of one rank of 40 on torch's fake process group.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the profiler imports it: once here, not in every rank
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule
from torch.testing._internal.distributed.fake_pg import FakeStore

from moetraffic.capture import Recorder

WORLD, STEPS, HIDDEN = 4, 3, 8
WIDE = 40


class Exchange(torch.autograd.Function):
    """An uneven all-to-all, whose gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Any, received: list[int], sent: list[int]) -> Any:
        ctx.splits = sent, received
        output = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        sent, received = ctx.splits
        output = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(output, gradient.contiguous(), sent, received)
        return output, None, None


def step(iteration: int, rank: int, layer: torch.nn.Module) -> None:
    seeded = torch.Generator().manual_seed(100 * iteration + rank)
    sent = torch.randint(0, 5, (WORLD,), generator=seeded)
    if (iteration, rank) == (1, 2):
        sent[:] = 0  # a rank that sends nothing
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    rows = layer(torch.randn(int(sent.sum()), HIDDEN))
    expert = torch.relu(Exchange.apply(rows, received.tolist(), sent.tolist()))
    combined = Exchange.apply(expert, sent.tolist(), received.tolist())
    combined.sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_to_all([torch.empty(2)] * WORLD, [torch.ones(2)] * WORLD)
    dist.all_gather([torch.empty(3) for _ in range(WORLD)], torch.ones(3))
    dist.broadcast(torch.ones(5, dtype=torch.bfloat16), 0)
    if rank == 0:
        dist.send(torch.ones(9), 1)
    elif rank == 1:
        dist.recv(torch.empty(9), 0)
    dist.barrier()


def rank_of_many(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), WORLD),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    layer = torch.nn.Linear(HIDDEN, HIDDEN)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(folder / f"et_rank{rank}.json"))
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=0, active=STEPS + 1),
        execution_trace_observer=observer,
    )
    with Recorder(folder / "recorded.h5") as recorder:
        profiler.start()
        for iteration in range(STEPS):
            step(iteration, rank, layer)
            recorder.step()
            profiler.step()
        profiler.stop()
    observer.unregister_callback()
    packed = ".gz" if rank % 2 else ""
    profiler.export_chrome_trace(str(folder / f"profile_rank{rank}.json{packed}"))
    dist.destroy_process_group()


def rank_of_wide(folder: Path, rank: int) -> None:
    """A group of more ranks than torch writes out."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WIDE)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(folder / f"wide_et_rank{rank}.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        observer.start()
        sent = [(rank + to) % 7 for to in range(WIDE)]
        received = [(source + rank) % 7 for source in range(WIDE)]
        rows, output = torch.empty(sum(sent), 8), torch.empty(sum(received), 8)
        dist.all_to_all_single(output, rows, received, sent)
        observer.stop()
    observer.unregister_callback()
    profiler.export_chrome_trace(str(folder / f"wide_profile_rank{rank}.json"))
    dist.destroy_process_group()


def main(folder: Path) -> int:
    ranks = []
    jobs = [(rank_of_many, rank) for rank in range(WORLD)] + [(rank_of_wide, 3)]
    for job, rank in jobs:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                job(folder, rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        ranks.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(r, 0)[1]) for r in ranks]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
