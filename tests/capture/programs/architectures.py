"""Programs whose MoE layers are called, named or built in another way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

from tests.capture.shapes.layouts import Ulysses
from tests.capture.shapes.moe import Exchange
from tests.capture.shapes.truth import Place, Truth

from .pieces import (
    EVERY_OTHER,
    HIDDEN,
    Layer,
    Normed,
    data,
    evaluate,
    stack,
    synchronize,
    train,
)


def _trained(
    truth: Truth, module: nn.Module, *, steps: int = 6, batches: int = 1
) -> None:
    truth.lifted = EVERY_OTHER
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(steps):
        train(truth, module, optimizer, *(data(truth, step, m) for m in range(batches)))


class EncoderDecoder(nn.Module):
    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.encoder, self.cross = stack(truth, 2), nn.Linear(HIDDEN, HIDDEN)
        self.decoder = nn.Sequential(*(Normed(Layer(truth, n)) for n in (2, 3)))

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.encoder(tokens)
        out: Tensor = self.decoder(tokens + self.cross(seen).tanh())
        return out


def encoder_decoder(truth: Truth) -> None:
    """MoE layers in an encoder and in a decoder, evaluated at the end."""
    module = EncoderDecoder(truth)
    _trained(truth, module)
    evaluate(truth, module, data(truth, 900), data(truth, 901))


class Named(nn.Module):
    """Dense layers between MoE layers that are attributes, or in a dictionary."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.moe_a, self.dense_a = Layer(truth, 0), nn.Linear(HIDDEN, HIDDEN)
        self.moe_b, self.dense_b = Layer(truth, 1), nn.Linear(HIDDEN, HIDDEN)
        self.towers = nn.ModuleDict(
            {n: Layer(truth, 2 + m) for m, n in enumerate("xy")}
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.moe_a(tokens)
        tokens = self.dense_a(tokens).relu()
        tokens = tokens + self.moe_b(tokens)
        tokens = self.dense_b(tokens).relu()
        # both see the same rows
        out: Tensor = self.towers["x"](tokens) + self.towers["y"](tokens)
        return out


def named_layers(truth: Truth) -> None:
    """MoE layers as attributes and in a ModuleDict, two of them beside each other."""
    _trained(truth, Named(truth), batches=2)


class Tied(nn.Module):
    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.block, self.last = Normed(Layer(truth, 0)), Normed(Layer(truth, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.last(self.block(self.block(tokens)))
        return out


def tied_layers(truth: Truth) -> None:
    """A layer is called twice in a forward pass; the second is its micro-batch 1."""
    _trained(truth, Tied(truth))


class Recomputed(nn.Module):
    """Blocks that are computed again in the backward pass."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=False)
        return tokens


def recomputed_blocks(truth: Truth) -> None:
    """Gradient checkpointing of whole blocks, 2 micro-batches, and an evaluation."""
    module = Recomputed(*stack(truth, 3))
    _trained(truth, module, batches=2)
    evaluate(truth, module, data(truth, 900))
    _trained(truth, module, steps=2, batches=2)


class Attention(Ulysses):
    """Attention whose all-to-alls belong to no MoE layer."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth, -1)

    def turned(self, rows: Tensor, place: Place) -> Tensor:
        return super().turned(rows, Place())

    def forward(self, tokens: Tensor) -> Tensor:
        halves = tokens.view(-1, 16, 8).unbind(0)  # of 16 tokens and 8 values
        return torch.stack([super(Attention, self).forward(h) for h in halves]).view_as(
            tokens
        )


def sequence_parallel(truth: Truth) -> None:
    """All-to-alls of attention beside those of padded experts."""
    blocks: list[nn.Module] = []
    for n in range(2):
        blocks += [Attention(truth), Normed(Layer(truth, n, capacity=1.25))]
    _trained(truth, nn.Sequential(*blocks))


class ExpertChoice(Layer):
    """Each expert takes as many tokens of each rank."""

    def padded(self, tokens: Tensor, *_: Any) -> Tensor:
        weight, token = self.gate(tokens).softmax(1).topk(len(tokens) // 4, 0)
        rows = tokens[token.T.flatten()]
        even = [len(rows) // self.ranks] * self.ranks
        arrived = self.exchange(rows, even, even, "dispatch")
        parts = arrived.view(self.ranks, len(self.experts), -1, HIDDEN).unbind(1)
        done = [e(p).relu() for e, p in zip(self.experts, parts, strict=True)]
        back = self.exchange(torch.stack(done, 1).flatten(0, 2), even, even, "combine")
        share = weight.T.reshape(-1, 1)
        return torch.zeros_like(tokens).index_add(0, token.T.flatten(), back * share)


def expert_choice(truth: Truth) -> None:
    """Experts choose tokens: all-to-alls of constant size, without counts."""
    module = nn.Sequential(
        *(Normed(ExpertChoice(truth, n, capacity=1.0)) for n in range(3))
    )
    _trained(truth, module, batches=2)
    evaluate(truth, module, data(truth, 900))


class Issuer:
    """Issues the all-to-alls of a functional layer."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

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
            output, rows, received, sent, place=place, backward=backward
        )
        return output


def sparse(
    truth: Truth, layer: int, tokens: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """A top-1 MoE layer with one expert on each rank."""
    issuer, even = Issuer(truth), [1] * truth.world
    weight, expert = (tokens @ gate).softmax(1).max(1)
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=truth.world)
    place = Place(layer=layer, label="count_exchange")
    theirs = issuer.issue(counts, even, even, place, backward=False)
    there, here = theirs.tolist(), counts.tolist()
    place = Place(layer=layer, phase="dispatch")
    arrived = Exchange.apply(tokens[order], there, here, place, issuer)
    done = (arrived @ up).relu() @ down
    place = Place(layer=layer, phase="combine")
    back = Exchange.apply(done, here, there, place, issuer)
    return torch.zeros_like(tokens).index_add(0, order, back * weight[order, None])


def functional(truth: Truth) -> None:
    """Layers are functions of tensors; there is no module."""
    truth.lifted = EVERY_OTHER
    shapes = ((HIDDEN, truth.world), (HIDDEN, 32), (32, HIDDEN))
    layers = [
        [(0.2 * torch.randn(s)).requires_grad_() for s in shapes] for _ in range(2)
    ]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer], 0.05)
    for step in range(6):
        tokens = rows = data(truth, step)
        for number, layer in enumerate(layers):
            rows = rows + sparse(truth, number, rows, *layer)
        loss = (rows - tokens.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for gate, *_ in layers:
            dist.all_reduce(gate.grad)
        optimizer.step()
        truth.stepped(loss.item())


def gpipe(truth: Truth) -> None:
    """GPipe of torch.distributed.pipelining, 2 stages, 3 micro-batches."""
    truth.lifted = EVERY_OTHER
    number, member = divmod(truth.rank, 2)
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][number]
    pipeline = [dist.new_group([0, 2]), dist.new_group([1, 3])][member]
    module = nn.Sequential(
        *(Normed(Layer(truth, 2 * number + n, group=group)) for n in range(2))
    )
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=pipeline)
    schedule = ScheduleGPipe(
        stage, n_microbatches=3, loss_fn=lambda y, t: (y - t).square().mean()
    )
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + member)
        tokens, losses = torch.randn(48, HIDDEN, generator=generator), list[Tensor]()
        if number:
            schedule.step(target=tokens, losses=losses)
        else:
            schedule.step(tokens)
        synchronize(module, group)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(sum(loss.item() for loss in losses))
