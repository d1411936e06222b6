"""Routers that a program registers itself, rightly and wrongly, on two gloo ranks.

``moetraffic run -- python own_gates.py FOLDER`` makes a trace of each case, in the
order of CASES; each rank leaves the token copies of its calls in ``FOLDER``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import initialize, play
from torch import Tensor, nn

from moetraffic import capture

EXPERTS, K, HIDDEN, STEPS, WORLD = 8, 2, 16, 4, 2

Read = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, what it tells the recorder, and which rows its layers send."""

    read: Read | None = lambda _, output: output[1]  # None: capture.routing
    experts: int | None = EXPERTS
    annotated: bool = False
    again: bool = False  # the gate is called a second time
    layers: int = 1
    batches: Sequence[int] = (64,)  # tokens of the micro-batches of a step
    capacity: int = 64 * K  # copies that an expert takes of a rank
    sends: str = "copies"  # "once" a rank, to "others", or "padded" to the capacity
    tells: str = ""  # capture.routing: "demand", or "drops" as well


FULL = 12
CASES = {
    "right": Case(again=True),
    "too few experts": Case(experts=4, again=True),
    "first choices": Case(read=lambda _, output: output[1][:, 0], again=True),
    "weights": Case(read=lambda _, output: output[0], again=True),
    "no such output": Case(read=lambda _, output: output[5], again=True),
    "experts unknown": Case(experts=None, again=True),
    "annotated": Case(annotated=True, again=True),
    "all sent": Case(layers=2, batches=(64, 48, 32)),
    "capacity": Case(capacity=FULL),
    "accumulation": Case(capacity=FULL, layers=2, batches=(64, 48, 32)),
    "once": Case(sends="once", layers=2, batches=(64, 32)),
    "routed again": Case(capacity=FULL, again=True),
    "to others": Case(capacity=FULL, sends="others"),
    "padded": Case(capacity=FULL, sends="padded"),
    "demand of all": Case(read=None, tells="demand"),
    "demand": Case(read=None, tells="demand", capacity=FULL),
    "drops": Case(read=None, tells="drops", capacity=FULL, batches=(64, 32)),
    "both": Case(tells="drops", capacity=FULL, batches=(64, 32), layers=2),
    "flat": Case(read=lambda _, output: output[1].flatten(), layers=2),
}


class MyGate(nn.Module):
    """Returns weights ``[T, K]``, ids ``[T, K]``, and all probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.scores(tokens).softmax(1)
        return (*scores.topk(K), scores)


class Mixture(nn.Module):
    """A MoE layer that sends each copy to the rank of its expert, and back."""

    def __init__(self, case: Case, number: int) -> None:
        super().__init__()
        self.gate, self.case, self.number = MyGate(), case, number
        self.routed: list[list[int]] = []
        self.sent: list[int] = []

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        case = self.case
        weights, ids, _ = self.gate(tokens)
        ids = ids.flatten()
        demand = torch.bincount(ids, minlength=EXPERTS)
        self.routed.append(demand.tolist())
        if case.tells:
            over = (demand - case.capacity).clamp(min=0)
            told = over if case.tells == "drops" else None
            capture.routing(self.number, demand, told)
        order = ids.argsort(stable=True)
        place = torch.arange(len(ids)) - (demand.cumsum(0) - demand)[ids[order]]
        order = order[place < case.capacity]
        to, token = ids[order] * WORLD // EXPERTS, order // K
        counts = torch.bincount(ids[order], minlength=EXPERTS)
        if case.sends == "once":
            to, token = torch.stack([to, token]).unique(dim=1)
        elif case.sends == "others":
            away = to != dist.get_rank()
            to, token = to[away], token[away]
        elif case.sends == "padded":
            to = torch.arange(WORLD).repeat_interleave(case.capacity * EXPERTS // WORLD)
            token = torch.zeros_like(to)
        if case.sends != "copies":
            counts = torch.bincount(to, minlength=WORLD)
        self.sent.append(len(token))
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sizes = [c.view(WORLD, -1).sum(1).tolist() for c in (received, counts)]
        rows = tokens.detach()[token]
        there = torch.empty(sum(sizes[0]), HIDDEN)
        with self.at("dispatch"):
            dist.all_to_all_single(there, rows, *sizes)
        back = torch.empty(sum(sizes[1]), HIDDEN)
        with self.at("combine"):
            dist.all_to_all_single(back, there, sizes[1], sizes[0])
        if case.annotated:  # an exchange of something else
            dist.all_to_all_single(torch.empty(4), torch.ones(4))
        return tokens.roll(1, 1), weights

    def at(self, phase: str) -> AbstractContextManager[None]:
        """Annotate a call, or nothing."""
        if not self.case.annotated:
            return nullcontext()
        return capture.at(layer=self.number, phase=phase)


def train(folder: Path, rank: int) -> None:
    logs: dict[str, dict[str, Any]] = {"routed": {}, "sent": {}}
    for number, (name, case) in enumerate(CASES.items()):
        if case.read is not None:
            undo = capture.router(MyGate, case.read, experts=case.experts)
        initialize(folder / f"store-{number}", rank, WORLD)
        torch.manual_seed(100 * number + rank)
        layers = nn.ModuleList(Mixture(case, n) for n in range(case.layers))
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        for _ in range(STEPS):
            for size in case.batches:
                tokens = torch.randn(size, HIDDEN)
                for layer in layers:
                    tokens, weights = layer(tokens)
                    if case.again:
                        weights = layer.gate(tokens)[0]
                    weights.var().backward()
            for parameter in layers.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        logs["routed"][name] = [layer.routed for layer in layers]
        logs["sent"][name] = [layer.sent for layer in layers]
        dist.destroy_process_group()
        if case.read is not None:
            undo()
    (folder / f"{rank}.json").write_text(json.dumps(logs))


if __name__ == "__main__":
    play(train, WORLD)
