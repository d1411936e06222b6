"""Scenes played by real ranks on gloo, for the tests beside this file.

``python scenes.py FOLDER 1`` imports torch once and forks the ranks of a few scenes, 0
those of the others; each rank leaves what it saw as JSON in
``FOLDER/<scene>-<rank>.json``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # functional collectives import it: once here, not in every rank
import torch.distributed as dist
from ranks import exit_codes, fork, initialize
from step_scenes import boundaries
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from moetraffic import capture
from moetraffic.capture import Recorder, clock_offset, running
from moetraffic.capture.hook import calls as hook
from moetraffic.capture.hook import native
from moetraffic.errors import MoetrafficError
from moetraffic.models import connect, train
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload
from moetraffic.trace.merge.log_folder import log_folder
from moetraffic.trace.merge.log_format import log_files, state_file

SHAPE = ModelShape(layers=4, hidden=32, heads=2, sequence=32, moe_every=2, experts=8)


def work(ranks: int, ep: int, **gating: Any) -> Workload:
    return Workload(
        model=SHAPE,
        gating=Gating(**gating),
        layout=Layout(dp=ranks, ep=ep),
        training=Training(iterations=8, micro_batch=2, accumulation=2, seed=3),
    )


WORKS = {
    "dropless": work(4, 4),
    "dropped": work(4, 2, dispatch="dropped", capacity_factor=0.8),
    "padded": work(2, 2, router="switch", k=1, dispatch="padded"),
}


def trained(folder: Path, rank: int, name: str) -> dict[str, Any]:
    """Train with a wrapper around the model's own calls beside the recorder."""
    workload = WORKS[name]
    log: list[dict[str, Any]] = []
    real = dist.all_to_all_single

    def logged(
        output: Any,
        rows: Any,
        received: Any = None,
        sent: Any = None,
        group: Any = None,
    ) -> Any:
        width = dist.get_world_size(group)
        size = rows[0].numel() * rows.element_size()
        log.append(
            {
                "sent": [n * size for n in sent or [len(rows) // width] * width],
                "received": [
                    n * size for n in received or [len(output) // width] * width
                ],
                "ranks": dist.get_process_group_ranks(group),
            }
        )
        return real(output, rows, received, sent, group=group)

    dist.all_to_all_single = logged  # the model looks it up at each call
    groups = connect(workload.layout)
    placement = {layer: groups.placement(SHAPE.experts) for layer in SHAPE.moe_layers}
    steps: list[int] = []
    with Recorder(
        folder / f"{name}.h5",
        workload=workload,
        groups=groups.by_kind(),
        placement=placement,
    ) as recorder:
        losses = train(
            workload, recorder, lambda *_: steps.append(len(log)), groups=groups
        )
    return {"losses": losses, "log": log, "steps": steps, "said": recorder.warnings}


def bare(folder: Path, rank: int) -> dict[str, Any]:
    """The same training as "dropless", with nobody recording."""
    return {"losses": train(WORKS["dropless"])}


def own_loop(folder: Path, rank: int) -> dict[str, Any]:
    """Somebody's own program: every collective, without a label."""
    pair = dist.new_group([0, 1], use_local_synchronization=False)
    with Recorder(folder / "own.h5", groups={"dp": pair}) as recorder:
        for step in range(6):
            rows = torch.full((6, 4), float(rank))
            sent = [2, 4] if rank == 0 else [3, 3]
            received = [2, 3] if rank == 0 else [4, 3]
            output = torch.empty(5 if rank == 0 else 7, 4)
            dist.all_to_all_single(output, rows, received, sent)
            dist.all_to_all_single(torch.empty(6, 4), rows)
            functional.all_to_all_single(rows, None, None, dist.group.WORLD).sum()
            dist.all_to_all(
                [torch.empty(3), torch.empty(3)], [torch.ones(3), torch.ones(3)]
            )
            dist.all_reduce(torch.ones(10, dtype=torch.bfloat16), group=pair)
            dist.broadcast(torch.ones(3), 0)
            dist.all_gather([torch.empty(5), torch.empty(5)], torch.ones(5))
            dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))
            dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8))
            dist.reduce(torch.ones(7), 1)
            if rank == 0:
                dist.send(torch.ones(9), 1)
            else:
                dist.recv(torch.empty(9), 0)
            dist.barrier()
            waiting = dist.all_reduce(torch.ones(2), async_op=True)
            waiting.wait()
            both = [torch.ones(4), torch.ones(6)]
            for parts in (
                functional.all_gather_into_tensor_coalesced(both, dist.group.WORLD),
                functional.all_reduce_coalesced(both, "sum", dist.group.WORLD),
                functional.reduce_scatter_tensor_coalesced(
                    both, "sum", [0, 0], dist.group.WORLD
                ),
            ):
                assert all(float(part.sum()) > 0 for part in parts)
            halves = [torch.ones(2), torch.ones(2)] if rank == 0 else None
            dist.scatter(torch.empty(2), halves, 0)
            dist.gather(torch.ones(2), halves, 0)
            there, here = torch.ones(5), torch.empty(5)
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, there, 1 - rank),
                    dist.P2POp(dist.irecv, here, 1 - rank),
                ]
            ):
                work.wait()
            if rank == 0:
                dist.send(torch.ones(3), 1)
            else:
                dist.recv(torch.empty(3))  # from anybody
            if step == 4:
                capture.routing(7, torch.tensor([4, 2, 1, 1]))
            recorder.step(
                loss=torch.tensor(1.0 / (step + 1), requires_grad=True),
                kind="evaluation" if step == 5 else "train",
            )
    return {"output": output.sum().item(), "said": recorder.warnings}


def equal_ranks(folder: Path, rank: int) -> dict[str, Any]:
    """Groups of the same ranks: for experts, for gradients, and new ones."""
    experts, gradients = dist.new_group([0, 1]), dist.new_group([0, 1])
    layer = Layer(rank)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with Recorder(folder / "equal.h5") as recorder:
        for _ in range(4):
            dist.barrier(group=dist.new_group([0, 1]))
            rows, splits = torch.ones(8, 8), (layer.received, layer.sent)
            arrived = torch.empty(sum(layer.received), 8)
            dist.all_to_all_single(arrived, rows, *splits, group=experts)
            layer.expert(arrived).sum().backward()
            dist.all_reduce(layer.expert.weight.grad, group=gradients)
            optimizer.step()
    return {"said": recorder.warnings}


def noted() -> int:
    """How many calls the hook has noted in this process."""
    compiled = native.load()
    if compiled is not None:
        return compiled.calls()
    return int(repr(hook._numbers).strip("count()"))


def refusals(folder: Path, rank: int) -> dict[str, Any]:
    """Two recorders, a recorder that fails, a fake tensor, a vanished folder."""
    said: dict[str, Any] = {}
    first = Recorder(folder / "first.h5").start()
    try:
        Recorder(folder / "second.h5").start()
    except MoetrafficError as error:
        said["twice"] = str(error)
    try:
        Recorder(folder / "first.h5").start()
    except MoetrafficError as error:
        said["same"] = str(error)
    rows = torch.arange(4.0) + 10 * rank
    output = torch.empty(4)

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    # the one is asked in the hook in Python, the other in the compiled one
    real = hook.now_ns, hook._unbox
    hook.now_ns = hook._unbox = fails
    dist.all_to_all_single(output, rows)
    capture.routing(0, torch.tensor([1, 1]))
    said["output"] = output.tolist()
    said["warnings"] = list(first.warnings)
    hook.now_ns, hook._unbox = real
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.debug import CommDebugMode

    before = noted()
    with FakeTensorMode():
        dist.all_to_all_single(torch.empty(4), torch.empty(4))
        dist.all_reduce(torch.empty(4))
    said["faked"] = noted() - before
    before = noted()
    with CommDebugMode():
        dist.all_to_all_single(output, rows)
        dist.all_reduce(output)
    said["watched"] = noted() - before
    dist.barrier()  # nobody's folder goes before all are through
    logs = log_folder(first.path)
    for file in (*log_files(logs, rank), state_file(logs, rank)):
        file.unlink()
    for _ in range(4):
        dist.all_to_all_single(output, rows)
        first.step(loss=0.5)
    first.close(merged=False)
    said["lost"] = [w for w in first.warnings if "lost" in w]
    said["installed"] = running.recorder is not None
    dist.all_to_all_single(output, rows)
    again = Recorder(folder / f"again-{rank}.h5")
    again.start()
    again.close(merged=False)
    return said


class Exchange(torch.autograd.Function):
    """An all-to-all whose gradient is another, as MoE layers have it."""

    @staticmethod
    def forward(ctx: Any, rows: Any, sent: list[int], received: list[int]) -> Any:
        ctx.splits = received, sent
        output = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Exchange.apply(gradient, *ctx.splits), None, None


class Layer(torch.nn.Module):
    """Dispatch, an expert, combine; more rows go to one rank than to the other."""

    def __init__(self, rank: int, how: str = "") -> None:
        super().__init__()
        self.expert, self.how = torch.nn.Linear(8, 8), how
        self.sent = [5, 3] if rank == 0 else [2, 6]
        self.received = [5, 2] if rank == 0 else [3, 6]

    def forward(self, rows: Any) -> Any:
        if self.how:
            return checkpoint(
                self.exchange, rows, use_reentrant=self.how == "reentrant"
            )
        return self.exchange(rows)

    def exchange(self, rows: Any) -> Any:
        arrived = Exchange.apply(self.expert(rows), self.sent, self.received)
        return Exchange.apply(arrived.relu(), self.received, self.sent)


def foreign(folder: Path, rank: int) -> dict[str, Any]:
    """Somebody's layers: DDP, checkpoints, FSDP2, compiled, inference, a thread."""
    seen: dict[str, Any] = {}
    layers = {
        "plain": Layer(rank),
        "ddp": DistributedDataParallel(Layer(rank)),
        "saved": Layer(rank, "non-reentrant"),
        "reentrant": Layer(rank, "reentrant"),
        "fsdp": fully_shard(Layer(rank), mesh=init_device_mesh("cpu", (2,))),
        "compiled": torch.compile(Layer(rank), backend="aot_eager"),
    }
    mesh_group = dist.new_group([0, 1])

    def functional_step(rows: Any) -> Any:
        sent = [5, 3] if rank == 0 else [2, 6]
        received = [5, 2] if rank == 0 else [3, 6]
        moved = functional.all_to_all_single_autograd(rows, received, sent, mesh_group)
        return functional.all_to_all_single_autograd(moved, sent, received, mesh_group)

    compiled = torch.compile(functional_step, backend="aot_eager", fullgraph=True)
    with Recorder(folder / "foreign.h5", groups={"dp": mesh_group}) as recorder:
        for name, layer in layers.items():
            rows = torch.ones(8, 8, requires_grad=True)
            loss = layer(rows).sum()
            loss.backward()
            recorder.step(loss=loss)
            seen[name] = float(rows.grad.sum())
        for step in (functional_step, compiled):
            rows = torch.ones(8, 8, requires_grad=True)
            (step(rows) ** 2).sum().backward()
            recorder.step()
        with torch.inference_mode():
            layers["plain"](torch.ones(8, 8))
        recorder.step(kind="evaluation")
        thread = threading.Thread(target=layers["plain"], args=(torch.ones(8, 8),))
        thread.start()
        thread.join()
        recorder.step()
        seen["forked"] = forked(recorder)
        seen["said"] = recorder.warnings
    return seen


def forked(recorder: Recorder) -> bool:
    """Whether a child of a fork, as data loaders make them, leaves the record alone."""
    child = os.fork()
    if child == 0:
        recorder.step(loss=-1.0)
        os._exit(int(running.recorder is not None))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def unmarked(folder: Path, rank: int) -> dict[str, Any]:
    """Nobody calls step: optimizers end an iteration; an evaluation is between."""
    torch.manual_seed(0)
    layer, other = Layer(rank), Layer(rank)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (layer, other)]
    with Recorder(folder / "unmarked.h5") as recorder:
        for step in range(6):
            if step == 3:
                with torch.no_grad():
                    other(layer(torch.ones(8, 8)))
            other(layer(torch.ones(8, 8))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                dist.all_reduce(torch.ones(3))
                optimizer.zero_grad()
        return {"said": recorder.warnings}


def clocks(folder: Path, rank: int) -> dict[str, Any]:
    """Ranks of one host, which believe that their clocks differ."""
    store = dist.distributed_c10d._get_default_store()
    shared, _ = clock_offset.measure_offset(store, rank, 3, "shared")
    asked, _ = clock_offset.measure_offset(store, rank, 3, "asked", own=f"host {rank}")
    return {"shared": shared.tolist(), "asked": asked.tolist()}


SCENES: dict[str, tuple[int, Callable[[Path, int], dict[str, Any]]]] = {
    "dropless": (4, lambda folder, rank: trained(folder, rank, "dropless")),
    "dropped": (4, lambda folder, rank: trained(folder, rank, "dropped")),
    "padded": (2, lambda folder, rank: trained(folder, rank, "padded")),
    "bare": (4, bare),
    "own": (2, own_loop),
    "equal": (2, equal_ranks),
    "refusals": (2, refusals),
    "clocks": (3, clocks),
    "foreign": (2, foreign),
    "unmarked": (2, unmarked),
    "boundaries": (2, lambda folder, rank: boundaries(folder, rank, Layer)),
}


def play(name: str, folder: Path, rank: int, world: int) -> None:
    initialize(folder / f"{name}.store", rank, world)
    try:
        seen = SCENES[name][1](folder, rank)
    finally:
        dist.destroy_process_group()
    (folder / f"{name}-{rank}.json").write_text(json.dumps(seen))


FEW = ("dropless", "dropped", "padded", "bare", "own", "equal")
"""What every test run plays; the other scenes are for the slow tests."""


def main(folder: Path, few: bool) -> int:
    failed = 0
    for name, (world, _) in SCENES.items():
        if (name in FEW) != few:
            continue
        ranks = [fork(partial(play, name, folder, r, world)) for r in range(world)]
        failed += any(exit_codes(ranks))
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), few=sys.argv[2] == "1"))
