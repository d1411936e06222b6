"""How the calls of a layer are made: threads, recomputation, compilers, overlap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.utils.checkpoint import checkpoint

from .moe import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    STEPS,
    TOKENS,
    Block,
    Model,
    MoE,
    batch,
    loss_of,
    model,
    train,
)
from .truth import Place, Truth


def background_thread(truth: Truth) -> None:
    """All-to-alls are issued by a background thread."""
    with ThreadPoolExecutor(1) as pool:

        class Fed(MoE):
            def issue(self, *about: Any, **named: Any) -> Tensor:
                return pool.submit(super().issue, *about, **named).result()

        train(truth, model(truth, Fed))


class Recomputed(MoE):
    """A layer whose forward pass is repeated in the backward pass."""

    reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        at = self.truth.micro_batch

        def again(rows: Tensor) -> Tensor:
            self.truth.micro_batch = at
            return super(Recomputed, self).forward(rows)

        out: Tensor = checkpoint(again, tokens, use_reentrant=self.reentrant)
        return out


class Reentrant(Recomputed):
    reentrant = True


def checkpoint_reentrant(truth: Truth) -> None:
    """Gradient checkpointing, reentrant, 2 micro-batches."""
    train(truth, model(truth, Reentrant), micro_batches=2)


def checkpoint_non_reentrant(truth: Truth) -> None:
    """Gradient checkpointing, not reentrant, 2 micro-batches."""
    train(truth, model(truth, Recomputed), micro_batches=2)


class Functional(MoE):
    """All-to-alls by torch's functional collectives."""

    def exchange(
        self, rows: Tensor, received: list[int], sent: list[int], phase: str
    ) -> Tensor:
        place = self.place(phase)
        size = rows.shape[1] * rows.element_size()
        there, here = [n * size for n in sent], [n * size for n in received]

        def gradient(_: Tensor) -> None:
            log(here, there, place=place.gradient(), direction="backward")

        def log(*bytes_: list[int], **about: Any) -> None:
            self.truth.log("all_to_all", *bytes_, group=self.group, kind="ep", **about)

        log(there, here, place=place, direction="forward")
        out: Tensor = functional.all_to_all_single_autograd(
            rows, received, sent, self.group or dist.group.WORLD
        )
        if out.requires_grad:
            out.register_hook(gradient)  # as soon as the gradient is there
        return out


def functional_collectives(truth: Truth) -> None:
    """Functional collectives with gradients."""
    train(truth, model(truth, Functional))


class Fixed(nn.Module):
    """A layer that torch compiles: equal parts for all experts, nothing is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.expert = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        # expert choice: each expert takes a quarter of the tokens
        weight, token = self.gate(tokens).softmax(1).topk(TOKENS // EXPERTS, 0)
        rows = tokens[token.T.flatten()]
        even = [TOKENS // 2] * 2
        group = dist.group.WORLD
        arrived = functional.all_to_all_single_autograd(rows, even, even, group)
        done = self.expert(arrived).relu()
        back = functional.all_to_all_single_autograd(done, even, even, group)
        share = weight.T.reshape(-1, 1)
        return torch.zeros_like(tokens).index_add(0, token.T.flatten(), back * share)


def compiled(truth: Truth) -> None:
    """torch.compile of the whole model, collectives included."""
    module = Model(*(Block(Fixed()) for _ in range(LAYERS)))
    trained: Callable[[Tensor], Tensor] = torch.compile(module, backend="aot_eager")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    half = [TOKENS // 2 * HIDDEN * 4] * 2

    def log(direction: str, *phases: tuple[int, str]) -> None:
        for layer, phase in phases:
            place = Place(layer=layer, phase=phase)
            truth.log(
                "all_to_all", half, half, kind="ep", place=place, direction=direction
            )

    down = [(n, p) for n in range(LAYERS) for p in ("dispatch", "combine")]
    up = [
        (n, p)
        for n in reversed(range(LAYERS))
        for p in ("combine_grad", "dispatch_grad")
    ]
    for step in range(STEPS):
        rows = batch(truth, step)
        # a compiled graph logs nothing: the order is that of the model
        log("forward", *down)
        loss = loss_of(trained(rows), rows)
        log("backward", *up)
        truth.backward(loss)
        shared = [p for n, p in module.named_parameters() if ".expert." not in n]
        flat = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
        truth.all_reduce(flat)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(loss)


class Started(torch.autograd.Function):
    """Begin an all-to-all; in the backward pass, end the gradient's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, under_way: UnderWay) -> Tensor:
        ctx.under_way = under_way
        return under_way.start(rows, backward=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.under_way.wait(), None


class Ended(torch.autograd.Function):
    """End an all-to-all; in the backward pass, begin the gradient's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, under_way: UnderWay) -> Tensor:
        ctx.under_way = under_way
        return under_way.wait().clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.under_way.start(gradient, backward=True)
        return gradient, None


class UnderWay:
    """An all-to-all that is under way, or its gradient's."""

    def __init__(
        self, layer: MoE, place: Place, received: list[int], sent: list[int]
    ) -> None:
        self.layer, self.place = layer, place
        self.received, self.sent = received, sent

    def start(self, rows: Tensor, *, backward: bool) -> Tensor:
        received, sent = self.received, self.sent
        if backward:
            received, sent = sent, received
        self.rows = rows.contiguous()  # kept until it is sent
        self.output = rows.new_empty(sum(received), *rows.shape[1:])
        self.work = self.layer.truth.all_to_all(
            self.output,
            self.rows,
            received,
            sent,
            group=self.layer.group,
            place=self.place.gradient() if backward else self.place,
            backward=backward,
            async_op=True,
        )
        return self.output

    def wait(self) -> Tensor:
        self.work.wait()
        return self.output


class Overlapping(MoE):
    """A shared expert computes while tokens are under way, forward and backward."""

    def __init__(self, *about: Any, **named: Any) -> None:
        super().__init__(*about, **named)
        self.shared_expert = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        self.tokens = tokens
        routed = super().forward(tokens)
        out = routed + self.beside
        del self.tokens, self.beside
        return out

    def exchange(
        self, rows: Tensor, received: list[int], sent: list[int], phase: str
    ) -> Tensor:
        under_way = UnderWay(self, self.place(phase), received, sent)
        started = Started.apply(rows, under_way)
        if phase == "dispatch":
            self.beside = self.shared_expert(self.tokens).relu()
        out: Tensor = Ended.apply(started, under_way)
        return out


def shared_experts(truth: Truth) -> None:
    """A shared expert overlaps the all-to-alls (async_op=True)."""
    train(truth, model(truth, Overlapping), micro_batches=2)
