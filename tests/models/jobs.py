"""What ranks do in the tests of models: a function a job, run by conftest.run_ranks."""

from __future__ import annotations

import importlib
import os
import runpy
import traceback
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import moetraffic.capture.annotate as annotate
from moetraffic.gating import Routing
from moetraffic.launch.board import OwnRow, State
from moetraffic.models import (
    GPT,
    MixtureOfExperts,
    ParameterSets,
    clip,
    connect,
    language_model,
    train,
)
from moetraffic.models.corpus import Corpus
from moetraffic.models.layers.feedforward import FeedForward, LocalExperts
from moetraffic.models.layers.moe import exchange
from moetraffic.models.parallelism.gradients import ReplicatedUpdate
from moetraffic.patterns import Gating, Layout, Training, Workload

TEXT = bytes((7 * i * i + i // 3) % 251 for i in range(4000))


def corpus() -> Corpus:
    return Corpus(text=torch.frombuffer(bytearray(TEXT), dtype=torch.uint8), source="")


@contextmanager
def logged():
    """Every collective's name, place and splits, and every routing, in call order."""
    log: list[dict[str, Any]] = []
    real_exchange, real_reduce = dist.all_to_all_single, dist.all_reduce

    def note(operation, tensor, group, **more):
        place = annotate.place()
        log.append(
            {
                "operation": operation,
                "layer": place.layer,
                "phase": place.phase,
                "label": place.label,
                "shape": tuple(tensor.shape),
                "dtype": tensor.dtype,
                "ranks": dist.get_process_group_ranks(group),
                **more,
            }
        )

    def all_to_all_single(output, source, receive=None, send=None, group=None):
        note("all_to_all", source, group, send=send, receive=receive)
        return real_exchange(output, source, receive, send, group=group)

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None):
        note("all_reduce", tensor, group)
        return real_reduce(tensor, op, group=group)

    def routing(layer, demand, dropped, group):
        log.append(
            {
                "operation": "routing",
                "layer": layer,
                "demand": demand.tolist(),
                "dropped": None if dropped is None else dropped.tolist(),
            }
        )

    end = annotate.subscribe(routing)
    dist.all_to_all_single, dist.all_reduce = all_to_all_single, all_reduce
    try:
        yield log
    finally:
        dist.all_to_all_single, dist.all_reduce = real_exchange, real_reduce
        end()


def training(
    rank: int, world: int, workload: str, times: int = 1, capture: str = ""
) -> dict[str, Any]:
    """Train, and return losses, parameters by name or (layer, expert), and the log."""
    module = importlib.import_module("moetraffic.models.train")
    models: list[GPT] = []

    def kept(*args: Any, **named: Any) -> GPT:
        models.append(language_model(*args, **named))
        return models[-1]

    module.language_model = kept
    work = Workload.from_json(workload)
    groups = connect(work.layout)
    with logged() as log, recorded(work, groups, capture) as recorder:
        losses = [
            train(work, recorder, groups=groups, corpus=corpus()) for _ in range(times)
        ]
    (*_, model) = models
    experts = {
        (m.layer, m.first_expert + i, name.removeprefix("inner.")): whole(p)[i]
        for m in model.mixtures
        for name, p in m.experts.named_parameters()
        for i in range(work.model.experts // work.layout.ep)
    }
    dense = {
        name: whole(p)
        for name, p in model.named_parameters()
        if ".experts." not in name
    }
    return {
        "losses": losses[0] if times == 1 else losses,
        "dense": dense,
        "experts": experts,
        "log": log,
        "dp_rank": groups.dp_rank,
        "tp_rank": dist.get_rank(groups.tp) if groups.tp else 0,
        "layers": groups.layers(work.model.layers),
        "placement": groups.placement(work.model.experts),
    }


def whole(p: torch.Tensor) -> torch.Tensor:
    """A parameter, gathered if each rank has a part."""
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()


def recorded(work: Workload, groups: Any, capture: str) -> Any:
    if not capture:
        return nullcontext()
    from moetraffic.capture import Recorder

    return Recorder(capture, workload=work, groups=groups.by_kind())


def exchanging(
    rank: int, world: int, rows: list[list[int]], hidden: int
) -> dict[str, Any]:
    """One uneven exchange and its gradient; ``rows[i][j]`` rows go from i to j."""
    send, receive = rows[rank], [rows[i][rank] for i in range(world)]
    x = torch.arange(sum(send) * hidden, dtype=torch.float64).view(-1, hidden)
    x = (x + 1000 * rank).requires_grad_()
    with logged() as log:
        y = exchange(
            x, send, receive, group=dist.group.WORLD, layer=5, phase="dispatch"
        )
        # a gradient that tells where it was made: rank, row, column
        g = torch.arange(y.numel(), dtype=torch.float64).view_as(y) + 10_000 * rank
        (y * g).sum().backward()
    return {"x": x.detach(), "y": y.detach(), "g": g, "grad": x.grad, "log": log}


class Fixed(torch.nn.Module):
    """A router that sends every token to the experts it was given."""

    def __init__(self, chosen: list[int], experts: int) -> None:
        super().__init__()
        self.chosen, self.experts = chosen, experts

    def forward(self, x: torch.Tensor, *, ids: torch.Tensor | None = None) -> Routing:
        expert = torch.tensor(self.chosen).expand(len(x), -1)
        return Routing.token_choice(
            expert=expert,
            weight=torch.full(expert.shape, 0.5, dtype=x.dtype),
            experts=self.experts,
            capacity=None,
            auxiliary_loss=x.new_zeros(()),
            z_loss=x.new_zeros(()),
        )


def lonely(rank: int, world: int, chosen: list[int]) -> dict[str, Any]:
    """All tokens of all ranks go to the same experts: the other ranks get none."""
    layer = MixtureOfExperts(
        Fixed(chosen, 8),
        experts=8,
        hidden=4,
        width=8,
        dispatch="dropless",
        layer=0,
        group=dist.group.WORLD,
    ).double()
    for i in range(len(layer.experts.up)):
        torch.manual_seed(layer.first_expert + i)
        with torch.no_grad():
            layer.experts.up[i].normal_()
            layer.experts.down[i].normal_()
    torch.manual_seed(100 + rank)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x)
    y.square().sum().backward()
    return {
        "x": x.detach(),
        "y": y.detach(),
        "x_grad": x.grad,
        "up_grad": layer.experts.up.grad,
    }


def fairscale(rank: int, world: int, workloads: dict[str, str]) -> dict[str, Any]:
    """The layer in the middle of a model and as its first, and training by router."""
    trained = {}
    for router, workload in workloads.items():
        torch.manual_seed(rank)  # the gate's noise
        trained[router] = training(rank, world, workload)
    return {
        "middle": fairscale_layer(rank, world, "float32", first=False),
        "first": fairscale_layer(rank, world, "float64", first=True),
        "trained": trained,
    }


def fairscale_layer(rank: int, world: int, dtype: str, first: bool) -> dict[str, Any]:
    """fairscale's MOELayer and our padded layer around its gate, with equal weights."""
    fairscale_moe = importlib.import_module("moetraffic.models.layers.fairscale_moe")
    gating = importlib.import_module("moetraffic.gating")
    experts, hidden, width, tokens = 2 * world, 8, 12, 4 * world
    results = {}
    for kind in (MixtureOfExperts, fairscale_moe.FairscaleMixture):
        layer = kind(
            gating.FairscaleTop2Router(hidden, experts),
            experts=experts,
            hidden=hidden,
            width=width,
            dispatch="padded",
            layer=3,
            group=dist.group.WORLD,
        ).to(getattr(torch, dtype))
        for name, parameter in sorted(layer.named_parameters()):
            torch.manual_seed(7 + rank if name.startswith("experts") else 7)
            with torch.no_grad():
                parameter.normal_()
        torch.manual_seed(100 + rank)
        x = torch.randn(tokens // 2, 2, hidden, dtype=getattr(torch, dtype))
        x.requires_grad_(not first)  # the first layer's input needs no gradient
        torch.manual_seed(200 + rank)
        with logged() as log:
            y, routing = layer(x)
            (y.square().sum() + routing.auxiliary_loss + routing.z_loss).backward()
        results[kind.__name__] = {
            "y": y.detach(),
            "gradients": {
                "x": x.grad,
                **{n: p.grad for n, p in sorted(layer.named_parameters())},
            },
            "demand": routing.demand(),
            "log": log,
            "place": annotate.place(),
        }
    return results


def nothing_arrives(rank: int, world: int) -> dict[str, Any]:
    """Split experts for which no token copy came."""
    from moetraffic.models.parallelism import tensor

    groups = connect(Layout(tp=world))
    tensor._hand_over(groups)
    experts = LocalExperts(2, 4, 6)
    for p in experts.parameters():
        torch.nn.init.ones_(p)
    half = tensor.SplitExperts(experts, 0, groups)
    x = torch.ones(0, 4, requires_grad=True)
    y = half.ragged(x, [0, 0])
    y.sum().backward()
    return {"y": y.detach(), "x_grad": x.grad}


def biased(rank: int, world: int) -> dict[str, Any]:
    """A feed-forward whose linears have biases, whole and split."""
    from moetraffic.models.parallelism import tensor

    groups = connect(Layout(tp=world))
    torch.manual_seed(0)
    module = FeedForward(4, 12)
    module.up, module.down = torch.nn.Linear(4, 12), torch.nn.Linear(12, 4)
    x = torch.randn(3, 4, requires_grad=True)
    expected = module(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    tensor._hand_over(groups)
    slices = tensor._split_linears(module, 0, groups)
    y = module(x)
    y.square().sum().backward()
    return {
        "y": y.detach(),
        "expected": expected.detach(),
        "x_grad": x.grad,
        "expected_grad": gradient,
        "slices": [tuple(p.shape) for p in slices],
    }


def norms(rank: int, world: int, layout: dict[str, Any]) -> dict[str, Any]:
    """Gradients set by hand, reduced and clipped."""
    groups = connect(Layout(**layout))
    ep, tp = groups.layout.ep, groups.layout.tp
    tp_rank = dist.get_rank(groups.tp) if groups.tp else 0
    dense = torch.nn.Parameter(torch.zeros(2))
    split = torch.nn.Parameter(torch.zeros(4 // tp))
    expert = torch.nn.Parameter(torch.zeros(8 // ep // tp))
    tied = torch.nn.Parameter(torch.zeros(1))
    shares = ParameterSets(
        replicated=[dense, tied],
        split=[split],
        experts=[expert],
        tied=tied if groups.embedding else None,
    )
    updates = ReplicatedUpdate(torch.nn.Module(), shares, groups, Training())
    dense.grad.fill_(groups.dp_rank)
    split.grad.copy_(torch.arange(4.0).view(tp, -1)[tp_rank])
    mine = torch.arange(8.0).view(ep, tp, -1)
    expert.grad.copy_(mine[groups.dp_rank % ep, tp_rank])
    tied.grad.fill_(1 + groups.stage)
    updates.reduce()
    reduced = [p.grad.clone() for p in (dense, split, expert, tied)]
    clip(updates, groups, 1.0)
    clipped = [p.grad for p in (dense, split, expert, tied)]
    return {
        "reduced": reduced,
        "clipped": clipped,
        "place": (groups.dp_rank % ep, tp_rank, groups.stage),
    }


def invariants(
    rank: int, world: int, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One MoE layer of each case forward and backward: what it decided and sent."""
    gating = importlib.import_module("moetraffic.gating")
    fairscale_moe = importlib.import_module("moetraffic.models.layers.fairscale_moe")
    told = []
    for number, case in enumerate(cases):
        asked = Gating(**case["gating"])
        whole = asked.router == "fairscale"
        kind = fairscale_moe.FairscaleMixture if whole else MixtureOfExperts
        layer = kind(
            gating.build(asked, 8, case["experts"], seed=number),
            experts=case["experts"],
            hidden=8,
            width=8,
            dispatch=asked.dispatch,
            layer=number,
            group=dist.group.WORLD,
        )
        torch.manual_seed(number)
        with torch.no_grad():
            for p in layer.parameters():
                p.normal_()
        torch.manual_seed(1000 * number + rank)
        tokens = case["tokens"]
        x = torch.randn(tokens, 8, requires_grad=True)
        with logged() as log:
            y, routing = layer(x, ids=torch.randint(256, (tokens,)))
            y.square().sum().backward()
        exchanges = {one["phase"]: one for one in log if one.get("phase")}
        told.append(
            {
                "demand": routing.demand(),
                "dropped": routing.dropped(),
                "capacity": routing.capacity,
                "k": routing.k,
                "reported": [e for e in log if e["operation"] == "routing"],
                "exchanges": exchanges,
            }
        )
    return told


def program(
    rank: int,
    world: int,
    folder: Path,
    workload: str,
    capture: str = "",
    token_sample: str = "",
    signal_after: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """The main program, sent a signal after so many steps, if any."""
    os.environ["MOETRAFFIC_WORKLOAD"] = workload
    os.environ["MOETRAFFIC_CAPTURE"] = capture
    os.environ["MOETRAFFIC_TOKEN_SAMPLE"] = token_sample
    if world > 1:
        os.environ["MOETRAFFIC_FILESTORE"] = str(folder / "store")
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    steps, number = signal_after
    events: list[str] = []

    def note(
        row: OwnRow, place: str = "", state: State | None = None, **fields: Any
    ) -> None:
        events.append("step" if state is None else state.name)
        if state is None and events.count("step") == steps:
            os.kill(os.getpid(), number)

    OwnRow.note = note  # type: ignore[method-assign,assignment]
    main = importlib.import_module("moetraffic.models.__main__")
    with redirect_stderr(StringIO()) as stderr:
        code = main.main()
    return {
        "code": code,
        "events": events,
        "stderr": stderr.getvalue(),
        "left_open": dist.is_initialized(),
    }


if __name__ == "__rank__":
    job, rank, world, folder, arguments = TASK  # noqa: F821 - set by conftest
    torch.set_num_threads(1)
    try:
        if job == "program":
            result = program(rank, world, folder, **arguments)
        else:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(str(folder / "store"), world),
                rank=rank,
                world_size=world,
            )
            try:
                play = globals().get(job)
                if play is None:  # it is one of the other file
                    beside = Path(__file__).with_name("libraries.py")
                    play = runpy.run_path(str(beside))[job]
                result = play(rank, world, **arguments)
            finally:
                dist.destroy_process_group()
        torch.save(result, folder / f"{rank}.pt")
    except BaseException:
        (folder / f"{rank}.error").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise
