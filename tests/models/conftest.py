"""Runs the jobs of ``jobs.py`` on several gloo ranks, each a process of its own."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moetraffic.capture.annotate import CallContext
from moetraffic.models import Corpus, GradientBucket, language_model
from moetraffic.models.corpus import batch
from moetraffic.models.parallelism.optimizer import AdamW, learning_rate
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload
from moetraffic.trace import Trace

JOBS = Path(__file__).with_name("jobs.py")
PATIENCE_S = 100.0

PRELOADED = [
    "moetraffic.capture.recorder",
    "moetraffic.models.__main__",
    "moetraffic.models.parallelism.pipeline",
    "moetraffic.models.parallelism.tensor",
    "moetraffic.models.parallelism.zero",
    "fairscale.nn.data_parallel",
    "torch.distributed.fsdp",
]

SHAPE = ModelShape(layers=4, hidden=16, heads=2, sequence=12, experts=8)
TRAINING = Training(
    iterations=3,
    micro_batch=2,
    accumulation=2,
    warmup=2,
    learning_rate=0.01,
    clip=0.2,  # below every gradient norm here: clipping acts
    dtype="float64",
    seed=3,
)

Run = Callable[..., list[Any]]
# what ranks tell beside tensors and plain values
torch.serialization.add_safe_globals([range, CallContext])
Key = tuple[str, str, str, int, str, tuple[int, int]]


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run_ranks(job, world, **arguments)``: each rank's result, by rank."""
    # the server imports torch once; ranks are forked from it and start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def run(job: str, world: int = 4, **arguments: Any) -> list[Any]:
        try:
            return play(job, world, **arguments)
        except AssertionError as error:
            # gloo's listeners can meet a stranger on a port that was just given back
            if "connectFullMesh failed" not in str(error):
                raise
            return play(job, world, **arguments)

    def play(job: str, world: int, **arguments: Any) -> list[Any]:
        folder = tmp_path_factory.mktemp(job)
        processes = [
            context.Process(
                target=runpy.run_path,
                args=(str(JOBS),),
                kwargs={
                    "init_globals": {"TASK": (job, rank, world, folder, arguments)},
                    "run_name": "__rank__",
                },
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE_S)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            processes[rank].kill()
            processes[rank].join()
        said = [path.read_text() for path in sorted(folder.glob("*.error"))]
        assert not late, f"ranks {late} of {job} never ended; {said}"
        assert not said, "\n".join(said)
        assert [process.exitcode for process in processes] == [0] * world
        return [
            torch.load(folder / f"{rank}.pt", weights_only=True)
            for rank in range(world)
        ]

    return run


@pytest.fixture(scope="session")
def small() -> Callable[..., Workload]:
    """``small(layout, **changes)``: a workload to compare, changed by field name."""

    def make(layout: dict[str, Any], **changes: Any) -> Workload:
        def part(of: Any) -> Any:
            mine = {n: v for n, v in changes.items() if hasattr(of, n)}
            return replace(of, **mine)

        return Workload(
            model=part(SHAPE),
            gating=part(Gating()),
            layout=Layout(**layout),
            training=part(TRAINING),
        )

    return make


@pytest.fixture(scope="session")
def sent() -> Callable[..., dict[Key, list[int]]]:
    """``sent(trace, rank)``: the bytes of a rank's collectives in iteration 1.

    By (kind of group, operation, label, layer, direction, peers), in the order of their
    slots; of an all-to-all, what the rank sends to all.
    """

    def read(trace: Trace, rank: int) -> dict[Key, list[int]]:
        found: dict[Key, list[int]] = {}
        for occurrence in trace.find(iterations=range(1, 2)):
            site = trace.sites[trace.occurrences.site[occurrence]]
            group = trace.groups[site.group]
            if rank not in group.ranks or site.operation == "routing":
                continue
            mine, here = group.ranks.index(rank), np.array([occurrence])
            if site.peers != (-1, -1) and mine not in site.peers:
                continue
            if site.operation == "all_to_all":
                size = trace.wire(here)[0, mine].sum()
            else:
                size = trace.volume(here)[0, mine]
            key = (
                group.kind,
                site.operation,
                site.label or site.phase,
                site.layer,
                site.direction,
                site.peers,
            )
            found.setdefault(key, []).append(int(size))
        return found

    return read


@pytest.fixture(scope="session")
def run_as_one(run_ranks: Run) -> Run:
    """``run_as_one(workload)``: each rank's result of training, found to be right.

    Losses and parameters are those of one process with the same shards.
    """
    known: dict[str, Any] = {}

    def run(work: Workload, **arguments: Any) -> list[Any]:
        key = repr((work.model, work.gating, work.training, work.layout.dp))
        if key not in known:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # threads that share a core wait for each other
            known[key] = one_process(work)
            torch.set_num_threads(threads)
        ranks = run_ranks(
            "training", work.layout.world, workload=work.to_json(), **arguments
        )
        for result in ranks:
            same_as(known[key], result, work.layout.tp)
        return ranks

    return run


def one_process(work: Workload) -> dict[str, Any]:
    """The same training in one process: shards one after another, gradients summed."""
    plan, replicas = work.training, range(work.layout.dp)
    text = bytes((7 * i * i + i // 3) % 251 for i in range(4000))  # as jobs.TEXT
    corpus = Corpus(
        text=torch.frombuffer(bytearray(text), dtype=torch.uint8), source=""
    )
    model = language_model(work.model, work.gating, seed=plan.seed).double()
    parameters = list(model.parameters())
    bucket = GradientBucket(parameters)
    optimizer = AdamW(parameters, weight_decay=plan.weight_decay)
    losses: list[list[float]] = [[] for _ in replicas]
    for iteration in range(plan.iterations):
        bucket.zero()
        for replica in replicas:
            entropies = []
            for micro_batch in range(plan.accumulation):
                drawn = batch(
                    corpus,
                    work.model,
                    sequences=plan.micro_batch,
                    seed=plan.seed,
                    iteration=iteration,
                    micro_batch=micro_batch,
                    rank=replica,
                )
                parts = model(*drawn)
                total = parts.total(work.gating)
                (total / plan.accumulation / len(replicas)).backward()
                entropies.append(parts.cross_entropy.item())
            losses[replica].append(sum(entropies) / plan.accumulation)
        norm = bucket.flat.norm()
        assert norm > plan.clip  # clipping acts
        bucket.flat *= plan.clip / (norm + 1e-6)
        optimizer.step(learning_rate(plan, iteration))
    return {
        "losses": losses,
        "dense": {
            name: p.detach()
            for name, p in model.named_parameters()
            if ".experts." not in name
        },
        "experts": {
            (m.layer, expert, name): p[expert].detach()
            for m in model.mixtures
            for name, p in m.experts.named_parameters()
            for expert in range(work.model.experts)
        },
    }


def same_as(expected: dict[str, Any], result: dict[str, Any], tp: int) -> None:
    """A rank has the losses of its replica, and its part of the parameters."""
    losses = expected["losses"][result["dp_rank"]]
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    for kind in ("dense", "experts"):
        for place, values in result[kind].items():
            whole = expected[kind][place]
            for dim, size in enumerate(values.shape):
                if size != whole.shape[dim]:  # tensor parallelism has split it here
                    whole = whole.chunk(tp, dim)[result["tp_rank"]]
            torch.testing.assert_close(
                values, whole, rtol=0, atol=1e-9, msg=lambda m, p=place: f"{p}: {m}"
            )
