"""Routers that a program registers itself, rightly and wrongly, on two gloo ranks.

``moetraffic run -- python own_gates.py FOLDER`` makes a trace of each case, in the
order of CASES; each rank leaves the token copies of its calls in ``FOLDER``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import initialize, play
from torch import Tensor, nn

from moetraffic import capture

EXPERTS, K, HIDDEN, STEPS, WORLD = 8, 2, 16, 4, 2

Read = Callable[[Any, Any], Any]
CASES: dict[str, tuple[Read, int | None]] = {
    "right": (lambda _, output: output[1], EXPERTS),
    "too few experts": (lambda _, output: output[1], 4),
    "first choices": (lambda _, output: output[1][:, 0], EXPERTS),
    "weights": (lambda _, output: output[0], EXPERTS),
    "no such output": (lambda _, output: output[5], EXPERTS),
    "experts unknown": (lambda _, output: output[1], None),
    "annotated": (lambda _, output: output[1], EXPERTS),
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

    def __init__(self, *, annotated: bool) -> None:
        super().__init__()
        self.gate, self.annotated = MyGate(), annotated
        self.routed: list[list[int]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        ids = self.gate(tokens)[1].flatten()
        counts = torch.bincount(ids, minlength=EXPERTS)
        self.routed.append(counts.tolist())
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sizes = [c.view(WORLD, -1).sum(1).tolist() for c in (received, counts)]
        rows = tokens.detach()[ids.argsort(stable=True) // K]
        there = torch.empty(sum(sizes[0]), HIDDEN)
        with self.at("dispatch"):
            dist.all_to_all_single(there, rows, *sizes)
        back = torch.empty(sum(sizes[1]), HIDDEN)
        with self.at("combine"):
            dist.all_to_all_single(back, there, sizes[1], sizes[0])
        if self.annotated:  # an exchange of something else
            dist.all_to_all_single(torch.empty(4), torch.ones(4))
        return back

    def at(self, phase: str) -> AbstractContextManager[None]:
        """Annotate a call, or nothing."""
        return capture.at(layer=0, phase=phase) if self.annotated else nullcontext()


def train(folder: Path, rank: int) -> None:
    routed = {}
    for number, (name, (read, experts)) in enumerate(CASES.items()):
        undo = capture.router(MyGate, read, experts=experts)
        initialize(folder / f"store-{number}", rank, WORLD)
        torch.manual_seed(100 * number + rank)
        layer = Mixture(annotated=name == "annotated")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(STEPS):
            tokens = torch.randn(64, HIDDEN)
            layer(tokens)
            layer.gate(tokens)[0].var().backward()
            dist.all_reduce(layer.gate.scores.weight.grad)
            optimizer.step()
        routed[name] = layer.routed
        dist.destroy_process_group()
        undo()
    (folder / f"{rank}.json").write_text(json.dumps(routed))


if __name__ == "__main__":
    play(train, WORLD)
