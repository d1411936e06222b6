"""A small MoE model, whose all-to-alls go through a :class:`~truth.Truth`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .truth import Place, Truth

HIDDEN, EXPERTS, TOKENS, LAYERS, STEPS = 8, 4, 16, 3, 6


class Exchange(torch.autograd.Function):
    """An all-to-all of rows, whose gradient goes the other way."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        received: list[int],
        sent: list[int],
        place: Place,
        layer: MoE,
    ) -> Tensor:
        ctx.splits, ctx.place, ctx.layer = (sent, received), place, layer
        return layer.issue(rows.contiguous(), received, sent, place, backward=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        place = ctx.place.gradient()
        rows = gradient.contiguous()
        back = ctx.layer.issue(rows, *ctx.splits, place, backward=True)
        return back, None, None, None, None


class MoE(nn.Module):
    """Top-k routing, dispatch, experts, combine.

    Without a capacity the ranks exchange counts first, and send what is routed; with
    one, every expert is sent as many rows by each rank, padded with zeros.
    """

    def __init__(
        self,
        truth: Truth,
        layer: int,
        *,
        hidden: int = HIDDEN,
        k: int = 1,
        capacity: float = 0.0,
        group: Any = None,
    ) -> None:
        super().__init__()
        self.truth, self.layer, self.group = truth, layer, group
        self.k, self.capacity = k, capacity
        self.ranks = torch.distributed.get_world_size(group)
        self.gate = nn.Linear(hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Linear(hidden, hidden) for _ in range(EXPERTS // self.ranks)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        weight, expert = self.gate(tokens).softmax(1).topk(self.k, 1)
        if self.capacity:
            return self.padded(tokens, weight, expert)
        return self.dropless(tokens, weight, expert)

    def dropless(self, tokens: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        chosen = expert.flatten()
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        theirs = self.exchange_counts(counts).view(self.ranks, -1)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = theirs.sum(1).tolist()
        arrived = self.exchange(tokens[order // self.k], received, sent, "dispatch")
        which = torch.arange(len(self.experts)).repeat(self.ranks)
        which = which.repeat_interleave(theirs.flatten())
        by_expert = which.argsort(stable=True)
        done = self.compute(arrived[by_expert], theirs.sum(0).tolist())
        done = torch.empty_like(done).index_copy(0, by_expert, done)
        back = self.exchange(done, sent, received, "combine")
        share = weight.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.k, back * share)

    def padded(self, tokens: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        room = math.ceil(self.capacity * self.k * len(tokens) / EXPERTS)
        marks = nn.functional.one_hot(expert.T.flatten(), EXPERTS)
        place = ((marks.cumsum(0) - 1) * marks).sum(1)
        kept = place < room
        slot = (expert.T.flatten() * room + place)[kept]
        token = torch.arange(len(tokens)).repeat(self.k)[kept]
        share = weight.T.flatten()[kept, None]
        rows = tokens.new_zeros(EXPERTS * room, tokens.shape[1])
        rows = rows.index_copy(0, slot, tokens[token])
        even = [EXPERTS * room // self.ranks] * self.ranks
        arrived = self.exchange(rows, even, even, "dispatch")
        by_rank = arrived.view(self.ranks, len(self.experts), room, -1)
        each = [
            e(part.flatten(0, 1)).relu()
            for e, part in zip(self.experts, by_rank.unbind(1), strict=True)
        ]
        done = torch.stack([e.view(self.ranks, room, -1) for e in each], 1)
        back = self.exchange(done.flatten(0, 2), even, even, "combine")
        return torch.zeros_like(tokens).index_add(0, token, back[slot] * share)

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        parts = rows.split(counts)
        return torch.cat(
            [e(part).relu() for e, part in zip(self.experts, parts, strict=True)]
        )

    # ---- what other kinds of layers replace ------------------------------------------

    def place(self, phase: str = "", label: str = "") -> Place:
        at = self.truth.micro_batch
        return Place(layer=self.layer, phase=phase, label=label, micro_batch=at)

    def exchange_counts(self, counts: Tensor) -> Tensor:
        even = [len(counts) // self.ranks] * self.ranks
        place = self.place(label="count_exchange")
        return self.issue(counts, even, even, place, backward=False)

    def exchange(
        self, rows: Tensor, received: list[int], sent: list[int], phase: str
    ) -> Tensor:
        out: Tensor = Exchange.apply(rows, received, sent, self.place(phase), self)
        return out

    def issue(
        self,
        rows: Tensor,
        received: list[int],
        sent: list[int],
        place: Place,
        *,
        backward: bool,
    ) -> Tensor:
        output = rows.new_empty(sum(received), *rows.shape[1:])
        self.truth.all_to_all(
            output,
            rows,
            received,
            sent,
            group=self.group,
            place=place,
            backward=backward,
        )
        return output


class Block(nn.Module):
    """A dense layer and a MoE layer, each with a residual connection."""

    def __init__(self, moe: nn.Module, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.dense, self.moe = nn.Linear(hidden, hidden), moe

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.dense(tokens).tanh()
        out: Tensor = tokens + self.moe(tokens)
        return out


class Model(nn.Module):
    """Blocks between a first and a last dense layer."""

    def __init__(self, *blocks: nn.Module, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(HIDDEN, hidden), nn.Linear(hidden, 1)
        self.layers = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.first(tokens)
        for layer in self.layers:
            tokens = layer(tokens)
        out: Tensor = self.last(tokens)
        return out


def model(truth: Truth, kind: Callable[..., MoE] = MoE, **about: Any) -> Model:
    return Model(*(Block(kind(truth, layer, **about)) for layer in range(LAYERS)))


def batch(
    truth: Truth, step: int, micro_batch: int = 0, tokens: int = TOKENS
) -> Tensor:
    """A rank's tokens of a micro-batch, ``[tokens, HIDDEN]``."""
    seed = 1000 * step + 10 * micro_batch + truth.rank
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def loss_of(output: Tensor, tokens: Tensor) -> Tensor:
    return (output[:, 0] - tokens.sum(1).tanh()).square().mean()


def shared(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that all ranks hold."""
    named = module.named_parameters()
    return [p for name, p in named if ".experts." not in name]


def synchronize(truth: Truth, module: nn.Module, group: Any = None) -> None:
    """Average the gradients of the parameters that all ranks hold."""
    held = [p for p in shared(module) if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in held if p.grad is not None])
    truth.all_reduce(flat, group=group)
    flat /= torch.distributed.get_world_size(group)
    for p, part in zip(held, flat.split([p.numel() for p in held]), strict=True):
        assert p.grad is not None
        p.grad.copy_(part.view_as(p))


def train(
    truth: Truth,
    module: nn.Module,
    *,
    micro_batches: int = 1,
    tokens: Callable[[int, int], int] = lambda step, micro_batch: TOKENS,
    before: Callable[[int], None] = lambda step: None,
    steps: int = STEPS,
) -> None:
    """Train as plainly as can be; ``before`` runs before each step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(steps):
        before(step)
        total = 0.0
        for m in range(micro_batches):
            truth.micro_batch = m
            rows = batch(truth, step, m, tokens(step, m))
            loss = loss_of(module(rows), rows)
            truth.backward(loss)
            total += float(loss)
        synchronize(truth, module)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(total)
