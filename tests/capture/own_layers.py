"""A program of two MoE layers around a dense one, all plain attributes of the model.

``python own_layers.py FOLDER`` makes a trace of each case on two gloo ranks.  The
autograd function stores a name in its context, as programs do.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import initialize, play
from torch import Tensor, nn

from moetraffic import Recorder, capture

EXPERTS, K, HIDDEN, STEPS, WORLD = 8, 2, 16, 4, 2
CASES = {"plain": False, "annotated": True}  # with a registered router or without
NUMBERS = {"first": 0, "second": 2}  # layers as the program numbers them


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: Tensor, sizes: Any, place: Any, phase: str
    ) -> Tensor:
        ctx.sizes, ctx.place, ctx.phase = sizes, place, phase
        ctx.name, ctx._sequence_nr = "exchange", "none"
        return sent(rows, sizes, place, phase)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        back = ctx.sizes[::-1]
        grad = sent(grads[0].contiguous(), back, ctx.place, f"{ctx.phase}_grad")
        return grad, None, None, None


def sent(rows: Tensor, sizes: Any, place: Any, phase: str) -> Tensor:
    out = rows.new_empty(sum(sizes[0]), HIDDEN)
    with place(phase):
        dist.all_to_all_single(out, rows, *sizes)
    return out


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = self.scores(tokens).softmax(1).topk(K)
        return weights, ids


class Mixture(nn.Module):
    def __init__(self, name: str, *, annotated: bool) -> None:
        super().__init__()
        self.router, self.name, self.annotated = Router(), name, annotated
        self.expert = nn.Linear(HIDDEN, HIDDEN)
        self.routed: list[list[int]] = []

    def at(self, phase: str) -> AbstractContextManager[None]:
        if not self.annotated:
            return nullcontext()
        return capture.at(layer=NUMBERS[self.name], phase=phase)

    def forward(self, tokens: Tensor) -> Tensor:
        weights, ids = self.router(tokens)
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
        self.routed.append(counts.tolist())
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sizes = [c.view(WORLD, -1).sum(1).tolist() for c in (received, counts)]
        rows = tokens.repeat_interleave(K, 0)[order]
        there = self.expert(Exchange.apply(rows, sizes, self.at, "dispatch"))
        back = Exchange.apply(there, sizes[::-1], self.at, "combine")
        copies = torch.empty_like(back).index_copy(0, order, back)
        mixed = copies.view(-1, K, HIDDEN) * weights[..., None]
        return tokens + mixed.sum(1)


class Net(nn.Module):
    def __init__(self, *, annotated: bool) -> None:
        super().__init__()
        self.first = Mixture("first", annotated=annotated)
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.second = Mixture("second", annotated=annotated)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed = self.first(tokens)
        out: Tensor = self.second(mixed + self.dense(mixed))
        return out


def train(folder: Path, rank: int) -> None:
    torch.manual_seed(rank)
    initialize(folder / "store", rank, WORLD)
    routed = {}
    for case, annotated in CASES.items():
        if annotated:
            capture.router(Router, lambda _, output: output[1], experts=EXPERTS)
        net = Net(annotated=annotated)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with Recorder(folder / f"{case}.h5", k=K) as recorder:
            for _ in range(STEPS):
                tokens = torch.randn(64, HIDDEN, requires_grad=True)
                loss = net(tokens).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recorder.step(loss=loss)
        routed[case] = [net.first.routed, net.second.routed]
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(routed))


if __name__ == "__main__":
    play(train, WORLD)
