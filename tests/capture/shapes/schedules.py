"""Schedules: several micro-batches or chunks under way at once, pipelines."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .moe import (
    HIDDEN,
    STEPS,
    TOKENS,
    Block,
    MoE,
    batch,
    loss_of,
    model,
    synchronize,
)
from .truth import Place, Truth

MICRO_BATCHES = 4


class Passes:
    """Forward and backward passes of parts of a model, cut at their inputs."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.kept: dict[tuple[int, Any], tuple[Tensor, Tensor]] = {}

    def forward(self, m: int, part: Any, module: nn.Module, rows: Tensor) -> Tensor:
        entered = rows.detach().requires_grad_()
        self.truth.micro_batch = m
        out: Tensor = module(entered)
        self.kept[m, part] = entered, out
        return out.detach()

    def backward(self, m: int, part: Any, gradient: Tensor | None) -> Tensor:
        """Gradient of the input; None where the part ends with the loss."""
        entered, out = self.kept.pop((m, part))
        self.truth.backward(out, gradient)
        assert entered.grad is not None
        return entered.grad


class Last(nn.Module):
    """The last layer and the loss of a micro-batch."""

    def __init__(self, last: nn.Module, tokens: Tensor) -> None:
        super().__init__()
        self.last, self.tokens = last, tokens

    def forward(self, rows: Tensor) -> Tensor:
        return loss_of(self.last(rows), self.tokens)


def overlapped(truth: Truth) -> None:
    """DualPipe-like: the forward pass of a micro-batch beside the last one's backward.

    Layer by layer: layer l of micro-batch m forward, then the l-th layer from the end
    of micro-batch m-1 backward.
    """
    module = model(truth)
    parts = [module.first, *module.layers]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        passes, total = Passes(truth), 0.0
        gradient: Tensor | None = None
        for m in range(MICRO_BATCHES + 1):
            tokens = batch(truth, step, m)
            rows = tokens
            if m > 0:
                gradient = passes.backward(m - 1, "loss", None)
            for at, part in enumerate(parts):
                if m < MICRO_BATCHES:
                    rows = passes.forward(m, at, part, rows)
                if m > 0:
                    gradient = passes.backward(m - 1, len(parts) - 1 - at, gradient)
            if m < MICRO_BATCHES:
                end = Last(module.last, tokens)
                total += float(passes.forward(m, "loss", end, rows))
        synchronize(truth, module)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(total)


def two_chunks(truth: Truth) -> None:
    """Two chunks of a batch alternate layer by layer."""
    module = model(truth)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        tokens = [batch(truth, step, chunk) for chunk in range(2)]
        chunks = [module.first(rows) for rows in tokens]
        for layer in module.layers:
            for chunk in range(2):
                truth.micro_batch = chunk
                chunks[chunk] = layer(chunks[chunk])
        loss = sum(
            loss_of(module.last(c), rows)
            for c, rows in zip(chunks, tokens, strict=True)
        )
        assert isinstance(loss, Tensor)
        truth.backward(loss)
        synchronize(truth, module)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(loss)


class Pipeline:
    """A rank of 2 stages x 2 expert-parallel ranks, with ``chunks`` virtual stages.

    World ranks 0 and 1 are the first stage, 2 and 3 the second.
    """

    def __init__(self, truth: Truth, *, chunks: int, layers: int) -> None:
        self.truth, self.chunks, self.layers = truth, chunks, layers
        expert = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        self.stage, self.group = truth.rank // 2, expert[truth.rank // 2]
        self.peer = (truth.rank + 2) % 4
        self.last = 2 * chunks - 1  # virtual stage
        self.parts = nn.ModuleList(
            self._part(c * 2 + self.stage) for c in range(chunks)
        )
        self.optimizer = torch.optim.SGD(self.parts.parameters(), lr=0.05)

    def _part(self, virtual: int) -> nn.Module:
        first = virtual * self.layers
        blocks: list[nn.Module] = [
            Block(MoE(self.truth, first + n, group=self.group))
            for n in range(self.layers)
        ]
        if virtual == 0:
            blocks.insert(0, nn.Linear(HIDDEN, HIDDEN))
        if virtual == self.last:
            blocks.append(nn.Linear(HIDDEN, 1))
        return nn.Sequential(*blocks)

    def begin(self, step: int) -> None:
        self.step, self.total = step, 0.0
        self.passes, self.waiting = Passes(self.truth), []

    def tokens(self, m: int) -> Tensor:
        """The tokens of a micro-batch: both stages know them, for the loss."""
        generator = torch.Generator().manual_seed(
            1000 * self.step + 10 * m + self.truth.rank % 2
        )
        return torch.randn(TOKENS, HIDDEN, generator=generator)

    def tag(self, m: int, virtual: int, *, gradient: bool) -> int:
        return (m * 2 * self.chunks + virtual) * 2 + gradient

    def send(self, rows: Tensor, m: int, virtual: int, *, gradient: bool) -> None:
        tag = self.tag(m, virtual, gradient=gradient)
        place = Place(micro_batch=m)
        self.waiting.append((self.truth.send(rows, self.peer, tag, place), rows))

    def receive(self, m: int, virtual: int, *, gradient: bool) -> Tensor:
        rows = torch.empty(TOKENS, HIDDEN)
        tag = self.tag(m, virtual, gradient=gradient)
        self.truth.receive(rows, self.peer, tag, Place(micro_batch=m))
        return rows

    def forward(self, m: int, chunk: int) -> None:
        virtual = chunk * 2 + self.stage
        rows = self.receive(m, virtual, gradient=False) if virtual else self.tokens(m)
        part = self.parts[chunk]
        if virtual == self.last:
            part = nn.Sequential(part[:-1], Last(part[-1], self.tokens(m)))
        rows = self.passes.forward(m, chunk, part, rows)
        if virtual == self.last:
            self.total += float(rows)
        else:
            self.send(rows, m, virtual + 1, gradient=False)

    def backward(self, m: int, chunk: int) -> None:
        virtual = chunk * 2 + self.stage
        gradient = None
        if virtual < self.last:
            gradient = self.receive(m, virtual, gradient=True)
        gradient = self.passes.backward(m, chunk, gradient)
        if virtual:
            self.send(gradient, m, virtual - 1, gradient=True)

    def end(self) -> None:
        for work, _ in self.waiting:
            work.wait()
        synchronize(self.truth, self.parts, self.group)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.truth.stepped(self.total)


def one_forward_one_backward(truth: Truth) -> None:
    """1F1B: 2 stages of 2 layers, 4 micro-batches."""
    pipeline = Pipeline(truth, chunks=1, layers=2)
    warm = 1 - pipeline.stage
    for step in range(STEPS):
        pipeline.begin(step)
        for m in range(MICRO_BATCHES + warm):
            if m < MICRO_BATCHES:
                pipeline.forward(m, 0)
            if m >= warm:
                pipeline.backward(m - warm, 0)
        pipeline.end()


def interleaved(truth: Truth) -> None:
    """Interleaved 1F1B: 2 stages of 2 virtual stages, one layer each."""
    pipeline = Pipeline(truth, chunks=2, layers=1)
    turns = [(m, c) for first in (0, 2) for c in (0, 1) for m in (first, first + 1)]
    warm = (1 - pipeline.stage) * 2 + 2
    for step in range(STEPS):
        pipeline.begin(step)
        for n in range(len(turns) + warm):
            if n < len(turns):
                pipeline.forward(*turns[n])
            if n >= warm:
                m, chunk = turns[n - warm]
                pipeline.backward(m, 1 - chunk)
        pipeline.end()
