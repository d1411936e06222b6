"""Ranks that train with torch's own wrappers, or count what the kernel sent for them.

``jobs.py`` runs these functions where it has none of the name.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from moetraffic.capture import Recorder
from moetraffic.models import GPT, Corpus, connect, train
from moetraffic.patterns import Gating, ModelShape, Workload
from moetraffic.patterns.schedules import chunk_layers

TEXT = bytes((7 * i * i + i // 3) % 251 for i in range(4000))
STEPS = 3

RECEIVED = 128
"""Where ``tcpi_bytes_received`` stands in ``struct tcp_info`` (linux/tcp.h, since 4.1):
what arrived in order, each byte once however often it was sent."""

Seen = dict[tuple[str, str], int]


def why_not() -> str:
    """Why nothing can be counted here; "" if it can."""
    if not sys.platform.startswith("linux") or not os.path.isdir("/proc/self/fd"):
        return "TCP_INFO and /proc/self/fd are Linux's"
    with socket.socket() as here:
        told = here.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    known = len(told) >= RECEIVED + 8
    return "" if known else "this kernel's TCP_INFO has no bytes received (Linux 4.1)"


def received() -> Seen:
    """Bytes received on each of this process's connections, by (own, other) address.

    A rank looks at its own sockets, which needs no permission.
    """
    found: Seen = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type != socket.SOCK_STREAM or one.family == socket.AF_UNIX:
                    continue
                own, other = str(one.getsockname()[:2]), str(one.getpeername()[:2])
                told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        except OSError:
            continue  # closed meanwhile, or it listens
        found[own, other] = struct.unpack_from("=Q", told, RECEIVED)[0]
    return found


def settled() -> Seen:
    """What was received when all have sent, and nothing is under way.

    No rank goes on before all have looked: on a busy machine a slow rank would count
    what a fast one sends next.
    """
    dist.barrier()
    time.sleep(0.1)
    seen = received()
    dist.barrier()
    return seen


def collectives(
    rank: int, world: int, cases: list[tuple[str, int, int]]
) -> list[list[Seen]]:
    """Each case's (operation, elements, root) alone: counters before and behind.

    The third counters are behind another barrier: what that one sends.
    """
    calls: dict[str, Callable[[torch.Tensor, int], Any]] = {
        "all_reduce": lambda x, root: dist.all_reduce(x),
        "reduce_scatter": lambda x, root: dist.reduce_scatter_tensor(
            torch.empty(len(x) // world), x
        ),
        "all_gather": lambda x, root: dist.all_gather_into_tensor(
            torch.empty(len(x) * world), x
        ),
        "broadcast": dist.broadcast,
        "reduce": dist.reduce,
        "all_to_all": lambda x, root: dist.all_to_all_single(torch.empty_like(x), x),
    }
    told = []
    for operation, elements, root in cases:
        calls[operation](torch.ones(elements), root)  # connects, where it has to
        before = settled()
        calls[operation](torch.ones(elements), root)
        behind = settled()
        told.append([before, behind, settled()])
    return told


def counted(rank: int, world: int, workload: str, steps: int) -> list[Seen]:
    """Train; counters behind the second step, ``steps`` later, and of a barrier."""
    work = Workload.from_json(workload)
    groups, seen = connect(work.layout), []

    class Counter:
        done = 0

        def step(self, *, loss: float, tokens: int) -> None:
            self.done += 1
            if self.done in (2, 2 + steps):
                seen.append(settled())

    train(work, Counter(), groups=groups, corpus=_corpus())
    seen.append(settled())
    return seen


def wrapped(
    rank: int, world: int, shape: dict[str, Any], how: str, options: dict[str, Any]
) -> None:
    """A dense model in one of torch's wrappers, a few steps, captured."""
    model: torch.nn.Module = GPT(ModelShape(**shape), Gating())
    path = options.pop("capture")
    with Recorder(path, groups={"dp": dist.group.WORLD}) as recorder:
        if how == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            model = DistributedDataParallel(model, **options)
        elif how == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel

            def sharded(module: torch.nn.Module) -> torch.nn.Module:
                return FullyShardedDataParallel(module, device_id=torch.device("cpu"))

            for name, block in list(model.blocks.items()):
                model.blocks[name] = sharded(block)
            model = sharded(model)
        else:
            from torch.distributed.fsdp import fully_shard

            for block in model.blocks.values():
                fully_shard(block, **options)
            fully_shard(model, **options)
        for step in range(STEPS):
            tokens = torch.full((2, shape["sequence"]), step + rank)
            logits = model(tokens, tokens).cross_entropy
            logits.backward()
            recorder.step(loss=0.0, tokens=tokens.numel())


def interleaved(
    rank: int,
    world: int,
    shape: dict[str, Any],
    virtual: int,
    micro_batches: int,
    capture: str,
) -> None:
    """torch's interleaved 1F1B over several chunks of layers on each rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    sizes, stages = ModelShape(**shape), []
    chunks = chunk_layers(sizes.layers, world, virtual)
    like = torch.empty(1, sizes.sequence, device="meta", dtype=torch.int64)
    between, logits = (
        torch.empty(1, sizes.sequence, width, device="meta", requires_grad=True)
        for width in (sizes.hidden, sizes.vocabulary)
    )
    with Recorder(capture, groups={"pp": dist.group.WORLD}) as recorder:
        for number in range(rank, world * virtual, world):
            last = number == world * virtual - 1
            stages.append(
                PipelineStage(
                    _Chunk(GPT(sizes, Gating(), layers=chunks[number]), number, last),
                    number,
                    world * virtual,
                    torch.device("cpu"),
                    input_args=(like if number == 0 else between,),
                    output_args=(logits if last else between,),
                    group=dist.group.WORLD,
                )
            )
        schedule = ScheduleInterleaved1F1B(
            stages,
            micro_batches,
            loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()),
        )
        for _ in range(2):
            tokens = torch.zeros(micro_batches, sizes.sequence, dtype=torch.int64)
            first = (tokens,) if rank == 0 else ()
            more = {"target": tokens} if rank == world - 1 else {}
            schedule.step(*first, **more)
            recorder.step(loss=0.0, tokens=tokens.numel())


class _Chunk(torch.nn.Module):
    def __init__(self, model: GPT, number: int, last: bool) -> None:
        super().__init__()
        self.model, self.first, self.last = model, number == 0, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.model.embed(x) if self.first else x
        x, _ = self.model.run(x)
        return self.model.head(x) if self.last else x


def _corpus() -> Corpus:
    return Corpus(text=torch.frombuffer(bytearray(TEXT), dtype=torch.uint8), source="")
