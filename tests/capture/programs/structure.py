"""Programs whose models are no plain stack of MoE layers."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tests.capture.shapes.execution import Functional
from tests.capture.shapes.moe import EXPERTS, Exchange
from tests.capture.shapes.truth import Place, Truth

from .pieces import (
    EVERY_OTHER,
    HIDDEN,
    Layer,
    Normed,
    data,
    evaluate,
    loss_of,
    stack,
    synchronize,
    train,
)


class Dropped(nn.Module):
    """Blocks, of which one is left out."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks, self.skip = nn.ModuleList(blocks), -1

    def forward(self, tokens: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            tokens = tokens if number == self.skip else block(tokens)
        return tokens


def layer_drop(truth: Truth) -> None:
    """LayerDrop: each step leaves out one layer, on all ranks."""
    truth.lifted = EVERY_OTHER
    module, choice = Dropped(*stack(truth, 4)), random.Random(3)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(9):
        module.skip = choice.randrange(4)
        train(truth, module, optimizer, data(truth, step))


class Sharded(Layer, Functional):
    """All-to-alls by functional collectives, also of the counts."""

    def exchange_counts(self, counts: Tensor) -> Tensor:
        each = [counts.nbytes // self.ranks] * self.ranks
        place, about = self.place(label="count_exchange"), {"kind": "ep"}
        self.truth.log(
            *("all_to_all", each, each),
            group=self.group,
            place=place,
            direction="forward",
            **about,
        )
        out: Tensor = functional.wait_tensor(
            functional.all_to_all_single(counts, None, None, self.group)
        )
        return out


def fully_sharded(truth: Truth) -> None:
    """FSDP2 over "dp", experts over "ep", accumulation 2, one batch of evaluation."""
    truth.lifted = EVERY_OTHER
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    group = mesh["ep"].get_group()
    module = nn.Sequential(*(Normed(Sharded(truth, n, group=group)) for n in range(3)))
    for block in module:
        assert isinstance(block, Normed)
        assert isinstance(block.mlp, Sharded)
        for expert in block.mlp.experts:
            fully_shard(expert, mesh=mesh["dp"])
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(5):
        optimizer.zero_grad()
        for m in range(2):
            tokens = data(truth, step, m)
            loss = loss_of(module(tokens), tokens)
            loss.backward()
        optimizer.step()
        truth.stepped(loss.item())
        if step == 2:
            evaluate(truth, module, data(truth, 900), reduced=False)


# ---- recommendation ------------------------------------------------------------------


class Embeddings(nn.Module):
    """Tables of four features, spread over the ranks, as torchrec does it.

    Each rank sends lengths and indices to the owner of a table, and the owner sends the
    pooled rows back.
    """

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth, self.ranks, self.features = truth, truth.world, 4 // truth.world
        self.experts = nn.ModuleList(  # one rank has them, as it has its experts
            nn.EmbeddingBag(50, HIDDEN // 4, mode="sum") for _ in range(self.features)
        )

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

    def forward(self, lengths: Tensor, indices: list[Tensor]) -> Tensor:
        ranks, features, batch = self.ranks, self.features, lengths.shape[1]
        even, place = [features] * ranks, Place()
        theirs = self.issue(lengths, even, even, place, backward=False)
        sent = lengths.view(ranks, -1).sum(1).tolist()
        received = theirs.view(ranks, -1).sum(1).tolist()
        flat = self.issue(torch.cat(indices), received, sent, place, backward=False)
        parts = flat.split(theirs.sum(1).tolist())
        pooled = [
            self.experts[n % features](part, length.cumsum(0) - length)
            for n, (part, length) in enumerate(zip(parts, theirs, strict=True))
        ]
        rows = torch.stack(pooled).view(ranks, features, batch, -1).transpose(1, 2)
        even = [batch] * ranks
        out: Tensor = Exchange.apply(
            rows.flatten(0, 1).flatten(1), even, even, place, self
        )
        return out.view(ranks, batch, -1).transpose(0, 1).flatten(1)


class Recommender(nn.Module):
    def __init__(self, truth: Truth, body: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.body = Embeddings(truth), body
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, lengths: Tensor, indices: list[Tensor]) -> Tensor:
        out: Tensor = self.out(self.body(self.embeddings(lengths, indices)))
        return out


def _recommend(truth: Truth, body: nn.Module) -> None:
    truth.lifted = EVERY_OTHER
    module = Recommender(truth, body)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for step in range(6):
        generator = torch.Generator().manual_seed(10 * step + truth.rank)
        lengths = torch.randint(0, 4, (4, 16), generator=generator)
        indices = [
            torch.randint(0, 50, (int(row.sum()),), generator=generator)
            for row in lengths
        ]
        optimizer.zero_grad()
        loss = (module(lengths, indices) - 1).square().mean()
        loss.backward()
        synchronize(module)
        optimizer.step()
        truth.stepped(loss.item())


def embeddings(truth: Truth) -> None:
    """A recommender: all-to-alls of embeddings before those of the experts."""
    _recommend(truth, stack(truth, 2))


# ---- registered routers --------------------------------------------------------------


class Gate(nn.Linear):
    """The class that the programs register as their router."""


class Registered(Layer):
    def __init__(self, truth: Truth, layer: int, **about: Any) -> None:
        super().__init__(truth, layer, **about)
        self.gate = Gate(HIDDEN, EXPERTS, bias=False)

    def dropless(self, tokens: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        counts = torch.bincount(expert.flatten(), minlength=EXPERTS)
        self.truth.routings.append((self.layer, counts.tolist()))
        return super().dropless(tokens, weight, expert)


def register() -> None:
    from moetraffic import capture

    capture.router(Gate, lambda _, output: output.topk(2).indices, experts=EXPERTS)


def embeddings_registered(truth: Truth) -> None:
    """The same, with the router registered."""
    register()
    _recommend(truth, nn.Sequential(*(Normed(Registered(truth, n)) for n in range(2))))


def pipeline_registered(truth: Truth) -> None:
    """1F1B of torch.distributed.pipelining, 2 stages, with the router registered."""
    register()
    truth.lifted = EVERY_OTHER
    number, member = divmod(truth.rank, 2)
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][number]
    pipeline = [dist.new_group([0, 2]), dist.new_group([1, 3])][member]
    module = nn.Sequential(
        *(Normed(Registered(truth, 2 * number + n, group=group)) for n in range(2))
    )
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=pipeline)
    schedule = Schedule1F1B(
        stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean()
    )
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for step in range(5):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + member)
        tokens, losses = torch.randn(64, HIDDEN, generator=generator), list[Tensor]()
        if number:
            schedule.step(target=tokens, losses=losses)
        else:
            schedule.step(tokens)
        synchronize(module, group)
        optimizer.step()
        truth.stepped(sum(loss.item() for loss in losses))
