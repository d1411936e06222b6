"""Training loops: what is a step, and what is in it."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .moe import (
    HIDDEN,
    LAYERS,
    STEPS,
    Block,
    Model,
    MoE,
    batch,
    loss_of,
    model,
    synchronize,
    train,
)
from .truth import Truth


def switch(truth: Truth) -> None:
    """Switch: top-1, dropless."""
    train(truth, model(truth))


def gshard(truth: Truth) -> None:
    """GShard: top-2 with a capacity, padded."""
    train(truth, model(truth, k=2, capacity=1.25))


def accumulation(truth: Truth) -> None:
    """Gradients of 3 micro-batches are accumulated."""
    train(truth, model(truth), micro_batches=3)


def varying(truth: Truth) -> None:
    """Each micro-batch has another number of tokens."""

    def tokens(step: int, m: int) -> int:
        return 5 + (7 * step + 3 * m + 5 * truth.rank) % 13

    train(truth, model(truth), micro_batches=2, tokens=tokens)


def evaluate(truth: Truth, module: nn.Module, step: int, batches: int = 2) -> None:
    with torch.no_grad():
        total = 0.0
        for m in range(batches):
            truth.micro_batch = m
            rows = batch(truth, 100 + step, m)
            total += float(loss_of(module(rows), rows))
    truth.stepped(total, "evaluation", optimized=False)


def evaluation(truth: Truth) -> None:
    """An evaluation of 2 batches before every second training step."""
    module = model(truth)

    def before(step: int) -> None:
        if step % 2 == 1:
            evaluate(truth, module, step)

    train(truth, module, before=before)


def evaluation_beside_ddp(truth: Truth) -> None:
    """The same, with DDP around the dense layers before and after the MoE layers."""
    truth.lifted = ["all_gather", "broadcast", "all_reduce"]  # DDP calls them by itself
    module = model(truth)
    # of the second step's forward: DDP's broadcasts, before and after the layers
    module.first = DistributedDataParallel(module.first)
    module.last = DistributedDataParallel(module.last)

    def before(step: int) -> None:
        if step % 2 == 1:
            evaluate(truth, module, step)

    train(truth, module, before=before)


def inference(truth: Truth) -> None:
    """Inference: no backward pass and no optimizer."""
    module = model(truth)
    for step in range(STEPS):
        evaluate(truth, module, step, batches=1)


class Trunk(Model):
    """A model with one more MoE block after the trunk, in training only."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(*(Block(MoE(truth, layer)) for layer in range(LAYERS)))
        self.mtp, self.second = Block(MoE(truth, LAYERS)), nn.Linear(HIDDEN, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.first(tokens)
        for layer in self.layers:
            tokens = layer(tokens)
        out: Tensor = self.last(tokens)
        if self.training:
            out = out + 0.3 * self.second(self.mtp(tokens))
        return out


def mtp(truth: Truth) -> None:
    """Multi-token prediction: an additional MoE block in training only."""
    module = Trunk(truth)

    def before(step: int) -> None:
        if step in (2, 4):
            module.eval()
            evaluate(truth, module, step)
            module.train()

    train(truth, module, before=before)


def nan_loss(truth: Truth) -> None:
    """The program skips steps 2 and 4, whose losses are NaN."""
    module = model(truth)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        rows = batch(truth, step)
        loss = loss_of(module(rows), rows) * (float("nan") if step in (2, 4) else 1.0)
        bad = torch.tensor([float(not torch.isfinite(loss))])
        truth.all_reduce(bad)
        if bad:
            truth.stepped(loss, "skipped", optimized=False)
            continue
        truth.backward(loss)
        synchronize(truth, module)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(loss)


def overflow(truth: Truth) -> None:
    """The gradient scaler skips steps 2 and 4, whose gradients overflow."""
    module = model(truth)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        rows = batch(truth, step)
        loss = loss_of(module(rows), rows)
        large = step in (2, 4)
        truth.backward(scaler.scale(loss * 1e38 if large else loss))
        synchronize(truth, module)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        truth.stepped(loss, "skipped" if large else "train")


def left(truth: Truth) -> None:
    """The program ends with os._exit."""
    train(truth, model(truth))
    truth.save()
    os._exit(0)


def two_kinds(truth: Truth) -> None:
    """Two kinds of MoE layers: top-1, and top-2 of another width."""

    class Widened(Block):
        def __init__(self, moe: nn.Module) -> None:
            super().__init__(moe)
            self.up, self.down = nn.Linear(HIDDEN, 12), nn.Linear(12, HIDDEN)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = tokens + self.down(self.moe(self.up(tokens).tanh()))
            return out

    wide = MoE(truth, 1, hidden=12, k=2)
    module = Model(Block(MoE(truth, 0)), Widened(wide), Block(MoE(truth, 2)))
    train(truth, module)


def optimizers_in_backward(truth: Truth) -> None:
    """Each parameter's optimizer steps inside the backward pass."""
    module = model(truth)
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in module.parameters()}
    held = {id(p) for n, p in module.named_parameters() if ".experts." not in n}

    def accumulated(p: Tensor) -> None:
        if id(p) in held:
            assert p.grad is not None
            truth.all_reduce(p.grad)
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in module.parameters():
        p.register_post_accumulate_grad_hook(accumulated)
    for step in range(STEPS):
        rows = batch(truth, step)
        loss = loss_of(module(rows), rows)
        truth.backward(loss)
        truth.stepped(loss)
